"""Grids, resumption and the summary of a sweep."""

import json
import math

import pytest

from hyvlm.config import load_config
from hyvlm.training import sweep as module
from hyvlm.training.sweep import grid, interval, run_once, split_values, sweep

SMALL = [
    "data.train=scenes:12",
    "data.workers=0",
    "train.batch_size=6",
    "train.steps=2",
    "eval=[{task: retrieval, data: scenes, split: val}]",
]


def test_values_split_at_commas_outside_brackets_and_quotes():
    assert split_values("1,2,3") == ["1", "2", "3"]
    assert split_values("[1,2],[3,4]") == ["[1,2]", "[3,4]"]
    assert split_values("{max: 1, choice: first},{max: 2}") == ["{max: 1, choice: first}", "{max: 2}"]
    assert split_values("'a,b'") == ["'a,b'"]
    assert split_values("") == [""]


def test_a_grid_is_every_combination():
    assert grid(["a=1,2", "b=x"]) == {"a=1": ["a=1", "b=x"], "a=2": ["a=2", "b=x"]}
    assert grid(["a=1,2", "b=/x,/y"])["a=2,b=_y"] == ["a=2", "b=/y"]
    assert list(grid(["a=/,:"])) == ["a=_", "a=_-1"]
    assert grid([]) == {"all": []}
    with pytest.raises(ValueError, match="key=a,b,c"):
        grid(["a"])


def test_mean_and_interval_of_a_t_distribution():
    assert interval([50.0]) == "50.00"
    values = [1.0, 2.0, 3.0]
    half = 4.302652729911275 * 1.0 / math.sqrt(3)  # 97.5 % point of t with two degrees of freedom
    assert interval(values) == f"2.00 ± {half:.2f}"


def test_a_sweep_trains_once_and_reads_afterwards(tmp_path, monkeypatch):
    overrides = [*SMALL, "objective.entail_weight=0,0.1"]
    table = sweep("meru-tiny", overrides, tmp_path, seeds=2)
    metrics = ["t2i_recall@1", "t2i_recall@5", "t2i_recall@10", "i2t_recall@1", "i2t_recall@5", "i2t_recall@10"]
    assert table.row_count == 2 * len(metrics)
    scores = json.loads((tmp_path / "sweep.json").read_text())
    assert [len(runs) for runs in scores.values()] == [2, 2]
    assert all("retrieval/scenes/t2i_recall@1" in run for runs in scores.values() for run in runs)
    (first, *_) = sorted(tmp_path.glob("*/seed_1"))
    assert load_config(str(first / "config.yaml")).train.seed == 1
    monkeypatch.setattr(module, "train", None)  # a complete run is not trained again
    assert sweep("meru-tiny", overrides, tmp_path, seeds=2).row_count == table.row_count


def test_an_interrupted_run_goes_on(tmp_path):
    config = load_config("meru-tiny", [*SMALL, "train.steps=3", "train.save_every=1"])
    run_once(config, tmp_path)
    (tmp_path / "results.json").unlink()
    run_once(config, tmp_path)  # trained, but stopped before its evaluation
    (tmp_path / "results.json").unlink()
    last = tmp_path / "checkpoints" / "step_0000003"
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    run_once(config, tmp_path)
    assert (tmp_path / "results.json").is_file()


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no evaluation"):
        sweep("meru-tiny", [*SMALL[:-1], "eval=[]"], tmp_path, seeds=1)
    config = load_config("meru-tiny", SMALL)
    run_once(config, tmp_path)
    with pytest.raises(ValueError, match="other settings"):
        run_once(load_config("meru-tiny", [*SMALL, "train.seed=5"]), tmp_path)


@pytest.mark.parametrize(("values", "message"), [("objective.eta=1,-1", "eta"), ("manifold.c=1,-2", "curvature")])
def test_a_wrong_value_of_one_point_is_known_before_any_trains(tmp_path, values, message):
    with pytest.raises(ValueError, match=message):
        sweep("meru-tiny", [*SMALL, values], tmp_path / "out", seeds=1)
    assert not (tmp_path / "out").exists()
