"""Uncertainty of a point: high near the origin, where points stand for much, low far from it (UNCHA, Section 3.2)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn
from torch.nn import functional as F

from hyvlm.geometry.numerics import norm
from hyvlm.registry import unknown

#: What the uncertainty is a function of: the norm of the space components, or the geodesic distance to the origin.
MEASURES = ("norm", "radius")


@runtime_checkable
class HasRadius(Protocol):
    """A manifold that knows how far a point is from its origin, in units of length."""

    def radius(self, x: Tensor) -> Tensor:
        """Geodesic distance to the origin."""


def uncertainty(points: Tensor, manifold: nn.Module, measure: str = "norm") -> Tensor:
    """``log(1 + exp(-r))`` with ``r`` the space norm or the radius; in ``(0, log 2]``, highest at the origin.

    Args:
        points: ``(N, D)``.
        manifold: Asked for the radius if that is the measure.
        measure: One of :data:`MEASURES`.
    Returns:
        Shape ``(N,)``.
    Raises:
        ValueError: If ``measure`` is unknown, or the manifold has no radius to measure.
    Source: UNCHA, Eq. 7; with the radius Eq. S.24.
    """
    if measure not in MEASURES:
        raise ValueError(unknown("uncertainty measure", measure, list(MEASURES)))
    if measure == "norm":
        return F.softplus(-norm(points))
    if not isinstance(manifold, HasRadius):
        raise ValueError(f"uncertainty by radius needs a manifold with a radius, {type(manifold).__name__} has none")
    return F.softplus(-manifold.radius(points))


def calibration_rows(
    residual: Tensor, uncertainty: Tensor, *, eps: float = 0.0, through_residual: bool = False
) -> Tensor:
    """``stop(residual) / (exp(u) + eps) + u``: uncertainty grows where entailment fails and is paid for where it holds.

    Args:
        residual: ``(N,)``, the entailment loss of each pair; no gradient flows into it unless ``through_residual``.
        uncertainty: ``(N,)``, ``u`` of the general point of each pair.
        eps: 1e-6 in the released code, 0 in the paper.
    Returns:
        Shape ``(N,)``.
    Source: UNCHA, Eq. 15, without the entropy.
    """
    if not through_residual:
        residual = residual.detach()
    return residual / (uncertainty.exp() + eps) + uncertainty


def entropy_rows(rows: Tensor, everything: Tensor, *, eps: float = 0.0) -> Tensor:
    """Each row's share ``-p log(p + eps)`` of the entropy of ``p = softmax(everything)``; all shares add up to it.

    Args:
        rows: ``(n,)``, the entries of ``everything`` whose shares are wanted.
        everything: ``(N,)``, what the softmax runs over.
        eps: 1e-8 in the released code, 0 in the paper.
    Returns:
        Shape ``(n,)``.
    Source: UNCHA, Eq. 16.
    """
    log_p = rows - everything.logsumexp(0)
    p = log_p.exp()
    return -p * ((p + eps).log() if eps else log_p)
