from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score

from hyvlm.evaluation import tree_metrics
from hyvlm.evaluation.taxonomy import Taxonomy
from hyvlm.evaluation.tree_metrics import ancestor_precision, distance_correlation, parent_errors

#: A DAG: "d" has two parents, at different depths.
EDGES = [("a", "root"), ("b", "root"), ("c", "a"), ("d", "c"), ("d", "b"), ("e", "d"), ("f", "b")]


def random_taxonomy(rng: np.random.Generator, nodes: int) -> Taxonomy:
    """A DAG: every node below the first has one or two parents among those before it."""
    return Taxonomy(
        {(f"n{i}", f"n{p}") for i in range(1, nodes) for p in rng.choice(i, min(i, rng.integers(1, 3)), replace=False)}
    )


def as_graph(taxonomy: Taxonomy) -> nx.DiGraph:
    return nx.DiGraph(taxonomy.edges)


@pytest.mark.parametrize("seed", range(5))
def test_path_lengths_are_those_of_networkx(seed: int) -> None:
    taxonomy = random_taxonomy(np.random.default_rng(seed), 12)
    graph = as_graph(taxonomy)
    either_way = dict(nx.all_pairs_shortest_path_length(graph.to_undirected()))
    upward = dict(nx.all_pairs_shortest_path_length(graph))
    sources = np.array([3, 0, 3])
    for lengths, expected in (
        (taxonomy.path_lengths(), either_way),
        (taxonomy.steps_up(np.arange(len(taxonomy.nodes))).T, upward),
    ):
        for i, name in enumerate(taxonomy.nodes):
            assert [expected[name].get(other, np.inf) for other in taxonomy.nodes] == list(lengths[i])
    np.testing.assert_array_equal(taxonomy.path_lengths(sources), taxonomy.path_lengths()[sources])
    root = taxonomy.nodes[0]
    assert list(taxonomy.depths()) == [upward[name][root] for name in taxonomy.nodes]


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 14), st.booleans())
def test_ancestor_precision_is_that_of_scikit_learn(seed: int, nodes: int, left_out: bool) -> None:
    """With many ties; every node ranks the others, with or without some of them left out."""
    rng = np.random.default_rng(seed)
    taxonomy = random_taxonomy(rng, nodes)
    graph = as_graph(taxonomy)
    ancestors = np.array([[b in nx.descendants(graph, a) for b in taxonomy.nodes] for a in taxonomy.nodes])
    np.testing.assert_array_equal(ancestors, taxonomy.ancestors())
    scores = rng.integers(0, 4, (nodes, nodes)).astype(float)
    candidates = ~np.eye(nodes, dtype=bool) & ((rng.random((nodes, nodes)) < 0.7) if left_out else True)
    precision = ancestor_precision(scores, ancestors, candidates=candidates)
    for i, kept in enumerate(candidates):
        if (ancestors[i] & kept).any():
            assert precision[i] == pytest.approx(
                average_precision_score(ancestors[i][kept], scores[i][kept]), abs=1e-12
            )
        else:
            assert np.isnan(precision[i])


def test_ancestor_precision_ranks_all_by_default_and_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    ancestors, scores = rng.random((7, 9)) < 0.4, rng.random((7, 9))
    whole = ancestor_precision(scores, ancestors)
    monkeypatch.setattr(tree_metrics, "BLOCK", 1)
    np.testing.assert_array_equal(ancestor_precision(scores, ancestors), whole)
    expected = [average_precision_score(a, s) for a, s in zip(ancestors, scores, strict=True)]
    np.testing.assert_allclose(whole, expected, rtol=1e-12)


def test_ancestor_precision_is_one_when_ancestors_come_first_and_falls_with_any_swap() -> None:
    ancestors = Taxonomy(EDGES).ancestors()
    perfect = ancestor_precision(ancestors.astype(float), ancestors)
    assert np.nanmin(perfect) == 1.0
    assert np.isnan(perfect[0])  # the root has no ancestor
    assert np.nanmax(ancestor_precision(-ancestors.astype(float), ancestors)) < 1.0


@settings(derandomize=True, max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 12))
def test_distance_correlation_is_that_of_scipy(seed: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    taxonomy = random_taxonomy(rng, nodes)
    paths = taxonomy.path_lengths()
    upper = np.triu(rng.random((nodes, nodes)), 1)
    distances = upper + upper.T
    pairs = [(i, j) for i in range(nodes) for j in range(i)]
    near, path = [distances[p] for p in pairs], [paths[p] for p in pairs]
    if len(set(path)) < 2:
        with pytest.raises(ValueError, match="two pairs of different path length"):
            distance_correlation(distances, paths)
        return
    result = distance_correlation(distances, paths)
    assert result.pairs == nodes * (nodes - 1) // 2
    assert result.pearson == pytest.approx(stats.pearsonr(near, path).statistic, abs=1e-9)
    assert result.spearman == pytest.approx(stats.spearmanr(near, path).statistic, abs=1e-9)


def test_distance_correlation_knows_the_tree_itself() -> None:
    paths = Taxonomy(EDGES).path_lengths()
    scaled = distance_correlation(3 * paths, paths)
    assert (scaled.pearson, scaled.spearman) == pytest.approx((1, 1))
    bent = distance_correlation(np.expm1(paths), paths)
    assert bent.spearman == pytest.approx(1)
    assert bent.pearson < 0.97


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_parent_errors_are_the_shortest_paths_of_the_worst_tied_candidate(seed: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    taxonomy = random_taxonomy(rng, nodes)
    graph = as_graph(taxonomy).to_undirected()
    scores = rng.integers(0, 3, (nodes, nodes)).astype(float)
    others = ~np.eye(nodes, dtype=bool)
    errors = parent_errors(scores[1:], taxonomy.parents[1:], taxonomy.path_lengths(), candidates=others[1:])
    tied = 0
    for i in range(1, nodes):
        best = max(scores[i][others[i]])
        at_best = [j for j in range(nodes) if j != i and scores[i, j] == best]
        tied += len(at_best) > 1
        edges = [
            min(nx.shortest_path_length(graph, taxonomy.nodes[j], taxonomy.nodes[p]) for p in taxonomy.parents[i])
            for j in at_best
        ]
        assert errors.edges[i - 1] == max(edges)
    assert errors.tied == tied


def test_a_predicted_parent_costs_nothing_if_it_is_one_of_several() -> None:
    taxonomy = Taxonomy(EDGES)
    d, place = taxonomy.index["d"], taxonomy.index
    scores = np.zeros((1, len(taxonomy.nodes)))
    for name, edges in {"b": 0, "c": 0, "a": 1, "root": 1, "d": 1, "e": 2}.items():
        scores[:] = 0
        scores[0, place[name]] = 1
        assert parent_errors(scores, [taxonomy.parents[d]], taxonomy.path_lengths()).edges[0] == edges


NAN = np.array([[0.0, np.nan], [1.0, 0.0]])
ONES, PATHS = np.ones((2, 2)), np.array([[0.0, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ancestor_precision(NAN, ONES > 0), "not a number"),
        (lambda: ancestor_precision(ONES, np.ones((2, 3), dtype=bool)), r"\(2, 2\), \(2, 3\)"),
        (lambda: ancestor_precision(ONES, ONES > 0, candidates=np.ones(2, dtype=bool)), "shapes must agree"),
        (lambda: distance_correlation(NAN, PATHS), "1 of 1 pairs have no finite distance"),
        (lambda: distance_correlation(PATHS, PATHS + np.inf), "no finite path length"),
        (lambda: distance_correlation(np.ones((3, 3)), np.arange(9.0).reshape(3, 3)), "pairs of different distance"),
        (lambda: distance_correlation(np.ones((1, 1)), np.ones((1, 1))), "got 0 pair"),
        (lambda: distance_correlation(ONES, np.ones((3, 3))), "shapes must agree"),
        (lambda: parent_errors(NAN, [[0], [1]], PATHS), "not a number"),
        (lambda: parent_errors(ONES, [[0], []], PATHS), "query 1 has no parent"),
        (lambda: parent_errors(ONES, [[0], [1]], PATHS, candidates=np.eye(2) < 0), "query 0 has no candidate"),
        (lambda: parent_errors(ONES, [[0]], PATHS), "2 queries and 2 nodes do not fit the parents of 1"),
        (lambda: parent_errors(ONES, [[0], [1]], np.ones((3, 3))), r"path lengths of shape \(3, 3\)"),
    ],
)
def test_input_without_an_answer_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
