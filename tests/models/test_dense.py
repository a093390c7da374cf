"""Dense features against plain loops over patches and heads."""

import json
import math
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hyvlm.models import DualEncoder, build_model
from hyvlm.models.dense import dense_image_features, dense_tokens, neighbour_bias
from hyvlm.models.openclip import load_open_clip
from hyvlm.models.towers import ImageTower


def tower(**settings: object) -> ImageTower:
    torch.manual_seed(0)
    built = ImageTower(image_size=32, patch=8, width=32, depth=2, heads=2, **settings).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # no bias stays 0, no gain 1
    return built


def pixels(height: int, width: int, batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def neighbour_attention(
    x: Tensor, weight: Tensor, bias: Tensor, heads: int, grid: tuple[int, int], std: float
) -> Tensor:
    """NACLIP's attention of tokens ``(1 + T, width)`` before the output projection, token by token and head by head."""
    places = [None, *((row, column) for row in range(grid[0]) for column in range(grid[1]))]
    _, key, value = (x @ weight.T + bias).chunk(3, dim=-1)
    out = torch.empty_like(x)
    for head in torch.arange(x.shape[1]).chunk(heads):
        for i, at in enumerate(places):
            logits = []
            for j, other in enumerate(places):
                near = 0.0
                if at is not None and other is not None:
                    squared = (at[0] - other[0]) ** 2 + (at[1] - other[1]) ** 2
                    near = math.exp(-squared / (2 * std**2))
                logits.append(key[i, head] @ key[j, head] / math.sqrt(len(head)) + near)
            out[i, head] = torch.stack(logits).softmax(0) @ value[:, head]
    return out


@pytest.mark.parametrize("settings", [{}, {"stem": True}, {"positions": "learned", "pre_norm": True}])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 40)])
@pytest.mark.parametrize("std", [0.7, 5.0])
def test_the_last_block_is_attention_among_neighbours_alone(
    settings: dict, height: int, width: int, std: float
) -> None:
    ours, images = tower(**settings), pixels(height, width)
    inputs = []
    hook = ours.blocks[-1].norm1.register_forward_hook(lambda module, args, output: inputs.append(output))
    ours.forward_features(images)  # timm's own way to the last block, whose input the hook keeps
    hook.remove()
    attention = ours.blocks[-1].attn
    for row, x in enumerate(inputs[0]):
        mixed = neighbour_attention(
            x, attention.qkv.weight, attention.qkv.bias, 2, (height // 8, width // 8), std
        )  # fmt: skip
        expected = ours.norm(mixed @ attention.proj.weight.T + attention.proj.bias)[1:]
        found = dense_tokens(ours, images, gaussian_std=std)[row]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_with_queries_that_equal_keys_and_no_gaussian_it_is_the_towers_own_attention() -> None:
    ours, images = tower(), pixels(32, 32)
    attention = ours.blocks[-1].attn
    with torch.no_grad():
        attention.qkv.weight[:32] = attention.qkv.weight[32:64]
        attention.qkv.bias[:32] = attention.qkv.bias[32:64]
    outputs = []
    hook = attention.register_forward_hook(lambda module, args, output: outputs.append(output))
    ours.forward_features(images)
    hook.remove()
    expected = ours.norm(outputs[0])[:, 1:]
    torch.testing.assert_close(dense_tokens(ours, images, gaussian_std=None), expected, rtol=0, atol=1e-12)


def test_the_gaussian_is_one_at_the_patch_itself_falls_with_distance_and_spares_the_class_token() -> None:
    bias = neighbour_bias((2, 3), 2.0)
    assert not bias[0].any()
    assert not bias[:, 0].any()
    assert bias[1:, 1:].diag().tolist() == [1] * 6
    assert bias.equal(bias.T)
    assert bias[1, 6].item() == pytest.approx(math.exp(-(1 + 4) / 8))  # one row and two columns apart
    assert neighbour_bias((2, 3), math.inf)[1:, 1:].eq(1).all()  # infinitely wide, it favours no patch


def test_an_open_clip_tower_gives_what_its_own_weights_give(tmp_path: Path) -> None:
    """From open_clip's modules and its packed projections, not from the converted weights."""
    name = "hyvlm-dense-tiny"
    config = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 48, "head_width": 16, "patch_size": 8},
        "text_cfg": {"context_length": 30, "width": 32, "heads": 4, "layers": 1},
    }
    (tmp_path / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path)
    torch.manual_seed(0)
    theirs = open_clip.create_model(name, pretrained=None).eval()
    with torch.no_grad():
        for parameter in theirs.visual.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    ours = load_open_clip(f"open_clip:{name}/{tmp_path / 'weights.safetensors'}").double().eval()
    visual = theirs.visual.double()
    images = pixels(32, 32, batch=1)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (visual.image_mean, visual.image_std))
    inputs = []
    last = visual.transformer.resblocks[-1]
    last.ln_1.register_forward_hook(lambda module, args, output: inputs.append(output))
    with torch.no_grad():
        visual((images - mean) / std)
        x = inputs[0].squeeze()
        mixed = neighbour_attention(x, last.attn.in_proj_weight, last.attn.in_proj_bias, 3, (4, 4), 5.0)
        expected = visual.ln_post(last.attn.out_proj(mixed))[1:] @ visual.proj
        found = dense_image_features(ours, images)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)  # pixel statistics are kept in float32


def model() -> DualEncoder:
    torch.manual_seed(0)
    shape = {
        "image": {"image_size": 32, "patch": 8, "width": 32, "depth": 2, "heads": 2},
        "text": {"context_length": 40, "width": 32, "depth": 1, "heads": 2},
        "dim": 16,
    }
    return build_model({"model": shape, "manifold": {"name": "lorentz"}}).eval()


def test_features_are_projected_row_by_row_and_uint8_counts_to_255() -> None:
    ours = model()
    images = (pixels(24, 40) * 255).round().to(torch.uint8)
    features = dense_image_features(ours, images)
    assert features.shape == (2, 3 * 5, 16)
    torch.testing.assert_close(features, dense_image_features(ours, images.float() / 255))
    flipped = dense_image_features(ours, images.flip(-1))
    assert (features - flipped).abs().max() > 1e-3


@pytest.mark.parametrize("std", [0, -1.0, math.nan])
def test_a_width_that_is_none_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="gaussian_std"):
        dense_image_features(model(), torch.zeros(1, 3, 32, 32), gaussian_std=std)
