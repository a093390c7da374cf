import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hyvlm.models import DualEncoder, build_model, fine_tuned_from, save_model, start_model, stretch_positions

SMALL = {
    "image": {"image_size": 32, "patch": 8, "width": 32, "depth": 1, "heads": 2, "positions": "learned"},
    "text": {"context_length": 40, "width": 32, "depth": 2, "heads": 2, "activation": "quick_gelu"},
    "dim": 16,
    "pixel_std": [0.3, 0.3, 0.2],
}
LORENTZ = {"name": "lorentz", "c": 1.0, "bounds": [0.1, 10.0], "aperture_constant": 1.0}
TOKENS = torch.tensor([[49406, 320, 1125, 49407, 0], [49406, 49407, 0, 0, 0]])


def start(manifold: dict[str, Any] | None = None) -> DualEncoder:
    torch.manual_seed(0)
    model = build_model({"model": SMALL, "manifold": manifold or {"name": "sphere"}})
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def images() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_start_on_the_sphere_gives_its_features_to_hyperbolic_space() -> None:
    before = start()
    state = {key: value.clone() for key, value in before.state_dict().items()}
    torch.manual_seed(7)
    model = fine_tuned_from(before, LORENTZ, context_length=80)
    assert model.training
    assert model.text_tower.context_length == 80
    assert model.config["model"]["text"]["context_length"] == 80
    assert model.config["manifold"] == LORENTZ
    torch.testing.assert_close(model.image_features(images()), before.image_features(images()))
    torch.testing.assert_close(model.text_features(TOKENS), before.text_features(TOKENS))
    for scale in (model.image_log_scale, model.text_log_scale):
        assert scale.item() == pytest.approx(-0.5 * math.log(16))
    assert model.manifold.c.item() == 1.0
    model.encode_text(torch.full((1, 80), 5)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, state[key]) for key, value in before.state_dict().items())


def test_positions_are_stretched_by_the_one_rule() -> None:
    before = start()
    old = before.text_tower.positional_embedding.detach()
    model = fine_tuned_from(before, LORENTZ, context_length=100, keep_positions=10)
    expected = stretch_positions(old, 100, keep=10)
    assert torch.equal(model.text_tower.positional_embedding, expected)
    assert torch.equal(fine_tuned_from(before, LORENTZ).text_tower.positional_embedding, old)
    assert torch.equal(fine_tuned_from(before, LORENTZ, context_length=30).text_tower.positional_embedding, old[:30])
    wide = fine_tuned_from(before, LORENTZ, context_length=60)
    assert torch.equal(wide.text_tower.positional_embedding, stretch_positions(old, 60, keep=20))


@pytest.mark.parametrize(
    "manifold", [LORENTZ, {"name": "product", "factors": 4}, {"name": "euclidean"}, {"name": "sphere"}]
)
def test_on_a_manifold_of_the_same_kind_scales_and_curvature_continue(manifold: dict[str, Any]) -> None:
    before = start(manifold)
    model = fine_tuned_from(before, manifold)
    torch.testing.assert_close(model.encode_image(images()), before.encode_image(images()))
    torch.testing.assert_close(model.encode_text(TOKENS), before.encode_text(TOKENS))
    assert model.manifold.describe() == before.manifold.describe()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LORENTZ, {"name": "sphere"}),
        (LORENTZ, {"name": "euclidean"}),
        (LORENTZ, {"name": "product", "factors": 4}),
        ({"name": "product", "factors": 2}, {"name": "product", "factors": 4}),
        ({"name": "product", "factors": 2}, LORENTZ),
    ],
)
def test_on_another_kind_they_begin_anew(old: dict[str, Any], new: dict[str, Any]) -> None:
    model, fresh = fine_tuned_from(start(old), new), build_model({"model": SMALL, "manifold": new})
    assert torch.equal(model.image_log_scale, fresh.image_log_scale)
    assert torch.equal(model.text_log_scale, fresh.text_log_scale)
    assert model.manifold.describe() == fresh.manifold.describe()


def test_a_curvature_must_lie_within_the_new_bounds() -> None:
    before = start(LORENTZ)
    with torch.no_grad():
        before.manifold.log_c.fill_(math.log(0.1))
    assert fine_tuned_from(before, LORENTZ).manifold.c.item() == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"curvature c = 0\.1 lies outside manifold\.bounds 0\.2 to 10"):
        fine_tuned_from(before, {**LORENTZ, "bounds": [0.2, 10.0]})
    assert fine_tuned_from(before, {**LORENTZ, "bounds": None}).manifold.c.item() == pytest.approx(0.1)
    factors = {"name": "product", "factors": 4, "c": [1.0, 1.0, 9.0, 1.0]}
    product = build_model({"model": SMALL, "manifold": factors})
    with pytest.raises(ValueError, match="c = 9 lies outside"):
        fine_tuned_from(product, {"name": "product", "factors": 4, "bounds": [0.1, 5.0]})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"context_length": "248"}, "model.text.context_length must be a whole number, 2 or more, got '248'"),
        ({"context_length": 1}, "model.text.context_length must be a whole number, 2 or more, got 1"),
        ({"keep_positions": -1}, "model.text.keep_positions must be a whole number, 0 or more, got -1"),
        ({"context_length": 80, "keep_positions": 39}, "of 40 positions, 0 to 38 can be kept, got keep=39"),
    ],
)
def test_wrong_settings_are_one_sentence(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as error:
        fine_tuned_from(start(), LORENTZ, **settings)
    assert complaint in str(error.value)


def test_a_start_is_whatever_can_be_loaded(tmp_path: Path) -> None:
    model = start()
    save_model(model, tmp_path / "checkpoints" / "step_1")
    loaded = start_model(str(tmp_path))
    assert not loaded.training
    assert torch.equal(loaded.text_projection.weight, model.text_projection.weight)
    with pytest.raises(FileNotFoundError, match="no model"):
        start_model(str(tmp_path / "nowhere"))


def test_a_fine_tuned_model_comes_back_from_its_file(tmp_path: Path) -> None:
    model = fine_tuned_from(start(), LORENTZ, context_length=60).eval()
    save_model(model, tmp_path)
    again = start_model(str(tmp_path))
    assert torch.equal(again.encode_text(TOKENS), model.encode_text(TOKENS))
    assert torch.equal(again.encode_image(images()), model.encode_image(images()))
