import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hyvlm.models import PRESETS, build_model, resolve_model

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "checkpoints"


def test_the_presets() -> None:
    shapes = {name: (p.image.patch, p.image.width, p.image.depth, p.image.heads) for name, p in PRESETS.items()}
    assert shapes == {
        "tiny": (8, 128, 3, 4),
        "vit-s-16": (16, 384, 12, 12),
        "vit-b-16": (16, 768, 12, 12),
        "vit-l-16": (16, 1024, 24, 16),
        "vit-l-14": (14, 1024, 24, 16),
        "open-clip-vit-b-32": (32, 768, 12, 12),
        "open-clip-vit-b-16": (16, 768, 12, 12),
        "open-clip-vit-l-14": (14, 1024, 24, 16),
    }


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds(name: str) -> None:
    with torch.device("meta" if name != "tiny" else "cpu"):
        model = build_model({"model": {"preset": name}, "manifold": {"name": "lorentz"}})
    assert model.dim == PRESETS[name].dim
    assert all(block.attn.num_heads == PRESETS[name].image.heads for block in model.image_tower.blocks)
    assert all(
        norm.eps == 1e-5 for norm in model.modules() if isinstance(norm, torch.nn.LayerNorm) and norm.elementwise_affine
    )
    assert resolve_model(model.config["model"]) == PRESETS[name]


@pytest.mark.parametrize("size", ["s", "b"])
def test_full_size_models_have_the_released_shapes(size: str) -> None:
    from hyvlm.models.convert import KEY_MAPS

    manifest = json.loads((CHECKPOINTS / f"full_meru_vit_{size}_manifest.json").read_text())
    released = {key: torch.empty(shape, device="meta") for key, shape, _, _ in manifest["state_dict"]}
    with torch.device("meta"):
        model = build_model({"model": {"preset": f"vit-{size}-16"}, "manifold": {"name": "lorentz"}})
    expected = {key: value.shape for key, value in KEY_MAPS["meru"](released).items()}
    assert {key: value.shape for key, value in model.state_dict().items()} == expected
    assert sum(p.numel() for p in model.parameters()) == manifest["num_trainable"] - 1  # less the logit scale


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"preset": "vit-s-61"}, "unknown model preset 'vit-s-61'. Did you mean 'vit-s-16'"),
        ({"preset": "tiny", "dims": 3}, "unknown model key 'dims'. Did you mean 'dim'?"),
        ({"prest": "tiny"}, "unknown model key 'prest'. Did you mean 'preset'"),
        ({"preset": "tiny", "image": {"pool": "avg"}}, "unknown model.image key 'pool'"),
        ({"preset": "tiny", "text": {"widht": 64}}, "unknown model.text key 'widht'. Did you mean 'width'?"),
        ({"preset": "tiny", "text": 64}, "model.text must be a section with keys, got 64"),
        ({"preset": "tiny", "dim": 0}, "model.dim must be a positive whole number, got 0"),
        ({"preset": "tiny", "dim": True}, "model.dim must be a positive whole number, got True"),
        ({"preset": "tiny", "image": {"stem": "yes"}}, "model.image.stem must be true or false, got 'yes'"),
        ({"preset": "tiny", "image": {"mlp_ratio": 0}}, "model.image.mlp_ratio must be a positive number, got 0"),
        ({"preset": "tiny", "text": {"mlp_ratio": "4"}}, "model.text.mlp_ratio must be a positive number, got '4'"),
        ({"preset": "tiny", "image": {"positions": "cos"}}, "positions must be 'sincos' or 'learned', got 'cos'"),
        ({"preset": "tiny", "text": {"activation": ["gelu"]}}, "must be 'gelu' or 'quick_gelu', got ['gelu']"),
        ({"preset": "tiny", "pixel_mean": [0.5]}, "model.pixel_mean must be three numbers"),
        ({"preset": "vit-s-16", "image": {"heads": 7}}, "divisible by 4 and by model.image.heads, got 384 and 7"),
        ({"preset": "vit-s-16", "text": {"heads": 7}}, "divisible by model.text.heads, got 512 and 7"),
        ({"preset": "vit-s-16", "image": {"image_size": 225}}, "divisible by model.image.patch, got 225 and 16"),
        ({"preset": "tiny", "image": {"patch": 16}}, "model.image.patch must be 8, the stem's stride, got 16"),
        ({"dim": 64}, "model.image is missing; give it or name a model.preset (open-clip-vit-b-16,"),
        ({"image": {"width": 64, "heads": 2}}, "model.image.depth is missing"),
    ],
)
def test_a_wrong_model_section_is_one_sentence(section: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as error:
        resolve_model(section)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_overrides_reach_one_key_and_leave_the_rest() -> None:
    config = resolve_model({"preset": "vit-b-16", "image": {"depth": 3}, "pixel_std": [1, 1, 1]})
    assert (config.image.depth, config.image.width, config.text.depth) == (3, 768, 12)
    assert config.pixel_std == (1.0, 1.0, 1.0)


def test_a_configuration_from_before_a_key_existed_means_what_it_meant() -> None:
    old = PRESETS["tiny"].to_dict()
    for tower, keys in {
        "image": ["positions", "pre_norm", "activation", "mlp_ratio"],
        "text": ["activation", "mlp_ratio"],
    }.items():
        for key in keys:
            del old[tower][key]
    assert resolve_model(old) == PRESETS["tiny"]
