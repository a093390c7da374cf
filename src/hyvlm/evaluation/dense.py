"""Scores of texts at every pixel of an image: dense features in sliding windows, as in NACLIP's evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.v2.functional import InterpolationMode, pil_to_tensor, resize

from hyvlm.data.sets.masks import BACKGROUND
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.metrics import score_blocks
from hyvlm.evaluation.prompts import read_templates
from hyvlm.models import DualEncoder
from hyvlm.models.dense import dense_image_features
from hyvlm.registry import unknown

#: An image's long side is at most this many times the side that its short side is scaled to; longer ones are squeezed.
MAX_LONG = 6

#: What can stand for the class "background", by name.
BACKGROUNDS = {
    # what the evaluations of SCLIP and NACLIP ask for instead of the word
    "scenery": (
        *("sky", "wall", "tree", "wood", "grass", "road", "sea", "river", "mountain", "sands", "desk", "bed"),
        *("building", "cloud", "lamp", "door", "window", "wardrobe", "ceiling", "shelf", "curtain", "stair", "floor"),
        *("hill", "rail", "fence"),
    ),
    "name": (BACKGROUND,),
}


def read_background(name: str) -> tuple[str, ...]:
    """The names that stand for the background: a list of :data:`BACKGROUNDS`, or the lines of the file at that path.

    Raises:
        FileNotFoundError: No known list, and it reads as the path of a file that does not exist.
        ValueError: Neither a known list nor a file, or an empty file.
    """
    if name in BACKGROUNDS:
        return BACKGROUNDS[name]
    if not Path(name).is_file():
        if "/" in name or name.endswith(".txt"):
            raise FileNotFoundError(f"background file {name} does not exist; or name a list: {', '.join(BACKGROUNDS)}")
        raise ValueError(unknown("list of backgrounds", name, list(BACKGROUNDS), "A file of one a line will do, too"))
    lines = tuple(line.strip() for line in Path(name).read_text(encoding="utf-8").splitlines() if line.strip())
    if not lines:
        raise ValueError(f"{name}: no name in this file; expected one a line, such as 'sky'")
    return lines


@dataclass(frozen=True)
class Queries:
    """Texts that are looked for in an image, some of which stand for the same class.

    Attributes:
        names: Q names.
        points: What ``model.class_score`` takes, a row for each name.
        owner: ``(Q,)`` int64, the class of each.
    """

    names: list[str]
    points: Tensor
    owner: Tensor

    def by_class(self, scores: Tensor) -> Tensor:
        """The best score of a class's names, ``(C, H, W)``, from those of all names, ``(Q, H, W)``."""
        return torch.stack([scores[self.owner == k].amax(0) for k in range(int(self.owner.max()) + 1)])


def class_queries(embedder: Embedder, classes: Sequence[str], *, templates: str, background: str) -> Queries:
    """A query for each class, and one for each name of the list ``background`` where the first class is that."""
    names_of = [read_background(background) if k == 0 and c == BACKGROUND else (c,) for k, c in enumerate(classes)]
    names = [name for names in names_of for name in names]
    owner = torch.tensor([k for k, names in enumerate(names_of) for _ in names], device=embedder.device)
    return Queries(names, embedder.class_points(names, read_templates(templates)), owner)


@runtime_checkable
class HasOrigin(Protocol):
    """A manifold on which points can be moved away from an origin: all but the sphere."""

    def lift(self, features: Tensor) -> Tensor: ...

    def logmap0(self, x: Tensor) -> Tensor: ...


def extrapolate(model: DualEncoder, points: Tensor, factor: float) -> Tensor:
    """Points ``(..., D)`` moved along their geodesics from the origin, to ``factor`` times their distance from it.

    Points of a product move in every factor; beyond the bound of the manifold's lift none goes.

    Raises:
        ValueError: The factor is not positive, or there is no origin and the factor is not 1.
    """
    if not 0 < factor < float("inf"):
        raise ValueError(f"extrapolation must be a positive number, got {factor:g}")
    if factor == 1:
        return points
    manifold = model.manifold
    if not isinstance(manifold, HasOrigin):
        raise ValueError(f"the {type(manifold).__name__.lower()} has no origin to extrapolate from: use 1 or auto")
    return manifold.lift(factor * manifold.logmap0(points))


@dataclass(frozen=True)
class DensePoints:
    """Points of the patches of an image's windows.

    Attributes:
        points: ``(W, rows, columns, D)``.
        starts: Upper and left edge of each of the W windows, in pixels.
        window: Side of the windows in pixels.
        size: Height and width of the image that they cover, in pixels.
    """

    points: Tensor
    starts: list[tuple[int, int]]
    window: int
    size: tuple[int, int]

    def scores(self, model: DualEncoder, queries: Tensor, size: tuple[int, int]) -> Tensor:
        """Scores of the queries at every pixel of the image brought to ``size`` (height, width): ``(Q, H, W)``.

        Patches' scores are interpolated to the window, averaged where windows overlap, and interpolated to ``size``,
        bilinearly.
        """
        by_patch = torch.cat([part for _, part in score_blocks(model.class_score, self.points.flatten(0, 2), queries)])
        maps = by_patch.unflatten(0, self.points.shape[:3]).permute(0, 3, 1, 2)
        total = maps.new_zeros(maps.shape[1], *self.size)
        count = maps.new_zeros(self.size)
        for (top, left), one in zip(self.starts, maps, strict=True):
            place = slice(top, top + self.window), slice(left, left + self.window)
            total[:, *place] += interpolate(one[None], (self.window, self.window), mode="bilinear")[0]
            count[place] += 1
        return interpolate((total / count)[None], size, mode="bilinear")[0]


def window_starts(length: int, window: int, stride: int) -> list[int]:
    """First pixels of windows that cover ``length``; the last one ends where the image ends."""
    last = length - window
    return [*range(0, last, stride), last]


def dense_points(embedder: Embedder, image: Image.Image, *, side: int, resize_by: str) -> DensePoints:
    """Encode an image in windows of the model's own size that overlap by half.

    Args:
        side: What the image's short side is scaled to ("crop"), or both sides ("squash"), in pixels. Windows are not
            larger.
    """
    short = min(image.size)
    width, height = (min(round(side * n / short), MAX_LONG * side) if resize_by == "crop" else side for n in image.size)
    scaled = resize(image.convert("RGB"), [height, width], InterpolationMode.BICUBIC, antialias=True)
    pixels = pil_to_tensor(scaled)
    window = min(side, embedder.image_size)
    stride = max(1, window // 2)
    starts = [(y, x) for y in window_starts(height, window, stride) for x in window_starts(width, window, stride)]
    windows = torch.stack([pixels[:, y : y + window, x : x + window] for y, x in starts])
    model = embedder.model
    batches = windows.split(embedder.batch_size)
    points = torch.cat([model.lift_image(dense_image_features(model, batch.to(embedder.device))) for batch in batches])
    rows = window // model.image_tower.patch
    return DensePoints(points.unflatten(1, (rows, rows)), starts, window, (height, width))
