"""ARGENT: the exterior angle itself is the penalty, there is no cone (Huynh et al. 2026).

There is no released code. The objective is the one that "How Hyperbolic Are Hyperbolic Vision-Language Models?" states,
Eq. 9 and Appendix A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hyvlm.geometry import Manifold
from hyvlm.losses import HasCones
from hyvlm.losses.entailment import mean_over_factors
from hyvlm.methods.aligned import AlignedViews
from hyvlm.methods.method import OBJECTIVES, Objective, Scale
from hyvlm.methods.relations import contrast, entail

#: Space norm below which ``log |x|`` goes on as a parabola, see :func:`log_norm`.
NORM_FLOOR = 1e-9


class AdaptiveAngle(nn.Module):
    """Huber loss of the exterior angle, times ``h``: 1, or ``1 - exp(-distance)``, which spares pairs that are close.

    ``z**2 / 2`` up to ``|z| = beta``, then ``beta (|z| - beta / 2)``, of ``z = h * angle`` in radians. In a product the
    mean over the factors' angles, with one ``h`` for all.

    Args:
        beta: Where the parabola ends, in radians.
        adaptive: Whether ``h`` depends on the distance; else it is 1.
        through_weight: Let the gradient through ``h``, too.
    Raises:
        ValueError: If ``beta`` is not positive and finite.
    Source: "How Hyperbolic Are Hyperbolic Vision-Language Models?", Eq. 9.
    """

    def __init__(self, *, beta: float, adaptive: bool, through_weight: bool = True) -> None:
        super().__init__()
        if not 0 < beta < math.inf:
            raise ValueError(f"beta, where the Huber loss turns linear, must be positive and finite, got {beta}")
        self.beta = beta
        self.adaptive = adaptive
        self.through_weight = through_weight

    def forward(self, manifold: HasCones, general: Tensor, specific: Tensor) -> Tensor:  # (N, D), (N, D) -> (N,)
        angle = manifold.exterior_angle(general, specific)
        if self.adaptive:
            assert isinstance(manifold, Manifold)
            h = -torch.expm1(-manifold.distance(general, specific))
            h = h if self.through_weight else h.detach()
            angle = angle * h.view(-1, *[1] * (angle.dim() - 1))
        rows = F.huber_loss(angle, torch.zeros_like(angle), delta=self.beta, reduction="none")
        return mean_over_factors(rows)


@dataclass(frozen=True, kw_only=True)
class NormRegularizer:
    """Mean of ``|x|**2 - log |x|`` over all points of ``views`` alike; least where the space norm is ``sqrt(1/2)``."""

    views: tuple[str, ...]
    weight: float

    @property
    def name(self) -> str:
        return "norm"

    def share(self, batch: AlignedViews) -> Tensor:
        alone = batch.reduction == "per_rank"
        mine = torch.cat([batch.views.rows(view) for view in self.views])
        count = len(mine) if alone else sum(len(batch.views.points[view]) for view in self.views)
        squared = mine.square().sum(-1)
        mean = ((squared - log_norm(squared)) / max(count, 1)).sum()  # divided first: a sum of squares can overflow
        return mean / batch.views.world_size if alone else mean


def log_norm(squared: Tensor) -> Tensor:
    """``log |x|`` of ``|x|**2``; below :data:`NORM_FLOOR` a parabola goes on with the same value and slope.

    So value and gradient are finite everywhere, exact for every norm that training meets, and at the origin, from where
    no direction leads outward more than another, the gradient is zero.
    """
    floor = NORM_FLOOR**2
    inside = squared < floor
    parabola = (math.log(floor) + torch.where(inside, squared, 0.0) / floor - 1) / 2
    return torch.where(inside, parabola, torch.where(inside, floor, squared).log() / 2)


@OBJECTIVES.register("argent")
def argent(
    *,
    entail_weight: float = 0.1,
    norm_weight: float = 0.1,
    beta: float = math.pi / 4,
    through_weight: bool = True,
    temperature: float = 0.07,
    reduction: str = "global",
) -> Objective:
    """HyCoCLIP's relations with adaptive angles in the place of cones, and a bound on norms (Huynh et al. 2026).

    Args:
        entail_weight: Of each relation's angles.
        norm_weight: Of the norm regularizer.
        beta: Where the Huber loss turns linear, in radians.
        through_weight: Let the gradient through ``1 - exp(-distance)``, the weight of angles within a modality.
        temperature: Initial value.
        reduction: See :class:`~hyvlm.methods.Objective`.
    Raises:
        ValueError: Unknown reduction, or a value outside its range.
    """
    inter = AdaptiveAngle(beta=beta, adaptive=False)
    intra = AdaptiveAngle(beta=beta, adaptive=True, through_weight=through_weight)
    return Objective(
        contrast("image -> text", "text -> image", "part_image -> text", "part_text -> image", weight=0.25),
        entail(inter, "text ⊒ image", "part_text ⊒ part_image", weight=entail_weight),
        entail(intra, "part_image ⊒ image", "part_text ⊒ text", weight=entail_weight),
        [NormRegularizer(views=("image", "text", "part_image", "part_text"), weight=norm_weight)],
        scales={"global": Scale(init_temperature=temperature)},
        reduction=reduction,
    )
