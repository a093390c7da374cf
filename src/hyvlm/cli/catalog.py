"""What ``hyvlm list`` and ``hyvlm env`` print."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import platform
from collections.abc import Mapping
from importlib import resources
from typing import Any

from hyvlm.registry import unknown

KINDS = ("methods", "recipes", "tasks", "suites", "models", "datasets", "prompts")


def first_line(entry: object) -> str:
    """The first line of an entry's docstring."""
    return (inspect.getdoc(entry) or "").partition("\n")[0]


def recipes() -> dict[str, str]:
    """Every shipped recipe with its title comment."""
    from hyvlm.config import recipe_names

    folder = resources.files("hyvlm.recipes")
    lines = {name: (folder / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0] for name in recipe_names()}
    return {name: line.lstrip("# ").partition("  Run:")[0] for name, line in lines.items()}


def models() -> dict[str, str]:
    """Every model preset with its shape, and every released model that has a name with where it lies."""
    from hyvlm.models.hub import RELEASED
    from hyvlm.models.presets import PRESETS

    def shape(image: Any, text: Any, dim: int) -> str:
        towers = f"image {image.depth} blocks of {image.width}, patch {image.patch}; text {text.depth} of {text.width}"
        return f"{towers}; embedding {dim}"

    presets = {name: shape(config.image, config.text, config.dim) for name, config in PRESETS.items()}
    released = {
        name: f"released weights: {place}; trained on {place.trained_on}; licence: {place.licence}"
        for name, place in RELEASED.items()
    }
    return presets | released


def suites() -> dict[str, str]:
    """Every shipped suite with its tables, and the folders that it looks for in a data root."""
    from hyvlm.suites.catalog import read_suites

    return {suite.name: f"{suite.title}; folders: {', '.join(suite.folders)}" for suite in read_suites("all")}


def list_entries(kind: str) -> dict[str, str]:
    """Names of one kind with a line of text each.

    Raises:
        ValueError: Unknown kind.
    """
    registry: Mapping[str, object]
    if kind == "recipes":
        return recipes()
    if kind == "suites":
        return suites()
    if kind == "models":
        return models()
    if kind == "methods":
        from hyvlm.methods import OBJECTIVES as registry
    elif kind == "tasks":
        from hyvlm.evaluation.task import TASKS as registry
    elif kind == "datasets":
        from hyvlm.data import DATASETS as registry
    elif kind == "prompts":
        from hyvlm.evaluation.tasks.classification import TEMPLATES as registry
    else:
        raise ValueError(unknown("kind", kind, list(KINDS)))
    return {name: first_line(registry[name]) for name in registry}


def environment() -> dict[str, Any]:
    """Versions and hardware, as a bug report needs them."""
    import torch

    from hyvlm.geometry.matmul import matmul_report, processor
    from hyvlm.losses.tiled_kernels import kernel_report

    packages = ["hyvlm", "torch", "torchvision", "timm", "open_clip_torch", "accelerate", "numpy", "pillow"]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "float32_products": matmul_report(),
        "kernels_of_losses": kernel_report(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
    }
