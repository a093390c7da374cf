"""hyvlm: train, evaluate and understand hyperbolic vision-language models."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyvlm.models.pretrained import load as load

__version__ = version("hyvlm")
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":  # imports torch, timm and open_clip: seconds that `import hyvlm` should not cost
        return import_module("hyvlm.models.pretrained").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
