"""Prompt sets for zero-shot classification, by name or from a file. ``{}`` stands for the class name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hyvlm.data.catalog import SampleSet
from hyvlm.data.class_names import benchmark_prompts
from hyvlm.data.sets.zoo import ZOO
from hyvlm.registry import Registry, unknown

TEMPLATES: Registry[Callable[[], tuple[str, ...]]] = Registry("prompt set")


@TEMPLATES.register("photo")
def photo() -> tuple[str, ...]:
    """One prompt: "a photo of a {}."."""
    return ("a photo of a {}.",)


@TEMPLATES.register("plain")
def plain() -> tuple[str, ...]:
    """Three prompts without a medium: "a {}.", "the {}.", "one {}."; for renderings and for phrases that name parts."""
    return ("a {}.", "the {}.", "one {}.")


@TEMPLATES.register("name")
def name() -> tuple[str, ...]:
    """The class name alone."""
    return ("{}",)


@TEMPLATES.register("official:food101")
def official_food101() -> tuple[str, ...]:
    """MERU's and HyCoCLIP's prompts for Food-101: "food : {}.", "food porn : {}."."""
    return ("food : {}.", "food porn : {}.")


@TEMPLATES.register("official:cub")
def official_cub() -> tuple[str, ...]:
    """MERU's and HyCoCLIP's prompts for CUB-200: "bird pics : {}.", "birding : {}.", and two more."""
    return ("bird pics : {}.", "birding : {}.", "birds : {}.", "bird photography : {}.")


@TEMPLATES.register("official:flowers102")
def official_flowers102() -> tuple[str, ...]:
    """MERU's and HyCoCLIP's prompt for Flowers-102: "flowers : {}."."""
    return ("flowers : {}.",)


@TEMPLATES.register("openai")
def openai() -> tuple[str, ...]:
    """CLIP's prompts for the data set at hand (openai:NAME), else the 80 of its ImageNet evaluation, from open_clip."""
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES

    return tuple(template("{}") for template in OPENAI_IMAGENET_TEMPLATES)


def _openai_for(key: str, title: str) -> Callable[[], tuple[str, ...]]:
    def prompts() -> tuple[str, ...]:
        return benchmark_prompts(key)

    prompts.__doc__ = f"CLIP's prompts for {title}, from clip_benchmark."
    return prompts


for _name, _kind in ZOO.items():
    if _kind.prompts and _name != "imagenet":
        TEMPLATES.register(f"openai:{_name}")(_openai_for(_kind.prompts, _kind.title))


def prompts_for(name: str, samples: SampleSet) -> str:
    """The prompt set that ``name`` stands for on these samples: "openai" on CIFAR-10 is "openai:cifar10".

    A family of prompt sets ("openai", "official") has one for each of some data sets; other names stay as they are.
    """
    own = f"{name}:{samples.name.partition(':')[0]}"
    return own if own in TEMPLATES else name


def read_templates(name: str) -> tuple[str, ...]:
    """The prompt set called ``name``, or the lines of the file at that path.

    Raises:
        FileNotFoundError: No known name, and it reads as the path of a file that does not exist.
        ValueError: Neither a known name nor a file; or a line that does not hold ``{}`` exactly once.
    """
    if name in TEMPLATES:
        return TEMPLATES[name]()
    if not Path(name).is_file():
        if "/" in name or os.sep in name or name.endswith(".txt"):
            raise FileNotFoundError(f"prompt file {name} does not exist; or name a set: {', '.join(TEMPLATES)}")
        raise ValueError(unknown("prompt set", name, TEMPLATES, "A file with one template a line will do, too"))
    lines = [line.strip() for line in Path(name).read_text(encoding="utf-8").splitlines()]
    for number, line in enumerate(lines, start=1):
        if line and line.count("{}") != 1:
            raise ValueError(
                f"{name}:{number}: a template holds {{}} exactly once, where the class name goes, got {line!r}"
            )
    templates = tuple(line for line in lines if line)
    if not templates:
        raise ValueError(f"{name}: no template in this file; expected one a line, as 'a photo of a {{}}.'")
    return templates


def hash_lines(lines: Sequence[str]) -> str:
    """Hash of a list of texts in its order; class lists and prompt sets are told apart by it."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
