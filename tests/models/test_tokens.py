"""Points of single patches and words."""

import pytest
import torch
from open_clip.transformer import TextTransformer
from torch import Tensor

from hyvlm.models import DualEncoder, build_model

SMALL = {
    "image": {"image_size": 32, "patch": 8, "width": 32, "depth": 2, "heads": 2},
    "text": {"context_length": 30, "width": 32, "depth": 2, "heads": 2},
    "dim": 16,
}
MANIFOLD_SETTINGS = {
    "lorentz": {"name": "lorentz"},
    "euclidean": {"name": "euclidean"},
    "sphere": {"name": "sphere"},
    "product": {"name": "product", "factors": 4},
}
TEXTS = torch.tensor(
    [[49406, 320, 1125, 49407, 0, 0], [49406, 49407, 0, 0, 0, 0], [49406, 9, 8, 7, 49407, 0]], dtype=torch.long
)


def small(manifold: str = "lorentz") -> DualEncoder:
    torch.manual_seed(0)
    return build_model({"model": SMALL, "manifold": MANIFOLD_SETTINGS[manifold]}).double()


def images(count: int = 2, size: tuple[int, int] = (32, 32)) -> Tensor:
    return torch.rand(count, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("manifold", MANIFOLD_SETTINGS)
def test_the_points_are_those_of_the_cheap_path(manifold: str) -> None:
    model = small(manifold)
    torch.testing.assert_close(model.encode_image_tokens(images())[0], model.encode_image(images()))
    torch.testing.assert_close(model.encode_text_tokens(TEXTS)[0], model.encode_text(TEXTS))


def test_patches_come_row_by_row_without_the_class_token() -> None:
    model = small()
    points, tokens = model.encode_image_tokens(images(2, (16, 24)))
    assert points.shape == (2, 16)
    assert tokens.values.shape == (2, 2 * 3, 16)
    assert tokens.mask.shape == (2, 6)
    assert tokens.mask.all()
    pixels = (images(2, (16, 24)) - model.pixel_mean) / model.pixel_std
    outputs = model.image_tower.forward_features(pixels)  # timm's
    expected = model.lift_image(outputs[:, 1:] @ model.image_projection.weight.T)
    torch.testing.assert_close(tokens.values, expected)


def test_words_stand_in_their_columns_without_start_end_and_padding() -> None:
    model = small()
    _, tokens = model.encode_text_tokens(TEXTS)
    assert tokens.mask.tolist() == [
        [False, True, True, False, False],
        [False, False, False, False, False],
        [False, True, True, True, False],
    ]
    tower, padded = model.text_tower, torch.nn.functional.pad(TEXTS, (0, 24))
    x = tower.token_embedding(padded) + tower.positional_embedding
    outputs = tower.ln_final(tower.transformer(x, attn_mask=tower.attn_mask))  # open_clip's blocks, all 30 places
    expected = model.lift_text(outputs @ model.text_projection.weight.T)
    torch.testing.assert_close(tokens.values[tokens.mask], expected[:, :5][tokens.mask])
    assert not tokens.values[~tokens.mask].any()
    assert isinstance(tower, TextTransformer)


@pytest.mark.parametrize("manifold", MANIFOLD_SETTINGS)
def test_empty_batches_give_empty_tokens_in_the_graph(manifold: str) -> None:
    model = small(manifold)
    image, patches = model.encode_image_tokens(images(0))
    text, words = model.encode_text_tokens(TEXTS[:0])
    assert patches.values.shape == (0, 16, 16)
    assert words.values.shape == (0, 1, 16)
    assert words.mask.shape == (0, 1)
    (image.sum() + patches.values.sum() + text.sum() + words.values.sum()).backward()
    towers = [p for name, p in model.named_parameters() if "tower" in name or "projection" in name]
    assert all(p.grad is not None and not p.grad.any() for p in towers)


def test_every_parameter_learns_from_tokens_alone() -> None:
    model = small()
    (model.encode_image_tokens(images())[1].values.sum() + model.encode_text_tokens(TEXTS)[1].values.sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if name != "manifold.log_c":
            assert parameter.grad.any(), name


def test_gradients_through_both_paths_agree() -> None:
    cheap, full = small(), small()
    cheap.encode_text(TEXTS).square().sum().backward()
    full.encode_text_tokens(TEXTS)[0].square().sum().backward()
    cheap.encode_image(images()).square().sum().backward()
    full.encode_image_tokens(images())[0].square().sum().backward()
    for (name, a), b in zip(cheap.named_parameters(), full.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_the_count_of_bounded_vectors_is_of_points_and_tokens_that_count() -> None:
    model = small().float()
    with torch.no_grad():
        model.text_projection.weight.mul_(1e6)
        model.image_projection.weight.mul_(1e6)
    model.encode_text_tokens(TEXTS)
    assert int(model.manifold.bounded) == 3 + 2 + 3
    model.encode_image_tokens(images().float())
    assert int(model.manifold.bounded) == 2 * (1 + 16)


def test_tokens_are_float32_under_autocast() -> None:
    model = small().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        points, tokens = model.encode_text_tokens(TEXTS)
        image, patches = model.encode_image_tokens(images().float())
    assert points.dtype == tokens.values.dtype == image.dtype == patches.values.dtype == torch.float32


def test_wrong_input_is_refused_as_in_the_cheap_path() -> None:
    with pytest.raises(ValueError, match="1 <= L <= 30"):
        small().encode_text_tokens(torch.zeros(1, 31, dtype=torch.long))
    with pytest.raises(ValueError, match="divisible by 8"):
        small().encode_image_tokens(images(1, (30, 32)))
