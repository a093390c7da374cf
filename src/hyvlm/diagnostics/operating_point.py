"""Where on its manifold a model works: how far out in units of the radius of curvature, and with what cones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hyvlm.diagnostics.radii import quantiles
from hyvlm.geometry import Lorentz, Manifold, ProductLorentz
from hyvlm.losses import HasCones


@dataclass(frozen=True)
class OperatingPoint:
    """Of the points of one view.

    Attributes:
        count: How many points.
        extent: Quantiles of ``sqrt(c) |x_space|``, far below 1 where space is nearly flat; of a product of every
            factor with its own ``c``, pooled. None on a manifold without a curvature.
        saturated: Share of the cones that are half-spaces at their widest, of a product over points and factors. None
            on a manifold without cones.
        effective_rank: See :func:`effective_rank`; of tangent vectors at the origin, on the sphere of the points.
    """

    view: str
    count: int
    extent: dict[str, float] | None
    saturated: float | None
    effective_rank: float


def operating_point(manifold: Manifold, view: str, points: Tensor) -> OperatingPoint:
    """Of the points ``(N, D)`` of a view, whose coordinates are finite.

    Raises:
        ValueError: Fewer than two points.
    """
    logmap0 = getattr(manifold, "logmap0", None)
    return OperatingPoint(
        view=view,
        count=len(points),
        extent=quantiles(scaled_norms(manifold, points)) if isinstance(manifold, Lorentz | ProductLorentz) else None,
        saturated=float(manifold.saturated(points).double().mean()) if isinstance(manifold, HasCones) else None,
        effective_rank=effective_rank(points if logmap0 is None else logmap0(points)),
    )


def operating_points(manifold: Manifold, points: Mapping[str, Tensor]) -> list[OperatingPoint]:
    """The operating point of every view."""
    return [operating_point(manifold, view, rows) for view, rows in points.items()]


@torch.no_grad()
def scaled_norms(manifold: Lorentz | ProductLorentz, points: Tensor) -> Tensor:
    """``sqrt(c) |x_space|`` of points ``(N, D)``, without a unit: ``(N,)``, of a product per factor ``(N, F)``."""
    blocks = manifold.split(points) if isinstance(manifold, ProductLorentz) else points
    return manifold.c.double().sqrt() * torch.linalg.vector_norm(blocks.double(), dim=-1)


@torch.no_grad()
def effective_rank(vectors: Tensor) -> float:
    """In how many directions vectors ``(N, D)`` spread: exp of the entropy of their normalised singular values.

    The vectors are centred first, so it is at most ``min(N - 1, D)``: with fewer samples than dimensions it tells
    little of the model. Singular values below the rounding of the vectors count as zero; 0 if all are.

    Raises:
        ValueError: Fewer than two vectors.
    Source: Roy and Vetterli 2007, *The effective rank: a measure of effective dimensionality*.
    """
    if len(vectors) < 2:
        raise ValueError(f"an effective rank needs at least 2 vectors, got {len(vectors)}")
    full = vectors.double()
    rounding = torch.finfo(vectors.dtype).eps * torch.linalg.matrix_norm(full)
    singular = torch.linalg.svdvals(full - full.mean(0))
    singular = singular[singular > rounding]
    if not len(singular):
        return 0.0
    return float(torch.special.entr(singular / singular.sum()).sum().exp())
