from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from hyvlm.models import DualEncoder, build_model

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL = {
    "image": {"image_size": 32, "patch": 8, "width": 32, "depth": 2, "heads": 2, "stem": True},
    "text": {"width": 32, "depth": 1, "heads": 2},
    "dim": 16,
}
MANIFOLD_SETTINGS: dict[str, dict[str, Any]] = {
    "lorentz": {"name": "lorentz"},
    "euclidean": {"name": "euclidean"},
    "sphere": {"name": "sphere"},
    "product": {"name": "product", "factors": 4},
    "flat product": {"name": "flat_product", "factors": 4},
}
TOKENS = torch.tensor([[49406, 320, 1125, 49407, 0], [49406, 49407, 0, 0, 0]])


def small(manifold: str = "lorentz") -> DualEncoder:
    torch.manual_seed(0)
    return build_model({"model": SMALL, "manifold": MANIFOLD_SETTINGS[manifold]})


def images(count: int = 2, size: int = 32) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@pytest.mark.parametrize("manifold", MANIFOLD_SETTINGS)
def test_every_parameter_learns(manifold: str) -> None:
    model = small(manifold).train()
    score = model.score(model.encode_image(images()), model.encode_text(TOKENS))
    assert score.shape == (2, 2)
    score.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("manifold", MANIFOLD_SETTINGS)
def test_empty_batches_give_empty_points_in_the_graph(manifold: str) -> None:
    model = small(manifold)
    points = torch.cat([model.encode_image(images(0)), model.encode_text(TOKENS[:0])])
    assert points.shape == (0, 16)
    points.sum().backward()
    towers = [p for name, p in model.named_parameters() if "tower" in name or "projection" in name]
    assert all(p.grad is not None and not p.grad.any() for p in towers)


def test_uint8_and_floating_pixels_are_one_image() -> None:
    model = small().double()
    pixels = images()
    torch.testing.assert_close(model.image_features(pixels), model.image_features(pixels.double() / 255))


def test_pixels_are_normalised_with_the_models_own_statistics() -> None:
    model = small().double()
    pixels = images()
    expected = model.image_projection(model.image_tower((pixels / 255 - model.pixel_mean) / model.pixel_std))
    torch.testing.assert_close(model.image_features(pixels), expected)
    assert model.pixel_mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert model.pixel_std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])


@pytest.mark.parametrize("manifold", MANIFOLD_SETTINGS)
def test_points_are_float32_under_autocast(manifold: str) -> None:
    model = small(manifold)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = model.text_features(TOKENS)
        points = model.lift_text(features)
        classes = model.ensemble(features[None])
        score = model.score(points, points)
    assert features.dtype == torch.bfloat16
    assert points.dtype == classes.dtype == score.dtype == torch.float32
    torch.testing.assert_close(points, model.lift_text(features.float()), rtol=0, atol=0)


def test_float64_models_stay_float64() -> None:
    model = small().double()
    assert model.encode_image(images()).dtype == model.encode_text(TOKENS).dtype == torch.float64


@pytest.mark.parametrize(
    ("manifold", "expected"),
    [("lorentz", [16**-0.5]), ("product", [0.5] * 4), ("euclidean", [0.25]), ("sphere", [1.0])],
)
def test_scales_start_at_one_over_the_root_of_the_width(manifold: str, expected: list[float]) -> None:
    model = small(manifold)
    for log_scale in (model.image_log_scale, model.text_log_scale):
        assert log_scale.exp().flatten().tolist() == pytest.approx(expected)


def test_constrain_clamps_scales_and_curvature_in_place() -> None:
    model = small()
    with torch.no_grad():
        for parameter, value in (
            (model.image_log_scale, 0.3),
            (model.text_log_scale, -0.2),
            (model.manifold.log_c, 9.0),
        ):
            parameter.fill_(value)
    model.constrain_()
    assert model.image_log_scale.item() == 0.0
    assert model.text_log_scale.item() == pytest.approx(-0.2)
    assert model.manifold.c.item() == pytest.approx(10.0)


def test_scales_act_on_features_before_the_lift() -> None:
    model = small("product").double()
    with torch.no_grad():
        model.image_log_scale.copy_(torch.tensor([0.0, -1.0, -2.0, -3.0]))
    features = torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor([0.0, -1.0, -2.0, -3.0], dtype=torch.float64).exp().repeat_interleave(4)
    torch.testing.assert_close(model.lift_image(features), model.manifold.lift(features * scale))


@pytest.mark.parametrize("kind", ["clip", "hyperbolic", "product"])
def test_prompt_ensembles_and_scores_match_the_reference(kind: str) -> None:
    """Released evaluation code, `golden/zero_shot.npz`."""
    golden = {key: torch.from_numpy(value) for key, value in np.load(GOLDEN / "zero_shot.npz").items()}
    model = small({"clip": "sphere", "hyperbolic": "lorentz", "product": "product"}[kind]).double()
    if kind != "clip":
        prefix = {"hyperbolic": "", "product": "factor_"}[kind]
        log_c = model.manifold.log_c if kind == "hyperbolic" else model.manifold.factor.log_c
        with torch.no_grad():
            log_c.copy_(golden[f"{prefix}log_curv"])
            model.image_log_scale.copy_(golden[f"{prefix}log_alpha_image"])
            model.text_log_scale.copy_(golden[f"{prefix}log_alpha_text"])
    classes, points = model.ensemble(golden["prompt_features"]), model.lift_image(golden["image_features"])
    torch.testing.assert_close(classes, golden[f"{kind}_classifier"], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(points, golden[f"{kind}_image"], rtol=1e-12, atol=1e-14)
    if kind == "product":  # the score is the trained one; the published read-out is the sum of inner products
        torch.testing.assert_close(model.score(points, classes), -golden["product_mean_distance"], rtol=1e-12, atol=0)
        scores = model.manifold.pairwise_inner(points, classes)
    else:
        scores = model.score(points, classes)
    torch.testing.assert_close(scores, golden[f"{kind}_scores"], rtol=1e-12, atol=1e-14)


def test_class_points_are_the_ensembles_of_prompt_features() -> None:
    model = small().double()
    tokens = TOKENS[torch.tensor([[0, 1, 0], [1, 1, 1]])]  # (2 classes, 3 prompts, L)
    features = model.text_features(TOKENS)
    expected = model.lift_text(torch.stack([(2 * features[0] + features[1]) / 3, features[1]]))
    torch.testing.assert_close(model.class_points(tokens), expected)
    torch.testing.assert_close(model.class_points(tokens, chunk=2), expected)


@pytest.mark.parametrize(
    ("pixels", "complaint"),
    [
        (torch.zeros(2, 3, 30, 32), r"divisible by 8, got \(2, 3, 30, 32\)"),
        (torch.zeros(2, 1, 32, 32), r"\(2, 1, 32, 32\)"),
        (torch.zeros(3, 32, 32), r"\(3, 32, 32\)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.int64), "uint8 .* got torch.int64"),
    ],
)
def test_pixels_of_another_kind_are_refused(pixels: Tensor, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        small().image_features(pixels)


@pytest.mark.parametrize(
    "tokens", [torch.zeros(2, 78, dtype=torch.long), torch.zeros(5, dtype=torch.long), torch.zeros(2, 5)]
)
def test_tokens_of_another_kind_are_refused(tokens: Tensor) -> None:
    with pytest.raises(ValueError, match="1 <= L <= 77"):
        small().text_features(tokens)


def test_prompts_need_a_class_axis() -> None:
    with pytest.raises(ValueError, match=r"\(classes, prompts, L\)"):
        small().class_points(TOKENS)


def test_a_recipe_builds_a_model_and_the_model_keeps_it() -> None:
    recipe = OmegaConf.create(
        {"model": {"preset": "tiny", "dim": 32}, "manifold": {"name": "lorentz", "bounds": [0.5, 2]}}
    )
    model = build_model(recipe)
    assert model.config["model"]["dim"] == 32
    assert model.config["model"]["image"]["stem"] is True
    assert model.config["manifold"] == {"name": "lorentz", "bounds": [0.5, 2]}
    again = build_model(model.config)
    assert again.config == model.config
    assert [(k, v.shape) for k, v in again.state_dict().items()] == [
        (k, v.shape) for k, v in model.state_dict().items()
    ]


def test_the_recipes_image_size_sets_the_position_table() -> None:
    model = build_model({"model": {"preset": "tiny"}, "manifold": {"name": "sphere"}, "image_size": 96})
    assert model.image_tower.pos_embed.shape == (1, 1 + 12 * 12, 128)
    assert model.config["model"]["image"]["image_size"] == 96


@pytest.mark.parametrize(
    ("manifold", "complaint"),
    [
        ({"name": "lorenz"}, "unknown manifold 'lorenz'. Did you mean 'lorentz'?"),
        ({"c": 1.0}, "manifold.name is missing"),
        ({"name": "lorentz", "bound": [0.1, 10.0]}, "unknown manifold key 'bound'. Did you mean 'bounds'?"),
        ({"name": "product"}, "manifold.factors is missing"),
        ({"name": "product", "factors": 5}, "model.dim must be divisible by manifold.factors, got 16 and 5"),
        ({"name": "lorentz", "c": "one"}, "manifold.c must be a number or a list, got 'one'"),
        (
            {"name": "lorentz", "c": [0.5, 1.0]},
            "manifold.c must be one number: 'lorentz' has no factors, got [0.5, 1.0]",
        ),
        (
            {"name": "euclidean", "aperture_radius": [0.5]},
            "manifold.aperture_radius must be one number: 'euclidean' has no factors, got [0.5]",
        ),
        ({"name": "lorentz", "c": ["one"]}, "manifold.c must be a number or a list, got ['one']"),
        ({"name": "lorentz", "learn": "maybe"}, "manifold.learn must be true or false, got 'maybe'"),
        ({"name": "lorentz", "bounds": [1.0]}, "manifold.bounds must be a list of 2 or null, got [1.0]"),
        ({"name": "lorentz", "bounds": 3}, "manifold.bounds must be a list of 2 or null, got 3"),
        ({"name": "product", "factors": 1.5}, "manifold.factors must be a whole number, got 1.5"),
        ({"name": "lorentz", "c": 20.0}, "curvature"),
        (None, "needs a section 'manifold'"),
    ],
)
def test_a_wrong_manifold_section_is_one_sentence(manifold: Any, complaint: str) -> None:
    with pytest.raises(ValueError) as error:
        build_model({"model": SMALL, "manifold": manifold})
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [images().float(), images().float() / 127.5 - 1])
def test_floating_pixels_outside_their_range_are_refused(wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=r"pixels must be uint8 in 0\.\.255 or floating in \[0, 1\]"):
        small().encode_image(wrong)
    assert small().encode_image(images().float() / 255 * (1 + 5e-4)).isfinite().all()


def test_images_without_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"H and W divisible by 8, got \(2, 3, 0, 0\)"):
        small().encode_image(torch.zeros(2, 3, 0, 0))


@pytest.mark.parametrize("token", [-1, 49408])
def test_tokens_outside_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(ValueError, match="token ids must be 0 to 49407"):
        small().encode_text(torch.tensor([[49406, token, 49407]]))


def test_anything_but_a_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"images must be a torch\.Tensor, .* got ndarray"):
        small().encode_image(images().numpy())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"tokens must be a torch\.Tensor, .* got list"):
        small().encode_text(["a cat"])  # type: ignore[arg-type]
