from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyvlm.evaluation.taxonomy import HIERARCHICAL, HierarchicalMetrics, Taxonomy

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())["hierarchy"]
METRICS = tuple(HIERARCHICAL)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: c["name"])
def test_every_pair_matches_the_golden_values(case: dict) -> None:
    taxonomy = Taxonomy((child, parent) for parent, child in case["edges_parent_child"])
    metrics = HierarchicalMetrics(taxonomy, case["labels"])
    for label, ancestors in case["ancestors"].items():
        above = taxonomy.ancestors()[taxonomy.index[label]]
        assert sorted(np.array(taxonomy.nodes)[above]) == ancestors
    place = {label: i for i, label in enumerate(case["labels"])}
    for pair in case["pairs"]:
        rows = metrics.rows(np.array([place[pair["pred"]]]), np.array([place[pair["true"]]]))
        for name in METRICS:
            assert rows[name][0] == pytest.approx(pair[name], abs=1e-12), (name, pair["pred"], pair["true"])
    predicted, target = np.array([(place[p["pred"]], place[p["true"]]) for p in case["pairs"]]).T
    means = metrics.means(predicted, target)
    for name, mean in case["mean"].items():
        assert means[name] == pytest.approx(mean, abs=1e-12)


def metrics_by_loops(edges: list[tuple[str, str]], pred: str, true: str) -> dict[str, float]:
    """The definitions, walked naively."""
    nodes = {name for edge in edges for name in edge}
    up = {n: {p for c, p in edges if c == n} for n in nodes}
    down = {n: {c for c, p in edges if p == n} for n in nodes}

    def walk(start: str, step: dict[str, set[str]]) -> dict[str, int]:
        distance, front = {start: 0}, {start}
        while front:
            front = {m for n in front for m in step[n]} - distance.keys()
            distance.update(dict.fromkeys(front, max(distance.values()) + 1))
        return distance

    def height(n: str) -> int:
        return max((1 + height(child) for child in down[n]), default=0)

    root = next(n for n in nodes if not up[n])
    to_pred, to_true = walk(pred, up), walk(true, up)
    a, b = to_pred.keys() - {pred}, to_true.keys() - {true}
    common = to_pred.keys() & to_true.keys()
    depth = {n: walk(n, up)[root] for n in common}
    deepest = [n for n in common if depth[n] == max(depth.values())]
    both = {n: up[n] | down[n] for n in nodes}
    return {
        "tie": walk(pred, both)[true],
        "lca_released": len(a) - len(a & b) + 1,
        "jaccard": len(a & b) / len(a | b) if a | b else 1.0,
        "precision": len(a & b) / len(a) if a else 1.0,
        "recall": len(a & b) / len(b) if b else 1.0,
        "lca_height": min(height(n) for n in deepest),
        "lca_path_sum": min(to_pred[n] + to_true[n] for n in deepest),
    }


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.data())
def test_tables_equal_loops_on_random_graphs(data: st.DataObject) -> None:
    """Trees and graphs with several parents; classes may be inner nodes, the root included."""
    count = data.draw(st.integers(2, 9))
    edges = set()
    for child in range(1, count):
        for parent in data.draw(st.sets(st.integers(0, child - 1), min_size=1, max_size=2)):
            edges.add((f"n{child}", f"n{parent}"))
    classes = [f"n{i}" for i in range(count)]
    metrics = HierarchicalMetrics(Taxonomy(edges), classes)
    for i, pred in enumerate(classes):
        for j, true in enumerate(classes):
            expected = metrics_by_loops(sorted(edges), pred, true)
            assert {name: metrics.tables[name][i, j] for name in METRICS} == pytest.approx(expected, abs=1e-12)


def test_classes_may_repeat() -> None:
    metrics = HierarchicalMetrics(Taxonomy([("a", "r"), ("b", "r")]), ["a", "b", "a"])
    assert metrics.tables["tie"].tolist() == [[0, 2, 0], [2, 0, 2], [0, 2, 0]]


def test_reads_blanks_tabs_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "tree.txt"
    file.write_text("# child parent\ndog  animal\n\nred small cube\tcube\ncube\tsolid thing\nanimal\tsolid thing\n")
    taxonomy = Taxonomy.read(file)
    assert ("red small cube", "cube") in taxonomy.edges
    assert set(taxonomy.nodes) == {"dog", "animal", "red small cube", "cube", "solid thing"}


def test_a_line_that_is_no_edge_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tree.txt"
    file.write_text("dog animal\nred cube solid\n")
    with pytest.raises(ValueError, match=r"tree\.txt:2: expected 'child parent'.*'red cube solid'"):
        Taxonomy.read(file)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([], "at least one"),
        ([("a", "b"), ("b", "c"), ("c", "a"), ("a", "r")], "cycle"),
        ([("a", "a")], "cycle"),
        ([("a", "r"), ("b", "s")], "2 roots .*'r', 's'.*joins them"),
    ],
)
def test_a_graph_that_is_no_taxonomy_is_refused(edges: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Taxonomy(edges)


def test_a_class_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="1 of 2 classes are not in the hierarchy \\('cat'\\)"):
        HierarchicalMetrics(Taxonomy([("dog", "animal")]), ["dog", "cat"])


def test_the_fingerprint_is_that_of_the_edges() -> None:
    edges = [("a", "r"), ("b", "r"), ("c", "b")]
    assert Taxonomy(edges).fingerprint == Taxonomy(edges[::-1] + edges).fingerprint
    assert len({Taxonomy(part).fingerprint for part in (edges, edges[:2], [*edges, ("c", "a")])}) == 3


def test_a_deep_taxonomy_needs_no_recursion() -> None:
    chain = [(f"n{b}", f"n{a}") for a, b in pairwise(range(3000))]
    metrics = HierarchicalMetrics(Taxonomy(chain), ["n2999", "n0"])
    assert metrics.tables["tie"][0, 1] == 2999
    assert metrics.tables["lca_height"][0, 1] == 2999
