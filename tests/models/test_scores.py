"""What ranks pairs: distance and angle, as trained and as published, with the exponential map and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hyvlm.models import DualEncoder, build_model, fingerprint, load, save_model

SMALL: dict[str, Any] = {
    "image": {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2},
    "text": {"width": 16, "depth": 1, "heads": 2},
    "dim": 8,
}
#: Two texts and two images in the plane at c = 1, by radius and direction in degrees.
PLANE = {"images": [(1.6, 10.0), (1.1, 60.0), (0.9, -40.0)], "texts": [(0.5, 25.0), (1.3, 55.0), (0.2, -80.0)]}


def small(manifold: dict[str, Any] | None = None, **settings: Any) -> DualEncoder:
    torch.manual_seed(0)
    return build_model({"model": {**SMALL, **settings}, "manifold": manifold or {"name": "lorentz", "c": 0.7}}).double()


def plane(model: DualEncoder, which: str) -> Tensor:
    """Points of a model of two dimensions."""
    at = torch.tensor(PLANE[which], dtype=torch.float64)
    angle = at[:, 1].deg2rad()
    return model.manifold.expmap0(at[:, :1] * torch.stack([angle.cos(), angle.sin()], 1))


def test_trained_and_published_angles_rank_differently() -> None:
    trained = small(dim=2, score="exterior_angle")
    published = small(dim=2, score="exterior_angle", readout="published")
    images, texts = plane(trained, "images"), plane(trained, "texts")
    at_images = trained.manifold.exterior_angle(images[:, None], texts[None])
    at_texts = trained.manifold.exterior_angle(texts[None], images[:, None])
    torch.testing.assert_close(trained.score(images, texts, by="image"), at_images)
    torch.testing.assert_close(trained.score(images, texts, by="text"), -at_texts)
    torch.testing.assert_close(published.score(images, texts, by="image"), -at_texts)
    torch.testing.assert_close(published.score(images, texts, by="text"), at_images)
    for by, dim in (("image", 1), ("text", 0)):
        orders = [m.score(images, texts, by=by).argsort(dim, descending=True) for m in (trained, published)]
        assert not torch.equal(*orders), by


def test_a_distance_has_no_direction() -> None:
    for manifold in ({"name": "lorentz"}, {"name": "euclidean"}, {"name": "product", "factors": 2}, {"name": "sphere"}):
        model = small(manifold)
        x, y = model.manifold.lift(torch.randn(2, 5, 8, dtype=torch.float64)).unbind()
        assert torch.equal(model.score(x, y, by="text"), model.score(x, y, by="image"))


def test_published_readout_of_a_product_is_the_sum_of_inner_products() -> None:
    manifold = {"name": "product", "factors": 4, "c": [0.2, 1.0, 3.0, 6.0]}
    trained, published = small(manifold), small(manifold, readout="published")
    x, y = trained.manifold.lift(2 * torch.randn(2, 30, 8, dtype=torch.float64)).unbind()
    torch.testing.assert_close(trained.score(x, y), -trained.manifold.pairwise_distance(x, y))
    torch.testing.assert_close(published.score(x, y), published.manifold.pairwise_inner(x, y))
    assert not torch.equal(trained.score(x, y).argsort(1), published.score(x, y).argsort(1))


@pytest.mark.parametrize("readout", ["trained", "published"])
def test_classes_by_angle_are_scored_prompt_by_prompt(readout: str) -> None:
    model = small(score="exterior_angle", readout=readout)
    features = torch.randn(3, 4, 8, dtype=torch.float64)
    images = model.lift_image(torch.randn(5, 8, dtype=torch.float64))
    classes = model.ensemble(features)
    assert classes.shape == (3, 4, 8)
    expected = [
        torch.stack([model.manifold.exterior_angle(images, model.lift_text(prompt)) for prompt in prompts]).mean(0)
        for prompts in features
    ]
    torch.testing.assert_close(model.class_score(images, classes), torch.stack(expected, 1))


def test_classes_by_distance_are_one_point() -> None:
    model = small()
    images, classes = model.manifold.lift(torch.randn(2, 5, 8, dtype=torch.float64)).unbind()
    assert torch.equal(model.class_score(images, classes), model.score(images, classes))


def test_an_angle_needs_an_origin() -> None:
    with pytest.raises(ValueError, match=r"model\.score=exterior_angle: 'sphere' has no exterior angle"):
        small({"name": "sphere"}, score="exterior_angle")
    with pytest.raises(ValueError, match=r"model\.score must be 'distance' or 'exterior_angle', got 'angle'"):
        small(score="angle")


@pytest.mark.parametrize(
    "manifold",
    [
        {"name": "lorentz", "c": 0.7},
        {"name": "product", "factors": 4, "c": [0.2, 1.0, 3.0, 6.0], "metric": "l2"},
        {"name": "euclidean", "aperture_radius": 0.3},
        {"name": "flat_product", "factors": 2},
    ],
)
def test_without_the_map_points_are_the_tangent_vectors_of_the_same_weights(manifold: dict[str, Any]) -> None:
    model = small(manifold)
    flat = model.flat()
    features = torch.randn(5, 8, dtype=torch.float64)
    tangent = model.manifold.logmap0(model.lift_image(features))
    torch.testing.assert_close(flat.lift_image(features), tangent)
    assert flat.image_projection is model.image_projection
    assert flat.manifold is not model.manifold or "euclid" in manifold["name"] or "flat" in manifold["name"]
    torch.testing.assert_close(flat.score(tangent, tangent), -flat.manifold.pairwise_distance(tangent, tangent))
    rebuilt = build_model(flat.config).double()
    rebuilt.load_state_dict(flat.state_dict())
    torch.testing.assert_close(rebuilt.manifold.half_aperture(tangent), flat.manifold.half_aperture(tangent))
    assert (fingerprint(flat) == fingerprint(model)) == (flat.config == model.config)
    with torch.no_grad():
        model.image_log_scale.sub_(1.0)
    torch.testing.assert_close(flat.lift_image(features), tangent / torch.e)  # shared, not copied


def test_clip_has_no_map_to_drop() -> None:
    with pytest.raises(ValueError, match="the manifold Sphere has no exponential map"):
        small({"name": "sphere"}).flat()


def test_a_saved_model_can_be_read_out_as_published(tmp_path: Path) -> None:
    saved = save_model(small({"name": "product", "factors": 2}), tmp_path / "model")
    assert load(saved)[0].as_trained
    assert not load(saved, readout="published")[0].as_trained
    with pytest.raises(ValueError, match=r"unknown readout 'publish'\. Did you mean 'published'"):
        load(saved, readout="publish")
