"""Metrics as pure functions of arrays. Shares and average precisions are fractions, 0 to 1.

Ties are settled against the model, so that no number depends on the order of candidates or classes: a candidate that
scores the same as the best match stands before it, and a class that shares the top score with the target is predicted
instead of it. How many queries that concerned is part of what is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor

from hyvlm.geometry.matmul import fast_matmul

#: Scores of (n, ...) queries against (m, ...) candidates, higher is better: ``(n, m)``.
ScoreFunction = Callable[[Tensor, Tensor], Tensor]

#: Scores held at once: 2**21 numbers are 8 MiB in float32, and comparisons take as much again. For very many candidates
#: it is MIN_ROWS queries, since a matrix product over fewer rows is slow.
BLOCK = 2**21
MIN_ROWS = 64


def score_blocks(
    score: ScoreFunction, queries: Tensor, candidates: Tensor, *, block: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Scores of all candidates for consecutive slices of queries, about ``block`` numbers at once.

    Equal rows of ``candidates`` are scored once, so they tie exactly whatever the rounding of the matrix product.

    Raises:
        ValueError: If a score is NaN.
    """
    if len(candidates) == 0:
        raise ValueError("there is no candidate to rank")
    distinct, position = distinct_rows(candidates)
    rows = max(MIN_ROWS, BLOCK // len(candidates)) if block is None else max(1, block // len(candidates))
    for start in range(0, len(queries), rows):
        part = slice(start, min(start + rows, len(queries)))
        scores = scored(score, queries[part], distinct, range(part.start, part.stop))
        yield part, scores if position is None else scores[:, position]


def scored(score: ScoreFunction, queries: Tensor, candidates: Tensor, numbers: Sequence[int]) -> Tensor:
    """The scores, by this machine's faster matrix product; ``numbers`` are those of the queries.

    Raises:
        ValueError: If a score is NaN.
    """
    with fast_matmul(queries.device.type == "cpu"):
        scores = score(queries, candidates)
    nan = scores.amax(1).isnan()  # the maximum of a row with a NaN is NaN
    if nan.any():
        row = numbers[int(nan.nonzero()[0])]
        raise ValueError(f"the score of query {row} is not a number: check the model's embeddings for NaN")
    return scores


def distinct_rows(candidates: Tensor) -> tuple[Tensor, Tensor | None]:
    """The distinct rows, and for each candidate which of them it equals (None: all rows differ)."""
    rows = np.ascontiguousarray(candidates.detach().cpu().reshape(len(candidates), -1).numpy())
    as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
    _, first, position = np.unique(as_bytes, return_index=True, return_inverse=True)
    if len(first) == len(candidates):
        return candidates, None
    return candidates[torch.from_numpy(first)], torch.from_numpy(position).to(candidates.device)


@dataclass(frozen=True)
class Ranks:
    """Where the best match of every query stands.

    Attributes:
        before: ``(Q,)`` int64, how many candidates that do not match stand before the best match; 0 is a hit at 1.
        tied: How many queries have a candidate that does not match at exactly the score of their best match.
    """

    before: Tensor
    tied: int

    def recall_at(self, k: int) -> float:
        """Share of queries with at least one match among the first ``k``; ``k`` may exceed the number of candidates."""
        if k < 1:
            raise ValueError(f"recall@k needs k of at least 1, got {k}")
        return (self.before < k).double().mean().item()


def retrieval_ranks(
    score: ScoreFunction,
    queries: Tensor,
    candidates: Tensor,
    query_owner: Tensor,
    candidate_owner: Tensor,
    *,
    block: int | None = None,
) -> Ranks:
    """Rank candidates for every query by counting, in bounded memory: the N x N matrix never exists.

    Args:
        score: ``(n, ...), (m, ...) -> (n, m)``, higher is better; ``model.score`` for embeddings.
        queries, candidates: Rows that ``score`` understands.
        query_owner, candidate_owner: ``(Q,)`` and ``(N,)`` int64; a candidate matches a query of the same owner.
    Raises:
        ValueError: If a query has no match, or a score is NaN.
    """
    if len(queries) == 0:
        raise ValueError("there is no query to rank candidates for")
    query_owner = query_owner.to(queries.device)
    sorted_owner, by_owner = candidate_owner.to(queries.device).sort(stable=True)
    first = torch.searchsorted(sorted_owner, query_owner)
    count = torch.searchsorted(sorted_owner, query_owner, right=True) - first  # matches of each query
    if not count.all():
        lonely = int((count == 0).nonzero()[0])
        raise ValueError(f"query {lonely} has no match among the {len(candidates)} candidates")
    before, tied = torch.empty(len(queries), dtype=torch.long), 0
    for part, scores in score_blocks(score, queries, candidates, block=block):
        row = torch.arange(len(scores), device=scores.device).repeat_interleave(count[part])
        nth = torch.arange(len(row), device=scores.device) - (count[part].cumsum(0) - count[part])[row]
        own = scores[row, by_owner[first[part][row] + nth]]  # scores of the matches, query by query
        best = scores.new_full((len(scores),), -torch.inf).scatter_reduce(0, row, own, "amax")
        matches_at_best = torch.zeros_like(count[part]).index_add(0, row, (own == best[row]).to(count.dtype))
        at_or_above, above = count_level(scores, best[:, None])
        at_or_above -= matches_at_best  # no match lies above the best one
        before[part] = at_or_above.cpu()
        tied += int((at_or_above > above).sum())
    return Ranks(before, tied)


@torch.no_grad()
def count_level(scores: Tensor, level: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
    """How many of ``scores`` ``(n, m)`` are at or above a level, and how many above it, along ``dim``; int64.

    Comparisons written as numbers of the scores' own kind are summed much faster than bool; the sums are exact up to
    2**24.
    """
    found = torch.empty_like(scores)
    at_or_above, above = (compare(scores, level, out=found).sum(dim).long() for compare in (torch.ge, torch.gt))
    return at_or_above, above


def ranks_among(score: ScoreFunction, queries: Tensor, candidates: Tensor, extra: Tensor) -> Tensor:
    """The rank of an extra candidate among the common ones, for every query and in every repetition.

    Args:
        score: ``(n, ...), (m, ...) -> (n, m)``, higher is better.
        queries: ``(Q, ...)``.
        candidates: ``(C, ...)``, ranked for every query.
        extra: ``(K, Q, ...)``, one more candidate of each query and repetition; it meets the common ones alone.
    Returns:
        ``(K, Q)`` int64, 1 (best) to C + 1: a common candidate of the same score stands before the extra one.
    Raises:
        ValueError: If there is no candidate, or a score is NaN.
    """
    if len(candidates) == 0:
        raise ValueError("there is no candidate to rank")
    ranks = torch.empty(extra.shape[:2], dtype=torch.long)
    together = torch.cat([candidates, extra.flatten(0, 1)])
    distinct, position = distinct_rows(together)  # equal points are one column of a product: they tie exactly
    position = torch.arange(len(together), device=together.device) if position is None else position
    common, of_extra = position[: len(candidates)], position[len(candidates) :].unflatten(0, extra.shape[:2])
    shared = common.unique()
    column = torch.full((len(distinct),), -1, device=together.device)  # of a product, for each distinct point
    column[shared] = torch.arange(len(shared), device=column.device)
    for start in range(0, len(queries), MIN_ROWS):
        part = slice(start, min(start + MIN_ROWS, len(queries)))
        alone = of_extra[:, part].unique()
        alone = alone[column[alone] < 0]
        column[alone] = len(shared) + torch.arange(len(alone), device=column.device)
        numbers = range(part.start, part.stop)
        scores = scored(score, queries[part], distinct[torch.cat([shared, alone])], numbers)
        own = scores.gather(1, column[of_extra[:, part]].T)  # (rows, K)
        below = torch.searchsorted(scores[:, column[common]].sort(1).values, own)
        ranks[:, part] = (1 + len(candidates) - below).T.cpu()
        column[alone] = -1
    return ranks


@dataclass(frozen=True)
class Choices:
    """Between two candidates of every query, whether the right one scores higher.

    Attributes:
        right: ``(Q,)`` bool; False in a tie.
        tied: How many queries score both alike.
    """

    right: Tensor
    tied: int


def choose_between(score: ScoreFunction, queries: Tensor, right: Tensor, wrong: Tensor) -> Choices:
    """Whether each of ``queries`` ``(Q, ...)`` scores its ``right`` above its ``wrong`` candidate, both ``(Q, ...)``.

    Raises:
        ValueError: If there is no query, or a score is NaN.
    """
    if len(queries) == 0:
        raise ValueError("there is no query to choose a candidate for")
    wins, tied = torch.empty(len(queries), dtype=torch.bool), 0
    for start in range(0, len(queries), MIN_ROWS):
        part = slice(start, min(start + MIN_ROWS, len(queries)))
        _, scores = next(score_blocks(score, queries[part], torch.cat([right[part], wrong[part]])))
        good, bad = (half.diagonal() for half in scores.chunk(2, dim=1))
        wins[part] = (good > bad).cpu()
        tied += int((good == bad).sum())
    return Choices(wins, tied)


@dataclass(frozen=True)
class Precisions:
    """How the matches of every query stand in its ranking of all candidates.

    Attributes:
        average_precision: ``(Q,)`` float64, the mean over the matches of the precision at the rank of each.
        precision_at_r: ``(Q,)`` float64, share of matches among the first R candidates, R their number.
        tied: How many queries score a match and another candidate alike.
    """

    average_precision: Tensor
    precision_at_r: Tensor
    tied: int


def ranked_precision(
    score: ScoreFunction,
    queries: Tensor,
    candidates: Tensor,
    query_owner: Tensor,
    candidate_owner: Tensor,
    *,
    itself: Tensor | None = None,
    block: int | None = None,
) -> Precisions:
    """Average precision and Precision@R of every query (HyFL-CLIP, Sec. S1.3), in bounded memory.

    In a tie the candidates that do not match stand before those that do.

    Args:
        score: ``(n, ...), (m, ...) -> (n, m)``, higher is better.
        queries, candidates: Rows that ``score`` understands.
        query_owner, candidate_owner: ``(Q,)`` and ``(N,)`` int64; a candidate matches a query of the same owner.
        itself: ``(Q,)`` int64, which candidate is the query itself and is left out of its ranking; None if none is.
    Raises:
        ValueError: If there is no query, a query has no match, or a score is NaN.
    """
    if len(queries) == 0:
        raise ValueError("there is no query to rank candidates for")
    of_query, of_candidate = query_owner.cpu().numpy(), candidate_owner.cpu().numpy()
    average, at_r = torch.empty(len(queries), dtype=torch.double), torch.empty(len(queries), dtype=torch.double)
    tied = 0
    for part, scores in score_blocks(score, queries, candidates, block=block):
        for query, row in enumerate(scores.cpu().numpy(), start=part.start):
            match, others = of_candidate == of_query[query], of_candidate != of_query[query]
            if itself is not None:
                match[itself[query]] = False
            if not match.any():
                raise ValueError(f"query {query} has no match among the candidates")
            average[query], at_r[query], mixed = _precision_of_row(np.sort(row[match])[::-1], np.sort(row[others]))
            tied += mixed
    return Precisions(average, at_r, tied)


def _precision_of_row(matches: np.ndarray, others: np.ndarray) -> tuple[float, float, bool]:
    """Average precision and Precision@R of matches (best first) among others (best last); whether one of each ties."""
    below = np.searchsorted(others, matches)
    found = np.arange(1, len(matches) + 1)
    rank = found + len(others) - below
    mixed = bool((np.searchsorted(others, matches, side="right") > below).any())
    return float((found / rank).mean()), float((rank <= len(matches)).mean()), mixed


@dataclass(frozen=True)
class Predictions:
    """What zero-shot classification gives for every image.

    Attributes:
        predicted: ``(N,)`` int64, the class of the highest score; in a tie the first one other than the target.
        before: ``(N,)`` int64, how many other classes score at least as high as the target.
        tied: How many images have another class at exactly the target's score.
    """

    predicted: Tensor
    before: Tensor
    tied: int

    def accuracy(self, k: int = 1) -> float:
        """Share of images whose target is among the ``k`` best classes."""
        return (self.before < k).double().mean().item()


def classify(
    score: ScoreFunction, images: Tensor, class_points: Tensor, target: Tensor, *, block: int | None = None
) -> Predictions:
    """Score ``images`` ``(N, ...)`` against ``class_points`` ``(C, ...)``; ``target`` ``(N,)`` holds class indices.

    Raises:
        ValueError: If there is no image, a target is no class index, or a score is NaN.
    """
    if len(images) == 0:
        raise ValueError("there is no image to classify")
    target = target.to(images.device)
    outside = (target < 0) | (target >= len(class_points))
    if outside.any():
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"image {row} has label {int(target[row])}, "
            f"but the {len(class_points)} classes are 0 to {len(class_points) - 1}"
        )
    predicted, before, tied = torch.empty(len(images), dtype=torch.long), torch.empty(len(images), dtype=torch.long), 0
    for part, scores in score_blocks(score, images, class_points, block=block):
        wanted = target[part, None]
        own = scores.gather(1, wanted)
        at_or_above, above = count_level(scores, own)
        at_or_above -= 1  # the target itself
        first = torch.from_numpy(scores.detach().cpu().numpy().argmax(1)).to(scores.device)  # torch's takes far longer
        shared = ((above == 0) & (at_or_above > 0)).nonzero()[:, 0]  # the target and others have the top score
        first[shared] = scores[shared].scatter(1, wanted[shared], -torch.inf).argmax(1)
        predicted[part], before[part] = first.cpu(), at_or_above.cpu()
        tied += int((at_or_above > above).sum())
    return Predictions(predicted, before, tied)


def recall_per_class(predicted: Tensor, target: Tensor, num_classes: int) -> Tensor:
    """Share of each class's images that are predicted as it, ``(C,)`` float64; NaN for a class without images."""
    images = torch.bincount(target, minlength=num_classes)
    right = torch.bincount(target[predicted == target], minlength=num_classes)
    return right.double() / images  # 0 / 0 is the NaN


def mean_per_class(predicted: Tensor, target: Tensor, num_classes: int, *, over: str = "target") -> float:
    """Mean of :func:`recall_per_class`.

    Args:
        over: ``"target"`` averages over classes that have images. ``"target_or_predicted"`` also counts a class that is
            predicted but has no image, as 0: the rule of torchmetrics' macro average, and so of the numbers that MERU
            and its successors published.
    """
    recall = recall_per_class(predicted, target, num_classes)
    if over == "target":
        return recall.nanmean().item()
    if over == "target_or_predicted":
        counted = torch.zeros(num_classes, dtype=torch.bool)
        counted[predicted], counted[target] = True, True
        return recall.nan_to_num(0.0)[counted].mean().item()
    raise ValueError(f"mean per class goes over 'target' or 'target_or_predicted', not {over!r}")


def average_precision(
    scores: np.ndarray, positive: np.ndarray, *, valid: np.ndarray | None = None, interpolation: str = "area"
) -> np.ndarray:
    """Average precision of every class over a ranking of all images; equal scores are one step of the curve.

    Args:
        scores: ``(N, C)``, higher is better.
        positive: ``(N, C)`` bool.
        valid: ``(N, C)`` bool; entries that are False count as neither positive nor negative (VOC's "difficult").
        interpolation: ``"area"`` is the sum of precision times step in recall, as in scikit-learn; ``"11-point"``
            averages the best precision at recalls of at least 0, 0.1, ..., 1 (PASCAL VOC 2007).
    Returns:
        ``(C,)`` float64; NaN for a class without a valid positive.
    """
    if interpolation not in ("area", "11-point"):
        raise ValueError(f"interpolation is 'area' or '11-point', not {interpolation!r}")
    if np.isnan(scores).any():
        raise ValueError("a score is not a number: check the model's embeddings for NaN")
    valid = np.ones_like(positive, dtype=bool) if valid is None else valid
    return np.array([_one_ap(scores[v, c], positive[v, c], interpolation) for c, v in enumerate(valid.T)])


def _one_ap(scores: np.ndarray, positive: np.ndarray, interpolation: str) -> float:
    if not positive.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    last_of_step = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    found = np.cumsum(positive)[last_of_step]
    precision, recall = found / (last_of_step + 1), found / positive.sum()
    if interpolation == "area":
        return float(np.sum(np.diff(recall, prepend=0.0) * precision))
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    # recall is a ratio of integers and the levels are tenths: compare without the rounding of 0.1 * i
    first_at = np.searchsorted(found * 10, np.arange(11) * positive.sum(), side="left")
    return float(best_from_here[first_at].mean())


def wilson_interval(successes: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a share, for independent trials.

    Raises:
        ValueError: If ``n`` is 0 or smaller than ``successes``.
    """
    interval = binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)
