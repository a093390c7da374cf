"""What a built-in scene is: its vocabulary, taxonomy, objects and relations, and how they are drawn by lot.

Every decision here uses raw 64-bit draws of PCG64 and +, -, *, / on doubles only, so one scene is the same on every
platform and under every numpy version. Coordinates are fractions of the canvas: x to the right, y down.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

import numpy as np

T = TypeVar("T")

#: Raise it when any pixel or word of any scene changes: fingerprints, and with them cached embeddings, depend on it.
SCENES_VERSION = 1

COLOURS = ("red", "yellow", "green", "blue")
MATERIALS = ("metal", "rubber")
FAMILIES = {
    "cube": "polyhedron",
    "pyramid": "polyhedron",
    "star": "polyhedron",
    "ball": "curved solid",
    "ring": "curved solid",
}
SHAPES = tuple(FAMILIES)
#: Radius of an object's bounding circle, as a fraction of the canvas, by the word for its size.
RADII = {"small": (0.115, 0.14), "large": (0.18, 0.22)}
SIZES = tuple(RADII)
ROOT = "solid"

LEAF_CLASSES = tuple(f"{c} {m} {s}" for s in SHAPES for m in MATERIALS for c in COLOURS)
#: Child to parent: "red metal cube" -> "metal cube" -> "cube" -> "polyhedron" -> "solid", the root.
TAXONOMY: dict[str, str] = {
    **{leaf: leaf.split(" ", 1)[1] for leaf in LEAF_CLASSES},
    **{f"{m} {s}": s for s in SHAPES for m in MATERIALS},
    **FAMILIES,
    **dict.fromkeys(FAMILIES.values(), ROOT),
}

SPLITS = ("train", "val", "test")
OPPOSITE = {"left of": "right of", "above": "below", "behind": "in front of"}
OPPOSITE |= {b: a for a, b in OPPOSITE.items()}

#: A scene belongs to the split whose share its signature's hash falls into, so no two splits can share one.
_SHARES = {"train": (0, 2), "val": (2, 3), "test": (3, 4)}
_CLOSEST = 0.45  # least distance of two centres, in sums of their radii
_OVERLAPPING = 0.55  # nearer than this, one object is said to be in front of the other
_LEAST_VISIBLE = 0.58  # share of the points below that must lie outside the circle of every later object
_DISC = [
    (x / 4, y / 4) for x in range(-4, 5) for y in range(-4, 5) if x * x + y * y <= 16
]  # 49 points in the unit disc


class Stream:
    """Uniform draws whose values numpy guarantees: the raw output of a bit generator, not of its distributions."""

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed))
        self._pool: list[float] = []

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        if not self._pool:
            self._pool = ((self._bits.random_raw(64) >> np.uint64(11)) * 2.0**-53).tolist()
        return low + (high - low) * self._pool.pop()

    def below(self, n: int) -> int:
        """A whole number from 0 to ``n - 1``."""
        return int(self.uniform() * n)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


@dataclass(frozen=True)
class SceneObject:
    """One object. ``center`` and ``radius`` give the circle that holds its whole silhouette."""

    shape: str
    colour: str
    material: str
    size: str
    center: tuple[float, float]
    radius: float

    @property
    def leaf(self) -> str:
        """Its leaf class, one of ``LEAF_CLASSES``."""
        return f"{self.colour} {self.material} {self.shape}"

    @property
    def box(self) -> tuple[float, float, float, float]:
        """x0, y0, x1, y1 of the bounding circle; the silhouette may be smaller."""
        (x, y), r = self.center, self.radius
        return x - r, y - r, x + r, y + r

    @property
    def place(self) -> str:
        """The cell of a 3 x 3 grid that the centre lies in, in words."""
        column, row = (("low", "mid", "high")[(v >= 0.4) + (v > 0.6)] for v in self.center)
        vertical = {"low": "top", "mid": "", "high": "bottom"}[row]
        horizontal = {"low": "left", "mid": "", "high": "right"}[column]
        if not vertical:
            return f"on the {horizontal}" if horizontal else "in the middle"
        return f"at the {vertical} {horizontal}".rstrip()


@dataclass(frozen=True)
class Relation:
    """``objects[subject]`` is ``name`` ("left of", "in front of", ...) ``objects[object]``."""

    subject: int
    name: str
    object: int


@dataclass(frozen=True)
class HardNegative:
    """A caption with one swap that makes it false of the scene.

    Attributes:
        kind: "colour" or "material" (exchanged between two objects) or "relation" (turned round).
        caption: Index of the true caption that it was made from.
        text: The false caption.
    """

    kind: str
    caption: int
    text: str


@dataclass(frozen=True)
class Scene:
    """A scene without its pixels.

    Attributes:
        split, index: Where it stands; together with the version they seed everything.
        objects: From back to front; a later object hides what it covers of an earlier one. Leaf classes differ.
        relations: One for every pair of objects.
        captions: True descriptions from short to long; the last one mentions every object with every attribute.
        phrases: One for each object.
        labels: Leaf classes in the scene, sorted indices of ``LEAF_CLASSES``.
        hard_negatives: False captions.
    """

    split: str
    index: int
    objects: tuple[SceneObject, ...]
    relations: tuple[Relation, ...]
    captions: tuple[str, ...]
    phrases: tuple[str, ...]
    labels: tuple[int, ...]
    hard_negatives: tuple[HardNegative, ...]

    @property
    def signature(self) -> tuple[str, ...]:
        """What the scene shows, whatever the order and the nuisance; scenes of two splits never share it."""
        return signature(self.objects)


def seed_of(split: str, index: int, purpose: int) -> tuple[int, ...]:
    """Seed of the stream for one ``purpose`` of one scene.

    0 layout, 1 words, 2 pixels, 3 crops, 4 long texts, 5 layout of the scenes of one large object.
    """
    return SCENES_VERSION, SPLITS.index(split), index, purpose


def objects_in(index: int) -> int:
    """Number of objects in scene ``index``: 2, 3, 4, 5 in turn, so that parts are counted without drawing a scene."""
    return 2 + index % 4


def signature(objects: Sequence[SceneObject]) -> tuple[str, ...]:
    return tuple(sorted(f"{o.size} {o.leaf} {o.place}" for o in objects))


def draw_objects(split: str, index: int) -> tuple[SceneObject, ...]:
    """The objects of one scene, from back to front, drawn until they are legible and belong to ``split``."""
    stream = Stream(*seed_of(split, index, 0))
    while True:
        objects = place_objects(stream, objects_in(index))
        if objects is None or not (swaps(objects, "colour") or swaps(objects, "material")):
            continue
        if split_of(signature(objects)) == split:
            return objects


def split_of(description: Sequence[str]) -> str:
    """The split that a scene of this :func:`signature` belongs to."""
    share = zlib.crc32("; ".join(description).encode()) % 4
    return next(split for split, (first, end) in _SHARES.items() if first <= share < end)


def place_objects(stream: Stream, count: int, *, sizes: Sequence[str] | None = None) -> tuple[SceneObject, ...] | None:
    """``count`` objects of different leaf classes, each visible enough; None if a place was not found.

    Args:
        sizes: The words for the sizes of the objects, from back to front; None draws them.
    """
    placed: list[SceneObject] = []
    for _ in range(12 * count):
        size = stream.choice(SIZES) if sizes is None else sizes[len(placed)]
        radius = stream.uniform(*RADII[size])
        new = SceneObject(
            shape=stream.choice(SHAPES),
            colour=stream.choice(COLOURS),
            material=stream.choice(MATERIALS),
            size=size,
            center=(stream.uniform(radius, 1 - radius), stream.uniform(radius, 1 - radius)),
            radius=radius,
        )
        if any(new.leaf == o.leaf or near(new, o, _CLOSEST) for o in placed):
            continue
        if all(_visible(o, [*placed[i + 1 :], new]) >= _LEAST_VISIBLE for i, o in enumerate(placed)):
            placed.append(new)
        if len(placed) == count:
            return tuple(placed)
    return None


def near(a: SceneObject, b: SceneObject, reach: float) -> bool:
    """Whether the centres are nearer than ``reach`` times the sum of the radii."""
    dx, dy, limit = a.center[0] - b.center[0], a.center[1] - b.center[1], reach * (a.radius + b.radius)
    return dx * dx + dy * dy < limit * limit


def _visible(o: SceneObject, later: Sequence[SceneObject]) -> float:
    """Share of the disc of ``o`` outside the discs of ``later``: an estimate that no rendering is needed for."""
    covers = [
        ((f.center[0] - o.center[0]) / o.radius, (f.center[1] - o.center[1]) / o.radius, (f.radius / o.radius) ** 2)
        for f in later
        if near(o, f, 1.0)
    ]
    if not covers:
        return 1.0
    return sum(all((x - u) ** 2 + (y - v) ** 2 > q for u, v, q in covers) for x, y in _DISC) / len(_DISC)


def swaps(objects: Sequence[SceneObject], attribute: str) -> list[tuple[int, int]]:
    """Pairs of objects that name a leaf class not in the scene if ``attribute`` (colour, material) is exchanged."""
    present = {(o.colour, o.material, o.shape) for o in objects}
    pairs = []
    for (i, a), (j, b) in combinations(enumerate(objects), 2):
        if attribute == "colour":
            named = {(b.colour, a.material, a.shape), (a.colour, b.material, b.shape)}
        else:
            named = {(a.colour, b.material, a.shape), (b.colour, a.material, b.shape)}
        if not named <= present:
            pairs.append((i, j))
    return pairs


def swapped(a: SceneObject, b: SceneObject, attribute: str) -> tuple[SceneObject, SceneObject]:
    """``a`` and ``b`` with their values of ``attribute`` exchanged."""
    return replace(a, **{attribute: getattr(b, attribute)}), replace(b, **{attribute: getattr(a, attribute)})


def relate(objects: Sequence[SceneObject]) -> tuple[Relation, ...]:
    """One relation for every pair: depth where the two overlap clearly, else along the axis that parts them more."""
    relations = []
    for i, j in combinations(range(len(objects)), 2):
        a, b = objects[i], objects[j]
        dx, dy = b.center[0] - a.center[0], b.center[1] - a.center[1]
        if near(a, b, _OVERLAPPING):
            name = "behind"
        elif abs(dx) >= abs(dy):
            name = "left of" if dx > 0 else "right of"
        else:
            name = "above" if dy > 0 else "below"
        relations.append(Relation(i, name, j))
    return tuple(relations)
