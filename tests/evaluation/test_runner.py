from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from hyvlm.evaluation import EvalSpec, check_specs, evaluate, results_table
from hyvlm.evaluation.cache import EmbeddingCache
from hyvlm.evaluation.runner import specs_for
from hyvlm.models import Tokenizer, build_model
from hyvlm.types import BadSample

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}


@pytest.fixture
def model(stub):
    return stub({**UNIT, **{f"a photo of a {name}.": point for name, point in UNIT.items()}})


@pytest.fixture
def samples(listed, image_of):
    items = [
        image_of(RED, texts=["red"], labels=[0], parts=[((90, 0, 0), "red")]),
        image_of(GREEN, texts=["green"], labels=[1]),
        BadSample("broken JPEG", "three.jpg"),
    ]
    return listed(items, classes=["red", "green"], parents={"red": "colour", "green": "colour"})


def every_task(samples) -> list[EvalSpec]:
    return [EvalSpec(name, samples, resize="squash") for name in ("classification", "hierarchy", "retrieval", "order")]


def test_many_tasks_share_one_pass(model, tokenizer, samples) -> None:
    results = evaluate(model, tokenizer, every_task(samples))
    assert [r.task for r in results] == ["classification", "hierarchy", "retrieval", "order"]
    assert samples.reads == len(samples)
    assert [(r.outcome.n, r.outcome.total) for r in results] == [(2, 3), (2, 3), (2, 3), (1, 3)]


def test_another_call_with_the_same_cache_reads_nothing(model, tokenizer, samples, tmp_path: Path) -> None:
    first = evaluate(model, tokenizer, every_task(samples), cache=EmbeddingCache(tmp_path))
    again = evaluate(model, tokenizer, every_task(samples), cache=EmbeddingCache(tmp_path))
    assert samples.reads == len(samples)
    assert [r.scores for r in again] == [r.scores for r in first]


def test_results_file_says_what_the_numbers_rest_on(model, tokenizer, samples, tmp_path: Path) -> None:
    evaluate(model, tokenizer, every_task(samples), out=tmp_path)
    entries = json.loads((tmp_path / "results.json").read_text())["results"]
    by_task = {entry["task"]: entry for entry in entries}
    assert len(entries) == 4
    for entry in entries:
        assert (entry["data"], entry["split"], entry["total"]) == ("listed", "test", 3)
        assert entry["skipped"]["broken JPEG"] == 1
        assert entry["skipped_examples"] == ["three.jpg: broken JPEG"]
        assert entry["score"] == "lorentz"
        assert entry["settings"]["resize"] == "squash"
        assert entry["settings"]["image_size"] == 8
        assert entry["task_version"] >= 1
        assert len(entry["model"]) == 16
        assert entry["library_version"]
        assert entry["units"].keys() == entry["scores"].keys()
    assert by_task["classification"]["scores"]["acc1"] == 100
    assert by_task["classification"]["details"]["templates"] == "photo"
    assert by_task["classification"]["intervals_95"]["acc1"] == pytest.approx([34.24, 100], abs=0.01)
    assert by_task["retrieval"]["ties"] == {"t2i": 0, "i2t": 0}
    assert by_task["hierarchy"]["details"]["hierarchy_hash"]


def test_an_undefined_metric_is_null_with_a_reason(stub, tokenizer, listed, image_of, tmp_path: Path) -> None:
    samples = listed([image_of(RED, parts=[(GREEN, "red")])])
    result = evaluate(stub(UNIT), tokenizer, [EvalSpec("order", samples)], out=tmp_path)[0]
    text = (tmp_path / "results.json").read_text()
    assert "NaN" not in text
    entry = json.loads(text)["results"][0]
    assert entry["scores"]["part_above_whole_text"] is None
    assert entry["undefined"]["part_above_whole_text"] == "there is no (part, whole) pair of texts"
    assert "part_above_whole_text" not in result.scores
    row = next(r for r in csv.DictReader((tmp_path / "results.csv").open()) if r["metric"] == "part_above_whole_text")
    assert row["value"] == ""


def test_a_repeated_evaluation_replaces_its_entry_and_others_stay(model, tokenizer, samples, tmp_path: Path) -> None:
    evaluate(model, tokenizer, every_task(samples), out=tmp_path)
    evaluate(model, tokenizer, [EvalSpec("retrieval", samples, resize="squash")], out=tmp_path)
    evaluate(model, tokenizer, [EvalSpec("retrieval", samples, resize="crop")], out=tmp_path)
    entries = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [(e["task"], e["settings"]["resize"]) for e in entries] == [
        ("classification", "squash"),
        ("hierarchy", "squash"),
        ("retrieval", "squash"),
        ("order", "squash"),
        ("retrieval", "crop"),
    ]
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert len(rows) == sum(len(e["scores"]) for e in entries)
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "results.csv"}


def test_what_was_measured_before_a_task_failed_is_kept(model, tokenizer, samples, tmp_path: Path) -> None:
    specs = [EvalSpec(name, samples) for name in ("retrieval", "text-retrieval", "order")]
    with pytest.raises(ValueError, match="no two texts that belong together"):
        evaluate(model, tokenizer, specs, out=tmp_path)
    entries = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [entry["task"] for entry in entries] == ["retrieval", "order"]


def test_a_foreign_results_file_is_not_overwritten(model, tokenizer, samples, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"results\.json is not a results file of hyvlm"):
        evaluate(model, tokenizer, every_task(samples), out=tmp_path)
    assert (tmp_path / "results.json").read_text() == "[1, 2]"


def test_the_table_shows_numbers_and_what_was_skipped(model, tokenizer, samples, listed, image_of) -> None:
    duplicates = listed([image_of(RED, texts=["red"]), image_of(RED, texts=["red"])], fingerprint="duplicates")
    results = evaluate(model, tokenizer, [*every_task(samples), EvalSpec("retrieval", duplicates)])
    console = Console(width=80, file=io.StringIO())
    console.print(results_table(results))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["classification", "on", "listed", "(test),", "2", "of", "3", "scored"] in lines
    assert ["acc1", "100.00%", "95%", "interval", "34.24%", "to", "100.00%"] in lines
    assert ["tie", "0.000", "edges"] in lines
    assert ["skipped", "1", "(broken", "JPEG)"] in lines
    assert ["ties,", "counted", "against", "the", "model:", "2", "t2i,", "2", "i2t"] in lines


def test_evaluation_leaves_a_training_model_as_it_was(model, tokenizer, samples) -> None:
    model.train()
    results = evaluate(model, tokenizer, every_task(samples))
    assert results[0].scores["acc1"] == 100  # dropout was off
    assert model.training
    assert model.dropout.training
    assert model.weight.grad is None
    assert torch.is_grad_enabled()


def test_texts_that_were_cut_are_counted(stub, tokenizer, listed, image_of) -> None:
    tokenizer.context_length = 3
    samples = listed([image_of(RED, texts=["red", "reddish"])])
    result = evaluate(stub({"red": [1, 0, 0]}), tokenizer, [EvalSpec("retrieval", samples)])[0]
    assert result.texts_cut == 1
    assert result.to_dict()["texts_cut"] == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"task": "classfication"}, "unknown task 'classfication'. Did you mean 'classification'?"),
        (
            {"task": "retrieval", "templates": "photo"},
            "the task 'retrieval' has no setting 'templates'; it has: captions, image_s",
        ),
        ({"task": "retrieval", "data": "no-such-set"}, "no-such-set"),
        ({"task": "classification", "templates": "fhoto"}, "unknown prompt set 'fhoto'"),
        ({"task": "hierarchy", "hierarchy": "missing.txt"}, "missing.txt"),
        ({"task": "retrieval", "image_size": 9}, "image_size must be a positive multiple of the model's patch of 2"),
        ({"task": "order", "part_size": 0}, "part_size must be a positive multiple of the model's patch of 2 pixels"),
        ({"task": "retrieval", "resize": "stretch"}, "resize is 'squash' or 'crop', got 'stretch'"),
    ],
)
def test_a_wrong_spec_is_an_error_before_any_image_is_read(spec: dict, message: str, model, tokenizer, samples) -> None:
    good = EvalSpec("retrieval", samples)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        evaluate(model, tokenizer, [good, EvalSpec(**{"data": samples, **spec})])
    assert samples.reads == 0


@pytest.mark.parametrize("manifold", ["lorentz", "euclidean", "sphere"])
def test_a_real_model_on_the_built_in_scenes(manifold: str) -> None:
    torch.manual_seed(0)
    image = {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2}
    text = {"width": 16, "depth": 1, "heads": 2}
    model = build_model({"model": {"image": image, "text": text, "dim": 8}, "manifold": {"name": manifold}})
    specs = [
        EvalSpec("retrieval", "scenes:6", split="train"),
        EvalSpec("multilabel", "scenes:6", split="train"),
        EvalSpec("classification", "scenes:6", split="train", templates="plain"),
        EvalSpec("hierarchy", "scenes:6", split="train", templates="plain"),
    ]
    if manifold != "sphere":
        specs.append(EvalSpec("order", "scenes:6", split="train", part_size=8))
    results = {r.task: r for r in evaluate(model, Tokenizer(), specs)}
    assert results["retrieval"].outcome.n == results["retrieval"].outcome.total == 6
    assert {r.score for r in results.values()} == {manifold}
    assert all(len(r.scores) == len(r.outcome.scores) for r in results.values())
    assert len({r.model for r in results.values()}) == 1


def test_settings_go_to_the_tasks_that_have_them() -> None:
    retrieval, order = specs_for(["retrieval", "order"], "scenes", split="val", part_size=32, captions="last")
    assert (retrieval.part_size, retrieval.captions, retrieval.split) == (None, "last", "val")
    assert (order.part_size, order.captions) == (32, "last")
    with pytest.raises(ValueError, match=r"retrieval has a setting 'templates'; the tasks with it: .*classification"):
        specs_for(["retrieval"], "scenes", templates="plain")
    with pytest.raises(ValueError, match="retrieval"):
        specs_for(["retreival"], "scenes")


def test_specs_are_checked_alone_without_reading_an_image(model, samples) -> None:
    checked = check_specs(model, every_task(samples))
    assert [type(task).__name__ for task, _ in checked] == ["Classification", "Hierarchy", "Retrieval", "Order"]
    assert all(opened is samples for _, opened in checked)
    with pytest.raises(ValueError, match="has no setting 'templates'"):
        check_specs(model, [EvalSpec("retrieval", samples, templates="photo")])
    assert samples.reads == 0


def test_a_file_in_place_of_a_folder_is_an_error_before_any_image_is_read(model, tokenizer, samples, tmp_path) -> None:
    file = tmp_path / "taken"
    file.write_text("x")
    for out in (file, file / "below"):
        with pytest.raises(ValueError, match=f"the results folder {out} cannot be a folder: {file} is a file"):
            evaluate(model, tokenizer, every_task(samples), out=out)
        with pytest.raises(ValueError, match=f"the cache folder {out} cannot be a folder: {file} is a file"):
            EmbeddingCache(out)
    assert samples.reads == 0


@pytest.mark.parametrize(
    ("own", "asked", "retrieval", "classification"),
    [(None, None, "squash", "crop"), ("crop", None, "crop", "crop"), ("crop", "squash", "squash", "squash")],
)
def test_a_model_brings_images_to_size_in_its_own_way(own, asked, retrieval, classification, model, samples) -> None:
    model.resize = own
    specs = [EvalSpec(name, samples, resize=asked) for name in ("retrieval", "classification")]
    assert [task.resize for task, _ in check_specs(model, specs)] == [retrieval, classification]
