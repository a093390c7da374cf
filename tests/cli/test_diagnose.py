"""``hyvlm diagnose``: files, table and verdict; one line and exit code 2 for what the user can mend."""

import json
import sys
from pathlib import Path

import pytest
import torch

from hyvlm.cli.main import main
from hyvlm.models import build_model, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    image = {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2}
    text = {"width": 16, "depth": 1, "heads": 2}
    config = {"model": {"image": image, "text": text, "dim": 8}, "manifold": {"name": "lorentz"}}
    return str(save_model(build_model(config), tmp_path_factory.mktemp("models") / "curved"))


def command(model: str, *more: str) -> list[str]:
    options = ["--data", "scenes:8", "--split", "train", "--task", "retrieval", "--num-workers", "0"]
    return ["diagnose", model, *options, *more]


def test_it_writes_numbers_and_a_page_and_prints_the_verdict(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found"
    assert (
        main(command(model, "--captions", "last", "--tolerance", "0.5", "--max-change", "100", "--out", str(out))) == 0
    )
    printed = capsys.readouterr().out
    found = json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))
    assert found["verdict"]["weakly_hyperbolic"] is True
    assert found["verdict"]["thresholds"] == {"tolerance": 0.5, "max_change": 100.0}
    assert found["settings"]["captions"] == "last"
    words = printed.split()
    assert " ".join(found["verdict"]["sentence"].split()[:6]) in " ".join(words)
    for shown in ("text ⊒ image", "t2i_recall@1", "effective rank", f"diagnosis: {out}/diagnosis.json"):
        assert shown in printed
    assert f"report: {out}/diagnosis.html" in printed
    page = (out / "diagnosis.html").read_text(encoding="utf-8")
    assert "weakly hyperbolic" in page.lower()
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]  # no draft is left


def test_without_matplotlib_the_numbers_are_written(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("hyvlm.plotting")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(command(model, "--out", str(tmp_path / "found"))) == 0
    assert [path.name for path in (tmp_path / "found").iterdir()] == ["diagnosis.json"]
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "no report is drawn" in said[0]
    assert "earlier" not in said[0]
    (tmp_path / "found" / "diagnosis.html").write_text("x")
    assert main(command(model, "--out", str(tmp_path / "found"))) == 0
    assert "diagnosis.html there is of an earlier diagnosis" in capsys.readouterr().err
    assert "hyvlm[plots]" in said[0]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--objective", "mero"], "meru"),
        (["--captions", "lats"], "last"),
        (["--task", "retreival"], "retrieval"),
        (["--task", "classification", "--data", "scenes:1"], "at least 2 usable samples"),
        (["--tolerance", "-1"], "tolerance must be finite and not negative"),
        (["--control", "nowhere"], "no model at 'nowhere'"),
        (["--readout", "publishd"], "published"),
        (["--out", "{file}"], "the folder for the diagnosis"),
        (["--out", "{taken}"], "cannot hold the file diagnosis.html: there is a folder of that name"),
        (["--task", "retrieval="], "no data set in ''"),
        (["--limit", "1"], "limit"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], hint: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "taken" / "diagnosis.html").mkdir(parents=True)
    given = [argument.format(file=tmp_path / "file", taken=tmp_path / "taken") for argument in arguments]
    assert main(command(model, "--out", str(tmp_path / "found"), *given)) == 2
    error = capsys.readouterr().err
    assert hint in error
    assert "Traceback" not in error
    assert not (tmp_path / "found").exists()
