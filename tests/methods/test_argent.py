"""ARGENT against reference values of its pieces, and its total and gradients against mpmath.

The reference works on plain numbers at 40 digits: distances by acosh, angles by acos, gradients by central differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from torch import Tensor

from hyvlm.config import load_config
from hyvlm.geometry import Euclidean, Lorentz, Manifold, ProductLorentz
from hyvlm.methods import OBJECTIVES
from hyvlm.methods.argent import NORM_FLOOR, AdaptiveAngle, log_norm
from hyvlm.types import Views

GOLDEN = Path(__file__).parents[1] / "golden"
VIEW_OF_INPUT = {"image": "image", "text": "text", "box_image": "part_image", "box_text": "part_text"}
PAIRS = {
    "text_image": "text ⊒ image",
    "boxtext_boximage": "part_text ⊒ part_image",
    "boximage_image": "part_image ⊒ image",
    "boxtext_text": "part_text ⊒ text",
}
VIEWS = tuple(VIEW_OF_INPUT.values())
OWNER = (0, 2)  # whole of each part; whole 1 has none
ROWS = {"image": 3, "text": 3, "part_image": 2, "part_text": 2}


def read(file: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / file) as golden:
        return {key: torch.from_numpy(golden[key]) for key in golden.files}


def assert_close(actual: Tensor, expected: Any, rel: float = 1e-10, what: str = "") -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    error, largest = (actual.detach() - expected).abs().max().item(), expected.abs().max().item()
    assert error <= rel * largest, f"{what}: off by {error:.3g} of {largest:.3g}"


@pytest.mark.parametrize("geometry", ["lorentz", "euclid"])
def test_pieces_of_the_objective(geometry: str) -> None:
    given_, golden = read("losses_hycoclip.npz"), read("losses_formula_only.npz")
    manifold: Manifold = (Lorentz() if geometry == "lorentz" else Euclidean()).double()
    if isinstance(manifold, Lorentz):
        with torch.no_grad():
            manifold.log_c.copy_(given_["param_log_curv"])
    alpha = {view: given_[f"param_log_alpha_{view.split('_')[-1]}"].exp() for view in VIEW_OF_INPUT}
    points = {view: manifold.lift(given_[f"in_{name}"] * alpha[name]) for name, view in VIEW_OF_INPUT.items()}
    objective = OBJECTIVES["argent"]()
    output = objective(manifold, Views.single(**points, owner=torch.arange(6)))
    losses = {term.name: term.loss for term in objective.terms if hasattr(term, "loss")}
    for key, name in PAIRS.items():
        general, specific = (points[view] for view in name.split(" ⊒ "))
        angle = golden[f"argent_{geometry}_angle_{key}"]
        weight = golden[f"argent_{geometry}_weight_{key}"]
        huber = golden[f"argent_{geometry}_huber_{key}"]
        assert_close(manifold.exterior_angle(general, specific), angle, what=f"angle of {name}")
        assert_close(losses[name](manifold, general, specific), huber, what=f"rows of {name}")
        assert_close(output.terms[name], huber.mean(), what=name)
        linear = AdaptiveAngle(beta=1e-9, adaptive=losses[name].adaptive)  # beta z, up to beta^2 / 2
        assert_close(linear(manifold, general, specific) / 1e-9, weight * angle, rel=1e-8, what=f"weight of {name}")
    mean_sq, mean_log = (golden[f"argent_{geometry}_mean_{name}_norm"] for name in ("sq", "log"))
    assert_close(output.terms["norm"], mean_sq - mean_log, what="norm")


def dot(x: list[Any], y: list[Any]) -> Any:
    return mp.fsum(a * b for a, b in zip(x, y, strict=True))


class Curved:
    def __init__(self, log_c: Any) -> None:
        self.c = mp.exp(log_c)

    def time(self, x: list[Any]) -> Any:
        return mp.sqrt(1 / self.c + dot(x, x))

    def cosh(self, x: list[Any], y: list[Any]) -> Any:
        return self.c * (self.time(x) * self.time(y) - dot(x, y))

    def distance(self, x: list[Any], y: list[Any]) -> Any:
        return mp.acosh(self.cosh(x, y)) / mp.sqrt(self.c)

    def angle(self, x: list[Any], y: list[Any]) -> Any:
        cosh = self.cosh(x, y)
        return mp.acos((self.time(y) - self.time(x) * cosh) / (mp.sqrt(dot(x, x)) * mp.sqrt(cosh**2 - 1)))


class Flat:
    def __init__(self, _: Any) -> None: ...

    def distance(self, x: list[Any], y: list[Any]) -> Any:
        return mp.sqrt(dot(x, x) - 2 * dot(x, y) + dot(y, y))

    def angle(self, x: list[Any], y: list[Any]) -> Any:
        return mp.acos((dot(x, y) - dot(x, x)) / (mp.sqrt(dot(x, x)) * self.distance(x, y)))


def partner(view: str, other: str, row: int) -> int:
    return OWNER[row] if "part" in view and "part" not in other else row


def reference(space: Any, points: dict[str, list[list[Any]]], log_scale: Any, beta: Any) -> Any:
    """The total as appendix A of "How Hyperbolic Are Hyperbolic Vision-Language Models?" writes it."""
    total = mp.mpf(0)
    for a, b in (("image", "text"), ("text", "image"), ("part_image", "text"), ("part_text", "image")):
        rows = []
        for i, x in enumerate(points[a]):
            logits = [-mp.exp(log_scale) * space.distance(x, y) for y in points[b]]
            rows.append(mp.log(mp.fsum(map(mp.exp, logits))) - logits[partner(a, b, i)])
        total += mp.fsum(rows) / len(rows) / 4
    for a, b in (("text", "image"), ("part_text", "part_image"), ("part_image", "image"), ("part_text", "text")):
        within = a.split("_")[-1] == b.split("_")[-1]
        rows = []
        for i, x in enumerate(points[a]):
            y = points[b][partner(a, b, i)]
            z = (1 - mp.exp(-space.distance(x, y)) if within else 1) * space.angle(x, y)
            rows.append(z**2 / 2 if abs(z) <= beta else beta * (abs(z) - beta / 2))
        total += mp.mpf("0.1") * mp.fsum(rows) / len(rows)
    squares = [dot(x, x) for view in VIEWS for x in points[view]]
    return total + mp.mpf("0.1") * mp.fsum(q - mp.log(q) / 2 for q in squares) / len(squares)


def central_differences(f: Callable[[list[Any]], Any], at: list[Any]) -> list[float]:
    step = mp.mpf(10) ** -15
    moved = [[[*at[:k], value + sign * step, *at[k + 1 :]] for sign in (1, -1)] for k, value in enumerate(at)]
    return [float((f(up) - f(down)) / (2 * step)) for up, down in moved]


@pytest.mark.parametrize(("space", "c"), [(Curved, 0.6), (Flat, None)], ids=["lorentz", "euclidean"])
def test_total_and_gradients(space: Callable[[Any], Any], c: float | None) -> None:
    generator = torch.Generator().manual_seed(4)
    points = {
        view: torch.randn(n, 2, generator=generator, dtype=torch.float64).requires_grad_() for view, n in ROWS.items()
    }
    manifold: Manifold = (Euclidean() if c is None else Lorentz(c=c)).double()
    objective = OBJECTIVES["argent"](temperature=0.3).double()
    output = objective(manifold, Views.single(**points, owner=torch.tensor(OWNER)))
    output.total.backward()

    scalars = [objective.log_scale["global"], *([manifold.log_c] if isinstance(manifold, Lorentz) else [])]
    with mpmath.workdps(40):
        at = [mp.mpf(v) for x in (*points.values(), *scalars) for v in x.detach().flatten().tolist()]

        def total(values: list[Any]) -> Any:
            coordinates = iter(values)
            rows = {view: [[next(coordinates), next(coordinates)] for _ in range(n)] for view, n in ROWS.items()}
            log_scale = next(coordinates)
            return reference(space(next(coordinates, None)), rows, log_scale, mp.mpf(math.pi / 4))

        expected, gradient = float(total(at)), central_differences(total, at)
    assert output.total.item() == pytest.approx(expected, rel=1e-12)
    mine = torch.cat([x.grad.flatten() for x in (*points.values(), *scalars)])
    assert_close(mine, gradient, rel=1e-10, what="gradient")


def test_without_a_gradient_through_the_weight_it_counts_as_a_number() -> None:
    manifold = Lorentz(c=0.5).double()
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    h = 1 - torch.exp(-manifold.distance(x, y).detach())
    z = h * manifold.exterior_angle(x, y)
    expected = torch.where(z <= 0.5, z**2 / 2, 0.5 * (z - 0.25))
    rows = AdaptiveAngle(beta=0.5, adaptive=True, through_weight=False)(manifold, x, y)
    torch.testing.assert_close(rows, expected, rtol=1e-12, atol=0)
    grads = [torch.autograd.grad(value.sum(), x, retain_graph=True)[0] for value in (rows, expected)]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-14)
    through = torch.autograd.grad(AdaptiveAngle(beta=0.5, adaptive=True)(manifold, x, y).sum(), x)[0]
    assert (through - grads[0]).abs().max() > 1e-2


def test_in_a_product_the_mean_over_factors() -> None:
    manifold = ProductLorentz(factors=2, c=[0.5, 2.0]).double()
    x, y = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    h = 1 - torch.exp(-manifold.distance(x, y))
    factors = [Lorentz(c=c).double() for c in (0.5, 2.0)]
    z = [h * f.exterior_angle(x[:, 3 * i : 3 * i + 3], y[:, 3 * i : 3 * i + 3]) for i, f in enumerate(factors)]
    expected = sum(torch.where(v <= 1, v**2 / 2, v - 0.5) for v in z) / 2
    torch.testing.assert_close(AdaptiveAngle(beta=1.0, adaptive=True)(manifold, x, y), expected, rtol=1e-12, atol=0)


@given(st.floats(1e-8, 1e4))
def test_the_logarithm_of_a_norm_is_exact(norm: float) -> None:
    squared = torch.tensor(norm, dtype=torch.float64).square().requires_grad_()
    log_norm(squared).backward()
    assert log_norm(squared).item() == pytest.approx(math.log(norm), rel=1e-13, abs=1e-15)
    assert squared.grad.item() == pytest.approx(0.5 / norm**2, rel=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_logarithm_of_a_norm_goes_on_to_the_origin(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 0.0], [1e-30, 0.0], [3e-10, 4e-10], [3e-9, 4e-9]], dtype=dtype, requires_grad=True)
    values = log_norm(x.square().sum(-1))
    values.sum().backward()
    assert values.isfinite().all()
    assert x.grad.isfinite().all()
    assert (values.diff() >= 0).all(), "it falls toward the origin"
    assert not x.grad[0].any()
    slope = x.grad.norm(dim=-1)
    assert (slope <= 1 / NORM_FLOOR * (1 + 1e-6)).all()
    assert slope[2].item() == pytest.approx(5e-10 / NORM_FLOOR**2, rel=1e-5)
    edge = torch.tensor([1 - 1e-9, 1 + 1e-9], dtype=torch.float64) * NORM_FLOOR**2
    edge.requires_grad_()
    at_edge = log_norm(edge)
    (gradient,) = torch.autograd.grad(at_edge.sum(), edge)
    torch.testing.assert_close(at_edge[0], at_edge[1], rtol=1e-9, atol=0)
    torch.testing.assert_close(gradient[0], gradient[1], rtol=1e-8, atol=0)


def test_the_norm_term_is_least_at_the_root_of_a_half() -> None:
    def norm(radius: float) -> float:
        x = torch.tensor([[radius, 0.0]], dtype=torch.float64)
        views = Views.single(
            image=x, text=x, part_image=x[:0], part_text=x[:0], owner=torch.tensor([], dtype=torch.long)
        )
        return float(OBJECTIVES["argent"]()(Euclidean(), views).terms["norm"])

    least = norm(math.sqrt(0.5))
    assert least == pytest.approx(0.5 + 0.5 * math.log(2), rel=1e-12)
    assert least < min(norm(0.70), norm(0.72))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"beta": 0.0}, "beta"), ({"beta": math.inf}, "beta"), ({"norm_weight": -0.1}, "weight of 'norm'")],
)
def test_values_out_of_range(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        OBJECTIVES["argent"](**options)


@pytest.mark.parametrize("recipe", ["argent-tiny", "argent-vit-s-16", "argent-vit-b-16"])
def test_the_curvature_stays_between_a_tenth_and_one(recipe: str) -> None:
    config = load_config(recipe, ["data.train=x"])
    assert (config.manifold["c"], config.manifold["bounds"]) == (1.0, [0.1, 1.0])
    assert not config.train.decay_gains_and_biases
    assert not config.train.decay_scalars
    assert (config.data.parts.max, config.data.parts.choice) == (1, "random")
