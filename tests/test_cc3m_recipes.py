"""Appendix A of "How Hyperbolic Are Hyperbolic Vision-Language Models?": its runs on CC3M, key by key."""

import math

import pytest

from hyvlm.config import build, load_config, recipe_names, to_dict
from hyvlm.methods import OBJECTIVES
from hyvlm.models.dual_encoder import build_manifold

METHODS = ["argent", "hycoclip", "meru", "phyclip"]
TOWERS = ["vit-s-16", "vit-b-16"]


def settings(name: str) -> dict:
    return to_dict(load_config(name, ["data.train=x"]))


def test_each_method_has_two_sizes_and_a_control():
    names = [f"{m}-cc3m-{kind}{tower}" for m in METHODS for kind in ("", "euclid-") for tower in TOWERS]
    assert sorted(names) == [name for name in recipe_names() if "cc3m" in name]


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("method", METHODS)
def test_the_settings_that_all_runs_share(method, tower):
    run = settings(f"{method}-cc3m-{tower}")
    train = {"steps": 100_000, "batch_size": 512, "lr": 5e-4, "weight_decay": 0.2, "warmup_steps": 4000}
    train |= {"betas": (0.9, 0.98), "decay_gains_and_biases": False, "decay_scalars": method == "phyclip"}
    assert {key: run["train"][key] for key in train} == train
    data = {"augment": {"name": "crop", "scale": [0.5, 1.0]}, "image_size": 224, "part_size": 224}
    assert {key: run["data"][key] for key in data} == data
    assert run["model"] == {"preset": tower, "dim": 512}
    objective = build(OBJECTIVES, run["objective"], "objective")
    (scale,) = objective.scales.values()
    assert scale.init_temperature == 0.07
    assert math.exp(-scale.max_log_scale) == pytest.approx(0.01, rel=1e-4)
    if method != "meru":
        assert run["data"]["parts"] == {"max": 1, "choice": "random"}
        assert "part_image" in objective.views


@pytest.mark.parametrize("method", METHODS)
def test_curvatures_start_at_one_and_have_their_bounds(method):
    manifold = settings(f"{method}-cc3m-vit-s-16")["manifold"]
    assert (manifold["c"], manifold["learn"]) == (1.0, True)
    assert manifold["bounds"] == ([0.1, 1.0] if method == "argent" else [0.1, 10.0])
    assert manifold.get("factors") == (64 if method == "phyclip" else None)


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_control_is_its_twin_without_the_curvature(method, tower):
    twin, control = settings(f"{method}-cc3m-{tower}"), settings(f"{method}-cc3m-euclid-{tower}")
    ours, flat = build_manifold(control.pop("manifold")), build_manifold({**twin.pop("manifold"), "c": 0.1}).flat()
    assert control == twin
    assert type(ours) is type(flat)
    assert not list(ours.parameters())
    radius = flat.factor.aperture_radius if method == "phyclip" else flat.aperture_radius
    expected = [ours.factor.aperture_radius] * 64 if method == "phyclip" else ours.aperture_radius
    assert radius == pytest.approx(expected, rel=1e-6)  # 2K/sqrt(c) at the lower bound, where c settles
