"""Flat space with entailment cones: the control that drops the curvature and keeps everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hyvlm.geometry.exterior import exterior_angle
from hyvlm.geometry.hyperboloid import half_aperture, off_axis_length
from hyvlm.geometry.manifold import MANIFOLDS, Manifold, check_pairwise, check_same_dim
from hyvlm.geometry.numerics import angle_of, dot, full_precision, nonzero, norm, safe_sqrt, unit
from hyvlm.geometry.pairs import CANCELLED, replace_pairs

#: ``2K/sqrt(c)`` at ``K = 0.1`` and ``c = 0.1``, where the curvature of the hyperbolic twins settles.
APERTURE_RADIUS = 0.2 / math.sqrt(0.1)


@MANIFOLDS.register("euclidean")
class Euclidean(Manifold):
    """Euclidean space with the flat formulas of *How Hyperbolic Are Hyperbolic Vision-Language Models?*, Eq. 3-5.

    Args:
        aperture_radius: Radius ``R`` of the ball around the origin where cones are undefined; one per factor where the
            module holds the factors of a product, whose points are ``(..., F, D)``.
    Raises:
        ValueError: If a radius is not positive and finite.
    """

    def __init__(self, *, aperture_radius: float | Sequence[float] = APERTURE_RADIUS) -> None:
        super().__init__()
        for radius in [aperture_radius] if isinstance(aperture_radius, int | float) else aperture_radius:
            if not 0 < radius < math.inf:
                raise ValueError(f"aperture_radius must be positive and finite, got {radius}")
        self.aperture_radius = aperture_radius

    @full_precision
    def lift(self, features: Tensor) -> Tensor:
        """The features ``(..., D)`` themselves, at least in float32."""
        return self.expmap0(features)

    @full_precision
    def expmap0(self, v: Tensor) -> Tensor:
        """Identity: tangent space and space are one."""
        return v

    @full_precision
    def logmap0(self, x: Tensor) -> Tensor:
        """Identity: tangent space and space are one."""
        return x

    @full_precision
    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner product of paired points ``(..., D)``, ``(...)``."""
        check_same_dim(x, y)
        return dot(x, y)

    @full_precision
    def pairwise_inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner product of every ``x`` with every ``y``."""
        check_pairwise(x, y)
        return x @ y.mT

    @full_precision
    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """``|x - y|`` of paired points ``(..., D)``, ``(...)``; zero gradient where ``x == y`` (Eq. 3).

        Raises:
            ValueError: If the last axes differ.
        """
        check_same_dim(x, y)
        return norm(x - y)

    @full_precision
    def pairwise_distance(self, x: Tensor, y: Tensor) -> Tensor:
        """``|x - y|`` of every ``x`` ``(..., N, D)`` and every ``y`` ``(..., M, D)``, shape ``(..., N, M)``."""
        check_pairwise(x, y)
        squares = dot(x, x).unsqueeze(-1) + dot(y, y).unsqueeze(-2)
        apart = squares - 2 * (x @ y.mT)
        close = apart.detach() <= CANCELLED[apart.dtype] * squares.detach()
        values = safe_sqrt(torch.where(close, 1.0, apart))
        return replace_pairs(values, close, lambda x, y, _: norm(x - y), x, y, x.new_ones(()))

    @full_precision
    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """The point at share ``t`` of the straight line; arguments as in :meth:`Manifold.geodesic`."""
        check_same_dim(x, y)
        return torch.lerp(x, y, torch.as_tensor(t, dtype=x.dtype, device=x.device).unsqueeze(-1))

    @full_precision
    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle at ``x``, in radians, from the outward ray toward ``y`` (Eq. 4, by atan2).

        Args:
            x, y: Points ``(..., D)``; leading axes broadcast.
        Returns:
            Shape ``(...)``. 0 where ``x`` is the origin or ``x == y``; the gradient is zero there and where
            the angle is exactly 0 or pi.
        Raises:
            ValueError: If the last axes differ.
        """
        check_same_dim(x, y)
        return exterior_angle(_exterior_angle, x, y, None)

    @full_precision
    def pairwise_exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """:meth:`exterior_angle` at every ``x`` ``(..., N, D)`` toward every ``y`` ``(..., M, D)``: ``(..., N, M)``."""
        check_pairwise(x, y)
        n, length = norm(x).unsqueeze(-1), norm(y).unsqueeze(-2)
        height = unit(x) @ y.mT
        across_sq = (length - height) * (length + height)
        collinear = ((across_sq <= CANCELLED[height.dtype] * length.square()) | (n == 0)).detach()
        values = angle_of(torch.where(collinear, 1.0, across_sq).sqrt(), height - n)
        return replace_pairs(values, collinear, _exterior_angle, x, y, x.new_ones(()))

    @full_precision
    def half_aperture(self, x: Tensor) -> Tensor:
        """``asin(min(1, R / |x|))`` in radians; pi/2, with zero gradient, where :meth:`saturated` (Eq. 5)."""
        return half_aperture(self._ball_over_norm(x))

    @full_precision
    def saturated(self, x: Tensor) -> Tensor:
        """Whether ``x`` lies in the ball around the origin where the aperture is pi/2; bool ``(...)``."""
        return self._ball_over_norm(x) >= 1

    def _ball_over_norm(self, x: Tensor) -> Tensor:
        length = norm(x)
        return torch.where(length == 0, torch.inf, x.new_tensor(self.aperture_radius) / nonzero(length))

    def flat(self) -> Euclidean:
        """Itself."""
        return self

    @full_precision
    def radius(self, x: Tensor) -> Tensor:
        """Norm of ``x`` ``(..., D)``, ``(...)``; zero gradient at the origin."""
        return norm(x)

    @full_precision
    def midpoint(self, x: Tensor, weights: Tensor | None = None, dim: int = -2) -> Tensor:
        """Weighted mean of the points along axis ``dim``; the origin where all weights are zero.

        Args:
            x: Points ``(..., K, D)`` (``K`` on axis ``dim``, which is not the last).
            weights: Not negative, of a shape that broadcasts to ``x.shape[:-1]``; they need not add up to 1.
        """
        if weights is None:
            return x.mean(dim)
        weights = weights.expand(x.shape[:-1]).unsqueeze(-1)
        return (weights * x).sum(dim) / nonzero(weights.sum(dim))


def _exterior_angle(x: Tensor, y: Tensor, _: Tensor | None = None) -> Tensor:
    angle = angle_of(off_axis_length(x, y), dot(unit(x), y - x))
    return torch.where(norm(x) == 0, torch.zeros_like(angle), angle)
