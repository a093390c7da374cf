"""Relations between views: what a method declares, and how each becomes one number of the global batch.

A relation is written as in the papers: ``"image -> text"`` (an image finds its text among all texts) and
``"text ⊒ image"`` (the image lies in the cone of its text). ``"parent query_text"`` is the query above each query.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from hyvlm.geometry import HasAngles, Manifold
from hyvlm.losses import (
    MEASURES,
    HasCones,
    HasRadius,
    Search,
    calibration_rows,
    contrast_rows,
    contrast_totals,
    entropy_rows,
    tiled,
    uncertainty,
)
from hyvlm.methods.aligned import AlignedViews, OverRows, finer_group, view_of
from hyvlm.registry import unknown
from hyvlm.types import GROUP_OF_VIEW

#: What contrast compares points by.
SIMILARITIES = ("distance", "exterior_angle")


class Term(Protocol):
    """One summand of an objective. ``name`` is what logs call it; ``views`` are the ones it needs.

    A term may also have ``scale`` (the inverse temperature it uses), ``loss`` (a module that asks the manifold for
    entailment cones), ``needs`` (what else it asks of the manifold: name to protocol), ``token_views`` (views whose
    single tokens it needs) with ``midpoints(manifold, views)`` (the one point that it makes of a row's tokens),
    ``teacher_views`` (views that a frozen teacher must embed) and ``stat_shares(batch)`` (scalars for the log, shares
    like ``share``).
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
    similarity: str
    owner_repeated: bool
    exclude_positive: bool
    over_rows: OverRows
    tempered_by: str | None
    reduction: str | None
    both_ways: bool

    @property
    def name(self) -> str:
        return f"{self.anchor} -> {self.candidate}"

    @property
    def views(self) -> tuple[str, ...]:
        return self.anchor, self.candidate

    @property
    def needs(self) -> dict[str, type]:
        angles: dict[str, type] = {"exterior angles": HasAngles} if self.similarity == "exterior_angle" else {}
        return angles | needs_of(self.tempered_by)

    def share(self, batch: AlignedViews) -> Tensor:
        rows, columns = batch.views.rows(self.anchor), batch.views.points[self.candidate]
        if 0 < len(rows) * len(columns) < tiled.FROM:
            values = contrast_rows(
                self._similarity(batch) * self._scale(batch).unsqueeze(1),
                batch.rows_to(self.candidate, GROUP_OF_VIEW[self.anchor]),
                log_count=self._log_count(batch),
                exclude_positive=self.exclude_positive,
            )
            return batch.share(values, GROUP_OF_VIEW[self.anchor], over_rows=self.over_rows, reduction=self.reduction)
        if self.both_ways and batch.views.world_size == 1:
            first = min(self, self._reversed(), key=lambda term: term.anchor)
            return batch.once(first, lambda: first._totals(batch, both=True))[0 if first == self else 1]
        return self._totals(batch, both=False)[0]

    def _reversed(self) -> Contrast:
        return replace(self, anchor=self.candidate, candidate=self.anchor)

    def _similarity(self, batch: AlignedViews) -> Tensor:
        compare = batch.angle_similarity if self.similarity == "exterior_angle" else batch.similarity
        return compare(self.anchor, self.candidate)

    def _totals(self, batch: AlignedViews, *, both: bool) -> Tensor:
        """This direction's share and, if asked, that of the other one, without the matrix of similarities."""
        compare = batch.angle_scores if self.similarity == "exterior_angle" else batch.scores
        scores, unit = compare(self.anchor, self.candidate)
        searches = [term._search(batch, unit) for term in ((self, self._reversed()) if both else (self,))]
        return contrast_totals(scores, *searches)

    def _search(self, batch: AlignedViews, unit: Tensor) -> Search:
        group, scale = GROUP_OF_VIEW[self.anchor], self._scale(batch) * unit
        return Search(
            scale=scale,
            weight=batch.row_weights(group, scale, over_rows=self.over_rows, reduction=self.reduction),
            target=batch.rows_to(self.candidate, group),
            log_count=self._log_count(batch),
            exclude_positive=self.exclude_positive,
        )

    def _scale(self, batch: AlignedViews) -> Tensor:
        """What multiplies the similarities of each row, ``(n,)``."""
        rows = batch.views.rows(self.anchor)
        scale = batch.scales[self.scale].to(rows.dtype).expand(len(rows))
        if self.tempered_by is None:
            return scale
        with torch.no_grad():
            u = uncertainty(rows, batch.manifold, self.tempered_by)
        return scale * torch.exp(-u / 2)

    def _log_count(self, batch: AlignedViews) -> Tensor | None:
        if not self.owner_repeated:
            return None
        candidates = batch.views.points[self.candidate]
        owners = batch.views.owner[GROUP_OF_VIEW[self.anchor]]
        return torch.bincount(owners, minlength=len(candidates)).to(candidates.dtype).log()


@dataclass(frozen=True, kw_only=True)
class Entailment:
    """``general ⊒ specific``: the specific point lies in the cone of the general one; ``loss`` gives the rows."""

    general: str
    specific: str
    loss: nn.Module
    weight: float
    over_rows: OverRows

    @property
    def name(self) -> str:
        return f"{self.general} ⊒ {self.specific}"

    @property
    def views(self) -> tuple[str, ...]:
        return view_of(self.general), view_of(self.specific)

    def share(self, batch: AlignedViews) -> Tensor:
        rows = batch.entailment(self.loss, self.general, self.specific)
        return batch.share(rows, finer_group(self.general, self.specific), over_rows=self.over_rows)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Uncertainty of the general point, calibrated by how badly ``general ⊒ specific`` holds. See :func:`calibrate`."""

    general: str
    specific: str
    loss: nn.Module
    weight: float
    measure: str
    eps: float
    through_residual: bool
    over_rows: OverRows

    @property
    def name(self) -> str:
        return f"calibration {self.general} ⊒ {self.specific}"

    @property
    def views(self) -> tuple[str, ...]:
        return view_of(self.general), view_of(self.specific)

    @property
    def needs(self) -> dict[str, type]:
        return needs_of(self.measure)

    def share(self, batch: AlignedViews) -> Tensor:
        group = finer_group(self.general, self.specific)
        general = batch.matched(self.general, group)
        residual = batch.entailment(self.loss, self.general, self.specific)
        u = uncertainty(general, batch.manifold, self.measure)
        rows = calibration_rows(residual, u, eps=self.eps, through_residual=self.through_residual)
        return batch.share(rows, group, over_rows=self.over_rows)


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

    @property
    def needs(self) -> dict[str, type]:
        return needs_of(self.measure)

    def share(self, batch: AlignedViews) -> Tensor:
        per_rank = batch.reduction == "per_rank"
        group = GROUP_OF_VIEW[self.view]
        local = batch.views.local[group]
        u = uncertainty(batch.views.points[self.view], batch.manifold, self.measure)
        mine, weights = u[local], batch.weights(group)
        if weights is not None:
            mine, u = mine[weights[local] > 0], u[weights > 0]
        total = entropy_rows(mine, mine if per_rank else u, eps=self.eps).sum()
        return total / batch.views.world_size if per_rank else total


def contrast(
    *relations: str,
    weight: float = 1.0,
    scale: str = "global",
    similarity: str = "distance",
    owner_repeated: bool = False,
    exclude_positive: bool = False,
    over_rows: OverRows = "mean",
    tempered_by: str | None = None,
    reduction: str | None = None,
) -> list[Contrast]:
    """Contrast relations ``"anchor -> candidate"``; the target is the row's owner, or its own row within one group.

    Args:
        relations: One or more of them; each gets ``weight``.
        weight: Of each relation in the total.
        scale: Name of the learnable inverse temperature.
        similarity: One of :data:`SIMILARITIES`: what the manifold is trained on (minus its distance, on the sphere the
            cosine), or the exterior angle at the anchor (ATMG), between views of different modalities.
        owner_repeated: Each whole counts once per part that it owns, so a sample's other parts act as negatives with
            the same embedding and a whole without parts drops out (released UNCHA). Nothing is repeated in memory.
        exclude_positive: Leave the positive out of the denominator; a row without negatives is 0.
        over_rows: Mean over the rows, or their sum.
        tempered_by: None, or the uncertainty measure ``u`` of the anchor that raises its row's temperature by
            ``exp(u / 2)``; no gradient flows through ``u``.
        reduction: None, or one of :data:`REDUCTIONS` for these relations alone.
    Raises:
        ValueError: Unknown view, a candidate of which a row has several, or an option that fits no such relation.
    """
    check_measure(tempered_by)
    if similarity not in SIMILARITIES:
        raise ValueError(unknown("similarity", similarity, list(SIMILARITIES)))
    pairs = [split(relation, "->", parents=False) for relation in relations]
    terms = []
    for relation, (anchor, candidate) in zip(relations, pairs, strict=True):
        if finer_group(anchor, candidate) != GROUP_OF_VIEW[anchor]:
            raise ValueError(
                f"contrast {relation!r}: an {anchor} owns any number of {candidate}, so it has no one target"
            )
        if owner_repeated and GROUP_OF_VIEW[anchor] == GROUP_OF_VIEW[candidate]:
            raise ValueError(f"contrast {relation!r}: owner_repeated needs parts that look for wholes")
        if similarity == "exterior_angle" and anchor.endswith("image") == candidate.endswith("image"):
            raise ValueError(f"contrast {relation!r}: an angle has a direction between an image and a text only")
        terms.append(
            Contrast(
                anchor=anchor,
                candidate=candidate,
                weight=weight,
                scale=scale,
                similarity=similarity,
                owner_repeated=owner_repeated,
                exclude_positive=exclude_positive,
                over_rows=over_rows,
                tempered_by=tempered_by,
                reduction=reduction,
                both_ways=similarity == "distance" and (candidate, anchor) in pairs,
            )
        )
    return terms


def entail(loss: nn.Module, *relations: str, weight: float = 1.0, over_rows: OverRows = "mean") -> list[Entailment]:
    """Entailment relations ``"general ⊒ specific"``; a part or query pairs with the whole that owns it.

    Args:
        loss: Called as ``loss(manifold, general, specific)``, gives one value per pair.
        relations: One or more of them; each gets ``weight``.
        weight: Of each relation in the total.
        over_rows: Mean over the pairs, or their sum.
    Raises:
        ValueError: Unknown view, or views that share no rows.
    """
    return [
        Entailment(general=general, specific=specific, loss=loss, weight=weight, over_rows=over_rows)
        for general, specific in (split(relation, "⊒") for relation in relations)
    ]


def calibrate(
    loss: nn.Module,
    *relations: str,
    weight: float = 1.0,
    measure: str = "norm",
    eps: float = 0.0,
    through_residual: bool = False,
    over_rows: OverRows = "mean",
) -> list[Calibration]:
    """Uncertainty calibration of the general view of each relation (UNCHA, Eq. 15).

    Args:
        loss: As in :func:`entail`.
        relations: ``"general ⊒ specific"``, one or more; each gets ``weight``.
        weight: Of each relation in the total.
        measure: What the uncertainty is a function of, "norm" or "radius".
        eps: Added to the denominator.
        through_residual: Let the gradient through the value of ``loss``, too.
        over_rows: Mean over the pairs, or their sum.
    Raises:
        ValueError: Unknown view or measure, or views that share no rows.
    """
    check_measure(measure)
    return [
        Calibration(
            general=general,
            specific=specific,
            loss=loss,
            weight=weight,
            measure=measure,
            eps=eps,
            through_residual=through_residual,
            over_rows=over_rows,
        )
        for general, specific in (split(relation, "⊒") for relation in relations)
    ]


def entropy_of(*views: str, weight: float = 1.0, measure: str = "norm", eps: float = 0.0) -> list[Entropy]:
    """Entropy of the softmax over the uncertainties of all points of each view that count (UNCHA, Eq. 16).

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


def needs_of(measure: str | None) -> dict[str, type]:
    """What an uncertainty measure asks of the manifold."""
    return {"a radius": HasRadius} if measure == "radius" else {}


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


def split(relation: str, arrow: str, *, parents: bool = True) -> tuple[str, str]:
    """The two sides of ``"a -> b"`` or ``"a ⊒ b"``, views or (if ``parents``) parents of a query view.

    Raises:
        ValueError: If it is not of that form, a view is unknown, or the views share no rows.
    """
    sides = [side.strip() for side in relation.split(arrow)]
    if len(sides) != 2:
        raise ValueError(f"a relation is written 'view {arrow} view', got {relation!r}")
    for side in sides:
        view = view_of(side) if parents else side
        check_view(view)
        if view != side and GROUP_OF_VIEW[view] != "query":
            raise ValueError(f"only queries have parents, got {relation!r}")
    finer_group(*sides)
    return sides[0], sides[1]


def check_view(view: str) -> None:
    """Raise ValueError if there is no such view."""
    if view not in GROUP_OF_VIEW:
        raise ValueError(unknown("view", view, list(GROUP_OF_VIEW)))


def check_measure(measure: str | None) -> None:
    """Raise ValueError if there is no such uncertainty measure; None is no measure."""
    if measure is not None and measure not in MEASURES:
        raise ValueError(unknown("uncertainty measure", measure, list(MEASURES)))
