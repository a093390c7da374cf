"""Contrast without its matrix: softmax cross entropy over pairwise scores, computed panel by panel in linear memory.

A panel is a block of rows against columns. The forward pass streams a log-sum-exp over panels; the gradient comes from
computing each panel once more. Where a panel holds whole rows and nothing else is asked, its gradient is formed at
once, which saves the second product. Rows looking for columns and columns looking for rows share each score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hyvlm.geometry.matmul import fast_matmul
from hyvlm.losses.tiled_kernels import kernels_for
from hyvlm.losses.tiled_scores import Gradients, Panel, Scores, Scratch

#: Scores from which on the panels are at least as fast as the whole matrix; methods compute smaller batches with that.
FROM = 2**10

#: Numbers in a panel: 8 MB in float32.
PANEL = 2**21

#: Columns up to which a panel holds whole rows; beyond, it would have too few of them for a fast matrix product.
WHOLE_ROWS = 2**15

#: Similarity of pairs that are left out, and where running maxima start: far below any logit, far above overflow.
_LEFT_OUT, _LOWEST = -1e30, -1e20


@dataclass(frozen=True)
class Search:
    """Rows that look for their column.

    Attributes:
        scale: ``(n,)``, what multiplies a row's similarities: an inverse temperature.
        weight: ``(n,)``, of each row in the total; carries no gradient.
        target: ``(n,)`` int64, the column that each row should find.
        log_count: ``(m,)`` or None, the log of how often each column counts; ``-inf`` leaves it out.
        exclude_positive: Leave the positive (one copy of the target column) out of the denominator.
    """

    scale: Tensor
    weight: Tensor
    target: Tensor
    log_count: Tensor | None = None
    exclude_positive: bool = False


def contrast_totals(scores: Scores, rows: Search, columns: Search | None = None) -> Tensor:
    """Weighted sums of :func:`~hyvlm.losses.contrast_rows`, without the matrix of similarities.

    Args:
        scores: Of ``n`` rows against ``m`` columns.
        rows: The rows looking for columns.
        columns: If the columns look for rows as well: then row ``i`` and column ``i`` are each other's targets, and no
            column counts more than once.
    Returns:
        The total of the rows and, if asked, that of the columns, ``(1,)`` or ``(2,)``; differentiable once.
    Raises:
        ValueError: Both directions of what is not square with the targets on its diagonal.
    """
    n, m = scores.shape
    if columns is not None:
        on_diagonal = torch.arange(n, device=rows.target.device)
        if n != m or not (torch.equal(rows.target, on_diagonal) and torch.equal(columns.target, on_diagonal)):
            raise ValueError(
                f"both directions of a contrast need row i and column i to be a pair, got {n} x {m} scores"
            )
        if rows.log_count is not None or columns.log_count is not None:
            raise ValueError("both directions of a contrast count every row and column once, got log_count")
    if n == 0 or m == 0:
        nothing = torch.stack([(t * 0).sum() for t in (*scores.tensors, rows.scale)]).sum()
        return nothing.expand(1 if columns is None else 2)
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (*scores.tensors, rows.scale))
    sweep = _Sweep(scores, rows, columns, needs_gradient)
    device = rows.scale.device.type
    with torch.autocast(device, enabled=False):
        values: Tensor = _Contrast.apply(sweep, rows.scale, None if columns is None else columns.scale, *scores.tensors)
    return values


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sweep: _Sweep, scale: Tensor, column_scale: Tensor | None, *tensors: Tensor) -> Tensor:
        by_row, by_column, gradients = sweep.forward(scale, column_scale, tensors, ctx.needs_input_grad[3:])
        ctx.stats, ctx.formed = (by_row, by_column), gradients is not None
        ctx.sweep = None if ctx.formed else sweep  # which holds the operands
        ctx.save_for_backward(scale, column_scale, *(tensors if gradients is None else gradients.found))
        return torch.stack([stats.total for stats in (by_row, by_column) if stats is not None])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the tiled contrast has no second derivative: raise hyvlm.losses.tiled.FROM above the batch's size to "
                "compute with the whole matrix"
            )
        scale, column_scale, *saved = ctx.saved_tensors
        by_row, by_column = ctx.stats
        if ctx.formed:
            found = [None if one is None else one * grad[0] for one in saved]
        else:
            with torch.autocast(scale.device.type, enabled=False):
                found = ctx.sweep.backward(scale, column_scale, saved, ctx.needs_input_grad[3:], ctx.stats, grad).found
        by_column_scale = None if by_column is None else by_column.by_scale * grad[1]
        return None, by_row.by_scale * grad[0], by_column_scale, *found


class _Stats:
    """The softmax of each row over the others' columns, and the row's similarity to its own."""

    def __init__(self, search: Search, like: Tensor) -> None:
        n = len(search.target)
        self.search = search
        self.top = like.new_full((n,), _LOWEST)
        self.mass, self.moment, self.positive, self.rows = (like.new_zeros(n) for _ in range(4))
        self.by_scale, self.log_sum, self.factor, self.at_target = (like.new_zeros(n) for _ in range(4))

    def part(self, at: slice) -> tuple[Tensor, Tensor, Tensor]:
        return self.top[at], self.mass[at], self.moment[at]

    def finish(self, scale: Tensor, at: slice) -> None:
        """What follows from the sums of the rows ``at``: loss, gradients, and the softmax's denominators."""
        search, (top, others, moment) = self.search, self.part(at)
        copies = torch.ones_like(top)
        if search.log_count is not None:
            copies = search.log_count.to(top.dtype).exp()[search.target[at]].round()
        if search.exclude_positive:
            copies = copies - 1
        logit = scale[at] * self.positive[at]
        own = logit + copies.log()
        highest = torch.maximum(top, own)
        shrink = (top - highest).exp()
        others, moment, positive = others * shrink, moment * shrink, (own - highest).exp()
        alone = others + positive == 0
        total = torch.where(alone, 1.0, others + positive)
        weight = torch.where(alone, 0.0, search.weight[at])
        self.log_sum[at] = total.log() + highest
        # the loss as log(1 + rest) where the row finds its column: the logit itself would cancel
        rest = others / positive
        found = (copies == 1) & (rest < 1)
        self.rows[at] = weight * torch.where(
            found, torch.log1p(torch.where(found, rest, 0.0)), self.log_sum[at] - logit
        )
        self.by_scale[at] = weight * (moment - others * self.positive[at]) / total
        self.factor[at] = weight * scale[at]
        self.at_target[at] = -weight * scale[at] * others / total

    @property
    def total(self) -> Tensor:
        return self.rows.sum()


class _Sweep:
    """One pass over all panels, for the sums or for the gradients."""

    def __init__(self, scores: Scores, rows: Search, columns: Search | None, needs_gradient: bool) -> None:
        self.scores, self.rows, self.columns, self.needs_gradient = scores, rows, columns, needs_gradient
        n, m = scores.shape
        self.width = m if m <= WHOLE_ROWS else WHOLE_ROWS // 4
        self.height = max(1, min(n, PANEL // self.width))
        self.held: tuple[Panel, Scratch] | None = None

    def panels(self) -> Iterator[tuple[slice, slice]]:
        n, m = self.scores.shape
        for first in range(0, n, self.height):
            for left in range(0, m, self.width):
                yield slice(first, min(first + self.height, n)), slice(left, min(left + self.width, m))

    def forward(
        self, scale: Tensor, column_scale: Tensor | None, tensors: Sequence[Tensor], needed: Sequence[bool]
    ) -> tuple[_Stats, _Stats | None, Gradients | None]:
        """The sums; also the gradients, of a total of weight one, where each panel can give its own at once."""
        n, m = self.scores.shape
        by_row = _Stats(self.rows, scale)
        by_column = None if self.columns is None else _Stats(self.columns, scale)
        at_once = self.needs_gradient and by_column is None and self.width >= m
        gradients = Gradients(tensors, needed) if at_once else None
        scratch = Scratch(scale)
        self.offset = scale.new_zeros(m)
        if self.rows.log_count is not None:
            self.offset = self.rows.log_count.to(scale.dtype).clamp(min=_LEFT_OUT)
        with fast_matmul(scale.device.type == "cpu"):
            for rows, columns in self.panels():
                panel = self.scores.forward(tensors, rows, columns, scratch)
                self._add(panel, scale, column_scale, by_row, by_column)
                if gradients is not None:
                    by_row.finish(scale, rows)
                    self._pull(panel, scale, None, tensors, (by_row, None), scale.new_ones(1), gradients, scratch)
        if gradients is None:
            by_row.finish(scale, slice(None))
        if by_column is not None and column_scale is not None:
            by_column.finish(column_scale, slice(None))
        if self.needs_gradient and not at_once and n <= self.height and m <= self.width:
            self.held = panel, scratch
        return by_row, by_column, gradients

    def backward(
        self,
        scale: Tensor,
        column_scale: Tensor | None,
        tensors: Sequence[Tensor],
        needed: Sequence[bool],
        stats: tuple[_Stats, _Stats | None],
        grad: Tensor,
    ) -> Gradients:
        gradients = Gradients(tensors, needed)
        scratch = Scratch(scale)
        with fast_matmul(scale.device.type == "cpu"):
            for rows, columns in self.panels():
                if self.held is not None:
                    (panel, scratch), self.held = self.held, None
                else:
                    panel = self.scores.forward(tensors, rows, columns, scratch)
                self._pull(panel, scale, column_scale, tensors, stats, grad, gradients, scratch)
        return gradients

    def _targets(self, panel: Panel) -> tuple[Tensor, Tensor]:
        """Rows of the panel whose column it holds, and those columns, counted within the panel."""
        target = self.rows.target[panel.rows] - panel.columns.start
        row = torch.arange(len(target), device=target.device)
        if panel.s.shape[1] == self.scores.shape[1]:
            return row, target
        inside = (target >= 0) & (target < panel.s.shape[1])
        return row[inside], target[inside]

    def _add(
        self, panel: Panel, scale: Tensor, column_scale: Tensor | None, by_row: _Stats, by_column: _Stats | None
    ) -> None:
        s, rows, columns = panel.s, panel.rows, panel.columns
        at = row, column = self._targets(panel)
        positive = s[at]
        s[at] = _LEFT_OUT
        compute = kernels_for(s)
        compute.rows(s, scale[rows], self.offset[columns], *by_row.part(rows))
        by_row.positive[rows][row] = positive
        if by_column is not None and column_scale is not None:
            compute.columns(s, column_scale[columns], *by_column.part(columns))
            by_column.positive[columns][column] = positive
        s[at] = positive

    def _pull(
        self,
        panel: Panel,
        scale: Tensor,
        column_scale: Tensor | None,
        tensors: Sequence[Tensor],
        stats: tuple[_Stats, _Stats | None],
        grad: Tensor,
        gradients: Gradients,
        scratch: Scratch,
    ) -> None:
        (by_row, by_column), rows, columns = stats, panel.rows, panel.columns
        at = row, column = self._targets(panel)
        at_target = by_row.at_target[rows][row] * grad[0]
        rowwise = scale[rows], self.offset[columns], by_row.log_sum[rows], by_row.factor[rows] * grad[0]
        columnwise = None
        if by_column is not None and column_scale is not None:
            at_target = at_target + by_column.at_target[columns][column] * grad[1]
            columnwise = column_scale[columns], by_column.log_sum[columns], by_column.factor[columns] * grad[1]
        kernels_for(panel.s).gradient(panel.s, rowwise, columnwise)
        panel.s[at] = at_target
        self.scores.backward(tensors, panel, gradients, scratch)
