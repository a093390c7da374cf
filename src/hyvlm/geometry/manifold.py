"""What every manifold of the library can do. Points are space components, shape ``(..., D)``; the curvature is ``-c``."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from hyvlm.registry import Registry

MANIFOLDS: Registry[type[Manifold]] = Registry("manifold")


class Manifold(nn.Module):
    """Base of :class:`Lorentz`, :class:`Euclidean`, :class:`Sphere` and :class:`ProductLorentz`.

    Paired functions broadcast leading axes and return ``(...)``; pairwise ones take ``(..., N, D)`` and ``(..., M, D)``
    and return ``(..., N, M)``. Distances are in units of length, angles in radians.
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

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        """What contrast is trained on, pairwise: minus the distance (:class:`Sphere`: the cosine)."""
        return -self.pairwise_distance(x, y)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        """What ranks pairs at read-out, pairwise: the same order as :meth:`similarity`, cheaper where that is possible."""
        return self.similarity(x, y)

    def average_features(self, features: Tensor, dim: int) -> Tensor:
        """Mean of encoder features over a prompt ensemble, before scaling and lift (:class:`Sphere` normalises first)."""
        return features.mean(dim)

    def constrain_(self) -> None:
        """Bring learnable parameters back inside their bounds, in place; call after an optimizer step."""

    def describe(self) -> dict[str, float | list[float]]:
        """Learnable quantities as plain numbers, for logs and configs."""
        return {}
