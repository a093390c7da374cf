"""Names and prompts of classes from data files of installed libraries, and class hierarchies that ship with hyvlm."""

from __future__ import annotations

import importlib.metadata
import json
from functools import cache
from pathlib import Path
from typing import Any

from hyvlm.errors import MissingExtra

ASSETS = Path(__file__).parent / "assets"
#: ``child parent`` lines over WordNet's synsets, which are ImageNet's ids (``scripts/make_imagenet_hierarchy.py``).
IMAGENET_HIERARCHY = ASSETS / "imagenet_hierarchy.txt"
#: The 20 superclasses of CIFAR-100's classes.
CIFAR100_SUPERCLASSES = ASSETS / "cifar100_superclasses.txt"


def readable(name: str) -> str:
    """A name in a data set's files with its underscores as spaces: "apple_pie" is "apple pie"."""
    return " ".join(name.replace("_", " ").split())


def imagenet_names() -> tuple[str, ...]:
    """OpenAI's names of the 1,000 ImageNet classes, from open_clip; two names stand for two classes each."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return tuple(IMAGENET_CLASSNAMES)


@cache
def imagenet_synsets() -> tuple[str, ...]:
    """WordNet synsets ("n01440764") of the 1,000 ImageNet classes in their order, from timm."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo().label_names())


def benchmark_names(key: str) -> tuple[str, ...]:
    """CLIP's class names of the data set that clip_benchmark calls ``key``. Raises :class:`MissingExtra`."""
    return tuple(_benchmark_file("en_classnames.json")[key])


def benchmark_prompts(key: str) -> tuple[str, ...]:
    """CLIP's prompts, ``{}`` for the class name, of the data set that clip_benchmark calls ``key``.

    Raises:
        MissingExtra: clip_benchmark is not installed.
    """
    return tuple(
        line.replace("{c}", "{}") for line in _benchmark_file("en_zeroshot_classification_templates.json")[key]
    )


@cache
def _benchmark_file(name: str) -> dict[str, Any]:
    """A data file of clip_benchmark, read without importing it: its modules ask for packages that its data do not."""
    try:
        library = importlib.metadata.distribution("clip_benchmark")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtra("CLIP's class names and prompts of this data set", "clip_benchmark", "benchmarks") from error
    path = Path(str(library.locate_file("clip_benchmark"))) / "datasets" / name
    return dict(json.loads(path.read_text(encoding="utf-8")))
