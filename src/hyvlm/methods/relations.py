"""Relations between views: what a method declares, and how each becomes one number of the global batch.

A relation is written as in the papers: ``"image -> text"`` (an image finds its text among all texts) and
``"text ⊒ image"`` (the image lies in the cone of its text).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from hyvlm.geometry import Manifold
from hyvlm.losses import MEASURES, HasCones, calibration_rows, contrast_rows, entropy_rows, uncertainty
from hyvlm.registry import unknown
from hyvlm.types import GROUP_OF_VIEW, Views

#: What means and entropies run over: the global batch, or each process's rows, averaged over processes (as released).
REDUCTIONS = ("global", "per_rank")


class AlignedViews:
    """What the relations of one forward pass share: rows matched by owner, row weights, similarity matrices, scales.

    Args:
        manifold: Where the points live.
        views: Points of the global batch; the rows of this process are the ones that its loss covers.
        scales: Name to inverse temperature, a scalar.
        reduction: One of :data:`REDUCTIONS`.
    """

    def __init__(self, manifold: Manifold, views: Views, scales: dict[str, Tensor], reduction: str) -> None:
        self.manifold = manifold
        self.views = views
        self.scales = scales
        self.reduction = reduction
        self._similarity: dict[tuple[str, str], Tensor] = {}
        self._computed: dict[Hashable, Tensor] = {}

    def once(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """``compute()``, done once for all that ask for ``key`` in this forward pass."""
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    def similarity(self, anchor: str, candidate: str) -> Tensor:
        """This process's rows of ``anchor`` against all points of ``candidate``, ``(n, M)``.

        One process covers both directions of a pair of views with one matrix.
        """
        if self.views.world_size == 1 and (candidate, anchor) in self._similarity:
            return self._similarity[candidate, anchor].T
        matrix = self.manifold.similarity(self.views.rows(anchor), self.views.points[candidate])
        self._similarity[anchor, candidate] = matrix
        return matrix

    def rows_to(self, view: str, group: str) -> Tensor:
        """For each of this process's rows of ``group``, the index of its own point of ``view``, ``(n,)``."""
        local = self.views.local[group]
        if GROUP_OF_VIEW[view] == group:
            return torch.arange(local.start, local.stop, device=self.views.owner[group].device)
        return self.views.owner[group][local]

    def pairs(self, general: str, specific: str) -> tuple[Tensor, Tensor, str]:
        """Matched points of two views, ``(n, D)`` each, and their group: a part meets the whole that owns it."""
        group = finer_group(general, specific)
        matched = [
            self.views.rows(view)
            if GROUP_OF_VIEW[view] == group
            else self.views.points[view].index_select(0, self.rows_to(view, group))
            for view in (general, specific)
        ]
        return matched[0], matched[1], group

    def entailment(self, loss: nn.Module, general: str, specific: str) -> Tensor:
        """``loss`` of every matched pair, ``(n,)``; computed once for the terms that share it."""
        return self.once((loss, general, specific), lambda: loss(self.manifold, *self.pairs(general, specific)[:2]))

    def share(self, rows: Tensor, group: str, *, over_rows: Literal["mean", "sum"] = "mean") -> Tensor:
        """This process's share of the mean (or sum) of ``rows``; all shares add up to it. 0 without rows."""
        total = rows.sum()
        if self.reduction == "per_rank":
            total = total / self.views.world_size
        if over_rows == "mean":
            total = total / max(len(rows) if self.reduction == "per_rank" else len(self.views.owner[group]), 1)
        return total


class Term(Protocol):
    """One summand of an objective. ``name`` is what logs call it; ``views`` are the ones it needs.

    A term may also have ``scale`` (the inverse temperature it uses), ``loss`` (a module that asks the manifold for
    entailment cones), ``needs`` (what else it asks of the manifold: name to protocol), ``token_views`` (views whose
    single tokens it needs), ``teacher_views`` (views that a frozen teacher must embed) and ``stat_shares(batch)``
    (scalars for the log, shares like ``share``).
    """

    @property
    def name(self) -> str: ...

    @property
    def views(self) -> tuple[str, ...]: ...

    @property
    def weight(self) -> float: ...

    def share(self, batch: AlignedViews) -> Tensor:
        """This process's share of the unweighted value, a scalar."""


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """``anchor -> candidate``: each row finds its own candidate among all of the global batch. See :func:`contrast`."""

    anchor: str
    candidate: str
    weight: float
    scale: str
    owner_repeated: bool
    exclude_positive: bool
    over_rows: Literal["mean", "sum"]
    tempered_by: str | None

    @property
    def name(self) -> str:
        return f"{self.anchor} -> {self.candidate}"

    @property
    def views(self) -> tuple[str, ...]:
        return self.anchor, self.candidate

    def share(self, batch: AlignedViews) -> Tensor:
        group = GROUP_OF_VIEW[self.anchor]
        logits = batch.similarity(self.anchor, self.candidate) * batch.scales[self.scale]
        if self.tempered_by is not None:
            with torch.no_grad():
                u = uncertainty(batch.views.rows(self.anchor), batch.manifold, self.tempered_by)
            logits = logits * torch.exp(-u / 2).unsqueeze(1)
        log_count = None
        if self.owner_repeated:
            owners = batch.views.owner[group]
            log_count = torch.bincount(owners, minlength=logits.shape[1]).to(logits.dtype).log()
        target = batch.rows_to(self.candidate, group)
        rows = contrast_rows(logits, target, log_count=log_count, exclude_positive=self.exclude_positive)
        return batch.share(rows, group, over_rows=self.over_rows)


@dataclass(frozen=True, kw_only=True)
class Entailment:
    """``general ⊒ specific``: the specific point lies in the cone of the general one; ``loss`` gives the rows."""

    general: str
    specific: str
    loss: nn.Module
    weight: float

    @property
    def name(self) -> str:
        return f"{self.general} ⊒ {self.specific}"

    @property
    def views(self) -> tuple[str, ...]:
        return self.general, self.specific

    def share(self, batch: AlignedViews) -> Tensor:
        rows = batch.entailment(self.loss, self.general, self.specific)
        return batch.share(rows, finer_group(self.general, self.specific))


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Uncertainty of the general point, calibrated by how badly ``general ⊒ specific`` holds. See :func:`calibrate`."""

    general: str
    specific: str
    loss: nn.Module
    weight: float
    measure: str
    eps: float

    @property
    def name(self) -> str:
        return f"calibration {self.general} ⊒ {self.specific}"

    @property
    def views(self) -> tuple[str, ...]:
        return self.general, self.specific

    def share(self, batch: AlignedViews) -> Tensor:
        general, _, group = batch.pairs(self.general, self.specific)
        residual = batch.entailment(self.loss, self.general, self.specific).detach()
        rows = calibration_rows(residual, uncertainty(general, batch.manifold, self.measure), eps=self.eps)
        return batch.share(rows, group)


@dataclass(frozen=True, kw_only=True)
class Entropy:
    """Entropy of the softmax over the uncertainties of a view's points. See :func:`entropy_of`."""

    view: str
    weight: float
    measure: str
    eps: float

    @property
    def name(self) -> str:
        return f"entropy {self.view}"

    @property
    def views(self) -> tuple[str, ...]:
        return (self.view,)

    def share(self, batch: AlignedViews) -> Tensor:
        group = GROUP_OF_VIEW[self.view]
        local = batch.views.local[group]
        points = batch.views.rows(self.view) if batch.reduction == "per_rank" else batch.views.points[self.view]
        u = uncertainty(points, batch.manifold, self.measure)
        rows = entropy_rows(u if batch.reduction == "per_rank" else u[local], u, eps=self.eps)
        return batch.share(rows, group, over_rows="sum")


def contrast(
    *relations: str,
    weight: float = 1.0,
    scale: str = "global",
    owner_repeated: bool = False,
    exclude_positive: bool = False,
    over_rows: Literal["mean", "sum"] = "mean",
    tempered_by: str | None = None,
) -> list[Contrast]:
    """Contrast relations ``"anchor -> candidate"``; the target is the row's owner, or its own row within one group.

    Args:
        relations: One or more of them; each gets ``weight``.
        weight: Of each relation in the total.
        scale: Name of the learnable inverse temperature.
        owner_repeated: Each whole counts once per part that it owns, so a sample's other parts act as negatives with
            the same embedding and a whole without parts drops out (released UNCHA). Nothing is repeated in memory.
        exclude_positive: Leave the positive out of the denominator; a row without negatives is 0.
        over_rows: Mean over the rows, or their sum.
        tempered_by: None, or the uncertainty measure ``u`` of the anchor that raises its row's temperature by
            ``exp(u / 2)``; no gradient flows through ``u``.
    Raises:
        ValueError: Unknown view, a candidate of which a row has several, or an option that fits no such relation.
    """
    check_measure(tempered_by)
    terms = []
    for relation in relations:
        anchor, candidate = split(relation, "->")
        if finer_group(anchor, candidate) != GROUP_OF_VIEW[anchor]:
            raise ValueError(
                f"contrast {relation!r}: an {anchor} owns any number of {candidate}, so it has no one target"
            )
        if owner_repeated and GROUP_OF_VIEW[anchor] == GROUP_OF_VIEW[candidate]:
            raise ValueError(f"contrast {relation!r}: owner_repeated needs parts that look for wholes")
        terms.append(
            Contrast(
                anchor=anchor,
                candidate=candidate,
                weight=weight,
                scale=scale,
                owner_repeated=owner_repeated,
                exclude_positive=exclude_positive,
                over_rows=over_rows,
                tempered_by=tempered_by,
            )
        )
    return terms


def entail(loss: nn.Module, *relations: str, weight: float = 1.0) -> list[Entailment]:
    """Entailment relations ``"general ⊒ specific"``, mean over the pairs; a part pairs with the whole that owns it.

    Args:
        loss: Called as ``loss(manifold, general, specific)``, gives one value per pair.
        relations: One or more of them; each gets ``weight``.
        weight: Of each relation in the total.
    Raises:
        ValueError: Unknown view.
    """
    pairs = [split(relation, "⊒") for relation in relations]
    return [Entailment(general=general, specific=specific, loss=loss, weight=weight) for general, specific in pairs]


def calibrate(
    loss: nn.Module, *relations: str, weight: float = 1.0, measure: str = "norm", eps: float = 0.0
) -> list[Calibration]:
    """Uncertainty calibration of the general view of each relation, mean over the pairs (UNCHA, Eq. 15).

    Args:
        loss: As in :func:`entail`; its value enters without gradient.
        relations: ``"general ⊒ specific"``, one or more; each gets ``weight``.
        weight: Of each relation in the total.
        measure: What the uncertainty is a function of, "norm" or "radius".
        eps: Added to the denominator.
    Raises:
        ValueError: Unknown view or measure.
    """
    check_measure(measure)
    pairs = [split(relation, "⊒") for relation in relations]
    return [Calibration(general=g, specific=s, loss=loss, weight=weight, measure=measure, eps=eps) for g, s in pairs]


def entropy_of(*views: str, weight: float = 1.0, measure: str = "norm", eps: float = 0.0) -> list[Entropy]:
    """Entropy of the softmax over the uncertainties of all points of each view (UNCHA, Eq. 16).

    Args:
        views: One or more; each gets ``weight``.
        weight: Of each entropy in the total.
        measure: What the uncertainty is a function of, "norm" or "radius".
        eps: Added inside the logarithm.
    Raises:
        ValueError: Unknown view or measure.
    """
    check_measure(measure)
    for view in views:
        check_view(view)
    return [Entropy(view=view, weight=weight, measure=measure, eps=eps) for view in views]


def needs_cones(term: Term) -> bool:
    """Whether the term asks the manifold for entailment cones."""
    return hasattr(term, "loss")


def check_manifold(manifold: Manifold, term: Term) -> None:
    """Raise ValueError if ``manifold`` lacks what ``term`` needs: cones, or another of its ``needs``."""
    needs: dict[str, type] = {"entailment cones": HasCones} if needs_cones(term) else {}
    needs |= getattr(term, "needs", {})
    for what, capability in needs.items():
        if not isinstance(manifold, capability):
            raise ValueError(
                f"{term.name!r} needs {what}, which {type(manifold).__name__} does not have: "
                "set its weight to 0, or choose another manifold"
            )


def split(relation: str, arrow: str) -> tuple[str, str]:
    """The two views of ``"a -> b"`` or ``"a ⊒ b"``; ValueError if it is not of that form or a view is unknown."""
    sides = [side.strip() for side in relation.split(arrow)]
    if len(sides) != 2:
        raise ValueError(f"a relation is written 'view {arrow} view', got {relation!r}")
    for view in sides:
        check_view(view)
    return sides[0], sides[1]


def check_view(view: str) -> None:
    """Raise ValueError if there is no such view."""
    if view not in GROUP_OF_VIEW:
        raise ValueError(unknown("view", view, list(GROUP_OF_VIEW)))


def finer_group(first: str, second: str) -> str:
    """The group that pairs of two views live in: parts if either is a part."""
    groups = {GROUP_OF_VIEW[first], GROUP_OF_VIEW[second]}
    return "part" if "part" in groups else "whole"


def check_measure(measure: str | None) -> None:
    """Raise ValueError if there is no such uncertainty measure; None is no measure."""
    if measure is not None and measure not in MEASURES:
        raise ValueError(unknown("uncertainty measure", measure, list(MEASURES)))
