"""Models of open_clip against open_clip itself."""

import json
import pickle
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import hyvlm
from hyvlm.models import PRESETS, build_model, fingerprint, resolve_model, save_model
from hyvlm.models.convert import KEY_MAPS, match
from hyvlm.models.openclip import load_open_clip, supported_models

TINY = {
    "embed_dim": 24,
    "vision_cfg": {
        "image_size": 32,
        "layers": 2,
        "width": 48,
        "head_width": 16,
        "patch_size": 8,
        "mlp_ratio": 3.3,
    },
    "text_cfg": {"context_length": 30, "width": 32, "heads": 4, "layers": 3, "mlp_ratio": 2.0},
}
NAMES = {
    "hyvlm-tiny": TINY,
    "hyvlm-tiny-quickgelu": {**TINY, "quick_gelu": True},
    "hyvlm-tiny-custom": {**TINY, "custom_text": True},
    "hyvlm-tiny-layerscale": {**TINY, "vision_cfg": {**TINY["vision_cfg"], "ls_init_value": 0.1}},
    "hyvlm-tiny-siglip": {**TINY, "init_logit_bias": -10},
}
TOKENS = torch.zeros(4, 30, dtype=torch.long)
TOKENS[0, :4] = torch.tensor([49406, 320, 1125, 49407])
TOKENS[1, :2] = torch.tensor([49406, 49407])
TOKENS[2, :30] = torch.tensor([49406, *range(300, 328), 49407])
TOKENS[3, :9] = torch.tensor([49406, *range(900, 907), 49407])


@pytest.fixture(scope="module", autouse=True)
def tiny_architectures(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("configs")
    for name, config in NAMES.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)


def randomised(name: str) -> nn.Module:
    """open_clip's model with no weight left at the zero or one it starts from."""
    torch.manual_seed(0)
    model = open_clip.create_model(name, pretrained=None).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            gain = 1.0 if "ln_" in key and key.endswith("weight") else 0.0
            parameter.copy_(gain + 0.2 * torch.randn(parameter.shape))
    return model


def images(size: int = 32) -> Tensor:
    return torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))


def assert_same_features(ours: hyvlm.models.DualEncoder, theirs: nn.Module, pixels: Tensor, tolerance: float) -> None:
    statistics = (theirs.visual.image_mean, theirs.visual.image_std)
    mean, std = (torch.tensor(values).view(3, 1, 1).to(pixels.dtype) for values in statistics)
    tokens = TOKENS[:, : ours.text_tower.context_length]
    tokens = nn.functional.pad(tokens, (0, ours.text_tower.context_length - tokens.shape[1]))
    with torch.no_grad():
        pairs = [
            (ours.image_features(pixels), theirs.encode_image((pixels - mean) / std)),
            (ours.text_features(tokens), theirs.encode_text(tokens)),
        ]
    for found, expected in pairs:
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("name", ["hyvlm-tiny", "hyvlm-tiny-quickgelu", "hyvlm-tiny-custom"])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_features_are_those_of_open_clip(name: str, suffix: str, tmp_path: Path) -> None:
    theirs, file = randomised(name), tmp_path / f"weights.{suffix}"
    save_file(theirs.state_dict(), file) if suffix == "safetensors" else torch.save(theirs.state_dict(), file)
    ours, _, tokenizer = hyvlm.load(f"open_clip:{name}/{file}")
    assert tokenizer.context_length == 30
    assert ours.config["manifold"] == {"name": "sphere"}
    assert_same_features(ours, theirs, images(), 1e-6)
    assert_same_features(ours.double(), theirs.double(), images().double(), 1e-12)
    normalised = theirs.encode_text(TOKENS, normalize=True)
    torch.testing.assert_close(ours.encode_text(TOKENS), normalised, rtol=0, atol=1e-12)


def test_the_activation_matters_and_comes_with_the_name(tmp_path: Path) -> None:
    theirs, file = randomised("hyvlm-tiny-quickgelu"), tmp_path / "weights.pt"
    torch.save(theirs.state_dict(), file)
    quick, plain = (load_open_clip(f"open_clip:{name}/{file}") for name in ("hyvlm-tiny-quickgelu", "hyvlm-tiny"))
    assert (quick.config["model"]["image"]["activation"], plain.config["model"]["text"]["activation"]) == (
        "quick_gelu",
        "gelu",
    )
    assert (quick.image_features(images()) - plain.image_features(images())).abs().max() > 1e-3
    assert (quick.text_features(TOKENS) - plain.text_features(TOKENS)).abs().max() > 1e-3


def test_a_real_architecture_with_random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    theirs = open_clip.create_model("ViT-B-16", pretrained=None).eval()
    monkeypatch.setattr(open_clip, "create_model", lambda *_, **__: theirs)  # seconds that another draw would cost
    ours, preprocess, tokenizer = hyvlm.load("open_clip:ViT-B-16")
    assert resolve_model(ours.config["model"]) == PRESETS["open-clip-vit-b-16"]
    assert tokenizer.context_length == 77
    assert repr(preprocess) == "eval_transform(image_size=224, resize='crop')"
    pixels = images(224)[:1].double()  # 12 layers of float32 would lose 1e-6 each way
    assert_same_features(ours.double(), theirs.double(), pixels, 1e-9)


@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-B-16", "ViT-L-14"])
def test_presets_have_the_weights_of_open_clip(name: str) -> None:
    with torch.device("meta"):
        ours = build_model({"model": {"preset": f"open-clip-{name.lower()}"}, "manifold": {"name": "sphere"}})
        theirs = open_clip.CustomTextCLIP(**open_clip.get_model_config(name))
    expected = {key: value.shape for key, value in KEY_MAPS["open_clip"](theirs.state_dict()).items()}
    found = {key: value.shape for key, value in ours.state_dict().items()}
    assert found == expected | {"pixel_mean": (3, 1, 1), "pixel_std": (3, 1, 1)}
    assert ours.image_tower.blocks[0].attn.num_heads == theirs.visual.transformer.resblocks[0].attn.num_heads
    assert ours.text_tower.transformer.resblocks[0].attn.num_heads == theirs.text.heads
    assert PRESETS[f"open-clip-{name.lower()}"].pixel_mean == open_clip.OPENAI_DATASET_MEAN


def test_images_come_to_size_as_in_open_clip() -> None:
    _, preprocess, _ = hyvlm.load("open_clip:hyvlm-tiny")
    noise = torch.randint(0, 256, (70, 45, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    image = Image.fromarray(noise.numpy())
    theirs = image_transform_v2(PreprocessCfg(size=32, mean=(0, 0, 0), std=(1, 1, 1)), is_train=False)(image)
    torch.testing.assert_close(preprocess(image).float() / 255, theirs)


def test_an_imported_model_is_saved_like_any_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = hyvlm.load("open_clip:hyvlm-tiny-quickgelu")[0]
    save_model(model, tmp_path)
    again = hyvlm.load(tmp_path)[0]
    assert fingerprint(again) == fingerprint(model)
    assert torch.equal(again.encode_image(images()), model.encode_image(images()))
    assert build_model(model.config).config == model.config


def test_a_tag_brings_its_statistics_and_its_activation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights.pt"
    torch.save(randomised("hyvlm-tiny").state_dict(), file)
    card = {"mean": (0.5, 0.4, 0.3), "std": (0.1, 0.2, 0.3), "resize_mode": "squash", "quick_gelu": True}
    stock_tag(monkeypatch, {**card, "interpolation": "bicubic"}, lambda _: str(file))
    model = load_open_clip("open_clip:hyvlm-tiny/stock")
    assert model.resize == "squash"
    assert model.pixel_mean.flatten().tolist() == pytest.approx([0.5, 0.4, 0.3])
    assert model.pixel_std.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert model.config["model"]["text"]["activation"] == "quick_gelu"
    stock_tag(monkeypatch, {**card, "interpolation": "bilinear"}, lambda _: str(file))
    with pytest.raises(ValueError, match="resizes images by bilinear interpolation in mode 'squash'"):
        load_open_clip("open_clip:hyvlm-tiny/stock")


def stock_tag(monkeypatch: pytest.MonkeyPatch, card: dict[str, Any], download: Any) -> None:
    """A tag "stock" of every architecture."""
    monkeypatch.setattr(open_clip, "list_pretrained_tags_by_model", lambda _: ["stock"])
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda *_: card)
    monkeypatch.setattr(open_clip, "download_pretrained", download)


def test_weights_that_cannot_be_fetched_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(_: object) -> str:
        raise RuntimeError("the hub\ncannot be reached " + "x" * 300)

    stock_tag(monkeypatch, {}, offline)
    with pytest.raises(ConnectionError) as error:
        hyvlm.load("open_clip:hyvlm-tiny/stock")
    text = str(error.value)
    assert text.startswith("cannot fetch 'stock' for open_clip's hyvlm-tiny (the hub cannot be reached x")
    assert text.endswith(" ...); name a local file instead: open_clip:hyvlm-tiny/FILE")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("open_clip:hyvlm-tinny", "unknown open_clip model 'hyvlm-tinny'. Did you mean 'hyvlm-tiny'"),
        (
            "open_clip:ViT-B-16/laion2b_s34b_b99k",
            "unknown weights of open_clip's ViT-B-16 'laion2b_s34b_b99k'. Did you",
        ),
        ("open_clip:RN50/openai", "open_clip's RN50 is not supported (vision_cfg.layers): supported are"),
        ("open_clip:coca_ViT-B-32", "coca_ViT-B-32 is not supported (multimodal_cfg, "),
        ("open_clip:ViT-B-16-SigLIP", "SigLIP is not supported ("),
        ("open_clip:convnext_base", "(vision_cfg.timm_model_name"),
        ("open_clip:roberta-ViT-B-32", "text_cfg.hf_model_name"),
        ("open_clip:ViT-H-14-CLIPA", "text_cfg.hf_tokenizer_name"),
        ("open_clip:hyvlm-tiny-layerscale", "is not supported (vision_cfg.ls_init_value)"),
        ("open_clip:hyvlm-tiny-siglip", "is not supported (init_logit_bias)"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(spec: str, complaint: str) -> None:
    with pytest.raises(ValueError) as error:
        hyvlm.load(spec)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def wrong_file(file: Path, kind: str) -> None:
    """Something that is not the state dict of hyvlm-tiny under a name that promises one."""
    weights: Any = randomised("hyvlm-tiny").state_dict()
    if kind == "other":
        weights["visual.proj"] = torch.zeros(48, 25)
    if kind == "list":
        weights = [weights]
    save_file(weights, file) if file.suffix == ".safetensors" else torch.save(weights, file)
    content = {"cut": file.read_bytes()[:-2000], "garbage": b"nothing", "code": pickle.dumps(Path, 2), "empty": b""}
    if kind in content:
        file.write_bytes(content[kind])


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        *((suffix, kind) for suffix in ("pt", "safetensors") for kind in ("other", "cut", "garbage", "code", "empty")),
        ("bin", "list"),
    ],
)
def test_a_file_of_something_else_is_one_sentence(suffix: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"weights.{suffix}"
    wrong_file(file, kind)
    with pytest.raises(ValueError) as error:
        hyvlm.load(f"open_clip:hyvlm-tiny/{file}")
    assert str(error.value).startswith(f"'{file}' does not hold weights of open_clip's hyvlm-tiny: ")
    assert "\n" not in str(error.value)
    assert "weights_only" not in str(error.value)  # torch's advice, which would run what the file holds


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no weights at '.*/weights\.pt'"):
        hyvlm.load(f"open_clip:hyvlm-tiny/{tmp_path}/weights.pt")
    with pytest.raises(FileNotFoundError, match=f"no weights at '{tmp_path}'; open_clip's tags for hyvlm-tiny: none"):
        hyvlm.load(f"open_clip:hyvlm-tiny/{tmp_path}")


def test_the_supported_architectures() -> None:
    names = supported_models()
    assert {"ViT-B-32", "ViT-B-16", "ViT-L-14", "ViT-L-14-336-quickgelu", "ViT-H-14", "ViT-bigG-14"} <= set(names)
    assert not {"RN50", "coca_ViT-B-32", "ViT-B-16-SigLIP", "convnext_base", "ViT-H-14-CLIPA"} & set(names)


def test_every_key_of_the_table_occurs() -> None:
    keys = open_clip.create_model("hyvlm-tiny-custom", pretrained=None).state_dict()
    table = KEY_MAPS["open_clip"]
    for entry in (*table.rename, *table.drop):
        assert any(match(entry, key) for key in keys), entry
    assert set(table.change) <= set(table.rename)
    with pytest.raises(ValueError, match=r"unknown key 'visual\.transformer\.resblocks\.0\.ls_1\.gamma'"):
        table({"visual.transformer.resblocks.0.ls_1.gamma": torch.zeros(3)})
