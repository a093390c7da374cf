"""Products of factors: Lorentz ones with a curvature each (the manifold of PHyCLIP), or flat ones (its control)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from hyvlm.geometry.euclidean import APERTURE_RADIUS, Euclidean
from hyvlm.geometry.lorentz import Lorentz
from hyvlm.geometry.manifold import MANIFOLDS, Manifold, check_pairwise, check_same_dim
from hyvlm.geometry.numerics import safe_sqrt

Pairwise = Callable[[Tensor, Tensor], Tensor]


class Product(Manifold):
    """``F`` factors of one kind; a point is theirs one after the other, ``(..., F * D)``.

    Cone quantities are returned per factor, ``(..., F)``.

    Args:
        factors: Number of factors ``F``.
        metric: Distance of the product: ``"l1"`` the mean of the factor distances, ``"l2"`` their root mean square.
    Raises:
        ValueError: If a setting is out of its range, or points do not split into ``F`` equal blocks.
    """

    factor: Lorentz | Euclidean

    def __init__(self, *, factors: int, metric: Literal["l1", "l2"]) -> None:
        super().__init__()
        if factors < 1:
            raise ValueError(f"a product needs at least one factor, got factors={factors}")
        if metric not in ("l1", "l2"):
            raise ValueError(f"metric of the product must be 'l1' or 'l2', got {metric!r}")
        self.factors = factors
        self.metric = metric

    @abstractmethod
    def _pairwise(self, of: Pairwise, x: Tensor, y: Tensor) -> Tensor:
        """A pairwise function of the factor, of every ``x`` ``(..., N, F, D)`` and ``y``: ``(..., N, M, F)``."""

    def _all_pairs(self, of: Pairwise, x: Tensor, y: Tensor) -> Tensor:
        check_pairwise(x, y)
        return self._pairwise(of, *self._split_pair(x, y))

    def split(self, x: Tensor) -> Tensor:
        """Points ``(..., F * D)`` by factor, ``(..., F, D)``."""
        if x.shape[-1] % self.factors:
            raise ValueError(f"{x.shape[-1]} coordinates do not split into {self.factors} factors of equal size")
        return x.unflatten(-1, (self.factors, -1))

    def _split_pair(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        check_same_dim(x, y)
        return self.split(x), self.split(y)

    def _combine(self, lengths: Tensor) -> Tensor:
        """Factor distances ``(..., F)`` to the distance in the product."""
        if self.metric == "l1":
            return lengths.mean(-1)
        return safe_sqrt(lengths.square().mean(-1))

    def lift(self, features: Tensor) -> Tensor:
        """Features ``(..., F * D)`` to points, factor by factor."""
        return self.factor.lift(self.split(features)).flatten(-2)

    def expmap0(self, v: Tensor) -> Tensor:
        """Exponential map at the origin of every factor."""
        return self.factor.expmap0(self.split(v)).flatten(-2)

    def logmap0(self, x: Tensor) -> Tensor:
        """Inverse of :meth:`expmap0`."""
        return self.factor.logmap0(self.split(x)).flatten(-2)

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Sum over the factors of the inner products of paired points, ``(...)``."""
        return self.factor.inner(*self._split_pair(x, y)).sum(-1)

    def pairwise_inner(self, x: Tensor, y: Tensor) -> Tensor:
        """:meth:`inner` of every ``x`` and ``y``: PHyCLIP's published read-out; it does not rank like the distance."""
        return self._all_pairs(self.factor.pairwise_inner, x, y).sum(-1)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean (``l1``) or root mean square (``l2``) of the factor distances of paired points, in units of length.

        Zero, with zero gradient, where ``x == y``. Source: Yoshikawa and Matsubara (PHyCLIP), l1-product metric.
        """
        return self._combine(self.factor.distance(*self._split_pair(x, y)))

    def pairwise_distance(self, x: Tensor, y: Tensor) -> Tensor:
        """:meth:`distance` of every ``x`` ``(..., N, F * D)`` to every ``y`` ``(..., M, F * D)``: ``(..., N, M)``."""
        return self._combine(self._all_pairs(self.factor.pairwise_distance, x, y))

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """The geodesic of every factor, at one share ``t``; arguments as in :meth:`Manifold.geodesic`."""
        by_factor = t.unsqueeze(-1) if isinstance(t, Tensor) else t
        return self.factor.geodesic(*self._split_pair(x, y), by_factor).flatten(-2)

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Exterior angle in every factor, ``(..., F)``."""
        return self.factor.exterior_angle(*self._split_pair(x, y))

    def pairwise_exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Exterior angle at every ``x`` toward every ``y`` in every factor, ``(..., N, M, F)``."""
        return self._all_pairs(self.factor.pairwise_exterior_angle, x, y)

    def half_aperture(self, x: Tensor) -> Tensor:
        """Half-aperture in every factor, ``(..., F)``."""
        return self.factor.half_aperture(self.split(x))

    def saturated(self, x: Tensor) -> Tensor:
        """Whether the half-aperture is pi/2 in every factor, bool ``(..., F)``."""
        return self.factor.saturated(self.split(x))

    def radius(self, x: Tensor) -> Tensor:
        """Distance from the origin of the product, ``(...)``."""
        return self._combine(self.factor.radius(self.split(x)))

    def midpoint(self, x: Tensor, weights: Tensor | None = None, dim: int = -2) -> Tensor:
        """The factor's midpoint in every factor along axis ``dim``; arguments as in :meth:`Lorentz.midpoint`."""
        by_factor = dim - 1 if dim < 0 else dim
        per_factor = None if weights is None else weights.unsqueeze(-1)
        return self.factor.midpoint(self.split(x), per_factor, by_factor).flatten(-2)


@MANIFOLDS.register("product")
class ProductLorentz(Product):
    """``F`` Lorentz factors; a point is their space components one after the other, ``(..., F * D)``.

    Args:
        factors: Number of factors ``F``.
        c: Initial curvature magnitude, of all factors or one each.
        learn, bounds, aperture_constant: As in :class:`Lorentz`, the same for all factors.
        metric: Distance of the product: ``"l1"`` the mean of the factor distances, ``"l2"`` their root mean square.
    Raises:
        ValueError: If a setting is out of its range, or points do not split into ``F`` equal blocks.
    """

    factor: Lorentz

    def __init__(
        self,
        *,
        factors: int,
        c: float | Sequence[float] = 1.0,
        learn: bool = True,
        bounds: tuple[float, float] | None = (0.1, 10.0),
        aperture_constant: float = 0.1,
        metric: Literal["l1", "l2"] = "l1",
    ) -> None:
        super().__init__(factors=factors, metric=metric)
        per_factor = [c] * factors if isinstance(c, int | float) else list(c)
        if len(per_factor) != factors:
            raise ValueError(f"c must be one number or one per factor: {factors} factors, {len(per_factor)} curvatures")
        self.factor = Lorentz(c=per_factor, learn=learn, bounds=bounds, aperture_constant=aperture_constant)

    def _pairwise(self, of: Pairwise, x: Tensor, y: Tensor) -> Tensor:
        return of(x, y)

    @property
    def c(self) -> Tensor:
        """Curvature magnitudes ``(F,)``."""
        return self.factor.c

    @property
    def bounded(self) -> Tensor:
        """How many factor vectors the last :meth:`lift` pulled onto its bound, an int tensor."""
        return self.factor.bounded

    def time(self, x: Tensor) -> Tensor:
        """Time components, one per factor, ``(..., F)``."""
        return self.factor.time(self.split(x))

    def flat(self) -> ProductEuclidean:
        """The flat twin, factor by factor: see :meth:`Lorentz.flat`."""
        return ProductEuclidean(
            factors=self.factors, aperture_radius=self.factor.flat().aperture_radius, metric=self.metric
        )

    def constrain_(self) -> None:
        """Clamp the curvatures into their bounds, in place."""
        self.factor.constrain_()

    def describe(self) -> dict[str, float | list[float]]:
        """``{"c": [one per factor]}``."""
        return self.factor.describe()


@MANIFOLDS.register("flat_product")
class ProductEuclidean(Product):
    """``F`` Euclidean factors: the control of :class:`ProductLorentz`, which drops the curvatures and nothing else.

    Args:
        factors: Number of factors ``F``.
        aperture_radius: As in :class:`Euclidean`, of all factors or one each.
        metric: As in :class:`ProductLorentz`.
    Raises:
        ValueError: If a setting is out of its range, or points do not split into ``F`` equal blocks.
    """

    factor: Euclidean

    def __init__(
        self,
        *,
        factors: int,
        aperture_radius: float | Sequence[float] = APERTURE_RADIUS,
        metric: Literal["l1", "l2"] = "l1",
    ) -> None:
        super().__init__(factors=factors, metric=metric)
        if not isinstance(aperture_radius, int | float) and len(aperture_radius) != factors:
            raise ValueError(
                f"aperture_radius must be one number or one per factor: {factors} factors, {len(aperture_radius)} radii"
            )
        self.factor = Euclidean(aperture_radius=aperture_radius)

    def _pairwise(self, of: Pairwise, x: Tensor, y: Tensor) -> Tensor:
        return of(x.movedim(-2, -3), y.movedim(-2, -3)).movedim(-3, -1)

    def flat(self) -> ProductEuclidean:
        """Itself."""
        return self
