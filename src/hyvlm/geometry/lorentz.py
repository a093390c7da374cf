"""The Lorentz model of hyperbolic space with a learnable curvature, the manifold of MERU, HyCoCLIP and UNCHA.

Our ``c`` is the magnitude of the curvature ``-c``: MERU's ``curv.exp()``, and one over geoopt's ``k``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hyvlm.geometry import hyperboloid
from hyvlm.geometry.euclidean import Euclidean
from hyvlm.geometry.exterior import exterior_angle
from hyvlm.geometry.manifold import MANIFOLDS, Manifold, check_pairwise, check_same_dim
from hyvlm.geometry.numerics import asinhc, full_precision, nonzero, norm, sinhc, square, unit

#: Longest lifted vector in units of the radius of curvature: beyond, squares of the points overflow.
LIFT_BOUND = {torch.float32: 40.0, torch.float64: 350.0}


@MANIFOLDS.register("lorentz")
class Lorentz(Manifold):
    """Hyperboloid of curvature ``-c``; points are stored as space components.

    With a sequence of curvatures the module holds one hyperboloid per factor: points are then ``(..., F, D)``, paired
    functions return ``(..., F)``, and pairwise ones take ``(..., N, F, D)`` and ``(..., M, F, D)`` and return
    ``(..., N, M, F)``.

    Args:
        c: Initial curvature magnitude, or one per factor; positive.
        learn: Whether ``log_c`` is a parameter (else a buffer).
        bounds: Lowest and highest ``c`` that :meth:`constrain_` allows; None for no bounds.
        aperture_constant: ``K`` of the entailment cones.
    Attributes:
        bounded: How many vectors the last :meth:`lift` pulled onto its bound, an int tensor.
    Raises:
        ValueError: If a setting is out of its range.
    """

    bounded: Tensor

    def __init__(
        self,
        *,
        c: float | Sequence[float] = 1.0,
        learn: bool = True,
        bounds: tuple[float, float] | None = (0.1, 10.0),
        aperture_constant: float = 0.1,
    ) -> None:
        super().__init__()
        low, high = bounds or (0.0, math.inf)
        if not 0 <= low < high:
            raise ValueError(f"curvature bounds must be two numbers, 0 <= low < high, got {low:g} and {high:g}")
        for value in [c] if isinstance(c, int | float) else c:
            if not (0 < value < math.inf and low <= value <= high):
                raise ValueError(
                    f"curvature c must be positive and within its bounds {low:g} to {high:g}, got {value:g}"
                )
        if aperture_constant <= 0:
            raise ValueError(
                f"aperture_constant is K of the entailment cones and must be positive, got {aperture_constant}"
            )
        self.bounds = bounds
        self.aperture_constant = aperture_constant
        log_c = torch.as_tensor(c, dtype=torch.float64).log().to(torch.get_default_dtype())
        if learn:
            self.log_c = nn.Parameter(log_c)
        else:
            self.register_buffer("log_c", log_c)
        self.bounded = torch.tensor(0)

    @property
    def c(self) -> Tensor:
        """Curvature magnitude, a scalar or ``(F,)``."""
        return self.log_c.exp()

    def _c(self, x: Tensor) -> Tensor:
        """``c`` in the dtype of the points: a half-precision copy of the model keeps its geometry in full."""
        return self.log_c.to(x.dtype).exp()

    def _pairwise(self, formula: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        check_pairwise(x, y)
        c = self._c(x)
        if c.dim() == 0:
            return formula(x, y, c)
        return formula(x.movedim(-2, -3), y.movedim(-2, -3), c[:, None, None]).movedim(-3, -1)

    @full_precision
    def lift(self, features: Tensor) -> Tensor:
        """Exponential map at the origin, bounded: vectors with ``sqrt(c) |v|`` above 40 (float32) or 350 (float64) are
        shortened to that length first. Their number is left in :attr:`bounded`.

        Args:
            features: Tangent vectors at the origin, ``(..., D)``; half precision is lifted in float32.
        Returns:
            Points ``(..., D)``.
        """
        bound = LIFT_BOUND[features.dtype] * self._c(features).rsqrt()
        beyond = norm(features.detach()) > bound  # true, too, where the norm overflows
        self.bounded = beyond.sum()
        # To ask is to wait for a GPU, and a graph that is traced must hold for all that may come.
        if features.device.type != "cpu" or torch.compiler.is_compiling() or self.bounded:
            largest = nonzero(features.detach().abs().amax(-1, keepdim=True))
            shortened = unit(features / largest) * bound.unsqueeze(-1)
            features = torch.where(beyond.unsqueeze(-1), shortened, features)
        return self.expmap0(features)

    @full_precision
    def expmap0(self, v: Tensor) -> Tensor:
        """Exponential map at the origin: ``sinh(sqrt(c) |v|) / (sqrt(c) |v|) v`` (papers of MERU and UNCHA, Eq. 5).

        Args:
            v: Tangent vectors at the origin, ``(..., D)``.
        Returns:
            Points ``(..., D)`` at distance ``|v|`` from the origin.
        """
        return sinhc(self._c(v) * square(v)).unsqueeze(-1) * v

    @full_precision
    def logmap0(self, x: Tensor) -> Tensor:
        """Inverse of :meth:`expmap0`: points ``(..., D)`` to tangent vectors at the origin (UNCHA, Eq. 6)."""
        return asinhc(self._c(x) * square(x)).unsqueeze(-1) * x

    @full_precision
    def time(self, x: Tensor) -> Tensor:
        """Time component ``sqrt(1/c + |x|^2)`` of points ``(..., D)``, shape ``(...)``."""
        return hyperboloid.time(x, self._c(x))

    @full_precision
    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Lorentz inner product ``x.y - time(x) time(y)`` of paired points, at most ``-1/c``."""
        check_same_dim(x, y)
        return hyperboloid.inner(x, y, self._c(x))

    @full_precision
    def pairwise_inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Lorentz inner product of every ``x`` with every ``y``."""
        return self._pairwise(hyperboloid.pairwise_inner, x, y)

    @full_precision
    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance, in units of length (the radius of curvature is ``1 / sqrt(c)``).

        Args:
            x, y: Points ``(..., D)``; leading axes broadcast.
        Returns:
            Shape ``(...)``. Zero, with zero gradient, where ``x == y``.
        Raises:
            ValueError: If the last axes differ.
        Source: Desai et al. 2023 (MERU), Lorentzian distance; evaluated from the chord, which keeps all digits.
        """
        check_same_dim(x, y)
        return hyperboloid.distance(x, y, self._c(x))

    @full_precision
    def pairwise_distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance of every ``x`` ``(..., N, D)`` to every ``y`` ``(..., M, D)``, shape ``(..., N, M)``.

        A matrix product; pairs close enough to cancel in it are recomputed as in :meth:`distance`.
        """
        return self._pairwise(hyperboloid.pairwise_distance, x, y)

    @full_precision
    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """The point at share ``t`` of the way from ``x`` to ``y``; arguments as in :meth:`Manifold.geodesic`.

        From or to the origin it is the tangent vector there that is scaled.
        """
        check_same_dim(x, y)
        return hyperboloid.geodesic(x, y, torch.as_tensor(t, dtype=x.dtype, device=x.device), self._c(x))

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        """Lorentz inner product, pairwise: ranks like minus the distance at one curvature, and is cheaper.

        For read-out: in float32 its gradient overflows for features on the bound of :meth:`lift`.
        """
        return self.pairwise_inner(x, y)

    @full_precision
    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle at ``x``, in radians, from the outward ray (origin through ``x``) toward ``y``.

        Args:
            x, y: Points ``(..., D)``; leading axes broadcast.
        Returns:
            Shape ``(...)``, in 0..pi; pi if ``y`` is the origin. Where no angle is defined (``x`` is the origin, or
            ``x == y``) the result is 0, "no direction to be penalised for". The gradient is zero there and where the
            angle is exactly 0 or pi.
        Raises:
            ValueError: If the last axes differ.
        Source: Desai et al. 2023 (MERU), exterior angle of the entailment cone; evaluated by atan2.
        """
        check_same_dim(x, y)
        return exterior_angle(hyperboloid.exterior_angle, x, y, self._c(x))

    @full_precision
    def pairwise_exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """:meth:`exterior_angle` at every ``x`` ``(..., N, D)`` toward every ``y`` ``(..., M, D)``: ``(..., N, M)``."""
        return self._pairwise(hyperboloid.pairwise_exterior_angle, x, y)

    @full_precision
    def half_aperture(self, x: Tensor) -> Tensor:
        """Half-aperture ``asin(min(1, 2K / (sqrt(c) |x|)))`` of the cone at ``x`` ``(..., D)``, in radians, ``(...)``.

        pi/2, with zero gradient, where :meth:`saturated`. Source: Desai et al. 2023 (MERU), after Ganea et al. 2018.
        """
        return hyperboloid.half_aperture(self._ball_over_norm(x))

    @full_precision
    def saturated(self, x: Tensor) -> Tensor:
        """Whether ``x`` lies in the ball around the origin where cones are undefined and the aperture is pi/2; bool."""
        return self._ball_over_norm(x) >= 1

    def _ball_over_norm(self, x: Tensor) -> Tensor:
        length = self._c(x).sqrt() * norm(x)
        return torch.where(length == 0, torch.inf, 2 * self.aperture_constant / nonzero(length))

    @full_precision
    def radius(self, x: Tensor) -> Tensor:
        """Distance of ``x`` ``(..., D)`` from the origin, in units of length, ``(...)``; its gradient there is zero."""
        c = self._c(x)
        return torch.asinh(c.sqrt() * norm(x)) * c.rsqrt()

    @full_precision
    def midpoint(self, x: Tensor, weights: Tensor | None = None, dim: int = -2) -> Tensor:
        """Einstein midpoint of the points along axis ``dim``.

        Args:
            x: Points ``(..., K, D)`` (``K`` on axis ``dim``, which is not the last).
            weights: Not negative, of a shape that broadcasts to ``x.shape[:-1]``; they need not add up to 1.
        Returns:
            Points without axis ``dim``; the origin where all weights are zero.
        Source: HyFL-CLIP, Eq. 8, 9, 18 with the Lorentz factor of the unit Klein ball.
        """
        if weights is None:
            weights = x.new_ones(())
        return hyperboloid.midpoint(x, weights.expand(x.shape[:-1]), self._c(x), dim)

    @full_precision
    def to_klein(self, x: Tensor) -> Tensor:
        """Points ``(..., D)`` to the unit Klein ball: ``x / time(x)``, of norm ``tanh(sqrt(c) radius)``."""
        return x / self.time(x).unsqueeze(-1)

    @full_precision
    def from_klein(self, k: Tensor) -> Tensor:
        """Inverse of :meth:`to_klein`: ``k / sqrt(c (1 - |k|^2))``; a ``k`` on the rim counts as just inside."""
        return (self._c(k) * _room(k)).rsqrt().unsqueeze(-1) * k

    @full_precision
    def to_poincare(self, x: Tensor) -> Tensor:
        """Points ``(..., D)`` to the unit Poincare ball: ``sqrt(c) x / (1 + sqrt(c) time(x))``.

        The norm of the result is ``tanh(sqrt(c) radius / 2)``.
        """
        root = self._c(x).sqrt()
        return (root / (1 + root * self.time(x))).unsqueeze(-1) * x

    @full_precision
    def from_poincare(self, p: Tensor) -> Tensor:
        """Inverse of :meth:`to_poincare`: ``2 p / (sqrt(c) (1 - |p|^2))``; a ``p`` on the rim counts as just inside."""
        return (2 / (self._c(p).sqrt() * _room(p))).unsqueeze(-1) * p

    def flat(self) -> Euclidean:
        """The space that is left when the exponential map is dropped, with ``R = 2K/sqrt(c)`` at the present curvature.

        Source: How Hyperbolic Are Hyperbolic Vision-Language Models?, section 4.3.
        """
        radius = 2 * self.aperture_constant * torch.exp(-0.5 * self.log_c.detach().double())
        return Euclidean(aperture_radius=radius.tolist())

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clamp ``log_c`` into the bounds, in place."""
        if self.bounds is not None:
            low, high = self.bounds
            self.log_c.clamp_(math.log(low) if low > 0 else None, math.log(high))

    def describe(self) -> dict[str, float | list[float]]:
        """``{"c": curvature magnitude}``, a list with one entry per factor if there are factors."""
        return {"c": self.c.detach().tolist()}

    def extra_repr(self) -> str:
        return f"c={self.describe()['c']}, bounds={self.bounds}, aperture_constant={self.aperture_constant}"


def _room(ball: Tensor) -> Tensor:
    """``1 - |ball|^2``, at least one rounding: a far point's image may have rounded onto the unit sphere."""
    length = norm(ball)
    return ((1 - length) * (1 + length)).clamp_min(torch.finfo(ball.dtype).eps)
