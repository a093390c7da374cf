"""Which points may be found: those of a range of radii, and those inside the entailment cone of a point."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyvlm.evaluation.tasks.entailment import cone_margin
from hyvlm.geometry import HasAngles, Manifold, Sphere
from hyvlm.losses.entailment import HasCones, mean_over_factors
from hyvlm.retrieval.blocks import BLOCK_ROWS, as_tensor

#: Margins, in radians, that the matrix product of float32 may have on the wrong side of zero; twenty times its error.
DOUBTFUL = 2e-3


def check_origin(manifold: Manifold, what: str) -> None:
    """Raise ValueError on a manifold without an origin."""
    if isinstance(manifold, Sphere):
        raise ValueError(
            f"{what} needs an origin, and the sphere of CLIP has none: every point is as far out as any other, and "
            "there are no cones"
        )


def within_radii(
    radii: NDArray[np.float32], *, lowest: float | None = None, highest: float | None = None
) -> NDArray[np.bool_]:
    """Whether radii ``(N,)`` lie between two bounds, which are included.

    Raises:
        ValueError: If a bound is negative or not a number, or the lowest is above the highest.
    """
    low, high = 0.0 if lowest is None else lowest, math.inf if highest is None else highest
    if not 0 <= low <= high:
        raise ValueError(f"radii must be from a lowest to a highest one, 0 <= low <= high, got {low:g} to {high:g}")
    return (radii >= low) & (radii <= high)


@torch.no_grad()
def within_cone(manifold: Manifold, apex: Tensor, points: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Whether points lie inside the entailment cone of ``apex``: exterior angle at most the half-aperture.

    In a product, the mean over the factors of :func:`~hyvlm.evaluation.tasks.entailment.cone_margin`. A matrix product
    settles most points; those near the rim are settled in float64.

    Args:
        apex: ``(D,)``.
        points: ``(N, D)``.
    Raises:
        ValueError: On a sphere, which has no cones.
    """
    check_origin(manifold, "a search within a cone")
    assert isinstance(manifold, HasAngles)
    assert isinstance(manifold, HasCones)
    apex = apex.reshape(1, -1).float()
    aperture, exact_apex = manifold.half_aperture(apex), apex.double()
    inside = np.empty(len(points), dtype=bool)
    for start in range(0, len(points), BLOCK_ROWS):
        block = as_tensor(points[start : start + BLOCK_ROWS], apex.device)
        margin = mean_over_factors(aperture - manifold.pairwise_exterior_angle(apex, block)[0])
        found = margin >= 0
        near = ~(margin.abs() > DOUBTFUL)  # also where the product overflowed
        if near.any():
            exact = block[near].double()
            found[near] = cone_margin(manifold, exact, exact_apex.expand_as(exact)) >= 0
        inside[start : start + BLOCK_ROWS] = found.cpu().numpy()
    return inside
