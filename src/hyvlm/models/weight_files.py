"""Files of weights that other projects wrote, read without running anything that they hold."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from hyvlm.models.convert import listed

#: Suffixes of files that may hold weights.
WEIGHT_FILES = (".pt", ".pth", ".bin", ".safetensors")

#: Entries that hold the weights in a file with more than them, and what wrappers put before every name.
_WEIGHTS_UNDER = ("model", "state_dict")
_WRAPPERS = ("module.", "_orig_mod.", "model.")

#: What training leaves beside the weights: settings, random states, counters. Nothing of it is built or called: every
#: such object is replaced by one that does nothing.
_LEFTOVERS = {"builtins.dict", "builtins.list", "builtins.int", "builtins.float", "builtins.str", "builtins.bool"}
_LEFTOVERS |= {"typing.Any", "collections.defaultdict", "argparse.Namespace", "_codecs.encode"}
_LEFTOVERS_OF = ("numpy", "omegaconf", "torch.optim", "meru", "atmg", "hycoclip", "uncha", "phyclip", "hyper3_clip")


class _Nothing:
    """Stands in for an object that is not needed."""

    def __new__(cls, *_: object) -> _Nothing:
        return super().__new__(cls)

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _no_default(*_: object) -> dict[Any, Any]:
    return {}


def read_weights(file: str | Path) -> tuple[dict[str, Tensor], list[str]]:
    """A state dict and the names of what else its file holds.

    The state dict is the file's content itself, or its entry ``model`` or ``state_dict``. Prefixes of
    DistributedDataParallel and torch.compile are taken off. Settings and random states of training are not built.

    Args:
        file: One that torch.save wrote, or a safetensors file (by its suffix).
    Raises:
        FileNotFoundError: No such file.
        ValueError: It is cut short, holds code or no weights; one line.
    """
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"no weights at '{file}'")
    content = _safetensors(file) if file.suffix == ".safetensors" else _pickled(file)
    if not isinstance(content, Mapping):
        raise ValueError(f"'{file}' holds no weights by name but a {type(content).__name__}")
    under = next((name for name in _WEIGHTS_UNDER if isinstance(content.get(name), Mapping)), None)
    others = [] if under is None else [str(key) for key in content if key != under]
    found = content if under is None else content[under]
    weights = {str(key): value for key, value in found.items() if isinstance(value, Tensor)}
    others += [str(key) for key in found if str(key) not in weights]
    if not weights:
        raise ValueError(f"'{file}' holds no weights; its entries: {listed(others) or 'none'}")
    while prefix := next((p for p in _WRAPPERS if all(key.startswith(p) for key in weights)), None):
        weights = {key.removeprefix(prefix): value for key, value in weights.items()}
    return weights, others


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"'{file}' is cut short or not a safetensors file: {error}") from error


def _pickled(file: Path) -> object:
    with file.open("rb"):
        pass  # what the system refuses is its own error; below, OSErrors come of reading past a cut
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle protocol that torch.save does not write
            names = _globals(file)
            code = [name for name in names if not _is_leftover(name)]
            if code:
                raise _HoldsCode(code)
            stand_ins = [(_no_default if name == "collections.defaultdict" else _Nothing, name) for name in names]
            with safe_globals(stand_ins):  # type: ignore[arg-type]
                return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # which one depends on what the file is instead
        found = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        code = error.names if isinstance(error, _HoldsCode) else [found[1]] if found else []
        if code:
            raise ValueError(
                f"'{file}' holds code beside weights ({listed(code)}), which is not run; save its state dict alone"
            ) from None  # torch's own text advises to run it
        raise ValueError(f"'{file}' is cut short or not a file of weights ({type(error).__name__})") from None


class _HoldsCode(Exception):
    def __init__(self, names: list[str]) -> None:
        self.names = names


def _globals(file: Path) -> list[str]:
    """Classes and functions that the file names, beyond those of weights."""
    try:
        return sorted(get_unsafe_globals_in_checkpoint(str(file)))
    except ValueError:  # not the zip that torch.save writes today: an older file, of weights and nothing else
        return []


def _is_leftover(name: str) -> bool:
    return name in _LEFTOVERS or name.startswith(tuple(f"{package}." for package in _LEFTOVERS_OF))
