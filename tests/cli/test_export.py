"""``hyvlm export`` and ``hyvlm push``, without network."""

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors

from hyvlm.cli.main import main
from hyvlm.config import load_config, to_yaml
from hyvlm.integrations import onnx
from hyvlm.integrations.onnx import Agreement
from hyvlm.models import DualEncoder, build_model, save_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    image = {"image_size": 16, "patch": 8, "width": 32, "depth": 1, "heads": 2}
    text = {"vocab_size": 600, "width": 32, "depth": 1, "heads": 2}
    section = {"model": {"dim": 8, "image": image, "text": text}, "manifold": {"name": "lorentz"}}
    return save_model(build_model(section), tmp_path_factory.mktemp("model"))


def test_export_hands_its_options_on_and_reports(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def record(model: DualEncoder, out: Path, **options: object) -> dict[str, Agreement]:
        calls.append((model.dim, out, options))
        return {"image": Agreement(6, 1.23e-6, 4.5e-7, 1e-7)} if options["check"] else {}

    monkeypatch.setattr(onnx, "export_onnx", record)  # tests/test_docs_snippets.py runs the real one
    assert main(["export", str(saved), str(tmp_path / "onnx")]) == 0
    assert main(["export", str(saved), str(tmp_path / "onnx"), "--opset", "19", "--no-check"]) == 0
    options = {"opset": 18, "check": True, "source": str(saved)}
    assert calls == [(8, tmp_path / "onnx", options), (8, tmp_path / "onnx", {**options, "opset": 19, "check": False})]
    report = "image.onnx agrees with torch on 6 images: largest difference 1.2e-06, 4.5e-07 of a point's norm"
    assert capsys.readouterr().out.splitlines() == [report, f"ONNX: {tmp_path / 'onnx'}", f"ONNX: {tmp_path / 'onnx'}"]


@pytest.mark.parametrize(
    ("model", "out", "options", "complaint"),
    [
        ("{saved}", "{saved}", [], "is not empty, and nothing in it is overwritten"),
        ("{saved}", "{saved}/config.json", [], "cannot be a folder: "),
        ("{saved}", "new", ["--opset", "99"], "opset must be 18 to "),
        ("nowhere", "new", [], "no model at 'nowhere'"),
    ],
)
def test_export_fails_in_one_line(
    model: str,
    out: str,
    options: list[str],
    complaint: str,
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", model.format(saved=saved), out.format(saved=saved), *options]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]


class Hub:
    """Keeps what is pushed."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.files: dict[str, str] = {}
        self.error: Exception | None = None

    def __call__(self, **_: str) -> "Hub":
        return self

    def create_repo(self, repo: str, *, private: bool | None, exist_ok: bool) -> None:
        if self.error:
            raise self.error
        self.calls.append((repo, private))

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str, revision: str | None):
        self.calls.append((repo_id, commit_message, revision))
        self.files = {path.name: path.read_text(errors="replace") for path in Path(folder_path).iterdir()}
        return SimpleNamespace(commit_url="https://hub.invalid/commit")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", hub)
    return hub


def test_push_hands_its_options_on(saved: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--private", "--branch", "v1", "-m", "First", "--licence", "mit"]
    assert main(["push", str(saved), "me/mine", *options]) == 0
    assert hub.calls == [("me/mine", True), ("me/mine", "First", "v1")]
    assert "license: mit" in hub.files["README.md"]
    assert "is not recorded" in hub.files["README.md"]
    assert capsys.readouterr().out == "https://hub.invalid/commit\n"
    assert main(["push", str(saved), "me/mine"]) == 0
    assert hub.calls[2:] == [("me/mine", None), ("me/mine", "Upload model", None)]


def test_push_tells_of_the_run_that_it_is_given(saved: Path, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(load_config("uncha-tiny", ["train.seed=4"])))
    step = tmp_path / "checkpoints" / "step_1"
    step.mkdir(parents=True)
    for file in saved.iterdir():
        (step / file.name).write_bytes(file.read_bytes())
    assert main(["push", str(tmp_path), "me/mine"]) == 0
    assert "| objective | uncha |" in hub.files["README.md"]
    assert "| seed | 4 |" in hub.files["README.md"]


@pytest.mark.parametrize(
    ("repo", "error", "code", "complaint"),
    [
        ("mine", None, 2, "a repository on the hub is named OWNER/NAME, got 'mine'"),
        ("me/--bad--", errors.HFValidationError("x"), 2, "is named OWNER/NAME, got 'me/--bad--'"),
        (
            "me/mine",
            errors.OfflineModeIsEnabled("offline mode is on"),
            1,
            "cannot write to me/mine on the hub: offline",
        ),
        ("me/mine", errors.LocalTokenNotFoundError("x"), 1, "no token to write to me/mine: run 'hf auth login'"),
    ],
)
def test_push_fails_in_one_line(
    repo: str,
    error: Exception | None,
    code: int,
    complaint: str,
    saved: Path,
    hub: Hub,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub.error = error
    assert main(["push", str(saved), repo]) == code
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not hub.files
