"""Points in blocks of rows: what is held at once is small, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Rows of candidates that are scored at once.
BLOCK_ROWS = 16_384


def as_tensor(points: NDArray[np.floating], device: torch.device | str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows, memory-mapped or not, as a tensor of its own."""
    return torch.from_numpy(np.array(points)).to(device, dtype)


def open_array(path: Path, shape: Sequence[int]) -> NDArray[np.float32]:
    """A file of numbers in float32, memory-mapped.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is cut short, or of another shape.
    """
    try:
        found: NDArray[np.float32] = np.load(path, mmap_mode="c")  # torch takes no array that cannot be written
    except FileNotFoundError:
        raise FileNotFoundError(f"'{path}' is missing; make it anew with hyvlm index") from None
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"'{path}' is cut short or not an npy file; make it anew with hyvlm index") from error
    if found.shape != tuple(shape) or found.dtype != np.float32:
        raise ValueError(
            f"'{path}' holds {found.dtype} of shape {found.shape}, not float32 {tuple(shape)}; make it anew with "
            "hyvlm index"
        )
    return found
