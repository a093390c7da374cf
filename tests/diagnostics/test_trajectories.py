"""``metrics.jsonl`` of whole, resumed and damaged runs."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyvlm.diagnostics.trajectories import read_trajectories
from hyvlm.training.metrics_log import MetricsLog


def write(run: Path, *lines: object) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    (run / "metrics.jsonl").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return run


def test_what_a_run_logs_is_read_back(tmp_path: Path) -> None:
    rows = [
        {
            "step": step,
            "epoch": 0.1,
            "lr": 1e-3,
            "loss": 9.0 / step,
            "term/text ⊒ image": 0.5 / step,
            "radius/text": 0.4,
            "saturated/text": 0.25,
            "temperature/global": 0.07,
            "c": 1.0 - step / 100,
            "image_scale": 0.2,
            "samples_per_s": 50.0,
            "skipped/no caption": 3,
        }
        for step in (1, 20, 40)
    ]
    with MetricsLog(tmp_path, steps=40, start=0) as log:
        for row in rows:
            log.write(row)
        log.write({"step": 40, "eval/retrieval/scenes/t2i_recall@1": 50.0})
    found = read_trajectories(tmp_path)
    assert set(found.by_name) == {
        "loss",
        "term/text ⊒ image",
        "radius/text",
        "saturated/text",
        "temperature/global",
        "c",
        "image_scale",
    }
    assert found.by_name["c"].steps == [1, 20, 40]
    assert found.by_name["c"].values == [0.99, 0.8, 0.6]
    assert (found.repeated, found.damaged, found.not_finite) == (0, 0, 0)


def test_a_product_has_three_curvatures(tmp_path: Path) -> None:
    write(tmp_path, {"step": 1, "c/mean": 0.5, "c/min": 0.1, "c/max": 0.9, "count": 3})
    assert sorted(read_trajectories(tmp_path).by_name) == ["c/max", "c/mean", "c/min"]


def test_a_resumed_run_counts_from_where_it_went_on(tmp_path: Path) -> None:
    first = [{"step": step, "c": 1.0} for step in (10, 20, 30, 40)]
    scores = {"step": 40, "eval/order/scenes/x": 1.0}
    again = [{"step": step, "c": 0.5} for step in (25, 40, 50)]
    found = read_trajectories(write(tmp_path, *first, scores, *again))
    assert found.by_name["c"].steps == [10, 20, 25, 40, 50]
    assert found.by_name["c"].values == [1.0, 1.0, 0.5, 0.5, 0.5]
    assert found.repeated == 2  # steps 30 and 40


def test_a_step_that_is_logged_twice_counts_as_it_was_logged_last(tmp_path: Path) -> None:
    scores = {"step": 2, "eval/order/scenes/x": 1.0}
    found = read_trajectories(write(tmp_path, {"step": 2, "c": 1.0}, scores, {"step": 2, "c": 0.5}))
    assert (found.by_name["c"].steps, found.by_name["c"].values, found.repeated) == ([2], [0.5], 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_steps_always_increase_and_the_last_line_counts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int]
) -> None:
    run = write(tmp_path_factory.mktemp("run"), *({"step": step, "c": float(i)} for i, step in enumerate(steps)))
    found = read_trajectories(run)
    kept = found.by_name["c"]
    assert all(a < b for a, b in zip(kept.steps, kept.steps[1:], strict=False))
    assert (kept.steps[-1], kept.values[-1]) == (steps[-1], len(steps) - 1)
    assert len(kept.steps) + found.repeated == len(steps)


def test_a_long_run_is_thinned_less_at_its_beginning(tmp_path: Path) -> None:
    write(tmp_path, *({"step": 5 * i, "c": float(i)} for i in range(1, 1001)))
    found = read_trajectories(tmp_path, at_most=100)
    kept = found.by_name["c"]
    assert kept.values[:5] == [1, 2, 3, 4, 5]
    assert (kept.steps[-1], kept.values[-1]) == (5000, 1000)
    assert all(step == 5 * value for step, value in zip(kept.steps, kept.values, strict=True))
    assert 60 <= len(kept.steps) <= 100
    assert len(kept.steps) + found.thinned == 1000
    assert read_trajectories(tmp_path, at_most=1000).thinned == 0
    with pytest.raises(ValueError, match="at least 2 steps"):
        read_trajectories(tmp_path, at_most=1)


def test_damaged_lines_and_values_are_left_out_and_counted(tmp_path: Path) -> None:
    run = write(
        tmp_path,
        {"step": 1, "c": 1.0, "loss": float("nan")},
        '{"step": 2, "c": 0.',
        "[1, 2]",
        {"c": 0.3},
        {"step": "3", "c": 0.3},
        {"step": True, "c": 0.3},
        {"step": 4, "c": float("inf"), "loss": 2.0, "radius/text": "far", "radius/image": True},
        "",
    )
    found = read_trajectories(run)
    assert found.damaged == 5
    assert found.repeated == 0
    assert found.not_finite == 2
    assert {name: (t.steps, t.values) for name, t in found.by_name.items()} == {"c": ([1], [1.0]), "loss": ([4], [2.0])}


def test_bytes_that_are_no_text_damage_only_their_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "c": 1.0}\n\xff\xfe\x00\n{"step": 2, "c": 0.5}\n')
    found = read_trajectories(tmp_path)
    assert (found.by_name["c"].steps, found.damaged) == ([1, 2], 1)


def test_a_folder_without_a_log_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no metrics"):
        read_trajectories(tmp_path)


@pytest.mark.parametrize(("text", "message"), [("", "it is empty"), ("{\n}\n", "2 damaged lines")])
def test_a_log_without_a_step_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_trajectories(tmp_path)
