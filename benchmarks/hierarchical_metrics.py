"""Hierarchical metrics of 50,000 predictions over ImageNet's classes: ``python benchmarks/hierarchical_metrics.py``.

The tables of class pairs, from the file of the hierarchy, are made once for a data set; the means of all seven metrics
are then looked up. Plain is one prediction after the other as the released evaluations count them: sets of ancestors
and a breadth-first search, on some of the predictions, its time scaled up. 40 % of the predictions are right, the rest
drawn at random. Writes ``results/hierarchical_metrics.json``.
"""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _runner import alternate, row, write_rows
from numpy.typing import NDArray
from timm.data import ImageNetInfo

from hyvlm.data.class_names import IMAGENET_HIERARCHY
from hyvlm.evaluation.taxonomy import HierarchicalMetrics, Taxonomy

COUNT, PLAIN_COUNT, ROUNDS = 50_000, 500, 7
CLASSES = ImageNetInfo().label_names()
Labels = NDArray[np.int64]


def predictions(count: int) -> tuple[Labels, Labels]:
    """Predicted and true classes."""
    draws = np.random.default_rng(0)
    target = draws.integers(len(CLASSES), size=count)
    return np.where(draws.random(count) < 0.4, target, draws.integers(len(CLASSES), size=count)), target


def tables() -> HierarchicalMetrics:
    """Ours, first step: from the file to the tables."""
    return HierarchicalMetrics(Taxonomy.read(IMAGENET_HIERARCHY), CLASSES)


def one_by_one(taxonomy: Taxonomy, predicted: Labels, target: Labels) -> dict[str, float]:
    """Plain: means of the metrics that the released evaluations count."""
    above = [{taxonomy.nodes[j] for j in np.flatnonzero(row)} for row in taxonomy.ancestors()]
    around: list[list[int]] = [list(parents) for parents in taxonomy.parents]
    for child, parents in enumerate(taxonomy.parents):
        for parent in parents:
            around[parent].append(child)
    sums = dict.fromkeys(("tie", "lca_released", "jaccard", "precision", "recall"), 0.0)
    for p, t in zip(predicted.tolist(), target.tolist(), strict=True):
        start, end = taxonomy.index[CLASSES[p]], taxonomy.index[CLASSES[t]]
        a, b = above[start], above[end]
        common = len(a & b)
        values = (edges_between(around, start, end), len(a) - common + 1, common / len(a | b))
        for name, value in zip(sums, (*values, common / len(a), common / len(b)), strict=True):
            sums[name] += value
    return {name: total / len(predicted) for name, total in sums.items()}


def edges_between(around: list[list[int]], start: int, end: int) -> int:
    """Edges on the shortest path, by breadth-first search."""
    steps, waiting = {start: 0}, deque([start])
    while end not in steps:
        node = waiting.popleft()
        for near in around[node]:
            if near not in steps:
                steps[near] = steps[node] + 1
                waiting.append(near)
    return steps[end]


def peak_of(work: Callable[[], object]) -> float:
    """Most memory that Python and numpy held at once during one call, in MB."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return peak


def main() -> None:
    predicted, target = predictions(COUNT)
    some = predicted[:PLAIN_COUNT], target[:PLAIN_COUNT]
    taxonomy, metrics = Taxonomy.read(IMAGENET_HIERARCHY), tables()
    means, expected = metrics.means(*some), one_by_one(taxonomy, *some)
    for name, value in expected.items():
        assert abs(means[name] - value) < 1e-9, f"{name}: {means[name]} by tables, {value} one by one"
    times = alternate(
        {
            "tables": tables,
            "lookups": lambda: metrics.means(predicted, target),
            "plain": lambda: one_by_one(taxonomy, *some),
        },
        ROUNDS,
    )
    plain = [taken * COUNT / PLAIN_COUNT for taken in times["plain"]]
    size = f"{COUNT:,} predictions, {len(CLASSES):,} classes, {len(taxonomy.nodes):,} nodes"
    together = [a + b for a, b in zip(times["tables"], times["lookups"], strict=True)]
    rows = [
        row("hierarchical metrics, tables", size.partition(", ")[2], {"ours": times["tables"]}),
        row(
            "hierarchical metrics, lookups",
            size,
            {"ours": times["lookups"], "plain": plain},
            asked="under 20 ms after tables",
        ),
        row(
            "hierarchical metrics, both",
            size,
            {"ours": together, "plain": plain},
            peak_mb=peak_of(lambda: tables().means(predicted, target)),
            plain_peak_mb=peak_of(lambda: one_by_one(taxonomy, *some)),
        ),
    ]
    facts = {"hierarchy_hash": taxonomy.fingerprint, "means": metrics.means(predicted, target)}
    write_rows(Path(__file__).stem, rows, **facts, best_seconds={name: min(taken) for name, taken in times.items()})


if __name__ == "__main__":
    main()
