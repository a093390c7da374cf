"""Traversals: from a point to the root, or to another point, and what is nearest on the way.

As MERU's and HyCoCLIP's own, a traversal looks at points in equal steps of the way. At each, candidates are those whose
entailment cone holds the point, and the nearest by the model's score is kept. The root, whose cone holds everything,
is a candidate too, so that it ends the list once nothing else is nearer.

Two things differ. The way between two points is the geodesic, where a straight line in the tangent space at the origin
is one only toward the root. And images and texts are kept apart: the nearest of each is listed, for in these models
images lie near images, and would leave the texts no step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyvlm.evaluation.embed import progress
from hyvlm.geometry import HasAngles, Manifold, Modality, Product, Sphere
from hyvlm.losses import HasCones, HasRadius
from hyvlm.models import DualEncoder
from hyvlm.registry import unknown
from hyvlm.retrieval.blocks import BLOCK_ROWS, as_tensor
from hyvlm.retrieval.collection import Collection

ROOT = "[ROOT]"
#: What restricts the candidates of a step besides cones: nothing, or their radius.
WAYS = ("geodesic", "radius")
MODALITIES: tuple[Modality, ...] = ("text", "image")
#: Which groups of a collection take part, in the order of their rows.
GROUPS = {"texts": ("texts",), "images": ("images",), "both": ("images", "texts")}


@dataclass(frozen=True)
class Candidates:
    """Points that may be found on the way.

    Attributes:
        points: ``(N, D)``, possibly memory-mapped.
        names: What is listed: the text itself, or the key of an image.
        kinds: "image" or "text", one a row.
    Raises:
        ValueError: If the numbers of rows differ, or a kind is another.
    """

    points: NDArray[np.floating] | Tensor
    names: Sequence[str]
    kinds: Sequence[Modality]

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or not len(self.points) == len(self.names) == len(self.kinds):
            raise ValueError(
                f"candidates are points (N, D) with a name and a kind each, got {tuple(self.points.shape)}, "
                f"{len(self.names)} names and {len(self.kinds)} kinds"
            )
        if other := set(self.kinds) - set(MODALITIES):
            raise ValueError(unknown("kind of candidate", str(min(other)), list(MODALITIES)))

    @classmethod
    def of(cls, collection: Collection, groups: str | None = None) -> Candidates:
        """Those of a collection: "texts", "images" or "both"; None is what it has. Images come first.

        Raises:
            ValueError: If there is no such group.
        """
        if groups is None:
            found = [group for group in (collection.images, collection.texts) if group is not None]
        elif groups in GROUPS:
            found = [collection.group(name) for name in GROUPS[groups]]
        else:
            raise ValueError(unknown("groups to look in", groups, list(GROUPS)))
        names: list[str] = []
        kinds: list[Modality] = []
        for group in found:
            names += group.keys if group.texts is None else group.texts
            kinds += ["image" if group.name == "images" else "text"] * len(group)
        points = found[0].points if len(found) == 1 else np.concatenate([group.points for group in found])
        return cls(points, names, kinds)

    def rows(self, name: str, kind: Modality) -> list[int]:
        """Where a name is."""
        return [row for row, (n, k) in enumerate(zip(self.names, self.kinds, strict=True)) if (n, k) == (name, kind)]

    def take(self, rows: Sequence[int] | NDArray[np.int64], like: Tensor) -> Tensor:
        """Points ``(R, D)`` of some rows, in the dtype and on the device of ``like``."""
        at = np.asarray(rows, dtype=np.int64)
        if isinstance(self.points, Tensor):
            return self.points[torch.from_numpy(at)].to(like)
        return as_tensor(self.points[at], like.device, like.dtype)


@dataclass(frozen=True)
class Step:
    """What was found at a point of the way.

    Attributes:
        t: Share of the way, 0 at the start.
        radius: Of the point of the way, in units of length; None without an origin.
        row: Of the candidate; None for the root.
        name: Of the candidate, or ``[ROOT]``.
        kind: "image", "text" or "root".
        score: The model's, of the point and the candidate; None for the root.
        distance: Between the two, in units of length.
    """

    t: float
    radius: float | None
    row: int | None
    name: str
    kind: Literal["image", "text", "root"]
    score: float | None
    distance: float


@dataclass(frozen=True)
class Traversal:
    """What lies on the way, each once, where it is met first.

    Attributes:
        steps: In the order of the way; the root, if the way leads there, is last.
        looked: At how many points of the way candidates were looked for.
        empty: At how many of these there was none, nor was the root.
        by, entailed: As asked; ``entailed`` with its default filled in.
        start_radius, end_radius: Of the ends, in units of length; None without an origin.
    """

    steps: list[Step]
    looked: int
    empty: int
    by: str
    entailed: bool
    start_radius: float | None
    end_radius: float | None


@torch.inference_mode()
def traverse(
    model: DualEncoder,
    start: Tensor,
    candidates: Candidates,
    *,
    end: Tensor | None = None,
    kind: Modality = "image",
    steps: int = 50,
    by: str = "geodesic",
    entailed: bool | None = None,
    leave_out: Sequence[int] = (),
) -> Traversal:
    """Walk from ``start`` to the root, or to ``end``, and list the nearest text and the nearest image on the way.

    Args:
        start, end: Points ``(D,)``; without an end the way leads to the root, the origin.
        kind: What the start is. The points of the way count as that for the score, where it has a direction.
        steps: Points of the way, both ends included.
        by: "geodesic", or "radius": then only candidates in the shell of a step take part, whose radius is within half
            a step, ``max(radius) / (steps - 1) / 2``, of that of the point.
        entailed: Whether the candidate's cone must hold the point of the way (in a shell, where candidates are as far
            out as that point: must hold the start or the end). None: only on a geodesic to the root.
        leave_out: Rows of candidates that are not to be found, as those of the start and the end themselves.
    Raises:
        ValueError: If there are fewer than two steps, no candidates, points of another dimension or that are not
            finite, or an option that a sphere, without root, radius and cones, does not have.
    Source: Desai et al. 2023 (MERU), section 4.4; Pal et al., ICLR 2025 (HyCoCLIP).
    """
    entailed = (end is None and by == "geodesic") if entailed is None else entailed
    _check(model.manifold, start, end, candidates, steps=steps, by=by, entailed=entailed)
    way = _Way.between(model, start, end, kind=kind, steps=steps, shells=by == "radius", entailed=entailed)
    kinds = np.asarray(candidates.kinds, dtype=object)
    kinds[list(leave_out)] = None
    hits: list[tuple[int, int, float]] = []
    for other in MODALITIES:
        rows, scores = way.nearest(candidates, np.flatnonzero(kinds == other), other)
        hits += [(step, int(rows[step]), float(scores[step])) for step in (rows >= 0).nonzero().flatten().tolist()]
    listed, seen = [], set[tuple[str, str]]()
    for step, row, score in sorted(hits, key=lambda hit: hit[0]):
        key = (candidates.kinds[row], candidates.names[row])
        if key not in seen:
            seen.add(key)
            apart = model.manifold.distance(way.points[step], candidates.take([row], way.points)[0])
            listed.append(Step(way.share(step), way.radius(step), row, key[1], key[0], score, apart.item()))
    met = {step for step, _, _ in hits}
    empty = 0 if way.root_competes else steps - len(met)
    if end is None:
        at = min(max(met, default=-1) + 1, steps - 1) if way.root_competes else steps - 1
        radius = way.radius(at)
        assert radius is not None  # _check has refused the sphere
        listed.append(Step(way.share(at), radius, None, ROOT, "root", None, radius))
        empty -= not (way.root_competes or steps - 1 in met)
    return Traversal(listed, steps, empty, by, entailed, way.radius(0), way.radius(-1))


@dataclass(frozen=True)
class _Way:
    """The points of a traversal, and what may be found at each.

    Attributes:
        points, shares: ``(S, D)``, ``(S,)``.
        radii: ``(S,)``; None on a sphere.
        kind: The modality that the points count as.
        shells: Whether candidates must be about as far out as the point.
        held: Points ``(H, D)``: a candidate's cone must hold the one of the step, or with shells any; None: no cones.
        to_root: Whether the way leads there.
    """

    model: DualEncoder
    points: Tensor
    shares: Tensor
    radii: Tensor | None
    kind: Modality
    shells: bool
    held: Tensor | None
    to_root: bool

    @classmethod
    def between(
        cls,
        model: DualEncoder,
        start: Tensor,
        end: Tensor | None,
        *,
        kind: Modality,
        steps: int,
        shells: bool,
        entailed: bool,
    ) -> _Way:
        """The geodesic to the end, or to the origin, in equal steps."""
        manifold = model.manifold
        target = torch.zeros_like(start) if end is None else end.to(start)
        shares = torch.linspace(0, 1, steps, dtype=start.dtype, device=start.device)
        points = manifold.geodesic(start, target, shares)
        radii = manifold.radius(points) if isinstance(manifold, HasRadius) else None
        ends = start.unsqueeze(0) if end is None else torch.stack([start, target])
        held = (ends if shells else points) if entailed else None
        return cls(model, points, shares, radii, kind, shells, held, end is None)

    @property
    def root_competes(self) -> bool:
        """Whether the root is a candidate: not in shells, where it is as far from all as their radius."""
        return self.to_root and not self.shells

    def share(self, step: int) -> float:
        """Of the whole way."""
        return self.shares[step].item()

    def radius(self, step: int) -> float | None:
        """In units of length."""
        return None if self.radii is None else self.radii[step].item()

    def nearest(self, candidates: Candidates, taking: NDArray[np.int64], other: Modality) -> tuple[Tensor, Tensor]:
        """Row and score of the best of the candidates ``taking``, which are of ``other``, at each point, both ``(S,)``.

        The row is -1 where none is allowed or none is nearer than the root. By an angle nothing is near the root or
        far from it: there the root is only what is left.
        """
        rows = torch.full((len(self.points),), -1, device=self.points.device)
        best = torch.full_like(self.shares, -torch.inf)
        if self.root_competes and not (self.model.by_angle and self.kind != other):
            best = self._score(torch.zeros_like(self.points[:1]), other).squeeze(-1)
        for first in progress(range(0, len(taking), BLOCK_ROWS), f"{other}s on the way", "block"):
            some = taking[first : first + BLOCK_ROWS]
            block = candidates.take(some, self.points)
            scores = self._score(block, other)
            scores = scores.masked_fill(~self._allowed(block) | scores.isnan(), -torch.inf)
            top, column = scores.max(-1)
            rows = torch.where(top > best, torch.from_numpy(some).to(rows)[column], rows)
            best = torch.maximum(best, top)
        return rows, best

    def _score(self, block: Tensor, other: Modality) -> Tensor:
        """Scores ``(S, B)`` of the points and of candidates ``(B, D)`` of the modality ``other``."""
        if self.kind == other:
            return self.model.manifold.score(self.points, block)
        if self.kind == "image":
            return self.model.score(self.points, block, by="image")
        return self.model.score(block, self.points, by="text").mT

    def _allowed(self, block: Tensor) -> Tensor:
        """Which candidates ``(B, D)`` may be found at which point, bool ``(S, B)``."""
        manifold = self.model.manifold
        allowed = torch.ones(len(self.points), len(block), dtype=torch.bool, device=block.device)
        if self.shells:
            assert isinstance(manifold, HasRadius)  # _check has refused the sphere, here and below
            assert self.radii is not None
            half = self.radii[[0, -1]].amax() / (len(self.radii) - 1) / 2
            allowed &= (manifold.radius(block) - self.radii.unsqueeze(-1)).abs() <= half
        if self.held is not None:
            assert isinstance(manifold, HasAngles)
            assert isinstance(manifold, HasCones)
            margin = manifold.half_aperture(block).unsqueeze(1) - manifold.pairwise_exterior_angle(block, self.held)
            inside = (margin.mean(-1) if isinstance(manifold, Product) else margin).mT >= 0
            allowed &= inside.any(0) if self.shells else inside
        return allowed


def _check(
    manifold: Manifold,
    start: Tensor,
    end: Tensor | None,
    candidates: Candidates,
    *,
    steps: int,
    by: str,
    entailed: bool,
) -> None:
    """Raise what :func:`traverse` says."""
    if by not in WAYS:
        raise ValueError(unknown("way", by, list(WAYS)))
    if steps < 2:
        raise ValueError(f"a traversal has at least two steps, its ends; got {steps}")
    if not len(candidates.names):
        raise ValueError("a traversal needs candidates, and there are none")
    for what, point in {"start": start, "end": end}.items():
        if point is not None and tuple(point.shape) != (candidates.points.shape[1],):
            raise ValueError(
                f"the {what} must be one point ({candidates.points.shape[1]},) as the candidates are, "
                f"got {tuple(point.shape)}"
            )
        if point is not None and not point.isfinite().all():
            raise ValueError(f"the {what} is not finite: check the model's embeddings for NaN")
    if isinstance(manifold, Sphere):
        lacks = {"root": end is None, "radius (by='radius')": by == "radius", "cones (entailed)": entailed}
        if missing := [what for what, asked in lacks.items() if asked]:
            raise ValueError(
                f"a sphere, the manifold of CLIP, has no {' and no '.join(missing)}: give an end, "
                "by='geodesic' and entailed=False"
            )
