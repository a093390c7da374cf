"""ATMG's total and gradients against mpmath, what its angles order, and the published settings.

The reference takes the exterior angle from the triangle of origin, anchor and candidate, by the law of cosines.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mp

from hyvlm.config import load_config
from hyvlm.geometry import MANIFOLDS, Euclidean, Lorentz, Manifold
from hyvlm.methods import OBJECTIVES
from hyvlm.models.dual_encoder import build_manifold
from hyvlm.types import Views

Point = list[Any]


def dot(x: Point, y: Point) -> Any:
    return mp.fsum(a * b for a, b in zip(x, y, strict=True))


def curved_angle(c: Any, x: Point, y: Point) -> Any:
    """pi minus the inner angle at ``x``: sides measured in radii of curvature."""

    def cosh(p: Point, q: Point) -> Any:
        return c * (mp.sqrt(1 / c + dot(p, p)) * mp.sqrt(1 / c + dot(q, q)) - dot(p, q))

    origin = [mp.mpf(0)] * len(x)
    to_origin, to_y, opposite = cosh(x, origin), cosh(x, y), cosh(y, origin)
    inner = (to_origin * to_y - opposite) / (mp.sqrt(to_origin**2 - 1) * mp.sqrt(to_y**2 - 1))
    return mp.pi - mp.acos(inner)


def flat_angle(_: Any, x: Point, y: Point) -> Any:
    to_origin, opposite = mp.sqrt(dot(x, x)), dot(y, y)
    to_y = mp.sqrt(dot(x, x) - 2 * dot(x, y) + dot(y, y))
    return mp.pi - mp.acos((to_origin**2 + to_y**2 - opposite) / (2 * to_origin * to_y))


def reference(angle: Any, c: Any, image: list[Point], text: list[Point], log_scale: Any) -> Any:
    """Half the cross entropy of each direction: texts by minus the angle at the text, images by that at the image."""
    total = mp.mpf(0)
    for sign, anchors, candidates in ((1, image, text), (-1, text, image)):
        for i, x in enumerate(anchors):
            logits = [mp.exp(log_scale) * sign * angle(c, x, y) for y in candidates]
            total += mp.log(mp.fsum(map(mp.exp, logits))) - logits[i]
    return total / (2 * len(image))


@pytest.mark.parametrize("angle", [curved_angle, flat_angle], ids=["lorentz", "euclidean"])
def test_total_and_gradients(angle: Any) -> None:
    generator = torch.Generator().manual_seed(6)
    image, text = (torch.randn(4, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    manifold: Manifold = Euclidean() if angle is flat_angle else Lorentz(c=0.1, learn=False).double()
    objective = OBJECTIVES["atmg"](temperature=0.4).double()
    output = objective(manifold, Views.single(image, text))
    output.total.backward()
    leaves = (image, text, objective.log_scale["global"])

    with mpmath.workdps(40):
        c = mp.exp(mp.mpf(manifold.log_c.item())) if isinstance(manifold, Lorentz) else None
        at = [mp.mpf(v) for leaf in leaves for v in leaf.detach().flatten().tolist()]

        def total(v: list[Any]) -> Any:
            rows = [v[3 * i : 3 * i + 3] for i in range(8)]
            return reference(angle, c, rows[:4], rows[4:], v[24])

        step = mp.mpf(10) ** -15
        expected = float(total(at))
        gradient = [
            float((total([*at[:k], v + step, *at[k + 1 :]]) - total([*at[:k], v - step, *at[k + 1 :]])) / (2 * step))
            for k, v in enumerate(at)
        ]
    assert output.total.item() == pytest.approx(expected, rel=1e-12)
    mine = torch.cat([leaf.grad.flatten() for leaf in leaves])
    torch.testing.assert_close(mine, torch.tensor(gradient, dtype=torch.float64), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("far", [2.0, 200.0])
@pytest.mark.parametrize("manifold", [Euclidean(), Lorentz(c=0.1, learn=False)], ids=["euclidean", "lorentz"])
def test_an_image_straight_outward_from_its_text_is_found_whatever_the_distance(manifold: Manifold, far: float) -> None:
    rays = torch.eye(3)
    outward = OBJECTIVES["atmg"]()(manifold, Views.single(image=far * rays, text=rays)).terms
    inward = OBJECTIVES["atmg"]()(manifold, Views.single(image=rays, text=far * rays)).terms
    assert outward["text -> image"] < 1e-6
    assert inward["text -> image"] > 1
    assert outward["image -> text"] < inward["image -> text"]


def test_the_curvature_stays_and_nothing_but_the_temperature_learns() -> None:
    config = load_config("atmg-tiny")
    manifold = build_manifold(config.manifold)
    assert isinstance(manifold, Lorentz)
    assert manifold.c.item() == pytest.approx(0.1)
    assert not list(manifold.parameters())
    assert [name for name, _ in OBJECTIVES["atmg"]().named_parameters()] == ["log_scale.global"]


def test_angles_are_asked_of_a_manifold_that_has_them() -> None:
    with pytest.raises(ValueError, match="'image -> text' needs exterior angles, which Sphere does not have"):
        OBJECTIVES["atmg"]().check_manifold(MANIFOLDS["sphere"]())


@pytest.mark.parametrize(
    ("recipe", "preset", "steps", "batch"),
    [
        ("atmg-redcaps-vit-l-16", "vit-l-16", 120_000, 2048),
        ("atmg-redcaps-vit-b-16", "vit-b-16", 120_000, 2048),
        ("atmg-redcaps-vit-s-16", "vit-s-16", 120_000, 2048),
        ("atmg-vit-b-16", "vit-b-16", 500_000, 768),
        ("atmg-vit-s-16", "vit-s-16", 500_000, 768),
    ],
)
def test_published_settings(recipe: str, preset: str, steps: int, batch: int) -> None:
    config = load_config(recipe, ["data.train=x"])
    assert (config.train.steps, config.train.batch_size) == (steps, batch)
    assert config.model == {"preset": preset, "dim": 512, "score": "exterior_angle", "readout": "published"}
    assert config.manifold == {"name": "lorentz", "c": 0.1, "learn": False}
    assert math.isclose(OBJECTIVES["atmg"]().scales["global"].init_temperature, 0.07)
