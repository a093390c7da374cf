"""Entailment: the specific point lies in the cone of the general one (Ganea et al. 2018; Le et al. 2019)."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class HasCones(Protocol):
    """What entailment asks of a manifold. Angles are in radians; a product gives one value per factor, ``(..., F)``."""

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle at ``x`` between the ray away from the origin and the geodesic toward ``y``."""

    def half_aperture(self, x: Tensor) -> Tensor:
        """Half-aperture of the cone at ``x``."""

    def saturated(self, x: Tensor) -> Tensor:
        """Whether ``x`` is so near the origin that its cone is a half-space at its widest."""


class ConeHinge(nn.Module):
    """How far, in radians, ``specific`` lies outside the cone of ``general``; ``eta`` scales the half-aperture.

    Raises:
        ValueError: If ``eta`` is not positive and finite.
    Source: Desai et al. 2023 (MERU); with ``eta`` Pal et al. 2025 (HyCoCLIP).
    """

    def __init__(self, *, eta: float = 1.0) -> None:
        super().__init__()
        if not 0 < eta < math.inf:
            raise ValueError(f"eta scales the cone's half-aperture and must be positive and finite, got {eta}")
        self.eta = eta

    def forward(self, manifold: HasCones, general: Tensor, specific: Tensor) -> Tensor:  # (N, D), (N, D) -> (N,)
        angle = manifold.exterior_angle(general, specific)
        return mean_over_factors((angle - self.eta * manifold.half_aperture(general)).relu())


class LeakyConeHinge(ConeHinge):
    """:class:`ConeHinge` plus ``alpha`` times the exterior angle, which keeps a gradient inside the cone.

    Raises:
        ValueError: If ``eta`` is not positive, ``alpha`` is negative, or one is not finite.
    Source: UNCHA, Eq. 14.
    """

    def __init__(self, *, eta: float = 1.0, alpha: float = 0.1) -> None:
        super().__init__(eta=eta)
        if not 0 <= alpha < math.inf:
            raise ValueError(
                f"alpha weighs the exterior angle inside the cone and must be finite and not negative, got {alpha}"
            )
        self.alpha = alpha

    def forward(self, manifold: HasCones, general: Tensor, specific: Tensor) -> Tensor:  # (N, D), (N, D) -> (N,)
        angle = manifold.exterior_angle(general, specific)
        outside = (angle - self.eta * manifold.half_aperture(general)).relu()
        return mean_over_factors(outside + self.alpha * angle)


def mean_over_factors(rows: Tensor) -> Tensor:
    """Angles of pairs ``(N,)`` as they are; those in every factor of a product, ``(N, F)``, as their mean ``(N,)``."""
    return rows.mean(-1) if rows.dim() > 1 else rows
