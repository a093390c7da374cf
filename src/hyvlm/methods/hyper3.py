"""Hyper3-CLIP: UNCHA's relations, and those of queries, pieces of text that each look at the image for themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from hyvlm.geometry import Manifold
from hyvlm.losses import LeakyConeHinge
from hyvlm.methods.aligned import OverRows
from hyvlm.methods.method import OBJECTIVES, Objective
from hyvlm.methods.relations import Term, calibrate, check_measure, entail, entropy_of, split
from hyvlm.methods.uncha import FORMULATIONS, contrast_groups, initial_scales
from hyvlm.registry import unknown
from hyvlm.types import LossOutput, Views

POOLINGS = ("attention", "mean")
#: Relations (1), (2) in both orders, and (3) of Section 2.3.
IMAGE_TEXT = "query_text ⊒ query_image"
VISUAL_ORDERS = {"released": "query_image ⊒ image", "reversed": "image ⊒ query_image"}
TEXT = "query_text ⊒ parent query_text"


class QueryPooling(nn.Module):
    """What each query sees in its image: its text attends to the patches, ``v = a + MLP(LN(a))`` (Section 2.2).

    Runs in the precision of its inputs, at least float32, whatever the autocast.

    Args:
        image_width: Of the patch tokens, ``d_v``.
        text_width: Of the query's text features, ``d_t``.
        heads: Of the attention; they divide ``image_width``.
        mode: "attention", or "mean": the mean of the image's patches, without parameters (control of Table 5).
    Raises:
        ValueError: Unknown mode, or a width that the heads do not divide.
    """

    def __init__(self, image_width: int, text_width: int, heads: int = 8, mode: str = "attention") -> None:
        super().__init__()
        if mode not in POOLINGS:
            raise ValueError(unknown("pooling", mode, list(POOLINGS)))
        self.mode = mode
        if mode == "mean":
            return
        if image_width % heads:
            raise ValueError(f"{heads} heads of query pooling do not divide the image tower's width {image_width}")
        self.query = nn.Linear(text_width, image_width)
        self.attention = nn.MultiheadAttention(image_width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(image_width),
            nn.Linear(image_width, 4 * image_width),
            nn.GELU(),
            nn.Linear(4 * image_width, image_width),
        )

    def forward(self, h: Tensor, patches: Tensor, owner: Tensor) -> Tensor:
        """One visual feature per query, before the image projection.

        Args:
            h: ``(Q, d_t)``, the text tower's output for each query, before the text projection.
            patches: ``(B, N, d_v)``, patch tokens without the class token.
            owner: ``(Q,)`` int64, the image of each query, in any order.
        Returns:
            ``(Q, d_v)``.
        """
        with torch.autocast(patches.device.type, enabled=False):
            dtype = torch.promote_types(patches.dtype, torch.float32)
            h, patches = h.to(dtype), patches.to(dtype)
            if self.mode == "mean":
                return patches.mean(1).index_select(0, owner)
            # (B, most queries of an image, d_v), so that keys and values are projected once an image, not once a query
            query, slot = self.query(h), _number_within(owner)
            rows = query.new_zeros(len(patches), int(slot.max()) + 1 if len(slot) else 1, query.shape[-1])
            rows = rows.index_put((owner, slot), query)
            attended = self.attention(rows, patches, patches, need_weights=False)[0][owner, slot]
            return attended + self.mlp(attended)


def _number_within(owner: Tensor) -> Tensor:
    """How many earlier rows have the same owner, ``(Q,)``."""
    order = owner.argsort(stable=True)
    grouped = owner[order]
    first = torch.searchsorted(grouped, grouped)
    return torch.empty_like(owner).scatter(0, order, torch.arange(len(owner), device=owner.device) - first)


def shuffle_parents(parent: Tensor, owner: Tensor) -> Tensor:
    """Parents ``(Q,)`` dealt anew among the queries that have one, so that each gets that of another image's query.

    The same for the same batch, on every process. As few as possible stay within their image, none unless one image has
    more than half of all the links.
    """
    child = (parent >= 0).nonzero()[:, 0]
    child = child[owner[child].argsort(stable=True)]
    most = int(owner[child].bincount().max()) if len(child) else 0  # so far apart that no image reaches itself
    return parent.index_put((child,), parent[child].roll(-most))


def roll_parents(parent: Tensor, owner: Tensor) -> Tensor:
    """Parents ``(Q,)`` moved on by one among the queries that have one, as released; siblings mostly keep theirs."""
    child = (parent >= 0).nonzero()[:, 0]
    return parent.index_put((child,), parent[child].roll(1))


TEXT_PARENTS: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "built": None,
    "shuffled": shuffle_parents,
    "rolled": roll_parents,
}


class Hyper3(Objective):
    """An :class:`~hyvlm.methods.Objective` with query pooling, and with the texts' parents as built or corrupted."""

    def __init__(self, *terms: Sequence[Term], pooling: str, text_parents: str, **settings: Any) -> None:
        super().__init__(*terms, **settings)
        self.pooling = pooling
        self.change_parents = TEXT_PARENTS[text_parents]

    def prepare(self, image_width: int, text_width: int) -> None:
        """Build :class:`QueryPooling` if a relation asks for ``query_image``."""
        if "query_image" in self.views:
            pooling = QueryPooling(image_width, text_width, mode=self.pooling)
            self.query_pooling = pooling.to(next(iter(self.log_scale.values())))

    def forward(self, manifold: Manifold, views: Views) -> LossOutput:
        if self.change_parents is not None:
            rows = views.local["query"] if self.reduction == "per_rank" else slice(None)
            parent = views.query_parent.clone()
            parent[rows] = self.change_parents(parent[rows], views.owner["query"][rows])
            views = dataclasses.replace(views, query_parent=parent)
        return super().forward(manifold, views)


CHOICES: dict[str, Collection[str]] = {
    "formulation": FORMULATIONS,
    "visual_order": VISUAL_ORDERS,
    "text_parents": TEXT_PARENTS,
    "pooling": POOLINGS,
    "query_reduction": get_args(OverRows),
}


def check_choices(**chosen: str) -> None:
    """Raise ValueError at the first setting whose value is none of its :data:`CHOICES`."""
    for what, name in chosen.items():
        if name not in CHOICES[what]:
            raise ValueError(unknown(what, name, list(CHOICES[what])))


@OBJECTIVES.register("hyper3")
def hyper3(
    *,
    image_text_weight: float = 1.0,
    visual_weight: float = 1.0,
    text_weight: float = 1.0,
    visual_order: str = "released",
    text_parents: str = "built",
    pooling: str = "attention",
    query_reduction: str | None = None,
    calibration_gradient: bool = False,
    uncertainty: str = "norm",
    eta_inter: float = 0.7,
    eta_intra: float = 1.2,
    alpha: float | None = None,
    entail_weight: float = 0.2,
    intra_weight: float | None = None,
    calibration_weight: float = 10.0,
    entropy: bool | None = None,
    temperature: float = 0.07,
    local_temperature: float | None = None,
    global_local_temperature: float = 0.06,
    formulation: str = "released",
    reduction: str = "global",
) -> Objective:
    """Hierarchy-conditioned hyperbolic alignment: UNCHA's base and three relations of queries (Section 2.3).

    Args:
        image_text_weight, visual_weight, text_weight: Of the relations (1), (2) and (3), calibration included; 0 leaves
            the relation out, with what it alone needs ("only" rows of Table 5; all 0: "no query losses").
        visual_order: "released", as in the paper, or "reversed": ``I^q`` is the more specific one (Table 5).
        text_parents: "built"; "shuffled", every query gets a parent of another image (Table 5); "rolled", the released
            code's shuffle. Within the batch, or with ``reduction="per_rank"`` within each process's share of it.
        pooling: "attention" or "mean", see :class:`QueryPooling`.
        query_reduction: "mean" over the queries that count, or "sum", Section 2.3 (None: mean released, sum paper).
        calibration_gradient: Let the gradient of the calibration through the violation, too.
        uncertainty: A function of the space "norm" or of the "radius".
        eta_inter, eta_intra: Factors of the half-aperture between and within modalities.
        alpha: Slope inside the cone (None: 0 released, 0.1 paper, UNCHA's Eq. 14).
        entail_weight: Weight of all entailment and calibration, ``lambda_ent``.
        intra_weight: Weight of wholes and parts within a modality (None: 1 released, 0.5 paper, UNCHA's ``lambda_1``).
        calibration_weight: Of each calibration, UNCHA's ``lambda_2``; the released code halves it.
        entropy: Calibrate with the entropy of the uncertainties (None: not released, paper).
        temperature, local_temperature, global_local_temperature: As in UNCHA.
        formulation: "released", or "paper": UNCHA as its paper prints it, query relations summed.
        reduction: See :class:`~hyvlm.methods.Objective`. With "per_rank" the contrasts of parts stay means over the
            global batch in "released", as in that code.
    Raises:
        ValueError: Unknown name; a value outside its range.
    """
    chosen = {"visual_order": visual_order, "text_parents": text_parents, "pooling": pooling}
    check_choices(formulation=formulation, query_reduction=query_reduction or "mean", **chosen)
    check_measure(uncertainty)
    form, printed = FORMULATIONS[formulation], formulation == "paper"
    alpha = (0.1 if printed else 0.0) if alpha is None else alpha
    intra_weight = (0.5 if printed else 1.0) if intra_weight is None else intra_weight
    entropy = printed if entropy is None else entropy
    over_rows: OverRows = "sum" if query_reduction == "sum" or (printed and query_reduction is None) else "mean"

    inter, intra = LeakyConeHinge(eta=eta_inter, alpha=alpha), LeakyConeHinge(eta=eta_intra, alpha=alpha)
    calibration = entail_weight * calibration_weight
    calibrated = partial(calibrate, intra, measure=uncertainty, through_residual=calibration_gradient)
    spread = partial(entropy_of, measure=uncertainty)
    within, parts = ("part_image ⊒ image", "part_text ⊒ text"), ("part_image", "part_text")
    terms: list[Term] = [
        *contrast_groups(form, tempered_by=uncertainty, reduction=None if printed else "global"),
        *entail(inter, "text ⊒ image", "part_text ⊒ part_image", weight=entail_weight),
        *entail(intra, *within, weight=entail_weight * intra_weight),
        *calibrated(*within, weight=calibration * form.half),
        *spread(*parts, weight=calibration * entropy),
        *entail(inter, IMAGE_TEXT, weight=entail_weight * image_text_weight, over_rows=over_rows),
    ]
    for relation, weight in ((VISUAL_ORDERS[visual_order], visual_weight), (TEXT, text_weight)):
        terms += entail(intra, relation, weight=entail_weight * weight, over_rows=over_rows)
        terms += calibrated(relation, weight=calibration * form.half * weight, over_rows=over_rows)
        terms += spread(split(relation, "⊒")[0], weight=calibration * entropy * weight)
    return Hyper3(
        [term for term in terms if term.weight != 0],
        pooling=pooling,
        text_parents=text_parents,
        scales=initial_scales(form, temperature, local_temperature, global_local_temperature),
        reduction=reduction,
    )
