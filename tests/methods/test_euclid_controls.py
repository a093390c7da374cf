"""Euclidean controls: reference values of three objectives on flat space, and recipes that differ from their twin in
the geometry alone."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hyvlm.config import load_config, recipe_names
from hyvlm.geometry import Euclidean, Lorentz, Manifold, ProductEuclidean, ProductLorentz
from hyvlm.methods import OBJECTIVES
from hyvlm.models.dual_encoder import DualEncoder, build_manifold
from hyvlm.models.presets import resolve_model
from hyvlm.types import Views

GOLDEN = Path(__file__).parents[1] / "golden"
INPUTS = {"image": "image", "text": "text", "box_image": "part_image", "box_text": "part_text"}
CONTROLS = [name for name in recipe_names() if "-euclid-" in name]
METHODS_WITH_CONES = ("meru", "hycoclip", "uncha", "hyper3", "hyfl", "argent", "phyclip", "atmg")


def read(file: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / file) as golden:
        return {key: torch.from_numpy(golden[key]) for key in golden.files}


def assert_near(actual: Tensor, expected: Tensor, what: str) -> None:
    error, largest = (actual.detach() - expected).abs().max().item(), expected.abs().max().item()
    assert error <= 1e-10 * largest, f"{what}: off by {error:.3g} of {largest:.3g}"


@pytest.mark.parametrize(
    ("method", "file", "manifold"),
    [
        ("meru", "losses_hycoclip.npz", Euclidean()),
        ("hycoclip", "losses_hycoclip.npz", Euclidean()),
        ("phyclip", "losses_phyclip.npz", ProductEuclidean(factors=4)),
    ],
)
def test_total_parts_and_gradients(method: str, file: str, manifold: Manifold) -> None:
    """The identity in the place of the exponential map; scales and weights as in the hyperbolic twin."""
    given, golden = read(file), read("losses_formula_only.npz")
    inputs = dict(list(INPUTS.items())[:2]) if method == "meru" else INPUTS
    features = {name: given[f"in_{name}"].clone().requires_grad_() for name in inputs}
    log_alpha = {name: given[f"param_log_alpha_{name}"].clone().requires_grad_() for name in ("image", "text")}
    points = {}
    for name, view in inputs.items():
        alpha = log_alpha[name.removeprefix("box_")].exp()
        per_feature = alpha.repeat_interleave(features[name].shape[1] // max(alpha.numel(), 1)) if alpha.ndim else alpha
        points[view] = manifold.lift(features[name] * per_feature)
    objective = OBJECTIVES[method]().double()
    with torch.no_grad():
        objective.log_scale["global"].copy_(given["param_log_scale"])
    owner = torch.arange(6) if "part_image" in points else None
    output = objective(manifold, Views.single(**points, owner=owner))
    output.total.backward()

    weighted = {term.name: term.weight * output.terms[term.name] for term in objective.terms}
    contrastive = torch.stack([v for name, v in weighted.items() if "->" in name]).sum()
    entailment = torch.stack([v for name, v in weighted.items() if "⊒" in name]).sum() / golden["entail_weight"]
    for name, value in {"contrastive": contrastive, "entail": entailment, "total": output.total}.items():
        assert_near(value, golden[f"{method}_{name}"], name)
    gradients = {name: x.grad for name, x in features.items()}
    gradients |= {f"log_alpha_{name}": x.grad for name, x in log_alpha.items()}
    gradients["log_scale"] = objective.log_scale["global"].grad
    assert {key for key in golden if key.startswith(f"{method}_grad_")} == {f"{method}_grad_{g}" for g in gradients}
    for name, gradient in gradients.items():
        assert_near(gradient, golden[f"{method}_grad_{name}"], f"gradient of {name}")


def test_every_cone_or_angle_method_has_a_control_to_try() -> None:
    assert {f"{method}-euclid-tiny" for method in METHODS_WITH_CONES} <= set(CONTROLS)
    assert set(METHODS_WITH_CONES) == set(OBJECTIVES) - {"clip"}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_drops_the_curvature_and_nothing_else(name: str) -> None:
    control, twin = (load_config(recipe, ["data.train=x"]) for recipe in (name, name.replace("-euclid", "")))
    flat, curved = build_manifold(control.manifold), build_manifold(twin.manifold)
    assert asdict(control) | {"manifold": None} == asdict(twin) | {"manifold": None}
    assert isinstance(flat, ProductEuclidean if isinstance(curved, ProductLorentz) else Euclidean)
    assert not list(flat.parameters())
    if isinstance(flat, ProductEuclidean):
        assert isinstance(curved, ProductLorentz)
        assert (flat.factors, flat.metric) == (curved.factors, curved.metric)


@pytest.mark.parametrize("name", CONTROLS)
def test_cones_are_those_of_the_curvature_at_convergence(name: str) -> None:
    """R = 2K/sqrt(c): c ends at its lower bound of 0.1, in HyFL-CLIP near 1."""
    flat = build_manifold(load_config(name, ["data.train=x"]).manifold)
    curved = build_manifold(load_config(name.replace("-euclid", ""), ["data.train=x"]).manifold)
    one_flat, one_curved = (m.factor if hasattr(m, "factor") else m for m in (flat, curved))
    assert isinstance(one_flat, Euclidean)
    assert isinstance(one_curved, Lorentz)
    converged = 1.0 if name.startswith("hyfl") else 0.1
    assert one_flat.aperture_radius == pytest.approx(2 * one_curved.aperture_constant / math.sqrt(converged))


@pytest.mark.parametrize("name", ["meru", "phyclip"])
def test_a_control_keeps_its_projection_scales(name: str) -> None:
    """One a modality, for a product one a factor, from the same start: ``1 / sqrt(D)`` of a factor."""
    sizes = {
        "image": {"width": 8, "depth": 1, "heads": 1, "image_size": 16},
        "text": {"width": 8, "depth": 1, "heads": 1},
    }
    scales = []
    for recipe in (f"{name}-tiny", f"{name}-euclid-tiny"):
        config = load_config(recipe)
        model = DualEncoder(resolve_model({**sizes, "dim": 128}), config.manifold)
        scales.append((model.image_log_scale, model.text_log_scale))
        assert all(scale.requires_grad for scale in scales[-1])
    for curved, flat in zip(*scales, strict=True):
        assert torch.equal(curved, flat)
        assert flat.shape == ((16,) if name == "phyclip" else ())
        assert flat.exp().flatten()[0].item() == pytest.approx((8 if name == "phyclip" else 128) ** -0.5)
