"""The built-in data set: drawn scenes with captions, grounded parts, masks, label sets, hard negatives and a taxonomy.

It needs no files. ``open_data("scenes")`` or ``open_data("scenes:4000")`` (4,000 training scenes) opens it; validation
and test hold 500 scenes each, and no scene of one split shares its description with one of another. ``scenes-long`` has
the same images with a short and a long description each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import NotOffered
from hyvlm.data.sets.masks import BACKGROUND
from hyvlm.data.sets.scenes.drawing import CANVAS, render
from hyvlm.data.sets.scenes.long import LongTexts, long_texts
from hyvlm.data.sets.scenes.text import Wording
from hyvlm.data.sets.scenes.world import (
    COLOURS,
    LEAF_CLASSES,
    MATERIALS,
    ROOT,
    SCENES_VERSION,
    SHAPES,
    SIZES,
    SPLITS,
    TAXONOMY,
    HardNegative,
    Relation,
    Scene,
    SceneObject,
    Stream,
    draw_objects,
    objects_in,
    relate,
    seed_of,
)
from hyvlm.registry import unknown
from hyvlm.types import Part, Sample

__all__ = [
    "CANVAS",
    "COLOURS",
    "LEAF_CLASSES",
    "MATERIALS",
    "ROOT",
    "SCENES_VERSION",
    "SHAPES",
    "SIZES",
    "SPLITS",
    "TAXONOMY",
    "HardNegative",
    "LongScenePairs",
    "LongTexts",
    "Relation",
    "Scene",
    "SceneCrops",
    "SceneLabels",
    "SceneMasks",
    "SceneNegatives",
    "SceneObject",
    "ScenePairs",
    "SceneTexts",
    "crop_box",
    "describe_scene",
    "long_texts",
    "nearest_neighbour_accuracy",
    "open_scenes",
    "open_scenes_long",
    "render",
]

_COUNTS = {"train": 10_000, "val": 500, "test": 500}
_MARGIN = 0.25  # greatest margin around a part, on either side, as a share of its longer side
_LEAF_INDEX = {name: i for i, name in enumerate(LEAF_CLASSES)}


def describe_scene(index: int, split: str = "train") -> Scene:
    """Scene ``index`` of ``split``, without pixels; the same arguments always give the same scene.

    Raises:
        ValueError: If ``split`` is unknown or ``index`` is negative.
    """
    _check_split(split)
    if index < 0:
        raise ValueError(f"index of a scene must not be negative, got {index}")
    objects = draw_objects(split, index)
    relations = relate(objects)
    wording = Wording(Stream(*seed_of(split, index, 1)), len(objects))
    return Scene(
        split=split,
        index=index,
        objects=objects,
        relations=relations,
        captions=wording.captions(objects, relations),
        phrases=wording.phrases(objects),
        labels=tuple(sorted(_LEAF_INDEX[o.leaf] for o in objects)),
        hard_negatives=wording.hard_negatives(objects, relations),
    )


def crop_box(scene: Scene, k: int, mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Square window around the visible pixels of object ``k``, with a random margin and shift, inside the image.

    Args:
        scene: Seeds the margin.
        k: Which object.
        mask: Its visible pixels, ``(H, H)``.
    Returns:
        x0, y0, x1, y1 in pixels, the last two exclusive.
    """
    stream = Stream(*seed_of(scene.split, scene.index, 3), k)
    (x0, x1), (y0, y1) = _extent(mask, axis=0), _extent(mask, axis=1)
    longer = max(x1 - x0, y1 - y0)
    margin = stream.uniform(0.03, _MARGIN) * longer
    side = min(round(longer + 2 * margin), len(mask))
    left, top = (
        min(max(round((low + high - side) / 2 + stream.uniform(-margin, margin)), 0), len(mask) - side)
        for low, high in ((x0, x1), (y0, y1))
    )
    return left, top, left + side, top + side


def _extent(mask: NDArray[np.bool_], axis: int) -> tuple[int, int]:
    """First place with a true pixel along the other axis, and one past the last."""
    line = np.any(mask, axis=axis)
    return int(line.argmax()), len(line) - int(line[::-1].argmax())


@lru_cache(maxsize=16)
def _drawn(split: str, index: int) -> tuple[Scene, Image.Image, tuple[Image.Image, ...]]:
    """A scene, its image and a crop of every object; the last few are kept: crops of one scene are read in a row."""
    scene = describe_scene(index, split)
    image, masks = render(scene)
    return scene, image, tuple(image.crop(crop_box(scene, k, mask)) for k, mask in enumerate(masks))


class _Scenes(SampleSet):
    """What all contents share.

    Args:
        split: "train", "val" or "test".
        count: Number of scenes.
    Attributes:
        image_fingerprint: Hash of the images alone: equal for two sets that hold the same images in the same order.
    """

    content: str
    variant: str = ""
    images_of: str = "whole"

    def __init__(self, split: str, count: int, name: str = "scenes") -> None:
        _check_split(split)
        self.name, self.split, self.count = name, split, count
        self.image_fingerprint = _digest(self.images_of, split, count)
        self.fingerprint = _digest(self.variant + self.content, split, count)

    def __len__(self) -> int:
        return self.count

    def _check_index(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {self.name}, which has {len(self)}")
        return index

    @staticmethod
    def _texts(scene: Scene) -> list[str]:
        return list(scene.captions)


class _LongScenes(_Scenes):
    """A short and a long text in place of the captions."""

    variant = "long "

    @staticmethod
    def _texts(scene: Scene) -> list[str]:
        texts = long_texts(scene)
        return [texts.short, texts.long]


class ScenePairs(_Scenes):
    """Whole images with captions from short to long; every object is a part with a phrase. Labels are leaf classes."""

    content = "pairs"
    classes = LEAF_CLASSES
    parents: Mapping[str, str] = TAXONOMY

    def __getitem__(self, index: int) -> Sample:
        scene, image, crops = _drawn(self.split, self._check_index(index))
        return Sample(
            key=f"scene-{self.split}-{index:06d}",
            image=image.copy(),
            texts=self._texts(scene),
            parts=[Part(crop.copy(), phrase) for crop, phrase in zip(crops, scene.phrases, strict=True)],
            labels=list(scene.labels),
        )


class SceneLabels(_Scenes):
    """The images of :class:`ScenePairs` with the set of leaf classes that each one shows."""

    content = "labels"
    classes = LEAF_CLASSES
    parents: Mapping[str, str] = TAXONOMY

    def __getitem__(self, index: int) -> Sample:
        scene, image, _ = _drawn(self.split, self._check_index(index))
        return Sample(key=f"scene-{self.split}-{index:06d}", image=image.copy(), labels=list(scene.labels))


class SceneMasks(_Scenes):
    """The images of :class:`ScenePairs` with the leaf class of every pixel; 0 is the background."""

    content = "masks"
    classes = (BACKGROUND, *LEAF_CLASSES)

    def __getitem__(self, index: int) -> Sample:
        scene = describe_scene(self._check_index(index), self.split)
        image, shown = render(scene)
        mask = np.zeros(shown.shape[1:], dtype=np.uint8)
        for one, pixels in zip(scene.objects, shown, strict=True):
            mask[pixels] = 1 + _LEAF_INDEX[one.leaf]
        return Sample(f"scene-{self.split}-{index:06d}", image, mask=Image.fromarray(mask))


class SceneCrops(_Scenes):
    """Every object of every scene as an image of its own, with one leaf class."""

    content = "classes"
    images_of = "crops"
    classes = LEAF_CLASSES
    parents: Mapping[str, str] = TAXONOMY

    def __init__(self, split: str, count: int, name: str = "scenes") -> None:
        super().__init__(split, count, name)
        self._places = [(i, k) for i in range(count) for k in range(objects_in(i))]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Sample:
        which, k = self._places[self._check_index(index)]
        scene, _, crops = _drawn(self.split, which)
        return Sample(
            key=f"scene-{self.split}-{which:06d}-{k}",
            image=crops[k].copy(),
            labels=[_LEAF_INDEX[scene.objects[k].leaf]],
        )


class SceneTexts(_Scenes):
    """The captions of :class:`ScenePairs` without the images, which are not drawn."""

    content = "texts"

    def __getitem__(self, index: int) -> Sample:
        scene = describe_scene(self._check_index(index), self.split)
        return Sample(f"scene-{self.split}-{index:06d}", None, texts=self._texts(scene))


class SceneNegatives(_Scenes):
    """Whole images with one true caption and those made false by one swap; three samples a scene.

    Classes are the three captions: of two related objects, of the list of all objects, the full one.
    """

    content = "negatives"
    images_of = "whole, three times"
    classes = ("relation", "list", "full")

    def __len__(self) -> int:
        return 3 * self.count

    def __getitem__(self, index: int) -> Sample:
        which, label = divmod(self._check_index(index), 3)
        scene, image, _ = _drawn(self.split, which)
        return Sample(
            key=f"scene-{self.split}-{which:06d}-{self.classes[label]}",
            image=image.copy(),
            texts=[scene.captions[label + 1]],
            labels=[label],
            negatives=[n.text for n in scene.hard_negatives if n.caption == label + 1],
        )


class LongScenePairs(_LongScenes, ScenePairs):
    """As :class:`ScenePairs`, with two ``texts``: the long description's first sentence, and all of it."""


class _LongSceneTexts(_LongScenes, SceneTexts):
    pass


class _LongSceneNegatives(_LongScenes):
    """Whole images with the long description and up to five false ones."""

    content = "negatives"

    def __getitem__(self, index: int) -> Sample:
        scene, image, _ = _drawn(self.split, self._check_index(index))
        texts = long_texts(scene)
        key = f"scene-{self.split}-{index:06d}"
        return Sample(key, image.copy(), texts=[texts.long], negatives=list(texts.negatives))


@DATASETS.register("scenes")
def open_scenes(location: str = "", *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """Open the built-in scenes.

    Args:
        location: Empty, or the number of training scenes (10,000 if empty).
        split: "train", "val" or "test" (500 scenes each); None is "test".
        content: "pairs", "classes" (crops of single objects), "labels", "texts", "negatives" or "masks".
    Raises:
        ValueError: If one of them is none of these.
    """
    kinds = (ScenePairs, SceneCrops, SceneLabels, SceneTexts, SceneNegatives, SceneMasks)
    return _open("scenes", kinds, location, split, content)


@DATASETS.register("scenes-long")
def open_scenes_long(location: str = "", *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """Open the built-in scenes with a short and a long text each.

    Args:
        location, split: As of :func:`open_scenes`.
        content: "pairs", "texts" or "negatives".
    Raises:
        ValueError: If one of them is none of these.
    """
    return _open("scenes-long", (LongScenePairs, _LongSceneTexts, _LongSceneNegatives), location, split, content)


def _open(name: str, kinds: Sequence[type[_Scenes]], location: str, split: str | None, content: str) -> SampleSet:
    offered = {kind.content: kind for kind in kinds}
    if content not in offered:
        raise NotOffered(unknown("content", content, list(offered)))
    split = split or "test"
    _check_split(split)
    if location and not (location.isascii() and location.isdigit() and int(location) > 0):
        raise ValueError(f"{name}:{location}: what follows is the number of training scenes, a positive whole number")
    count = int(location) if location and split == "train" else _COUNTS[split]
    return offered[content](split, count, f"{name}:{location}" if location else name)


def nearest_neighbour_accuracy(train: SampleSet, test: SampleSet, *, size: int = 32) -> float:
    """Share of test images whose nearest training image in raw pixels has their class: what needs no understanding.

    Args:
        train, test: Sets with content "classes" over the same classes.
        size: Side that every image is squashed to; the distance is Euclidean over its RGB values.
    """
    (known, classes), (asked, truth) = _pixels(train, size), _pixels(test, size)
    half_norms = torch.linalg.vector_norm(known, dim=1).square() / 2
    nearest = torch.cat([(part @ known.T - half_norms).argmax(1) for part in asked.split(1024)])
    return float((classes[nearest] == truth).double().mean())


def _pixels(samples: SampleSet, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All images as rows in [-0.5, 0.5], ``(N, 3 * size * size)``, and their classes, ``(N,)``."""
    rows = np.empty((len(samples), size * size * 3), dtype=np.uint8)
    classes = torch.empty(len(samples), dtype=torch.long)
    for i in range(len(samples)):
        sample = samples[i]
        rows[i] = np.asarray(sample.picture.resize((size, size), Image.Resampling.BICUBIC)).reshape(-1)
        classes[i] = sample.labels[0]
    return torch.from_numpy(rows).float().div_(255).sub_(0.5), classes


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(unknown("split of scenes", split, list(SPLITS)))


def _digest(*facts: object) -> str:
    return hashlib.sha256(repr(("scenes", SCENES_VERSION, CANVAS, *facts)).encode()).hexdigest()[:16]
