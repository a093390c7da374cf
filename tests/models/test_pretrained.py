import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import hyvlm
from hyvlm.models import DualEncoder, build_model, fingerprint, load_state, save_model
from hyvlm.models.pretrained import CONFIG, WEIGHTS, find_model

SMALL = {
    "image": {"image_size": 32, "patch": 8, "width": 16, "depth": 1, "heads": 2},
    "text": {"context_length": 20, "width": 16, "depth": 1, "heads": 2},
    "dim": 8,
    "pixel_mean": [0.5, 0.5, 0.5],
}


def small(seed: int = 0, **model: object) -> DualEncoder:
    torch.manual_seed(seed)
    encoder = build_model({"model": {**SMALL, **model}, "manifold": {"name": "lorentz", "bounds": [0.2, 5.0]}})
    with torch.no_grad():
        encoder.manifold.log_c.fill_(-0.7)
        encoder.text_log_scale.fill_(-0.1)
    return encoder


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """What safetensors raises is no OSError, so that a full disk would end in a traceback."""
    (tmp_path / f"{WEIGHTS}.partial").mkdir()
    with pytest.raises(OSError, match=r"model\.safetensors\.partial cannot be written: .*"):
        save_model(small(), tmp_path)


def test_a_saved_model_comes_back_whole(tmp_path: Path) -> None:
    model = small()
    assert save_model(model, tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    loaded, preprocess, tokenizer = hyvlm.load(tmp_path / "new" / "folder")
    assert not loaded.training
    assert loaded.config == model.config
    assert loaded.manifold.bounds == [0.2, 5.0]
    tokens = tokenizer(["a dog", "an animal"])
    assert tokens.shape == (2, 20)
    assert torch.equal(loaded.encode_text(tokens), model.eval().encode_text(tokens))
    noise = np.random.default_rng(0).integers(0, 256, (50, 40, 3), dtype=np.uint8)
    pixels = preprocess(Image.fromarray(noise)).unsqueeze(0)
    assert pixels.shape == (1, 3, 32, 32)
    assert pixels.dtype == torch.uint8
    assert torch.equal(loaded.encode_image(pixels), model.encode_image(pixels))
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [CONFIG, WEIGHTS]


def test_saving_again_replaces_both_files(tmp_path: Path) -> None:
    save_model(small(0), tmp_path)
    save_model(small(1, dim=4), tmp_path)
    assert hyvlm.load(tmp_path)[0].dim == 4


def test_a_failed_save_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(small(0), tmp_path)

    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("hyvlm.models.pretrained.save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_model(small(1), tmp_path)
    assert fingerprint(hyvlm.load(tmp_path)[0]) == fingerprint(small(0))


def test_the_newest_complete_checkpoint_of_a_run_is_taken(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for seed, step in enumerate(["step_0000009", "step_0000010", "step_0000002"]):
        save_model(small(seed), run / "checkpoints" / step)
    (run / "checkpoints" / "step_0000011").mkdir()  # interrupted before its files were written
    (run / "checkpoints" / "step_last").mkdir()
    newest = run / "checkpoints" / "step_0000010"
    for path in (run, run / "checkpoints", newest, newest / WEIGHTS):
        assert find_model(path) == newest
    (run / "checkpoints" / "latest").write_text("step_0000009\n")
    assert find_model(run / "checkpoints" / "latest") == run / "checkpoints" / "step_0000009"
    assert fingerprint(hyvlm.load(run)[0]) == fingerprint(small(1))


def test_a_fingerprint_tells_weights_and_settings_apart(tmp_path: Path) -> None:
    model = small()
    first = fingerprint(model)
    assert len(first) == 16
    assert fingerprint(small()) == first
    assert fingerprint(small(1)) != first
    assert fingerprint(small(pixel_std=[0.2, 0.2, 0.2])) != first
    with torch.no_grad():
        model.manifold.log_c.add_(1e-6)
    assert fingerprint(model) != first


def broken(folder: Path, how: str) -> Path:
    save_model(small(), folder)
    weights, config = folder / WEIGHTS, folder / CONFIG
    if how == "cut":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif how == "garbage":
        weights.write_bytes(b"not a safetensors file at all")
    elif how == "pickle":
        weights.write_bytes(pickle.dumps({"a": 1}))
    elif how == "shape":
        config.write_text(config.read_text().replace('"dim": 8', '"dim": 12'))
    elif how == "missing":
        tensors = load_file(weights)
        del tensors["text_log_scale"]
        save_file(tensors, weights)
    elif how == "surplus":
        save_file({**load_file(weights), "head.weight": torch.zeros(3)}, weights)
    elif how == "json":
        config.write_text("{")
    elif how == "list":
        config.write_text("[]")
    elif how == "key":
        config.write_text(json.dumps({**json.loads(config.read_text()), "model": {"preset": "tinny"}}))
    return folder


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("cut", "is cut short or not a safetensors file"),
        ("garbage", "is cut short or not a safetensors file"),
        ("pickle", "is cut short or not a safetensors file"),
        ("shape", "has 'image_projection.weight' with shape (8, 16), but the configuration needs (12, 16)"),
        ("missing", "lacks 'text_log_scale', which the configuration needs with shape ()"),
        ("surplus", "has 'head.weight' (1 such keys), for which the model has no place"),
        ("json", "config.json' is not a JSON file"),
        ("list", "config.json' must hold the sections 'model' and 'manifold', got a list"),
        ("key", "unknown model preset 'tinny'. Did you mean 'tiny'?"),
    ],
)
def test_a_broken_model_is_one_sentence(tmp_path: Path, how: str, complaint: str) -> None:
    with pytest.raises(ValueError) as error:
        hyvlm.load(broken(tmp_path, how))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_no_model_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        hyvlm.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"expected model.safetensors and config.json, there or in checkpoints"):
        hyvlm.load(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"")
    expected = r"notes.txt' is not a model: expected a folder with model.safetensors and config.json, or a file of rel"
    with pytest.raises(FileNotFoundError, match=expected):
        hyvlm.load(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError, match=r"and unknown released model 'hycoclip-vit-x-16'\. Did you mean 'hyco"):
        hyvlm.load("hycoclip-vit-x-16")
    with pytest.raises(FileNotFoundError, match="no weights at"):
        load_state(small(), tmp_path / WEIGHTS)


def test_importing_the_package_is_light() -> None:
    code = "import sys, hyvlm; assert hyvlm.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        hyvlm.laod  # noqa: B018
