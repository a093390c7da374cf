"""Which code does the element-wise work on panels: compiled by numba where that is installed, else plain torch."""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from hyvlm.losses import tiled_torch

#: Set this environment variable to "torch" to do without compiled kernels.
SWITCH = "HYVLM_KERNELS"


def kernels_for(panel: Tensor) -> ModuleType:
    """The module whose functions take this panel; all of them do the same, see :mod:`hyvlm.losses.tiled_torch`."""
    if panel.device.type == "cpu" and panel.dtype == torch.float32 and os.environ.get(SWITCH) != "torch":
        return _compiled() or tiled_torch
    return tiled_torch


def kernel_report() -> str:
    """What is active for float32 on the CPU, in one line."""
    if os.environ.get(SWITCH) == "torch":
        return f"torch ({SWITCH}=torch)"
    if _compiled() is None:
        return "torch (numba is not installed)"
    import numba  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return f"numba {numba.__version__}"


@cache
def _compiled() -> ModuleType | None:
    try:
        from hyvlm.losses import tiled_numba
    except ImportError:  # not installed, or not for this version of numpy
        return None
    return tiled_numba
