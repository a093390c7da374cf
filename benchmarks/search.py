"""Exact and approximate search: ``python benchmarks/search.py [--points N]``; 100,000 points unless told otherwise.

Clustered points of 512 dimensions on the hyperboloid of c = 1, radii as trained models have them. Exact search stands
beside torch's top-k of ``model.score`` (plain) and beside the bare work, the matrix product of a batch and one read of
the vectors for one query (limit). Approximate search stands beside exact search. Writes ``results/search.json``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import torch
from _runner import Row, alternate, row, write_rows
from torch import Tensor

from hyvlm.geometry.matmul import fast_matmul
from hyvlm.models import DualEncoder, build_model
from hyvlm.retrieval.approximate import ApproximateIndex
from hyvlm.retrieval.search import Searcher

DIM, CLUSTERS, BATCH, K, ROUNDS = 512, 2000, 200, 10, 5
PROBES, WIDTHS, GRAPH_WIDTHS = (1, 8, 32), (100, 256, 512), (32, 128, 512)


def model() -> DualEncoder:
    """Nothing of its towers is used."""
    tower = {"width": 16, "depth": 1, "heads": 1}
    image = {"image_size": 16, "patch": 16, **tower}
    section = {"image": image, "text": tower, "dim": DIM}
    return build_model({"model": section, "manifold": {"name": "lorentz", "c": 1.0}}).eval()


def clustered(space: DualEncoder, count: int, seed: int) -> Tensor:
    """Points ``(count, D)`` around common centres."""
    centres = torch.randn(CLUSTERS, DIM, generator=torch.Generator().manual_seed(7)) / DIM**0.5
    draws = torch.Generator().manual_seed(seed)
    points = torch.empty(count, DIM)
    for part in points.split(2**16):
        at = torch.randint(CLUSTERS, (len(part),), generator=draws)
        noise = torch.randn(len(part), DIM, generator=draws) / DIM**0.5
        part.copy_(space.manifold.lift(0.8 * centres[at] + 0.4 * noise))
    return points


def true_rows(space: DualEncoder, points: Tensor, queries: Tensor) -> Tensor:
    """The best K by the score in float64, by brute force."""
    values = torch.empty(len(queries), 0, dtype=torch.float64)
    rows = torch.empty(len(queries), 0, dtype=torch.long)
    for start in range(0, len(points), 2**15):
        scores = space.score(points[start : start + 2**15].double(), queries.double(), by="text").T
        best, at = scores.topk(min(K, scores.shape[1]))
        values, rows = torch.cat([values, best], 1), torch.cat([rows, at + start], 1)
        values, order = values.topk(min(K, values.shape[1]))
        rows = rows.gather(1, order)
    return rows


def recall(found: Tensor, expected: Tensor) -> float:
    """Share of the expected rows that were found."""
    return float((found.unsqueeze(-1) == expected.unsqueeze(-2)).any(1).double().mean())


def plain_top(space: DualEncoder, points: Tensor, queries: Tensor) -> Tensor:
    """What one would write: all scores, then torch's top-k."""
    return space.score(points, queries, by="text").T.topk(K).indices


def product(rows: Tensor, queries: Tensor) -> Callable[[], None]:
    """The bare product of a batch, by the faster library, in blocks of 16,384 rows."""

    def run() -> None:
        with fast_matmul():
            for block in rows.split(16_384):
                queries @ block.T

    return run


def exact_rows(space: DualEncoder, points: Tensor, queries: Tensor, searcher: Searcher) -> list[Row]:
    """Exact search of a batch and of one query."""
    padded, asked = torch.nn.functional.pad(points, (0, 1)), torch.nn.functional.pad(queries, (0, 1))
    size = f"{len(points):,} points"
    result = []
    for name, given, limit in (
        (f"exact top-{K}, {BATCH} queries", queries, product(padded, asked)),
        (f"exact top-{K}, one query", queries[:1], lambda: padded @ asked[0]),
    ):
        variants: dict[str, Callable[[], object]] = {
            "ours": partial(searcher.search, given, by="text", k=K),
            "plain": partial(plain_top, space, points, given),
            "limit": limit,
        }
        times = alternate(variants, ROUNDS)
        result.append(row(name, size, times, asked="at most 1.3 times the limit"))
    return result


def approximate_rows(
    space: DualEncoder, points: Tensor, queries: Tensor, expected: Tensor, exact: Searcher
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Recall and time of both kinds of index; the plain column is exact search of the same queries."""
    rows, found = [], []
    settings = [("ivf", "nprobe", PROBES), ("hnsw", "ef_search", WIDTHS)]
    for kind, name, values in settings if len(points) <= 200_000 else settings[:1]:
        with tempfile.TemporaryDirectory() as folder:
            index = ApproximateIndex.build(space.manifold, points.numpy(), kind, folder=Path(folder), name="points")
            searcher = Searcher.over(space, points, approximate=index)
            for value in values:
                hits = searcher.search(queries, by="text", k=K, **{name: value})
                share = recall(hits.rows, expected)
                found.append({"index": kind, name: value, "recall@10": share})
                for given in (queries[:1], queries):
                    variants: dict[str, Callable[[], object]] = {
                        "ours": partial(searcher.search, given, by="text", k=K, **{name: value}),
                        "plain": partial(exact.search, given, by="text", k=K),
                    }
                    what = f"{kind}, {name} {value}, {'one query' if len(given) == 1 else f'{BATCH} queries'}"
                    times = alternate(variants, 3)
                    rows.append(row(f"{what} (recall {share:.3f})", f"{len(points):,} points", times))
    return rows, found


def naive_graph(points: Tensor, queries: Tensor, expected: Tensor) -> list[dict[str, Any]]:
    """The trap: a graph, or cells, by inner product on space and time, with the time negated for the queries."""
    time = (1 + points.square().sum(1, keepdim=True)).sqrt()
    stored = torch.cat([points, time], 1).numpy()
    asked = torch.cat([queries, -(1 + queries.square().sum(1, keepdim=True)).sqrt()], 1).numpy()
    graph = faiss.IndexHNSWFlat(DIM + 1, 16, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = 80
    graph.add(stored)
    found = []
    for width in GRAPH_WIDTHS:
        rows = graph.search(asked, K, params=faiss.SearchParametersHNSW(efSearch=width))[1]
        share = recall(torch.from_numpy(rows), expected)
        found.append({"index": "graph by inner product, time negated", "ef": width, "recall@10": share})
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--points", type=int, default=100_000)
    count = parser.parse_args().points
    faiss.omp_set_num_threads(torch.get_num_threads())
    space = model()
    points, queries = clustered(space, count, 0), clustered(space, BATCH, 1)
    expected = true_rows(space, points, queries)
    searcher = Searcher.over(space, points)
    exact_recall = recall(searcher.search(queries, by="text", k=K).rows, expected)
    rows = exact_rows(space, points, queries, searcher)
    more, found = approximate_rows(space, points, queries, expected, searcher)
    further: dict[str, Any] = {"exact_recall@10": exact_recall, "approximate": found}
    if count <= 200_000:
        further["naive"] = naive_graph(points, queries, expected)
        print(further["naive"])
    print(f"recall@10 of exact search: {exact_recall}")
    name = "search" if count == 100_000 else f"search_{count}"
    print(write_rows(name, rows + more, **further))


if __name__ == "__main__":
    main()
