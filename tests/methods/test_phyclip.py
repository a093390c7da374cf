"""PHyCLIP's objective against reference values: four factors of four dimensions, exact geometry and released code.

Tolerances are those that came with the values (``tests/golden/README.md``). The released geometry adds 1e-6 in several
places, so it is met less closely than that of the other methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from hyvlm.config import load_config
from hyvlm.geometry import ProductLorentz
from hyvlm.methods import OBJECTIVES, Objective
from hyvlm.types import LossOutput, Views

GOLDEN_FILE = Path(__file__).parents[1] / "golden" / "losses_phyclip.npz"
with np.load(GOLDEN_FILE) as _file:
    GOLDEN = {key: torch.from_numpy(_file[key]) for key in _file.files}
FACTORS, DIM = int(GOLDEN["num_factors"]), int(GOLDEN["factor_dim"])
VIEW_OF_INPUT = {"image": "image", "text": "text", "box_image": "part_image", "box_text": "part_text"}
TERMS = {
    "part_ce_image_to_text": "image -> text",
    "part_ce_text_to_image": "text -> image",
    "part_ce_boximage_to_text": "part_image -> text",
    "part_ce_boxtext_to_image": "part_text -> image",
    "part_hinge_text_image": "text ⊒ image",
    "part_hinge_boxtext_boximage": "part_text ⊒ part_image",
    "part_hinge_boximage_image": "part_image ⊒ image",
    "part_hinge_boxtext_text": "part_text ⊒ text",
}
ENTAILMENT_LOGS = {
    "logged_text_image_entailment_loss": "text ⊒ image",
    "logged_box_text_image_entailment_loss": "part_text ⊒ part_image",
    "logged_cross_image_entailment_loss": "part_image ⊒ image",
    "logged_cross_text_entailment_loss": "part_text ⊒ text",
}


@dataclass
class Case:
    features: dict[str, Tensor]
    log_alpha: dict[str, Tensor]
    manifold: ProductLorentz
    objective: Objective

    def points(self) -> dict[str, Tensor]:
        """Features scaled factor by factor, then lifted."""
        scaled = {
            name: feature * self.log_alpha[name.removeprefix("box_")].exp().repeat_interleave(DIM)
            for name, feature in self.features.items()
        }
        return {VIEW_OF_INPUT[name]: self.manifold.lift(vector) for name, vector in scaled.items()}

    def run(self) -> tuple[LossOutput, dict[str, Tensor]]:
        """The loss, and its gradients under the names of the file."""
        points = self.points()
        owner = torch.arange(len(points["image"])) if "part_image" in points else None
        output = self.objective(self.manifold, Views.single(**points, owner=owner))
        output.total.backward()
        grads = {name: feature.grad for name, feature in self.features.items()}
        grads |= {f"log_alpha_{name}": alpha.grad for name, alpha in self.log_alpha.items()}
        grads |= {"log_scale": self.objective.log_scale["global"].grad, "log_curv": self.manifold.factor.log_c.grad}
        return output, grads


def load(
    prefix: str = "",
    *,
    metric: Literal["l1", "l2"] = "l1",
    dtype: torch.dtype = torch.float64,
    names: tuple[str, ...] = tuple(VIEW_OF_INPUT),
    **options: object,
) -> Case:
    scalar = {name: GOLDEN[f"{prefix}param_{name}"] for name in ("log_scale", "log_curv")}
    scalar |= {name: GOLDEN[f"{prefix}param_log_alpha_{name}"] for name in ("image", "text")}
    manifold = ProductLorentz(factors=FACTORS, metric=metric).to(dtype)
    objective = OBJECTIVES["phyclip"](**options).to(dtype)
    with torch.no_grad():
        manifold.factor.log_c.copy_(scalar["log_curv"])
        objective.log_scale["global"].copy_(scalar["log_scale"])
    manifold.constrain_()
    objective.constrain_()
    factor = GOLDEN.get(f"{prefix}input_factor_per_factor", torch.ones(FACTORS)).repeat_interleave(DIM)
    return Case(
        {name: (GOLDEN[f"in_{name}"] * factor).to(dtype).requires_grad_() for name in names},
        {name: scalar[name].to(dtype).clamp(max=0).requires_grad_() for name in ("image", "text")},
        manifold,
        objective,
    )


def assert_near(actual: Tensor, expected: Tensor, relative: float, absolute: float = 0.0, what: str = "") -> None:
    """Within ``relative`` of the largest expected entry plus ``absolute``."""
    error = (actual.double() - expected).abs().max().item()
    allowed = relative * expected.abs().max().item() + absolute
    assert error <= allowed, f"{what}: off by {error:.3g}, allowed {allowed:.3g}"


def assert_grads(grads: dict[str, Tensor], prefix: str, relative: float) -> None:
    expected = {key: value for key, value in GOLDEN.items() if key.startswith(f"{prefix}grad_")}
    assert expected
    for key, value in expected.items():
        assert_near(grads[key.removeprefix(f"{prefix}grad_")], value, relative, what=key)


def test_points_of_the_product() -> None:
    for view, points in load().points().items():
        name = {view: name for name, view in VIEW_OF_INPUT.items()}[view]
        assert_near(points, GOLDEN[f"lifted_{name}"], 1e-12, what=view)


def test_total_terms_and_gradients_with_exact_geometry() -> None:
    output, grads = load().run()
    assert_near(output.total, GOLDEN["exact_total"], 1e-10)
    assert_grads(grads, "exact_", 1e-10)
    for key, term in TERMS.items():
        assert_near(output.terms[term], GOLDEN[key].mean(), 1e-10, what=term)


@pytest.mark.parametrize(
    ("prefix", "options", "total", "log"),
    [
        ("", {}, 2e-6, 3e-6),
        ("l2_", {"metric": "l2"}, 2e-6, 3e-6),
        ("nobox_", {"parts": False, "names": ("image", "text")}, 2e-6, 3e-6),
        ("clamp_", {}, 5e-5, 1e-4),
    ],
)
def test_released_values(prefix: str, options: dict[str, object], total: float, log: float) -> None:
    """The clamp case alternates scalars above and below their limits from factor to factor.

    ``log`` is wider than ``total``: in the file itself a mean hinge with exact geometry is 2.3e-6 off the released log.
    """
    case = load(prefix if prefix == "clamp_" else "", **options)
    output, grads = case.run()
    assert_near(output.total, GOLDEN[f"{prefix}total"], 0, total)
    assert_grads(grads, prefix, 2e-4)
    terms, nobox = output.terms, prefix == "nobox_"
    logs = {key: terms[term] for key, term in ENTAILMENT_LOGS.items() if term in terms}
    contrast = torch.stack([value for term, value in terms.items() if "->" in term]).mean()
    logs["logged_contrastive_loss"] = contrast
    logs["logged_entailment_loss"] = sum(logs[key] for key in ENTAILMENT_LOGS if key in logs) * (1.0 if nobox else 0.5)
    logs["logged_logit_scale"] = 1 / output.stats["temperature/global"]
    logs["logged_curv"] = case.manifold.c.detach()
    for key in (k for k in GOLDEN if k.startswith(f"{prefix}logged_")):
        name = key.removeprefix(prefix)
        expected = GOLDEN[key]
        assert_near(logs.get(name, torch.zeros(())), expected, 1e-9, log, what=name)  # without boxes theirs are 0
    if f"{prefix}exact_total" in GOLDEN:
        assert_near(output.total, GOLDEN[f"{prefix}exact_total"], 1e-10)


def test_scalars_are_brought_to_their_limits_factor_by_factor() -> None:
    case = load("clamp_")
    assert_near(case.manifold.factor.log_c.detach(), GOLDEN["clamp_used_log_curv"], 1e-12)
    assert_near(case.objective.log_scale["global"].detach(), GOLDEN["clamp_used_log_scale"], 1e-12)
    for name, alpha in case.log_alpha.items():
        assert_near(alpha.detach(), GOLDEN[f"clamp_used_log_alpha_{name}"], 1e-12)


def test_float32() -> None:
    output, grads = load(dtype=torch.float32).run()
    assert output.total.dtype == torch.float32
    assert_near(output.total, GOLDEN["total"], 2e-4)
    assert_grads(grads, "", 2e-4)


def test_the_trained_and_the_published_score() -> None:
    case = load()
    points = case.points()
    inner = case.manifold.pairwise_inner(points["image"], points["text"])
    distance = case.manifold.pairwise_distance(points["image"], points["text"])
    assert_near(inner, GOLDEN["eval_score_sum_inner"], 1e-12)
    assert_near(distance, GOLDEN["eval_mean_distance"], 0, 2e-6)
    assert not torch.equal(inner.argsort(1), (-distance).argsort(1)), "the two rank alike here"


def test_stats_of_curvatures_give_mean_least_and_largest() -> None:
    output, _ = load().run()
    c = GOLDEN["param_log_curv"].exp()
    for key, value in {"c/mean": c.mean(), "c/min": c.min(), "c/max": c.max()}.items():
        assert output.stats[key].item() == pytest.approx(value.item(), rel=1e-12)


def test_without_parts_nothing_is_halved() -> None:
    """A data set without parts: two directions at a half, one relation at twice the weight of one of four."""
    objective = OBJECTIVES["phyclip"](parts=False, entail_weight=0.3, eta_inter=0.8)
    assert {term.name: term.weight for term in objective.terms} == {
        "image -> text": 0.5,
        "text -> image": 0.5,
        "text ⊒ image": 0.6,
    }
    assert objective.terms[-1].loss.eta == 0.8


@pytest.mark.parametrize("recipe", ["phyclip-vit-s-16", "phyclip-vit-b-16"])
def test_published_settings(recipe: str) -> None:
    """64 factors of 8 dimensions, whose curvatures and scales decay."""
    config = load_config(recipe, ["data.train=x"])
    assert (config.manifold["factors"], config.model["dim"] / config.manifold["factors"]) == (64, 8)
    assert config.train.decay_scalars
    assert (config.train.steps, config.train.batch_size) == (500_000, 768)
    assert config.model.get("readout", "trained") == "trained"
