"""Released layouts: a file is built, converted, loaded, and gives the features that its project's code gives."""

import json
import math
import os
import pickle
import zlib
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import hyvlm
from hyvlm.cli.main import main
from hyvlm.models import DualEncoder, convert, fingerprint, save_model
from hyvlm.models.pretrained import CONFIG, WEIGHTS
from hyvlm.models.released import LAYOUTS, detect, plan, read_released
from hyvlm.models.weight_files import read_weights

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "checkpoints"
SOURCES = ["clip", "meru", "hycoclip", "uncha", "phyclip"]
TRAINING = {
    "optimizer": {"state": {}},
    "scheduler": {},
    "scaler": {"scale": 2.0},
    "iteration": 7,
    "root": torch.ones(3),
}


def uniform(name: str, count: int) -> np.ndarray:
    """Numbers in [0, 1) that depend on a name and an index alone: the fill rule of the reference checkpoints."""
    low = np.uint64(0xFFFFFFFF)
    z = (np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(zlib.crc32(name.encode()))) & low
    for shift, factor in ((16, 2246822507), (13, 3266489909)):
        z = ((z ^ (z >> np.uint64(shift))) * np.uint64(factor)) & low
    return (z ^ (z >> np.uint64(16))).astype(np.float64) / 2.0**32


def fill(key: str, shape: list[int]) -> Tensor:
    values = (2 * uniform(key, int(np.prod(shape))) - 1) * (0.2 if len(shape) >= 2 else 0.05)
    owner = key.split(".")[-2] if "." in key else ""
    if key.endswith("weight") and ("norm" in owner or "ln_" in owner):
        values = values + 1
    return torch.from_numpy(values.reshape(shape).astype(np.float32))


def weight(key: str, shape: list[int], manifest: dict[str, Any]) -> Tensor:
    if not shape:
        return torch.tensor(manifest["scalars"][key])
    if key in ("pixel_mean", "pixel_std"):
        return torch.tensor(manifest[key]).view(shape)
    if key == "textual.attn_mask":
        return torch.ones(shape, dtype=torch.bool).triu(1)
    return fill(key, shape)


def read_manifest(source: str) -> dict[str, Any]:
    return json.loads((CHECKPOINTS / f"{source}_manifest.json").read_text())


def tiny_weights(source: str) -> dict[str, Tensor]:
    manifest = read_manifest(f"tiny_{source}")
    return {key: weight(key, shape, manifest) for key, shape, *_ in manifest["state_dict"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint of each project, as one of its training runs leaves it."""
    folder = tmp_path_factory.mktemp("released")
    found = {source: folder / f"{source}.pth" for source in SOURCES}
    for source, file in found.items():
        torch.save({"model": tiny_weights(source), **TRAINING}, file)
    return found


def test_the_fill_rule() -> None:
    expected = [0.49461432779207826, 0.060030067106708884, 0.038478732807561755]
    assert uniform("visual.cls_token", 3).tolist() == expected


def encode(model: DualEncoder, manifest: dict[str, Any], source: str) -> dict[str, Tensor]:
    pixels = uniform(manifest["image_tag"], int(np.prod(manifest["image_shape"]))).astype(np.float32)
    pixels = torch.from_numpy(pixels).view(manifest["image_shape"]).to(model.pixel_mean.dtype)
    tokens = torch.zeros(len(manifest["tokens"]), 77, dtype=torch.long)
    for row, ids in zip(tokens, manifest["tokens"], strict=True):
        row[: len(ids)] = torch.tensor(ids)[:77]
        if len(ids) > 77 and source != "uncha":  # the released UNCHA loses the end token
            row[-1] = 49407
    trunk = model.image_tower((pixels - model.pixel_mean) / model.pixel_std)
    image, text = model.image_features(pixels), model.text_features(tokens)
    return {
        "image_trunk": trunk,
        "image_features": image,
        "text_features": text,
        "image_embeddings": model.lift_image(image),
        "text_embeddings": model.lift_text(text),
    }


@pytest.mark.parametrize("source", SOURCES)
def test_a_converted_file_gives_the_reference_embeddings(source: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Released encoders on weights from the fill rule; `golden/checkpoints`."""
    folder, _ = convert(files[source], tmp_path / "model", image_heads=2)
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, WEIGHTS]
    model, _, tokenizer = hyvlm.load(folder)
    manifest = read_manifest(f"tiny_{source}")
    assert tokenizer.context_length == 77
    assert model.pixel_mean.flatten().tolist() == manifest["pixel_mean"]
    golden = np.load(CHECKPOINTS / f"tiny_{source}_expected.npz")
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        with torch.no_grad():
            found = encode(model.to(dtype), manifest, source)
        assert set(found) == set(golden)
        for name, value in found.items():
            expected = torch.from_numpy(golden[name])
            atol = tolerance * expected.abs().max().item()
            torch.testing.assert_close(value.double(), expected, rtol=0, atol=atol, msg=f"{source} {name} {dtype}")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", ["s", "b"])
def test_full_size_files_lack_nothing_and_have_nothing_unknown(source: str, size: str) -> None:
    manifest = read_manifest(f"full_{source}_vit_{size}")
    with torch.device("meta"):
        weights = {key: torch.empty(shape) for key, shape, *_ in manifest["state_dict"]}
    name = detect(weights)
    assert name == {"hycoclip": "meru"}.get(source, source)
    config, tensors = plan(weights, LAYOUTS[name])
    image, text = config["model"]["image"], config["model"]["text"]
    assert (image["width"], image["depth"], image["patch"], image["image_size"], image["heads"]) == (
        {"s": 384, "b": 768}[size],
        12,
        16,
        224,
        12,
    )
    assert (text["width"], text["depth"], text["heads"], text["vocab_size"], text["context_length"]) == (
        512,
        12,
        8,
        49408,
        77,
    )
    assert config["manifold"]["name"] == {"clip": "sphere", "phyclip": "product"}.get(source, "lorentz")
    assert config["manifold"].get("factors") == (64 if source == "phyclip" else None)
    dropped = sum(key in LAYOUTS[name].keys.drop or "min_radius_head" in key for key in weights)
    joined = 3 * 63 if source == "phyclip" else 0
    assert len(tensors) == manifest["num_entries"] - dropped - joined


def test_what_was_left_out_is_said(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(files["uncha"]), str(tmp_path / "out"), "--image-heads", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"model: {tmp_path / 'out'}\n"
    assert "has the layout of UNCHA; left out: " in printed.err
    assert "textual.min_radius_head. (the released code never calls it)" in printed.err
    assert "optimizer, scheduler, scaler, iteration, root (of training)" in printed.err


def test_atmg_must_be_named_and_is_ranked_as_published(files: dict[str, Path], tmp_path: Path) -> None:
    weights = tiny_weights("meru") | {"curv": torch.tensor(0.1).log()}
    torch.save({"model": weights}, tmp_path / "atmg.pth")
    model, report = read_released(tmp_path / "atmg.pth", layout="atmg", image_heads=2)
    assert report.of == "ATMG"
    assert model.by_angle
    assert not model.as_trained
    assert model.manifold.c.item() == pytest.approx(0.1)
    assert not isinstance(model.manifold.log_c, nn.Parameter)
    assert fingerprint(hyvlm.load(save_model(model, tmp_path / "saved"))[0]) == fingerprint(model)
    golden = np.load(CHECKPOINTS / "tiny_meru_expected.npz")["image_features"]
    tangent = golden * math.exp(weights["visual_alpha"].item())
    radius = math.sqrt(0.1) * np.linalg.norm(tangent, axis=1, keepdims=True)
    with torch.no_grad():
        found = encode(model.double(), read_manifest("tiny_meru"), "meru")["image_embeddings"]
    np.testing.assert_allclose(found.numpy(), tangent * np.sinh(radius) / radius, rtol=1e-7)  # c is a float32 number
    with pytest.raises(ValueError, match=r"c = 0\.6703, but ATMG's is fixed at 0\.1: is it a model of MERU\?"):
        read_released(files["meru"], layout="atmg", image_heads=2)


class Hyper3(nn.Module):
    """Hyper3-CLIP's encoders from the libraries that its code takes them from, under its names."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        shape = {"img_size": 32, "patch_size": 16, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 0}
        norm = {"norm_layer": nn.LayerNorm} if pool == "token" else {}
        self.vision_encoder, self.text_encoder = nn.Module(), nn.Module()
        self.vision_encoder.backbone = VisionTransformer(**shape, global_pool=pool, **norm)
        text = transformers.CLIPTextConfig(
            vocab_size=120,
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=1,
            max_position_embeddings=20,
            eos_token_id=119,
            bos_token_id=118,
        )
        self.text_encoder.backbone = transformers.CLIPTextModel(text)
        self.image_proj, self.text_proj = nn.Linear(64, 24), nn.Linear(64, 24)
        for name in ("global_logit_scale", "local_logit_scale", "global_local_logit_scale"):
            setattr(self, name, nn.Parameter(torch.tensor(2.5)))
        for name, value in (("visual_alpha", 0.3), ("textual_alpha", -1.1), ("log_curv", -0.4)):
            setattr(self, name, nn.Parameter(torch.tensor(value)))
        with torch.no_grad():
            for key, parameter in self.named_parameters():
                if parameter.ndim:
                    parameter.copy_(fill(key, list(parameter.shape)))

    def features(self, pixels: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        image = self.vision_encoder.backbone((pixels - mean) / std)
        text = self.text_encoder.backbone(input_ids=tokens, attention_mask=(tokens > 0).long()).pooler_output
        return self.image_proj(image), self.text_proj(text)


@pytest.mark.parametrize(("pool", "segment"), [("token", ""), ("avg", "text_model.")])
def test_hyper3_has_the_features_of_timm_and_transformers(pool: str, segment: str, tmp_path: Path) -> None:
    """Keys as transformers 5 and 4 write them; the paper's model and the mean-pooled one on the hub."""
    theirs = Hyper3(pool).eval()
    plain = {key.replace(".text_model.", "."): value for key, value in theirs.state_dict().items()}
    weights = {key.replace("text_encoder.backbone.", f"text_encoder.backbone.{segment}"): v for key, v in plain.items()}
    weights["query_pooling.mlp_norm.weight"] = torch.ones(3)
    if pool == "avg":  # the hub's artifact: one temperature, and a config.json of its own beside the weights
        weights = {key: value for key, value in weights.items() if not key.endswith("logit_scale")}
        weights["logit_scale"] = torch.tensor(2.5)
        (tmp_path / CONFIG).write_text('{"architecture": "hyper3-clip"}')
    save_file(weights, tmp_path / WEIGHTS)
    ours, report = read_released(tmp_path / WEIGHTS, image_heads=2)
    assert report.assumed == ("pixel mean 0.485 0.456 0.406",)
    assert "query_pooling. (belongs to the objective)" in str(report)
    pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([[118, 4, 5, 119, 0], [118, 119, 0, 0, 0], [118, 7, 8, 9, 119]])
    with torch.no_grad():
        for found, expected in zip(
            (ours.image_features(pixels), ours.text_features(tokens)), theirs.features(pixels, tokens), strict=True
        ):
            assert (found - expected).abs().max() < 1e-6 * expected.abs().max()
        pooled, patches = ours.image_outputs(pixels)
        torch.testing.assert_close(ours.image_projection(pooled), ours.image_features(pixels))
        assert patches.shape == (3, 4, 64)
        assert ours.image_features(pixels[:0]).shape == (0, 24)
        scales = [ours.image_log_scale.exp().item(), ours.manifold.c.item()]
    assert scales == pytest.approx([1.0, math.exp(-0.4)])  # a scale above 1 is read as 1


def test_hyper3_at_full_size_lacks_nothing() -> None:
    transformers = pytest.importorskip("transformers")
    text = transformers.CLIPTextConfig(vocab_size=49408, hidden_size=512, num_hidden_layers=12, num_attention_heads=8)
    with torch.device("meta"):
        towers = {
            "vision_encoder.backbone.": VisionTransformer(num_classes=0, global_pool="token"),
            "text_encoder.backbone.": transformers.CLIPTextModel(text),
            "image_proj.": nn.Linear(768, 512),
            "text_proj.": nn.Linear(512, 512),
        }
        weights = {prefix + key: value for prefix, tower in towers.items() for key, value in tower.state_dict().items()}
        scalars = ("visual_alpha", "textual_alpha", "log_curv", "global_logit_scale", "local_logit_scale")
        weights |= {key: torch.empty(()) for key in scalars}
    config, _ = plan(weights, LAYOUTS[detect(weights)])
    assert (config["model"]["image"]["heads"], config["model"]["text"]["heads"]) == (12, 8)
    assert config["model"]["text"]["activation"] == "quick_gelu"
    assert config["model"]["image"]["norm_eps"] == 1e-5


@pytest.fixture(scope="module")
def open_clip_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    folder = tmp_path_factory.mktemp("open_clip")
    config = {
        "embed_dim": 20,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 40, "head_width": 10, "patch_size": 16},
        "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 24, "heads": 2, "layers": 1},
    }
    (folder / "hyvlm-bare.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    model = open_clip.create_model("hyvlm-bare", pretrained=None).eval()
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}, "epoch": 3}, folder / "a.pt")
    return folder / "a.pt", model


def test_a_file_of_open_clip_with_the_sizes_of_one_architecture(open_clip_file: tuple[Path, nn.Module]) -> None:
    file, theirs = open_clip_file
    model, report = read_released(file)
    assert str(report) == f"'{file}' has the layout of open_clip's hyvlm-bare; left out: epoch (of training)"
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD))
    with torch.no_grad():
        expected = theirs.encode_image((pixels - mean) / std)
        torch.testing.assert_close(model.image_features(pixels), expected, rtol=0, atol=1e-5)


def test_a_file_of_open_clip_does_not_tell_its_activation(tmp_path: Path) -> None:
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in open_clip.CLIP(**open_clip.get_model_config("ViT-B-32")).state_dict().items()}
    torch.save(
        {key: torch.zeros((), dtype=torch.float16).expand(shape) for key, shape in shapes.items()}, tmp_path / "b.pt"
    )
    with pytest.raises(ValueError, match=r"activation .* open_clip:ViT-B-32/.*b\.pt or open_clip:ViT-B-32-quickgelu/"):
        hyvlm.load(tmp_path / "b.pt")


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod.", "model.module."])
def test_wrappers_are_taken_off(wrapper: str, files: dict[str, Path], tmp_path: Path) -> None:
    weights, others = read_weights(files["meru"])
    assert set(others) == set(TRAINING)
    torch.save({wrapper + key: value for key, value in weights.items()}, tmp_path / "wrapped.pth")
    found, others = read_weights(tmp_path / "wrapped.pth")
    assert list(found) == list(weights)
    assert others == []


class Runs:
    """A pickle of it makes a file when it is read by the book."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


def broken(how: str, folder: Path) -> Path:
    file = folder / ("weights.safetensors" if how == "cut safetensors" else "weights.pth")
    weights = {"visual.norm.weight": torch.zeros(2000)}
    if how == "code":
        torch.save({"model": weights, "extra": Runs(folder / "ran")}, file)
    elif how == "older code":
        torch.save({"model": weights, "extra": Runs(folder / "ran")}, file, _use_new_zipfile_serialization=False)
    elif how.startswith("pickle"):
        file.write_bytes(pickle.dumps({"model": Runs(folder / "ran")}, protocol=int(how[-1])))
    elif how == "hidden code":
        torch.save({"model": weights, "config": eval}, file)
    elif how.startswith("cut"):
        save_file(weights, file) if file.suffix == ".safetensors" else torch.save(weights, file)
        file.write_bytes(file.read_bytes()[:-3000])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "text":
        file.write_text("these are no weights " * 20)
    elif how == "list":
        torch.save([torch.zeros(3)], file)
    elif how == "no weights":
        torch.save({"epoch": 3, "note": "nothing"}, file)
    elif how == "a ResNet":
        torch.save({f"layer{i}.conv1.weight": torch.zeros(3) for i in range(9)}, file)
    elif how == "ours":
        torch.save({"image_tower.cls_token": torch.zeros(1, 1, 4)}, file)
    elif how == "transformers":
        torch.save({"vision_model.embeddings.class_embedding": torch.zeros(4)}, file)
    return file


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("code", r"holds code beside weights \('posix.system'\), which is not run; save its state dict alone"),
        ("older code", r"holds code beside weights \('posix.system'\), which is not run"),
        ("pickle 4", "is cut short or not a file of weights"),
        ("pickle 2", r"holds code beside weights \('posix.system'\), which is not run"),
        ("hidden code", r"holds code beside weights \('builtins.eval'\), which is not run"),
        ("cut", "is cut short or not a file of weights"),
        ("cut safetensors", "is cut short or not a safetensors file"),
        ("empty", "is cut short or not a file of weights"),
        ("text", "is cut short or not a file of weights"),
        ("list", "holds no weights by name but a list"),
        ("no weights", "holds no weights; its entries: 'epoch', 'note'"),
        (
            "a ResNet",
            r"no layout that is known \(hyper3, .*open_clip\); its keys: 'layer0.conv1.weight', .* and 3 more",
        ),
        ("ours", r"they are hyvlm's, whose config\.json must lie beside them"),
        ("transformers", "they are of a CLIP of transformers"),
    ],
)
def test_a_file_of_something_else_is_one_line_and_nothing_runs(
    how: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = broken(how, tmp_path)
    with pytest.raises(ValueError, match=complaint) as error:
        hyvlm.load(file)
    assert "\n" not in str(error.value)
    assert main(["convert", str(file), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_a_file_cut_anywhere_is_one_line(tmp_path: Path) -> None:
    torch.save({"model": {"visual.norm.weight": torch.zeros(300)}, **TRAINING}, tmp_path / "whole.pth")
    content, file = (tmp_path / "whole.pth").read_bytes(), tmp_path / "cut.pth"
    for end in range(0, len(content), 97):
        file.write_bytes(content[:end])
        with pytest.raises(ValueError, match="cut short or not a file of weights"):
            read_weights(file)


def test_settings_and_random_states_of_training_are_neither_built_nor_in_the_way(tmp_path: Path) -> None:
    config = OmegaConf.create({"a": [1, {"b": "x"}], "_target_": torch.optim.AdamW}, flags={"allow_objects": True})
    extras = {
        "config": config,
        "args": Namespace(lr=1),
        "loss": np.float64(3),
        "rng": np.random.RandomState(0).get_state(),
    }
    torch.save({"model": {"w": torch.arange(3.0)}, **extras}, tmp_path / "a.pth")
    weights, others = read_weights(tmp_path / "a.pth")
    assert weights["w"].tolist() == [0.0, 1.0, 2.0]
    assert others == list(extras)


def test_missing_unknown_and_misshapen_keys_come_in_one_line(files: dict[str, Path], tmp_path: Path) -> None:
    weights = tiny_weights("meru")
    del weights["textual_alpha"], weights["visual.blocks.0.norm1.bias"]
    weights["head.weight"], weights["visual.blocks.7.x"] = torch.zeros(2), torch.zeros(2)
    weights["visual_proj.weight"] = torch.zeros(32, 63)
    torch.save(weights, tmp_path / "a.pth")
    with pytest.raises(ValueError) as error:
        read_released(tmp_path / "a.pth", image_heads=2)
    text = str(error.value)
    assert f"'{tmp_path / 'a.pth'}': not a whole model in the layout of MERU or HyCoCLIP; " not in text  # one separator
    assert "unknown keys 'head.weight', 'visual.blocks.7.x'" in text
    assert "missing keys" in text
    assert "'visual.blocks.0.norm1.bias'" in text
    assert "keys of another shape 'visual_proj.weight'" in text
    assert "\n" not in text
    torch.save({"curv": torch.zeros(())}, tmp_path / "b.pth")
    with pytest.raises(ValueError, match=r"missing keys 'visual\.cls_token', .* and 2 more"):
        read_released(tmp_path / "b.pth")


def test_heads_are_not_guessed(files: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"image tower of width 64 has cannot be read from weights.* --image-heads N"):
        hyvlm.load(files["meru"])
    model = read_released(files["meru"], image_heads=4, text_heads=2)[0]
    assert model.image_tower.blocks[0].attn.num_heads == 4
    assert model.config["model"]["text"]["heads"] == 2
    weights = tiny_weights("clip")
    weights = {
        key: value[..., :40] if "textual" in key and value.ndim and "bias" not in key else value
        for key, value in weights.items()
    }
    with pytest.raises(ValueError, match="text tower of width 40 has cannot be read"):
        plan(weights, LAYOUTS["clip"], image_heads=2)


def test_a_layout_that_does_not_exist_or_does_not_apply(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown layout 'merou'\. Did you mean 'meru'"):
        hyvlm.load(files["meru"], layout="merou")
    with pytest.raises(ValueError, match="unknown keys 'global_logit_scale'"):
        read_released(files["uncha"], layout="meru", image_heads=2)
    convert(files["meru"], tmp_path / "model", image_heads=2)
    with pytest.raises(ValueError, match="layout=atmg is for a file of released weights, not for"):
        hyvlm.load(tmp_path / "model", layout="atmg")


def test_another_model_is_not_overwritten(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "new" / "model"
    convert(files["meru"], out, image_heads=2)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert convert(files["meru"], out, image_heads=2)[0] == out  # the same model: nothing to do
    with pytest.raises(ValueError, match="holds another model, which is not overwritten"):
        convert(files["clip"], out, image_heads=2)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files, which is not overwritten"):
        convert(files["clip"], tmp_path / "notes", image_heads=2)
    with pytest.raises(ValueError, match="is a file"):
        convert(files["clip"], tmp_path / "notes" / "a.txt", image_heads=2)
    (tmp_path / "empty").mkdir()
    assert hyvlm.load(convert(out, tmp_path / "empty")[0])[0].config == hyvlm.load(out)[0].config  # a model of ours


def test_a_conversion_that_fails_leaves_nothing(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("hyvlm.models.pretrained.save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        convert(files["meru"], tmp_path / "out", image_heads=2)
    assert list(tmp_path.iterdir()) == []
