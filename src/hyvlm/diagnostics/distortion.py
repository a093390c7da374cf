"""What the exponential map changes: curved over flat distance, exterior angle and half-aperture.

The ratios are those of *How Hyperbolic Are Hyperbolic Vision-Language Models?*, appendix B. They depend on two tangent
vectors at the origin only by their lengths ``r1``, ``r2`` and the angle ``theta`` between them, and are 1 where the map
changes nothing. The printed forms lose digits between close points (arcosh near 1) and near the angles 0 and pi
(arccos near 1 and -1); those here are equal to them, and neither subtract nor invert there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyvlm.diagnostics.radii import mode
from hyvlm.geometry import Lorentz, Manifold, ProductLorentz, Sphere
from hyvlm.geometry.hyperboloid import half_aperture
from hyvlm.geometry.numerics import angle_of

PairQuantity = Literal["distance", "exterior_angle"]
Quantity = Literal["distance", "exterior_angle", "aperture"]

#: Radii and angles along each side of a surface, and radii of an aperture curve.
SURFACE_STEPS, CURVE_STEPS = 48, 257


def distance_ratio(r1: Tensor, r2: Tensor, theta: Tensor, c: float | Tensor) -> Tensor:
    """``r_d``: geodesic distance of two lifted vectors over the distance of the vectors (Eq. 21).

    Args:
        r1, r2: Lengths of the tangent vectors, not negative; in float64 all digits hold while ``sqrt(c) r < 350``.
        theta: Angle between them, in 0..pi.
        c: Curvature magnitude, positive.
    Returns:
        The ratio, at least 1, in the shape to which the arguments broadcast. NaN where the vectors coincide: the limit
        there depends on the direction of the approach.
    """
    root = c**0.5
    half_turn = torch.sin(theta / 2)
    across = torch.sinh(root * r1).sqrt() * torch.sinh(root * r2).sqrt() * half_turn
    curved = torch.asinh(torch.hypot(torch.sinh(root * (r1 - r2) / 2), across)) * (2 / root)
    return curved / torch.hypot(r1 - r2, 2 * r1.sqrt() * r2.sqrt() * half_turn)


def hyperbolic_exterior_angle(r1: Tensor, r2: Tensor, theta: Tensor, c: float | Tensor) -> Tensor:
    """Exterior angle at the lifted first vector toward the second, in radians (Eq. 24); arguments as above.

    0 where the vectors coincide, and so no angle is defined.
    """
    root = c**0.5
    length = torch.sinh(root * r2)
    outward = torch.sinh(root * (r2 - r1)) - 2 * torch.cosh(root * r1) * length * torch.sin(theta / 2).square()
    return angle_of(length * torch.sin(theta), outward)


def flat_exterior_angle(r1: Tensor, r2: Tensor, theta: Tensor) -> Tensor:
    """Exterior angle at the first tangent vector toward the second, in radians (Eq. 23); 0 where they coincide."""
    return angle_of(r2 * torch.sin(theta), (r2 - r1) - 2 * r2 * torch.sin(theta / 2).square())


def exterior_angle_ratio(r1: Tensor, r2: Tensor, theta: Tensor, c: float | Tensor) -> Tensor:
    """``r_ext``: hyperbolic over flat exterior angle (Eq. 25); arguments as in :func:`distance_ratio`.

    NaN where the flat angle is 0: the vectors coincide, or the second one is the first one prolonged.
    """
    return hyperbolic_exterior_angle(r1, r2, theta, c) / flat_exterior_angle(r1, r2, theta)


def aperture_ratio(
    r1: Tensor, c: float | Tensor, *, aperture_constant: float, aperture_radius: float | Tensor | None = None
) -> Tensor:
    """``r_aper``: half-aperture of the cone at a lifted vector over that of the flat cone at the vector (Eq. 27).

    Where one of the two cones begins, its arcsine is vertical: within a share ``s`` of that radius the rounding of the
    arguments moves the ratio by about ``1e-16 / sqrt(s)``.

    Args:
        r1: Length of the tangent vector.
        c: Curvature magnitude, positive.
        aperture_constant: ``K`` of the hyperbolic cones.
        aperture_radius: ``R`` of the flat cones; None for the paper's matching rule ``2K / sqrt(c)``.
    Returns:
        The ratio; 1 where both cones are fully open, which is so at the origin.
    """
    curved, flat = _half_apertures(r1, c, aperture_constant, aperture_radius)
    return curved / flat


def _half_apertures(
    r1: Tensor, c: float | Tensor, aperture_constant: float, aperture_radius: float | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    root = c**0.5
    radius = 2 * aperture_constant / root if aperture_radius is None else aperture_radius
    return half_aperture(2 * aperture_constant / torch.sinh(root * r1)), half_aperture(radius / r1)


@dataclass(frozen=True)
class RelationRatios:
    """The ratios of one quantity over the pairs of a relation; in a product, over every factor of every pair.

    Attributes:
        relation: Name of the relation, of which the first view is the apex or anchor.
        n: How many values, undefined ones included.
        undefined: How many have no ratio: the points coincide, or the flat exterior angle is 0.
        low, median, high: 5, 50 and 95 % quantiles of the others; NaN if there are none.
    """

    relation: str
    quantity: Quantity
    n: int
    undefined: int
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Box:
    """Where the pairs lie on a surface: 1 and 99 % quantiles of ``r2`` and of ``theta``."""

    r2_low: float
    r2_high: float
    theta_low: float
    theta_high: float


@dataclass(frozen=True)
class Surface:
    """A ratio over the second radius and the enclosed angle (Figs. 3, 6 and 7).

    Attributes:
        c: Curvature magnitude; in a product the mean of the factors'.
        r1: Where the first view's radii are densest; in a product, the radii in all factors taken together.
        r2: Second radii, rising, around the box.
        theta: Angles, rising from just above 0 to just below pi: centres of equal steps, where ratios are defined.
        values: The ratio at ``r2[i]`` and ``theta[j]`` is ``values[i][j]``.
    """

    relation: str
    quantity: PairQuantity
    c: float
    r1: float
    r2: list[float]
    theta: list[float]
    values: list[list[float]]
    box: Box


@dataclass(frozen=True)
class ApertureCurve:
    """Half-apertures with and without the map, in radians, and their ratio, around a view's radii (Fig. 4).

    Attributes:
        c: Curvature magnitude; in a product the mean of the factors'. The flat cone's radius is ``2K / sqrt(c)``.
        r1: Radii, rising.
    """

    view: str
    c: float
    r1: list[float]
    hyperbolic: list[float]
    flat: list[float]
    ratio: list[float]


def relation_ratios(
    manifold: Manifold, first: Tensor, second: Tensor, *, relation: str, quantity: Quantity
) -> RelationRatios:
    """How much the map changes a quantity between the points of a relation, in every factor with its own ``c``.

    Args:
        first, second: Points ``(N, D)``, pair by pair; exterior angles and half-apertures are taken at the first.
        relation: Name to report them under.
        quantity: The half-aperture is the first point's alone.
    Raises:
        ValueError: No hyperboloid, no pair, pairs that do not match, or points that are not finite.
    """
    pairs = _Pairs.of(manifold, first, second, relation)
    if quantity == "aperture":
        ratios = aperture_ratio(pairs.r1, pairs.c, aperture_constant=_hyperboloid(manifold).aperture_constant)
    else:
        ratios = _pair_ratio(quantity)(pairs.r1, pairs.r2, pairs.theta, pairs.c)
    values = _numbers(ratios)
    defined = values[~np.isnan(values)]
    low, median, high = np.quantile(defined, [0.05, 0.5, 0.95]).tolist() if len(defined) else [math.nan] * 3
    return RelationRatios(relation, quantity, len(values), len(values) - len(defined), low, median, high)


def surface(manifold: Manifold, first: Tensor, second: Tensor, *, relation: str, quantity: PairQuantity) -> Surface:
    """The ratio with ``r1`` at the mode of the first points' radii, and where the pairs lie on it.

    Arguments and errors as in :func:`relation_ratios`; fewer than two values also have no mode.
    """
    pairs = _Pairs.of(manifold, first, second, relation)
    c, r1 = pairs.c.mean().item(), mode(pairs.r1)
    box = Box(*_range(pairs.r2), *_range(pairs.theta))
    r2 = _around(box.r2_low, box.r2_high, SURFACE_STEPS)
    theta = (torch.arange(SURFACE_STEPS, dtype=torch.float64) + 0.5) * (torch.pi / SURFACE_STEPS)
    values = _pair_ratio(quantity)(torch.tensor(r1, dtype=torch.float64), r2[:, None], theta, c)
    return Surface(relation, quantity, c, r1, r2.tolist(), theta.tolist(), values.tolist(), box)


def aperture_curve(manifold: Manifold, points: Tensor, view: str) -> ApertureCurve:
    """Half-apertures around the radii of a view's points ``(N, D)``; in a product, the radii in all factors.

    Raises:
        ValueError: No hyperboloid, no point, or points that are not finite.
    """
    c = _curvatures(manifold).mean().item()
    r1 = _around(*_range(_tangent(manifold, points, view).norm(dim=-1)), CURVE_STEPS)
    curved, flat = _half_apertures(r1, c, _hyperboloid(manifold).aperture_constant)
    return ApertureCurve(view, c, r1.tolist(), curved.tolist(), flat.tolist(), (curved / flat).tolist())


class _Pairs(NamedTuple):
    """Radii and enclosed angles of pairs, ``(N,)``, or ``(N, F)`` in a product; ``c`` is a scalar or ``(F,)``."""

    r1: Tensor
    r2: Tensor
    theta: Tensor
    c: Tensor

    @classmethod
    def of(cls, manifold: Manifold, first: Tensor, second: Tensor, relation: str) -> _Pairs:
        if first.shape != second.shape:
            shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
            raise ValueError(f"the points of {relation} are paired row by row, got shapes {shapes}")
        v1, v2 = (_tangent(manifold, points, relation) for points in (first, second))
        # The origin has no direction: the angle to it comes out as pi/2, and no ratio depends on it there.
        return cls(v1.norm(dim=-1), v2.norm(dim=-1), Sphere().distance(v1, v2), _curvatures(manifold))


def _hyperboloid(manifold: Manifold) -> Lorentz:
    """The manifold itself, or what holds the factors of a product."""
    if isinstance(manifold, ProductLorentz):
        return manifold.factor
    if isinstance(manifold, Lorentz):
        return manifold
    raise ValueError(
        f"distortion ratios compare a hyperboloid with its tangent space, and the model's manifold, "
        f"{type(manifold).__name__}, has no exponential map to compare; they need Lorentz or ProductLorentz"
    )


def _curvatures(manifold: Manifold) -> Tensor:
    """In double precision, as the manifold uses it on points of that precision."""
    return _hyperboloid(manifold).log_c.detach().double().exp().cpu()


def _tangent(manifold: Manifold, points: Tensor, what: str) -> Tensor:
    """The vectors that were lifted to points ``(N, D)``, by factor in a product: ``(N, F, D / F)``, in float64."""
    hyperboloid = _hyperboloid(manifold)
    if len(points) == 0:
        raise ValueError(f"{what} has no points to take ratios of")
    if bad := int((~points.isfinite().all(-1)).sum()):
        raise ValueError(f"{bad} of {len(points)} points of {what} are not finite: take them out first")
    points = points.detach().double()
    if isinstance(manifold, ProductLorentz):
        points = manifold.split(points)
    return hyperboloid.logmap0(points).detach().cpu()


def _pair_ratio(quantity: str) -> Callable[[Tensor, Tensor, Tensor, float | Tensor], Tensor]:
    ratios = {"distance": distance_ratio, "exterior_angle": exterior_angle_ratio}
    if quantity not in ratios:
        raise ValueError(f"quantity of a pair must be 'distance' or 'exterior_angle', got {quantity!r}")
    return ratios[quantity]


def _numbers(values: Tensor) -> NDArray[np.float64]:
    return values.numpy().ravel()


def _range(values: Tensor) -> tuple[float, float]:
    low, high = np.quantile(_numbers(values), [0.01, 0.99]).tolist()
    return low, high


def _around(low: float, high: float, steps: int) -> Tensor:
    """Radii from half a width below the range to half a width above it; a point gets some width of its own."""
    margin = max((high - low) / 2, 0.05 * high) or 1.0
    return torch.linspace(max(0.0, low - margin), high + margin, steps, dtype=torch.float64)
