"""HyFL-CLIP: a Euclidean CLIP fine-tuned into hyperbolic space for long texts (HyFL-CLIP, Section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hyvlm.geometry import Manifold
from hyvlm.losses import (
    ConeHinge,
    HasCones,
    HasMidpoint,
    HasRadius,
    distillation_rows,
    entropy_rows,
    token_midpoint,
    token_weights,
)
from hyvlm.methods.aligned import AlignedViews
from hyvlm.methods.method import OBJECTIVES, Objective, Scale
from hyvlm.methods.relations import contrast
from hyvlm.registry import unknown
from hyvlm.types import Views

#: "lineage": means over rows with the positive in the denominator, as MERU and its successors train. "paper": Eq. 13 as
#: printed, a sum over rows without it.
FORMULATIONS = ("lineage", "paper")


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """The short texts rank the images of the batch as a frozen Euclidean teacher does (Eqs. 10 to 12).

    Attributes:
        teacher_temperature, temperature: Of the teacher's cosines and of the student's similarities.
    """

    weight: float
    teacher_temperature: float
    temperature: float
    text: str = "short_text"

    @property
    def name(self) -> str:
        return f"distillation {self.text} -> image"

    @property
    def views(self) -> tuple[str, ...]:
        return self.text, "image"

    @property
    def teacher_views(self) -> tuple[str, ...]:
        return self.views

    def share(self, batch: AlignedViews) -> Tensor:
        text, image = (F.normalize(batch.views.teacher[view], dim=-1) for view in self.views)
        cosine = text[batch.views.local["whole"]] @ image.T
        student = batch.similarity(self.text, "image")
        rows = distillation_rows(cosine.to(student.dtype) / self.teacher_temperature, student / self.temperature)
        return batch.share(rows, "whole")


@dataclass(frozen=True, kw_only=True)
class TokenEntailment:
    """A view's embedding lies in the cone of the midpoint of its tokens (Eqs. 17 to 20).

    Attributes:
        toward: The view of the other modality whose embedding weighs the tokens.
        temperature: Of those weights.
    """

    view: str
    toward: str
    loss: nn.Module
    weight: float
    temperature: float

    @property
    def name(self) -> str:
        return f"tokens of {self.view} ⊒ {self.view}"

    @property
    def views(self) -> tuple[str, ...]:
        return self.view, self.toward

    @property
    def token_views(self) -> tuple[str, ...]:
        return (self.view,)

    @property
    def needs(self) -> dict[str, type]:
        return {"midpoints": HasMidpoint}

    def midpoints(self, manifold: Manifold, views: Views) -> Tensor:
        """One point per row of this process, ``(n, D)``; see :meth:`Objective.condense`."""
        tokens = views.tokens[self.view]
        assert isinstance(manifold, HasMidpoint)  # checked by the objective
        weights = token_weights(manifold, tokens, views.rows(self.toward), self.temperature)
        return token_midpoint(manifold, tokens, weights)

    def share(self, batch: AlignedViews) -> Tensor:
        midpoints = batch.views.midpoints[self.name]
        rows: Tensor = self.loss(batch.manifold, midpoints, batch.views.rows(self.view))
        return batch.share(rows, "whole")

    @torch.no_grad()
    def stat_shares(self, batch: AlignedViews) -> dict[str, Tensor]:
        """Share of midpoints whose cone is saturated: with ``K`` = 1, all of space norm below ``2 / sqrt(c)``."""
        points, manifold = batch.views.midpoints[self.name], batch.manifold
        assert isinstance(manifold, HasCones)  # checked by the objective
        saturated = manifold.saturated(points).to(points.dtype)
        return {f"saturated/tokens of {self.view}": batch.share(saturated, "whole")}


@dataclass(frozen=True, kw_only=True)
class RadiusEntropy:
    """Minus the entropy of the softmax over a view's radii: minimised, it keeps the radii in use alike (Eq. 23)."""

    view: str
    weight: float

    @property
    def name(self) -> str:
        return f"minus radius entropy {self.view}"

    @property
    def views(self) -> tuple[str, ...]:
        return (self.view,)

    @property
    def needs(self) -> dict[str, type]:
        return {"a radius": HasRadius}

    def share(self, batch: AlignedViews) -> Tensor:
        assert isinstance(batch.manifold, HasRadius)  # checked by the objective
        alone = batch.reduction == "per_rank"
        radius = batch.manifold.radius(batch.views.rows(self.view) if alone else batch.views.points[self.view])
        rows = entropy_rows(radius if alone else radius[batch.views.local["whole"]], radius)
        return batch.share(-rows, "whole", over_rows="sum")


@OBJECTIVES.register("hyfl")
def hyfl(
    *,
    short_weight: float = 0.1,
    distill_weight: float = 0.05,
    entail_weight: float = 0.1,
    entropy_weight: float = 0.1,
    eta: float = 1.2,
    temperature: float = 0.07,
    learn_temperature: bool = False,
    teacher_temperature: float = 0.005,
    distill_temperature: float = 0.005,
    entail_temperature: float = 0.07,
    formulation: str = "lineage",
    reduction: str = "global",
) -> Objective:
    """Long and short texts contrasted with images, distilled from Euclidean CLIP, entailed by their own tokens.

    A weight of 0 leaves its term out, with what the term alone needs (tokens, the teacher, short texts).

    Args:
        short_weight: ``lambda_1``, contrast of the short texts against that of the long ones, Eq. 16 (Table S3).
        distill_weight: ``lambda_2``, Eq. 22 (0: "- L_distill" of Tables S2 and S5, and the hyperbolic starts of S8).
        entail_weight: ``lambda_3`` (0: "- L_ent" of Tables S2 and S5).
        entropy_weight: ``lambda_4``.
        eta: Factor of the half-aperture, Eq. 20; its constant ``K`` = 1 belongs to the manifold.
        temperature: ``tau_c`` of the contrast; it stays as it is unless ``learn_temperature``.
        teacher_temperature, distill_temperature: ``tau_E`` and ``tau_H``.
        entail_temperature: ``tau_ent`` of Eq. 17, which the paper does not state.
        formulation: "lineage" or "paper", see :data:`FORMULATIONS`.
        reduction: See :class:`~hyvlm.methods.Objective`.
    Raises:
        ValueError: Unknown formulation or reduction; a value outside its range.
    """
    if formulation not in FORMULATIONS:
        raise ValueError(unknown("formulation", formulation, list(FORMULATIONS)))
    temperatures = {
        "teacher_temperature": teacher_temperature,
        "distill_temperature": distill_temperature,
        "entail_temperature": entail_temperature,
    }
    for name, value in temperatures.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    printed = formulation == "paper"
    pair = partial(contrast, exclude_positive=printed, over_rows="sum" if printed else "mean")
    cone = ConeHinge(eta=eta)
    distillation = Distillation(
        weight=distill_weight, teacher_temperature=teacher_temperature, temperature=distill_temperature
    )
    tokens = [
        TokenEntailment(view=view, toward=toward, loss=cone, weight=entail_weight, temperature=entail_temperature)
        for view, toward in (("text", "image"), ("image", "text"))
    ]
    return Objective(
        pair("image -> text", "text -> image", weight=0.5),
        pair("image -> short_text", "short_text -> image", weight=0.5 * short_weight) if short_weight else [],
        [distillation] if distill_weight else [],
        tokens if entail_weight else [],
        [RadiusEntropy(view="text", weight=entropy_weight)] if entropy_weight else [],
        scales={"global": Scale(init_temperature=temperature, learn=learn_temperature)},
        reduction=reduction,
    )
