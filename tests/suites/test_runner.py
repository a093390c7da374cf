"""Running suites: what is measured, what is left out and why, and that nothing is measured twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyvlm.evaluation.embed import Embedder
from hyvlm.suites import SuiteRun, read_suite, run_suites, runner
from hyvlm.suites.runner import Reading, model_names


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks that were run, in their order; "TASK-flat" without the map."""
    seen: list[str] = []
    real = runner.run_task

    def spy(name, task, samples, embedder):
        seen.append(name + "-flat" * (type(embedder) is not Embedder))
        return real(name, task, samples, embedder)

    monkeypatch.setattr(runner, "run_task", spy)
    return seen


def go(models, suite, root, out, **more) -> SuiteRun:
    return run_suites(models, SuiteRun([read_suite(str(suite))]), root, out=out, **more)


ALL = ["classification", "hierarchy", "retrieval", "retrieval-flat"]


def test_a_suite_measures_what_it_finds_and_says_what_it_skips(
    model_folders, suite_file, data_root, tmp_path, asked
) -> None:
    lines: list[str] = []
    models = [model_folders("lorentz"), model_folders("sphere")]
    run = go(models, suite_file, data_root, tmp_path / "out", say=lines.append)
    assert asked == [*ALL, "retrieval", "retrieval-flat", "classification", "hierarchy", "retrieval", "retrieval"]
    assert list(run.models) == ["lorentz", "sphere"]
    assert run.unread == ["sphere"]
    assert [(why, [e.data for e in what]) for why, what in run.skipped.items()] == [
        ("the data set 'gone' is not available in this version", ["gone"])
    ]
    assert not run.failed
    entries = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert len(entries) == len(asked) == len(run.entries)
    flat = [entry for (reading, _), entry in run.entries.items() if not reading.with_map]
    assert {entry["score"] for entry in flat} == {"euclidean"}
    assert lines[0] == "[1/4] lorentz: classification on scenes:6"
    assert lines[-1] == f"[4/4] sphere: retrieval on coco:{data_root}/coco"


def test_a_second_call_measures_nothing_again(model_folders, suite_file, data_root, tmp_path, asked) -> None:
    first = go([model_folders("lorentz")], suite_file, data_root, tmp_path / "out")
    before = (tmp_path / "out" / "results.json").read_bytes()
    count = len(asked)
    again = go([model_folders("lorentz")], suite_file, data_root, tmp_path / "out")
    assert len(asked) == count == again.reused
    assert (tmp_path / "out" / "results.json").read_bytes() == before
    assert {key: e["scores"] for key, e in again.entries.items()} == {k: e["scores"] for k, e in first.entries.items()}


def test_an_interrupted_run_goes_on_where_it_stopped(
    model_folders, suite_file, data_root, tmp_path, asked, monkeypatch
) -> None:
    spy = runner.run_task

    def interrupted(name, *rest):
        if name == "hierarchy":
            raise KeyboardInterrupt
        return spy(name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_task", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go([model_folders("lorentz")], suite_file, data_root, tmp_path / "out")
    assert asked == ["classification"]
    run = go([model_folders("lorentz")], suite_file, data_root, tmp_path / "out")
    assert asked == ["classification", *ALL[1:], "retrieval", "retrieval-flat"]
    assert run.reused == 1


def test_other_settings_data_or_models_are_measured_anew(model_folders, suite_file, data_root, tmp_path, asked) -> None:
    prompts, out, model = tmp_path / "prompts.txt", tmp_path / "out", model_folders("lorentz")
    prompts.write_text("one {}.\n")
    go([model], suite_file, data_root, out)
    asked.clear()
    go([model], suite_file, data_root, out, settings={"templates": str(prompts)})
    assert asked == ["classification", "hierarchy"]
    asked.clear()
    prompts.write_text("two {}.\n")  # the same name, another content
    go([model], suite_file, data_root, out, settings={"templates": str(prompts)})
    assert asked == ["classification", "hierarchy"]
    asked.clear()
    (data_root / "coco" / "images" / "7.png").unlink()
    go([model], suite_file, data_root, out)
    assert asked == ["retrieval", "retrieval-flat"]
    asked.clear()
    go([model_folders("euclidean")], suite_file, data_root, out)
    assert asked == ["classification", "hierarchy", "retrieval", "retrieval"]


def test_images_of_a_data_set_pass_a_model_once(model_folders, suite_file, data_root, tmp_path, monkeypatch) -> None:
    passes: list[str] = []
    real = Embedder._pass

    def spy(self, samples, transform, part_transform):
        passes.append(f"{samples.name} {transform is not None}")
        return real(self, samples, transform, part_transform)

    monkeypatch.setattr(Embedder, "_pass", spy)
    go([model_folders("lorentz")], suite_file, data_root, tmp_path / "out", settings={"resize": "squash"})
    # classes of scenes are crops, pairs are scenes; each passes once, for two tasks or two readings
    assert [n for n in passes if n.endswith("True")] == [*["scenes:6 True"] * 2, f"coco:{data_root}/coco True"]


def test_a_task_that_fails_leaves_the_others(model_folders, suite_file, data_root, tmp_path, monkeypatch) -> None:
    real = runner.run_task

    def broken(name, *rest):
        if name == "hierarchy":
            raise ValueError("a score is NaN")
        return real(name, *rest)

    monkeypatch.setattr(runner, "run_task", broken)
    run = go([model_folders("lorentz")], suite_file, data_root, tmp_path / "out")
    assert [(model, e.task, reason) for model, e, reason in run.failed] == [("lorentz", "hierarchy", "a score is NaN")]
    assert len(run.entries) == 5


def test_what_one_model_cannot_is_said_of_it(model_folders, suite_file, data_root, tmp_path) -> None:
    text = suite_file.read_text().replace("task: hierarchy, metric: tie", "task: order, metric: mean_radius_text")
    suite_file.write_text(text.replace("lower: true, settings: {templates: plain}", "lower: true"))
    models = [model_folders("lorentz"), model_folders("sphere")]
    run = go(models, suite_file, data_root, tmp_path / "out")
    reasons = [reason for reason in run.skipped if reason.startswith("sphere: ")]
    assert len(reasons) == 1
    assert [e.task for e in run.skipped[reasons[0]]] == ["order"]


def test_files_of_the_data_root_take_the_place_of_prompts_and_hierarchy(
    model_folders, suite_file, data_root, tmp_path
) -> None:
    prompts = data_root / "templates" / "scenes-6.txt"
    prompts.parent.mkdir()
    prompts.write_text("here: {}\n")
    run = go([model_folders("lorentz")], suite_file, data_root, tmp_path / "out")
    used = {e.task: entry["settings"]["templates"] for (_, e), entry in run.entries.items() if e.task != "retrieval"}
    assert used == {"classification": "plain", "hierarchy": "plain"}  # the tables say which
    suite_file.write_text(suite_file.read_text().replace("templates: plain", "templates: openai"))
    run = go([model_folders("lorentz")], suite_file, data_root, tmp_path / "out")
    used = {e.task: entry["settings"]["templates"] for (_, e), entry in run.entries.items() if e.task != "retrieval"}
    assert used == {"classification": str(prompts), "hierarchy": str(prompts)}


def test_a_set_that_cannot_be_opened_is_skipped_with_its_reason(model_folders, suite_file, data_root, tmp_path) -> None:
    (data_root / "coco" / "captions.json").write_text("{}")
    run = go([model_folders("lorentz")], suite_file, data_root, tmp_path / "out")
    assert any("captions.json is not in COCO format" in reason for reason in run.skipped)


@pytest.mark.parametrize("kind", ["empty root", "no root", "no model", "twice", "copy", "results", "setting"])
def test_bad_input_is_an_error_before_anything_is_measured(
    kind: str, model_folders, suite_file, data_root, tmp_path: Path, asked
) -> None:
    models, root, out, settings = [model_folders("lorentz")], data_root, tmp_path / "out", {}
    if kind == "empty root":
        root = tmp_path / "empty"
        root.mkdir()
        suite_file.write_text(suite_file.read_text().replace("data: scenes-6", "data: photos"))
        message = f"the data root {root} has none of the folders looked for: coco, gone"
    elif kind == "no root":
        root, message = tmp_path / "nowhere", "no data root"
    elif kind == "no model":
        models, message = [tmp_path / "nowhere"], "no model at"
    elif kind == "twice":
        models, message = [*models, models[0] / "model.safetensors"], "are the same model: give each model once"
    elif kind == "copy":
        copy = tmp_path / "copy"
        copy.mkdir()
        for file in models[0].iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        models, message = [*models, copy], "copy and lorentz are the same model: give each model once"
    elif kind == "results":
        out.mkdir()
        (out / "results.json").write_text('{"format": 99, "results": []}')
        message = "has format 99 of another version of hyvlm, this one reads 1"
    else:
        settings, message = {"cone": "angle"}, "no task of the suite has a setting 'cone'"
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        go(models, suite_file, root, out, settings=settings)
    assert asked == ([] if kind != "copy" else [*ALL, "retrieval", "retrieval-flat"])


def test_models_are_called_by_the_last_part_of_their_path_if_that_tells_them_apart(model_folders, tmp_path) -> None:
    first, second = model_folders("lorentz"), model_folders("sphere")
    assert model_names([first, second]) == ["lorentz", "sphere"]
    other = tmp_path / "lorentz"
    other.mkdir()
    for file in second.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert model_names([first, other]) == [str(first), str(other)]
    with pytest.raises(ValueError, match="no model to evaluate"):
        model_names([])


def test_a_reading_without_the_map_is_a_row_of_its_own() -> None:
    assert Reading("a") != Reading("a", with_map=False)


def test_released_names_are_models_too():
    names = ["hycoclip-vit-b-16", "uncha-vit-s-16"]
    assert model_names(names) == names
    with pytest.raises(ValueError, match="give each model once"):
        model_names(["hycoclip-vit-b-16", "hycoclip-vit-b-16"])
