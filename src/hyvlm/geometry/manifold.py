"""What every manifold of the library can do. Points are space components ``(..., D)``; the curvature is ``-c``."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from hyvlm.registry import Registry

MANIFOLDS: Registry[type[Manifold]] = Registry("manifold")


class Manifold(nn.Module):
    """Base of :class:`Lorentz`, :class:`Euclidean`, :class:`Sphere` and the products of the first two.

    Paired functions broadcast leading axes and return ``(...)``; pairwise ones take ``(..., N, D)`` and ``(..., M, D)``
    and return ``(..., N, M)``. Distances are in units of length, angles in radians. All but the sphere also have an
    origin with entailment cones: ``exterior_angle``, ``half_aperture``, ``radius`` and what belongs to them, and
    ``flat()``, the space that is left when the exponential map is dropped.
    """

    @abstractmethod
    def lift(self, features: Tensor) -> Tensor:
        """Scaled encoder features ``(..., D)``, tangent vectors at the origin, to points ``(..., D)``."""

    @abstractmethod
    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance of paired points. Zero, with zero gradient, where ``x == y``."""

    @abstractmethod
    def pairwise_distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance of every ``x`` to every ``y``."""

    @abstractmethod
    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """The point at share ``t`` of the way from ``x`` to ``y``: at ``t`` times their distance from ``x``.

        Args:
            x, y: Points ``(..., D)``; leading axes broadcast.
            t: A number, or one per pair, of a shape that broadcasts to ``(...)``: 0 is at ``x``, 1 at ``y``.
        Returns:
            Points ``(..., D)``.
        Raises:
            ValueError: If the last axes differ.
        """

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        """What contrast is trained on, pairwise: minus the distance (:class:`Sphere`: the cosine)."""
        return -self.pairwise_distance(x, y)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        """What ranks pairs at read-out, pairwise: in the order of :meth:`similarity`, cheaper where possible."""
        return self.similarity(x, y)

    def average_features(self, features: Tensor, dim: int) -> Tensor:
        """Mean of encoder features over prompts, before scaling and lift (:class:`Sphere` normalises them first)."""
        return features.mean(dim)

    def constrain_(self) -> None:
        """Bring learnable parameters back inside their bounds, in place; call after an optimizer step."""

    def describe(self) -> dict[str, float | list[float]]:
        """Learnable quantities as plain numbers, for logs and configs."""
        return {}


def check_same_dim(x: Tensor, y: Tensor) -> None:
    """Raise ValueError unless both sets of points have as many coordinates."""
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"points of different dimension: the last axes are {x.shape[-1]} and {y.shape[-1]}, they must agree"
        )


def check_pairwise(x: Tensor, y: Tensor) -> None:
    """Raise ValueError unless both are sets of points, ``(..., N, D)`` and ``(..., M, D)``, of one dimension."""
    if x.ndim < 2 or y.ndim < 2:
        raise ValueError(
            "pairwise functions take points (..., N, D) and (..., M, D), "
            f"got shapes {tuple(x.shape)} and {tuple(y.shape)}; a single point is (1, D)"
        )
    check_same_dim(x, y)
