"""The unit sphere, the manifold of CLIP."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from hyvlm.geometry.manifold import MANIFOLDS, Manifold, check_pairwise, check_same_dim
from hyvlm.geometry.numerics import angle_of, dot, full_precision, norm, unit
from hyvlm.geometry.pairs import CANCELLED, replace_pairs


@MANIFOLDS.register("sphere")
class Sphere(Manifold):
    """Unit vectors ``(..., D)``. Contrast and read-out use the cosine, the distance is the angle. No cones."""

    @full_precision
    def lift(self, features: Tensor) -> Tensor:
        """Features ``(..., D)`` divided by their norm, at least in float32; zero stays zero."""
        return unit(features)

    @full_precision
    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle between paired directions ``(..., D)``, in radians, ``(...)``.

        Zero, with zero gradient, where the directions agree. Points off the sphere count by their direction.

        Raises:
            ValueError: If the last axes differ.
        """
        check_same_dim(x, y)
        return _angle(x, y)

    @full_precision
    def pairwise_distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle between every ``x`` and every ``y``; nearly parallel pairs are recomputed one by one."""
        check_pairwise(x, y)
        cosine = unit(x) @ unit(y).mT
        no_direction = (norm(x) == 0).unsqueeze(-1) & (norm(y) == 0).unsqueeze(-2)
        parallel = (1 - cosine.detach().abs() <= CANCELLED[cosine.dtype]) | no_direction
        values = torch.acos(torch.where(parallel, 0.0, cosine))
        return replace_pairs(values, parallel, lambda x, y, _: _angle(x, y), x, y, x.new_ones(()))

    @full_precision
    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """The unit vector at share ``t`` of the great circle; arguments as in :meth:`Manifold.geodesic`.

        Antipodes are joined by one of the many great circles.
        """
        check_same_dim(x, y)
        x, y = unit(x), unit(y)
        angle = (torch.as_tensor(t, dtype=x.dtype, device=x.device) * _angle(x, y)).unsqueeze(-1)
        toward = _across(x, y - x)
        axis = one_hot(x.abs().argmin(-1), x.shape[-1]).to(x)  # far from x, so that a direction is left
        toward = torch.where((toward == 0).all(-1, keepdim=True), _across(x, axis), toward)
        return unit(angle.cos() * x + angle.sin() * unit(toward))

    @full_precision
    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        """Cosine of every ``x`` ``(..., N, D)`` and every ``y`` ``(..., M, D)``, shape ``(..., N, M)``."""
        check_pairwise(x, y)
        return x @ y.mT

    @full_precision
    def average_features(self, features: Tensor, dim: int) -> Tensor:
        """Mean along ``dim`` of the features' directions."""
        return unit(features).mean(dim)


def _across(x: Tensor, v: Tensor) -> Tensor:
    """The part of ``v`` orthogonal to the unit vector ``x``."""
    return v - dot(x, v).unsqueeze(-1) * x


def _angle(x: Tensor, y: Tensor) -> Tensor:
    """Twice the angle of half chord and half sum, exact near 0 and near pi (Kahan)."""
    x, y = unit(x), unit(y)
    return 2 * angle_of(norm(x - y), norm(x + y))
