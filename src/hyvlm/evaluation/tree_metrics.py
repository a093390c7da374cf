"""How well an embedding keeps a taxonomy: ancestors by rank, distances against path lengths, how far off parents are.

Pure functions of score and distance matrices; :class:`hyvlm.evaluation.taxonomy.Taxonomy` gives paths and ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from hyvlm.evaluation.metrics import BLOCK


def ancestor_precision(
    scores: np.ndarray, ancestors: np.ndarray, *, candidates: np.ndarray | None = None
) -> np.ndarray:
    """Average precision of every node's ancestors in its ranking of the candidates (Nickel and Kiela 2017).

    Equal scores are one step of the curve, as in scikit-learn: the order within them does not count.

    Args:
        scores: ``(Q, N)``, higher is more likely an ancestor.
        ancestors: ``(Q, N)`` bool, what should be found.
        candidates: ``(Q, N)`` bool, what is ranked; None ranks all N. A node itself is usually left out, and so are
            ancestors that were seen in training where held-out ones are looked for.
    Returns:
        ``(Q,)`` float64 fractions; NaN for a query without an ancestor among its candidates.
    Raises:
        ValueError: If shapes differ or a score is NaN.
    """
    allowed = np.ones(scores.shape, dtype=bool) if candidates is None else candidates
    _check_scores(scores, ancestors, allowed)
    found = ancestors & allowed
    query, ancestor = found.nonzero()
    precision = np.empty(len(query))
    rows = max(1, BLOCK // scores.shape[1])
    for start in range(0, len(query), rows):  # a row for every ancestor: what stands at its score or above
        at = query[start : start + rows]
        level = (scores[at] >= scores[at, ancestor[start : start + rows], None]) & allowed[at]
        precision[start : start + rows] = (level & found[at]).sum(1) / level.sum(1)
    totals = np.bincount(query, precision, minlength=len(scores))
    return np.divide(totals, found.sum(1), out=np.full(len(scores), np.nan), where=found.any(1))


@dataclass(frozen=True)
class DistanceCorrelation:
    """Agreement of distances with path lengths over ``pairs`` unordered pairs of different nodes.

    Attributes:
        pearson: Of the values: 1 if distances grow linearly with the path.
        spearman: Of the ranks, equal values sharing their mean rank: 1 if distances and paths order alike.
    """

    pearson: float
    spearman: float
    pairs: int


def distance_correlation(distances: np.ndarray, path_lengths: np.ndarray) -> DistanceCorrelation:
    """Correlation of distances on a manifold with path lengths in a tree, both ``(N, N)`` and symmetric.

    Raises:
        ValueError: If shapes differ, a value is not finite, or either is the same for all pairs (no correlation).
    """
    _check_shapes(distances, path_lengths)
    rows, columns = np.triu_indices(len(distances), k=1)
    near, path = distances[rows, columns], path_lengths[rows, columns]
    named = {"distance": near, "path length": path}
    for what, values in named.items():
        if not np.isfinite(values).all():
            raise ValueError(f"{(~np.isfinite(values)).sum()} of {len(values)} pairs have no finite {what}")
    for what, values in named.items():
        if len(values) < 2 or values.min() == values.max():
            raise ValueError(f"a correlation needs two pairs of different {what}, got {len(values)} pair(s)")
    return DistanceCorrelation(
        pearson=float(stats.pearsonr(near, path).statistic),
        spearman=float(stats.spearmanr(near, path).statistic),
        pairs=len(near),
    )


@dataclass(frozen=True)
class ParentErrors:
    """How far the predicted parent of every query is from its nearest true one.

    Attributes:
        edges: ``(Q,)`` float64, path lengths (tree-induced errors, TIE); 0 for a true parent.
        tied: How many queries have several candidates at the highest score.
    """

    edges: np.ndarray
    tied: int


def parent_errors(
    scores: np.ndarray,
    parents: Sequence[Sequence[int]],
    path_lengths: np.ndarray,
    *,
    candidates: np.ndarray | None = None,
) -> ParentErrors:
    """Edges from the candidate of the highest score to the nearest true parent; of tied ones the farthest counts.

    Args:
        scores: ``(Q, N)``, higher is more likely the parent.
        parents: For each query the places of its parents among the N nodes; at least one.
        path_lengths: ``(N, N)`` edges between nodes.
        candidates: ``(Q, N)`` bool, what may be predicted; None allows all N.
    Raises:
        ValueError: If shapes differ, a score is NaN, or a query has no parent or no candidate.
    """
    allowed = np.ones(scores.shape, dtype=bool) if candidates is None else candidates
    _check_scores(scores, allowed)
    if len(parents) != len(scores) or path_lengths.shape != (scores.shape[1],) * 2:
        raise ValueError(
            f"scores of {scores.shape[0]} queries and {scores.shape[1]} nodes do not fit the parents of {len(parents)} "
            f"and path lengths of shape {path_lengths.shape}"
        )
    counts = np.array([len(above) for above in parents])
    for what, lacking in (("parent", counts == 0), ("candidate", ~allowed.any(1))):
        if lacking.any():
            raise ValueError(f"query {int(lacking.argmax())} has no {what}")
    first = np.cumsum(counts) - counts
    to_parent = np.minimum.reduceat(path_lengths[np.concatenate(list(parents))], first, axis=0)  # (Q, N), the nearest
    best = np.where(allowed, scores, -np.inf).max(1, keepdims=True)
    at_best = allowed & (scores == best)
    return ParentErrors(
        edges=np.where(at_best, to_parent, -np.inf).max(1),
        tied=int((at_best.sum(1) > 1).sum()),
    )


def _check_scores(scores: np.ndarray, *masks: np.ndarray) -> None:
    _check_shapes(scores, *masks)
    if np.isnan(scores).any():
        raise ValueError("a score is not a number: check the model's embeddings for NaN")


def _check_shapes(first: np.ndarray, *others: np.ndarray) -> None:
    if any(first.shape != other.shape for other in others):
        raise ValueError(f"shapes must agree, got {', '.join(str(a.shape) for a in (first, *others))}")
