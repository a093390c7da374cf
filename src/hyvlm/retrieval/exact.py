"""The best k of N candidates for every query, exactly, in one pass over the candidates.

A first pass takes a few more than k by float32. What it left out is bounded: by the rounding of an inner product of n
numbers, ``n 2^-24 |a| |b|``. Where the bound does not rule a block of candidates out (points that nearly coincide, or
are so far out that float32 cannot tell them apart), what may be better is looked at again in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyvlm.geometry.matmul import fast_matmul
from hyvlm.retrieval.blocks import BLOCK_ROWS, as_tensor
from hyvlm.retrieval.forms import InnerForm

#: Candidates beyond k that the first pass keeps, so that the second pass is seldom needed.
MARGIN = 16
#: Blocks whose best are kept before they are merged.
BLOCKS_AT_ONCE = 64
#: Columns of a block that one maximum stands for.
GROUP = 16
#: Smallest number of float32 that is not denormal: what a product of tiny numbers may lose.
TINY = float(np.finfo(np.float32).tiny)
#: Beyond this product of lengths float32 may overflow.
OVERFLOW = 1e37
#: Numbers that a score which is no inner product may hold at once.
SCORES_AT_ONCE = 2**22

#: Candidates that may be found, bool ``(N,)``; None for all.
Allowed = NDArray[np.bool_] | None
#: ``(Q, D)`` queries and ``(N, D)`` candidates, with common leading axes, to scores ``(Q, N)``.
Score = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Prepared:
    """Candidates in the form that a matrix product ranks.

    Attributes:
        rows: ``(N, D + extra)`` float32, possibly memory-mapped.
        longest: Length of the longest row of every block, ``(blocks,)`` float64.
    """

    rows: NDArray[np.float32]
    longest: NDArray[np.float64]


def prepare(form: InnerForm, points: NDArray[np.floating], out: NDArray[np.float32] | None = None) -> Prepared:
    """Candidates ``(N, D)`` in ``form``, computed in float64 and written to ``out`` (None: to memory), block by block.

    Raises:
        ValueError: If a point is not finite.
    """
    count, dim = points.shape
    rows = np.empty((count, dim + form.extra), np.float32) if out is None else out
    longest = np.zeros(-(-count // BLOCK_ROWS))
    for number, start in enumerate(range(0, count, BLOCK_ROWS)):
        block = form.rows(as_tensor(points[start : start + BLOCK_ROWS], "cpu", torch.float64))
        check_finite(block, "point", range(start, start + len(block)))
        lengths = torch.linalg.vector_norm(block, dim=-1)
        longest[number] = lengths.max().item()
        with np.errstate(over="ignore"):  # what is out of float32's range is found in the second pass
            rows[start : start + BLOCK_ROWS] = block.numpy()
    return Prepared(rows, longest)


def check_finite(points: Tensor, what: str, numbers: range | NDArray[np.int64] | None = None) -> None:
    """Raise ValueError, with the number of the first row that is not finite (None: they count from 0)."""
    bad = ~points.isfinite().all(-1)
    if bad.any():
        first = int(bad.nonzero()[0])
        number = first if numbers is None else numbers[first]
        raise ValueError(f"{what} {number} is not finite: check the model's embeddings for NaN")


#: The candidates of one block: a slice of rows, or their numbers.
Rows = slice | NDArray[np.int64]


class FirstPass(ABC):
    """Scores of N candidates for Q queries ``(Q, D)``, block by block, up to a known error.

    Attributes:
        queries: ``(Q, D)`` float64.
        count: N.
        block_rows: Candidates of a block.
    """

    queries: Tensor
    count: int
    block_rows: int

    def blocks(self, allowed: Allowed) -> Iterator[tuple[int, Rows]]:
        """Every block with a candidate that is allowed: its number, and those candidates."""
        for number, start in enumerate(range(0, self.count, self.block_rows)):
            part = slice(start, min(start + self.block_rows, self.count))
            if allowed is None or allowed[part].all():
                yield number, part
            elif allowed[part].any():
                yield number, np.flatnonzero(allowed[part]) + start

    @abstractmethod
    def scores(self, rows: Rows, query: slice = slice(None)) -> Tensor:
        """Scores ``(Q, n)`` of candidates, for all queries or some."""

    @abstractmethod
    def slack(self, level: Tensor) -> Tensor:
        """How far scores near ``level`` ``(Q,)`` may lie from the exact ones, ``(Q, blocks)`` or ``(Q, 1)``."""


class ByForm(FirstPass):
    """By a matrix product in float32."""

    block_rows = BLOCK_ROWS

    def __init__(self, form: InnerForm, prepared: Prepared, queries: Tensor) -> None:
        self.form, self.queries, self.prepared, self.count = form, queries, prepared, len(prepared.rows)
        left = form.queries(queries)
        self._left, self._lengths = left.float(), torch.linalg.vector_norm(left, dim=-1, keepdim=True)

    def scores(self, rows: Rows, query: slice = slice(None)) -> Tensor:
        block = torch.from_numpy(self.prepared.rows[rows]).to(self._left.device)
        with fast_matmul(block.device.type == "cpu"):
            return self._left[query] @ block.T

    def slack(self, level: Tensor) -> Tensor:
        terms = self._left.shape[-1]
        lengths = self._lengths * torch.from_numpy(self.prepared.longest).to(self._lengths)
        return torch.where(lengths < OVERFLOW, (terms + 4) * 2.0**-24 * lengths + terms * TINY, torch.inf)


class ByScore(FirstPass):
    """By the score itself in float64: for scores that are no inner product."""

    def __init__(self, score: Score, points: NDArray[np.floating], queries: Tensor, factors: int) -> None:
        self._score, self.queries, self._points, self.count = score, queries, points, len(points)
        self.block_rows = max(1, SCORES_AT_ONCE // (factors * max(1, len(queries))))

    def scores(self, rows: Rows, query: slice = slice(None)) -> Tensor:
        block = as_tensor(self._points[rows], self.queries.device, torch.float64)
        check_finite(block, "point", range(rows.start, rows.stop) if isinstance(rows, slice) else rows)
        return self._score(self.queries[query], block)

    def slack(self, level: Tensor) -> Tensor:
        return (1e-11 * level.abs() + 1e-300).unsqueeze(-1)


class ExactRows:
    """The best k rows of candidates for every query of a first pass.

    Args:
        score: The score that decides, and that is returned.
        points: The candidates ``(N, D)``.
    """

    def __init__(self, score: Score, points: NDArray[np.floating]) -> None:
        self._score, self._points = score, points

    def best(self, first: FirstPass, k: int, allowed: Allowed = None) -> tuple[Tensor, Tensor]:
        """Rows ``(Q, k)``, -1 where there are fewer, and their scores in float64, -inf there."""
        found, scores_there = first_best(first, k + MARGIN, allowed)
        rows, scores = self.rank(first.queries, found, k)
        if (first.count if allowed is None else int(allowed.sum())) <= k + MARGIN:  # every candidate was kept
            return rows, scores
        level = scores_there[:, -1]
        slack = first.slack(level).cpu()
        block = (found // first.block_rows).clamp(min=0) if slack.shape[1] > 1 else torch.zeros_like(found)
        lowest = (scores_there - slack.gather(1, block)).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        kth = lowest.topk(k).values[:, -1:]  # the k-th best has at least this
        doubtful = ~(level.unsqueeze(-1) + slack < kth)
        for query in doubtful.any(-1).nonzero().flatten().tolist():
            one, bound = slice(query, query + 1), float(kth[query])
            again = self._again(first, one, found[one], k, allowed, doubtful[query], slack[query], bound)
            rows[one], scores[one] = again
        return rows, scores

    def _again(
        self,
        first: FirstPass,
        one: slice,
        found: Tensor,
        k: int,
        allowed: Allowed,
        doubtful: Tensor,
        slack: Tensor,
        bound: float,
    ) -> tuple[Tensor, Tensor]:
        """The best for one query, among what was found and all that may reach ``bound`` in blocks that are in doubt."""
        query = first.queries[one]
        rows, scores = self.rank(query, found, k)
        for number, part in first.blocks(allowed):
            place = number if len(slack) > 1 else 0
            if not doubtful[place]:
                continue
            maybe = ~(first.scores(part, one)[0].double() + slack[place].item() < bound)
            at = torch.arange(part.start, part.stop) if isinstance(part, slice) else torch.from_numpy(part)
            more = torch.cat([rows[0, rows[0] >= 0], at[maybe.cpu()]]).unique()
            rows, scores = self.rank(query, more.unsqueeze(0), k)
        return rows, scores

    def rank(self, queries: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The best k of some candidates by the score; of equal scores, the lower row.

        Args:
            queries: ``(Q, D)`` float64.
            rows: ``(Q, m)`` int64, without repetition in a line; -1 for none.
        Returns:
            Rows ``(Q, k)``, -1 where there are fewer, and their scores in float64, -inf there.
        Raises:
            ValueError: If a score is NaN.
        """
        rows = rows.sort(-1).values
        kept_rows = torch.full((len(queries), k), -1, dtype=torch.long)
        kept_scores = torch.full((len(queries), k), -torch.inf, dtype=torch.float64)
        if not rows.numel():
            return kept_rows, kept_scores
        scores = self._score(queries.unsqueeze(1), self._gather(rows, queries)).squeeze(1).cpu()
        scores = scores.masked_fill(rows < 0, -torch.inf).gather(1, self._first_equal(rows))
        if scores.isnan().any():
            raise ValueError("a score is not a number: check the model's embeddings for NaN")
        scores, order = scores.sort(dim=-1, descending=True, stable=True)
        ranked = rows.gather(1, order)
        n = min(k, ranked.shape[1])
        kept_rows[:, :n], kept_scores[:, :n] = ranked[:, :n], scores[:, :n]
        return kept_rows, kept_scores

    def _gather(self, rows: Tensor, like: Tensor) -> Tensor:
        """Points ``(Q, m, D)`` in float64; those of row -1 are of row 0."""
        return as_tensor(self._points[rows.clamp(min=0).numpy()], like.device, torch.float64)

    def _first_equal(self, rows: Tensor) -> Tensor:
        """For every candidate of a line the place of the first one there with exactly its coordinates.

        Equal points take one score, so that they tie whatever the rounding of a matrix product.
        """
        distinct, place = torch.unique(rows, return_inverse=True)
        points = np.ascontiguousarray(self._points[distinct.clamp(min=0).numpy()])
        _, same = np.unique(points.view(np.dtype((np.void, points[0].nbytes)))[:, 0], return_inverse=True)
        group = torch.from_numpy(same)[place].masked_fill(rows < 0, -1)
        order = group.argsort(dim=-1, stable=True)
        grouped = group.gather(1, order)
        starts = torch.ones_like(grouped, dtype=torch.bool)
        starts[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
        head = torch.where(starts, torch.arange(rows.shape[1]), 0).cummax(-1).values
        return torch.empty_like(order).scatter_(1, order, order.gather(1, head))


def first_best(first: FirstPass, m: int, allowed: Allowed) -> tuple[Tensor, Tensor]:
    """The m best rows of a first pass ``(Q, m)``, -1 where there are fewer, and their scores there, descending."""
    queries = len(first.queries)
    scores: list[Tensor] = [torch.full((queries, m), -torch.inf, dtype=first.queries.dtype)]
    found: list[Tensor] = [torch.full((queries, m), -1)]
    for _, rows in first.blocks(allowed):
        values, columns = top_columns(first.scores(rows), m)
        columns = columns.cpu()
        found.append(columns + rows.start if isinstance(rows, slice) else torch.from_numpy(rows)[columns])
        scores.append(values.to(scores[0]))
        if len(scores) > BLOCKS_AT_ONCE:
            scores, found = _merged(scores, found, m)
    scores, found = _merged(scores, found, m)
    return found[0], scores[0].cpu()


def _merged(scores: list[Tensor], found: list[Tensor], m: int) -> tuple[list[Tensor], list[Tensor]]:
    values, at = torch.cat(scores, 1).topk(m)
    return [values], [torch.cat(found, 1).gather(1, at.cpu())]


def top_columns(scores: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m best of every line ``(Q, n)``, or all there are, and their columns, in descending order.

    The best are in those groups of columns whose maxima are best, so most columns are only looked at once.
    """
    n = scores.shape[1]
    groups = n // GROUP
    if n % GROUP or groups < 2 * m:
        return scores.topk(min(m, n))
    best = scores.unflatten(1, (GROUP, groups)).amax(1).topk(m).indices
    columns = (best.unsqueeze(-1) + groups * torch.arange(GROUP, device=best.device)).flatten(1)
    values, at = scores.gather(1, columns).topk(m)
    return values, columns.gather(1, at)
