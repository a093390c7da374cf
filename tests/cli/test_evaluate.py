"""``hyvlm eval``: several models, and suites; the exit code, what is printed and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hyvlm.cli.main import main
from hyvlm.models.dual_encoder import build_model
from hyvlm.models.pretrained import save_model

SUITE = """
title: Scenes
data: {scenes-6: {folder: null, open: "scenes:6", split: train}}
tables:
  - name: Table 1
    title: Retrieval
    task: retrieval
    data: scenes-6
    columns: [{head: R@1, metric: "t2i_recall@1"}, {head: R@5, metric: "t2i_recall@5"}]
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    home = tmp_path_factory.mktemp("models")
    image = {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2}
    model = {"image": image, "text": {"width": 16, "depth": 1, "heads": 2}, "dim": 8}
    made = []
    for seed, manifold in enumerate(("lorentz", "sphere")):
        torch.manual_seed(seed)
        made.append(str(save_model(build_model({"model": model, "manifold": {"name": manifold}}), home / manifold)))
    return made


@pytest.fixture
def suite(tmp_path: Path) -> list[str]:
    path = tmp_path / "own.yaml"
    path.write_text(SUITE)
    return ["--suite", str(path), "--data-root", str(tmp_path), "--num-workers", "0"]


def test_a_suite_writes_results_and_tables_and_resumes(models, suite, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    assert main(["eval", *models, *suite, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "[1/1] lorentz: retrieval on scenes:6" in said.err
    assert f"results: {out}/results.json" in said.out
    assert {path.name for path in out.iterdir()} == {"results.json", "results.csv", "own.md", "own.tex", "own.csv"}
    assert len(json.loads((out / "results.json").read_text())["results"]) == 2
    assert main(["eval", *models, *suite, "--out", str(out)]) == 0
    assert "[1/1] sphere: retrieval on scenes:6: measured before" in capsys.readouterr().err


def test_an_interruption_keeps_what_was_measured(models, suite, tmp_path, capsys, monkeypatch) -> None:
    from hyvlm.suites import runner

    real, out = runner.run_task, tmp_path / "out"

    def once(name, task, samples, embedder):
        if (out / "results.json").exists():
            raise KeyboardInterrupt
        return real(name, task, samples, embedder)

    monkeypatch.setattr(runner, "run_task", once)
    assert main(["eval", *models, *suite, "--out", str(out)]) == 130
    assert "hyvlm: interrupted" in capsys.readouterr().err
    assert len(json.loads((out / "results.json").read_text())["results"]) == 1
    assert "| lorentz | " in (out / "own.md").read_text()


def test_a_failed_evaluation_is_exit_code_1_with_its_reason(models, suite, tmp_path, capsys, monkeypatch) -> None:
    def broken(*_):
        raise ValueError("a score is NaN")

    monkeypatch.setattr("hyvlm.suites.runner.run_task", broken)
    assert main(["eval", models[0], *suite, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "failed lorentz: retrieval on scenes-6: a score is NaN" in said.out
    assert "nothing could be measured" in said.err


def test_several_models_on_one_data_set(models, tmp_path, capsys) -> None:
    task = ["--task", "retrieval", "--data", "scenes:6", "--split", "train", "--num-workers", "0"]
    assert main(["eval", *models, *task, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.index("lorentz, model") < shown.index("sphere, model")
    assert {e["score"] for e in json.loads((tmp_path / "results.json").read_text())["results"]} == {"lorentz", "sphere"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "unchaa", "--data-root", "{root}"], "unknown suite 'unchaa'. Did you mean 'uncha'?"),
        (["--suite", "uncha", "--data-root", "{root}"], "has none of the folders looked for: aircraft, caltech101"),
        (["--suite", "uncha", "--data-root", "{root}/none"], "no data root"),
        (["--suite", "uncha", "--task", "retrieval", "--data-root", "{root}"], "leave --task, --data and --split out"),
        (["--task", "retrieval", "--data", "scenes", "--data-root", "{root}"], "--data-root goes with --suite"),
        (["{model}", "--task", "retrieval", "--data", "scenes"], "are the same model: give each model once"),
    ],
)
def test_what_the_user_can_mend_is_one_line(arguments, message, models, tmp_path, capsys) -> None:
    given = [argument.format(root=tmp_path, model=models[0]) for argument in arguments]
    assert main(["eval", models[0], *given]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert message in said[0]


@pytest.mark.parametrize("arguments", [["--suite", "uncha"], ["--task", "retrieval"], ["--data", "scenes"]])
def test_half_of_what_is_needed_is_wrong_usage(arguments, models, capsys) -> None:
    assert main(["eval", models[0], *arguments]) == 2
    assert "Usage" in capsys.readouterr().err


def test_suites_are_listed_with_their_folders(capsys) -> None:
    assert main(["list", "suites", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert sorted(listed) == ["hyfl", "hyper3", "hyperbolicity", "uncha"]
    assert listed["hyfl"].endswith("folders: 20news, coco, dci, docci, flickr30k, imdb, nocaps, urban1k")
