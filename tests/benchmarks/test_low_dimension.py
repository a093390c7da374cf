"""The benchmark as a whole takes most of an hour; here what its comparison rests on, with a tree of ten nodes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
EDGES = ["a root", "b root", "c a", "d a", "e b", "f c", "g c", "h d", "i e", "i f"]


@pytest.fixture
def low_dimension(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import low_dimension

    monkeypatch.setitem(low_dimension.STEPS, "words", 3)
    return low_dimension


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree.txt"
    path.write_text("\n".join(EDGES) + "\n", encoding="utf-8")
    return path


def test_only_indirect_ancestors_are_held_out_and_never_trained(low_dimension: ModuleType, tree: Path) -> None:
    nouns = low_dimension.Nouns(tree)
    table = nouns.embedding(2, low_dimension.REGIMES["published"].manifold(), seed=1)
    held_out = {tuple(pair) for pair in np.argwhere(table.held_out)}
    trained = {tuple(pair.tolist()) for pair in table.pairs}
    ancestors = {tuple(pair) for pair in np.argwhere(nouns.ancestors)}
    parents = {(node, p) for node, above in enumerate(nouns.taxonomy.parents) for p in above}
    assert held_out
    assert held_out | trained == ancestors
    assert not held_out & (trained | parents)


def test_both_sides_start_at_the_same_vectors_and_meet_the_same_batches(low_dimension: ModuleType, tree: Path) -> None:
    nouns = low_dimension.Nouns(tree)
    starts = []
    for radius in (None, 0.2):
        trial = low_dimension.Trial(data="words", regime="held", dim=4, seed=3, lr=0.1, radius=radius)
        torch.manual_seed(trial.seed)
        table = nouns.embedding(trial.dim, trial.manifold(), trial.seed)
        views = table.views(torch.Generator().manual_seed(trial.seed))
        starts.append({name: table.manifold.logmap0(points).detach() for name, points in views.points.items()})
    for name in ("image", "text"):
        torch.testing.assert_close(starts[0][name], starts[1][name])


def test_a_run_repeats_exactly_and_is_done_once(
    low_dimension: ModuleType, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = low_dimension.Trial(data="words", regime="bounded", dim=2, seed=0, lr=0.1)
    first, second = (low_dimension.Experiment(tmp_path / name, tree).run(trial) for name in "ab")
    clocks = {"seconds", "cpu_seconds"}
    assert {k: v for k, v in first.items() if k not in clocks} == {k: v for k, v in second.items() if k not in clocks}
    monkeypatch.setattr(low_dimension, "fit", None)
    assert low_dimension.Experiment(tmp_path / "a", tree).run(trial) == first


def test_flat_runs_are_shared_by_regimes_that_differ_in_curvature_alone(low_dimension: ModuleType) -> None:
    shared = {name: low_dimension.flat_regime(name) for name in low_dimension.REGIMES}
    for name, other in shared.items():
        assert low_dimension.REGIMES[name].sharpest == low_dimension.REGIMES[other].sharpest
    assert set(shared.values()) == {"published", "bounded"}
