"""The pages' code, run as it stands, in a folder that holds what it names, with random weights and no network."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

import hyvlm
from hyvlm.cli.main import main
from hyvlm.models import build_model, save_model

DOCS = Path(__file__).parents[1] / "docs"
NAME = "hyvlm-docs-tiny"
SHAPE = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "width": 32, "heads": 2, "layers": 1},
}


def blocks(page: str) -> list[tuple[str, str]]:
    """Language line and code of every fenced block."""
    return re.findall(
        r"^```(\w[^\n]*)\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a picture, a model where `hyvlm train` puts it, weights of open_clip."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("dog.jpg")
    torch.manual_seed(0)
    image = {"image_size": 32, "patch": 8, "width": 32, "depth": 1, "heads": 2, "stem": True}
    text = {"width": 32, "depth": 1, "heads": 2}
    section = {"model": {"dim": 16, "image": image, "text": text}, "manifold": {"name": "lorentz"}}
    save_model(build_model(section), "runs/uncha-tiny")
    (tmp_path / f"{NAME}.json").write_text(json.dumps(SHAPE))
    open_clip.add_model_config(tmp_path / f"{NAME}.json")
    torch.save(open_clip.create_model(NAME, pretrained=None).state_dict(), tmp_path / "weights.pt")
    return tmp_path


def run(code: str, names: dict[str, Any], here: Path) -> None:
    """Run a block with the published model's name replaced by the small one's."""
    code = code.replace("laion2b_s34b_b88k", str(here / "weights.pt")).replace('"ViT-B-16', f'"{NAME}')
    exec(code.replace("open_clip:ViT-B-16", f"open_clip:{NAME}"), names)


def test_from_open_clip(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, dict[str, Any]] = {"open_clip": {}, "hyvlm": {}}
    seen = 0
    for language, code in blocks("from-open-clip.md"):
        if language == "bash":
            line = code.replace("ViT-B-16/laion2b_s34b_b88k", f"{NAME}/{here / 'weights.pt'}")
            line = line.replace("/data/pairs/{00000..00099}.tar", "scenes:64").replace("\\\n", "")
            assert main([*shlex.split(line)[1:], "data.split=train", "data.image_size=32", "data.workers=0"]) == 0
            assert "parameters" in capsys.readouterr().out
            continue
        _, library = language.split()
        run(code, names[library], here)
        seen += 1
        theirs, ours = names["open_clip"], names["hyvlm"]
        if library == "hyvlm" and "scores" in theirs and "hyperbolic" not in ours:
            torch.testing.assert_close(ours["similarity"], theirs["similarity"].detach(), rtol=0, atol=1e-5)
            if "scores" in ours:
                torch.testing.assert_close(ours["scores"], theirs["scores"].detach(), rtol=0, atol=1e-5)
                assert ours["best"] == theirs["best"]
            if "ranked" in ours:
                assert torch.equal(ours["ranked"], theirs["ranked"])
    assert seen == 11
    ours = names["hyvlm"]
    assert ours["radius"].shape == (2,)
    assert torch.equal(ours["ranks"].argsort(), (-ours["distance"]).argsort())
    assert ours["vectors"].norm(dim=-1).item() == pytest.approx(
        ours["model"].manifold.radius(ours["x"]).item(), rel=1e-4
    )


def test_interop(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for language, code in blocks("interop.md"):
        if language == "bash":
            for line in code.splitlines():
                if line.startswith("hyvlm "):
                    assert main(shlex.split(line)[1:]) == 0
            said = capsys.readouterr().out.splitlines()
            assert [line.split(":")[0] for line in said] == [
                "image.onnx agrees with torch on 6 images",
                "text.onnx agrees with torch on 9 texts",
                "ONNX",
            ]
        elif "onnxruntime" in code:
            exec(code, names)
            model, preprocess, tokenizer = hyvlm.load("runs/uncha-tiny")
            with torch.no_grad():
                x = model.encode_image(preprocess(Image.open("dog.jpg"))[None])
                score = model.score(x, model.encode_text(tokenizer(["a dog", "an animal"])))
            np.testing.assert_allclose(names["names"]["score"], score.numpy(), rtol=1e-3)
        elif "sklearn" in code:
            exec(code.replace("300)", "40)").replace("150)", "20)"), names)
            assert 0 <= float(capsys.readouterr().out.splitlines()[-1]) <= 1
        else:
            exec(code, names)
    assert names["probabilities"].shape == (1, 2)
    assert names["probabilities"].sum().item() == pytest.approx(1.0)
