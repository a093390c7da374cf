"""The views of one batch, aligned row by row, and means over those rows: what every relation computes with.

Parts and queries meet the whole that owns them. A query counts with its weight, and not at all if it is a root or its
weight is not positive; a mean over queries divides by how many count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from hyvlm.geometry import HasAngles, Manifold, angle_similarity
from hyvlm.losses import Matched, Scores, angle_scores_of, leaves_of, matched_rows, scores_of
from hyvlm.types import GROUP_OF_VIEW, Views

#: What means and entropies run over: the global batch, or each process's rows, averaged over processes (as released).
REDUCTIONS = ("global", "per_rank")

OverRows = Literal["mean", "sum"]
PARENT = "parent "


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

    def angle_similarity(self, anchor: str, candidate: str) -> Tensor:
        """:meth:`similarity` by the exterior angle at the anchors; each direction of a pair has a matrix of its own."""
        assert isinstance(self.manifold, HasAngles)  # a need of the relation
        rows, points = self.views.rows(anchor), self.views.points[candidate]
        return angle_similarity(self.manifold, rows, points, at="image" if anchor.endswith("image") else "text")

    def scores(self, anchor: str, candidate: str) -> tuple[Scores, Tensor]:
        """:meth:`similarity` for a contrast that never holds the matrix, and a factor to multiply it by."""
        return scores_of(self.manifold, self.views.rows(anchor), self.views.points[candidate])

    def angle_scores(self, anchor: str, candidate: str) -> tuple[Scores, Tensor]:
        """:meth:`angle_similarity` for a contrast that never holds the matrix."""
        assert isinstance(self.manifold, HasAngles)  # a need of the relation
        rows, points = self.views.rows(anchor), self.views.points[candidate]
        scores = angle_scores_of(self.manifold, rows, points, at="image" if anchor.endswith("image") else "text")
        return scores, rows.new_ones(())

    def rows_to(self, view: str, group: str) -> Tensor:
        """For each of this process's rows of ``group``, the index of its own point of ``view``, ``(n,)``."""
        local = self.views.local[group]
        if view.startswith(PARENT):
            return self.views.query_parent[local].clamp(min=0)  # a root has none, and does not count
        if GROUP_OF_VIEW[view] == group:
            return torch.arange(local.start, local.stop, device=self.views.owner[group].device)
        return self.views.owner[group][local]

    def pairs(self, general: str, specific: str) -> tuple[Tensor, Tensor, str]:
        """Matched points of two views, ``(n, D)`` each, and their group: a part meets the whole that owns it."""
        group = finer_group(general, specific)
        return self.matched(general, group), self.matched(specific, group), group

    def matched(self, view: str, group: str) -> Tensor:
        """The point of ``view`` that belongs to each of this process's rows of ``group``, ``(n, D)``."""
        points, at = self._matched(view, group)
        return points if at is None else points.index_select(0, at)

    def _matched(self, view: str, group: str) -> Matched:
        if GROUP_OF_VIEW.get(view) == group:
            return self.views.rows(view), None
        return self.views.points[view_of(view)], self.rows_to(view, group)

    def entailment(self, loss: nn.Module, general: str, specific: str) -> Tensor:
        """``loss`` of every matched pair, ``(n,)``; computed once for the terms that share it."""
        group = finer_group(general, specific)

        def compute() -> Tensor:
            first, second = (self._matched(view, group) for view in (general, specific))
            parameters = leaves_of(self.manifold) + leaves_of(loss)
            return matched_rows(partial(loss, self.manifold), first, second, parameters)

        return self.once((loss, general, specific), compute)

    def weights(self, group: str) -> Tensor | None:
        """How much each row of the global batch counts, ``(N,)``; None if all count alike."""
        if group != "query":
            return None
        return self.views.query_weight.clamp(min=0).masked_fill(self.views.query_parent < 0, 0.0)

    def share(self, rows: Tensor, group: str, *, over_rows: OverRows = "mean", reduction: str | None = None) -> Tensor:
        """This process's share of the mean (or sum) of ``rows``; all shares add up to it. 0 without rows.

        Args:
            rows: ``(n,)``, one for each of this process's rows of ``group``; their weights are applied here.
            reduction: None is that of the objective.
        """
        return (self.row_weights(group, rows, over_rows=over_rows, reduction=reduction) * rows).sum()

    def row_weights(
        self, group: str, like: Tensor, *, over_rows: OverRows = "mean", reduction: str | None = None
    ) -> Tensor:
        """What each of this process's rows of ``group`` counts in its share, ``(n,)``, in the dtype of ``like``."""
        per_rank = (reduction or self.reduction) == "per_rank"
        local, every = self.views.local[group], self.weights(group)
        mine = like.new_ones(local.stop - local.start) if every is None else every[local].to(like.dtype)
        if per_rank:
            mine = mine / self.views.world_size
        if over_rows == "sum":
            return mine
        if every is None:
            return mine / max(len(mine) if per_rank else len(self.views.owner[group]), 1)
        return mine / (every[local] if per_rank else every).count_nonzero().clamp(min=1)


def view_of(side: str) -> str:
    """The view of one side of a relation: ``query_text`` of ``parent query_text``."""
    return side.removeprefix(PARENT)


def finer_group(first: str, second: str) -> str:
    """The group that pairs of two views live in: parts or queries if either is one, else wholes.

    Raises:
        ValueError: If one is a part and the other a query: they share no more than their whole.
    """
    groups = {GROUP_OF_VIEW[view_of(first)], GROUP_OF_VIEW[view_of(second)]}
    if groups == {"part", "query"}:
        raise ValueError(f"{first} and {second} are parts and queries: a row of one has no partner in the other")
    return next((group for group in ("part", "query") if group in groups), "whole")
