"""Curvature, the lift's bound, other models of hyperbolic space, factors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hyvlm.geometry import Euclidean, Lorentz, ProductEuclidean, ProductLorentz, Sphere

BOUND = {torch.float32: 40.0, torch.float64: 350.0}


def random_points(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("c", [0.1, 1.0, 4.0])
def test_hyperbolic_pythagoras(c: float) -> None:
    manifold = Lorentz(c=c).double()
    a, b = manifold.expmap0(torch.eye(2, dtype=torch.float64))  # legs of length 1 at a right angle
    expected = math.acosh(math.cosh(math.sqrt(c)) ** 2) / math.sqrt(c)
    assert manifold.distance(a, b).item() == pytest.approx(expected, rel=1e-7)  # c went through float32


def test_curvature_is_learned_within_its_bounds() -> None:
    manifold = Lorentz(c=0.5, bounds=(0.2, 2.0))
    assert isinstance(manifold.log_c, nn.Parameter)
    assert manifold.describe() == {"c": pytest.approx(0.5)}
    for value, expected in ((5.0, 2.0), (0.01, 0.2), (1.3, 1.3)):
        manifold.log_c.data.fill_(math.log(value))
        manifold.constrain_()
        assert manifold.c.item() == pytest.approx(expected)
    fixed = Lorentz(c=0.5, learn=False)
    assert not list(fixed.parameters())
    assert fixed.state_dict()["log_c"].item() == pytest.approx(math.log(0.5))
    free = Lorentz(c=500.0, bounds=None)
    free.constrain_()
    assert free.c.item() == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"c": 0.0}, "curvature c must be positive and within its bounds 0.1 to 10, got 0"),
        ({"c": -1.0, "bounds": None}, "curvature c must be positive"),
        ({"c": 20.0}, "within its bounds 0.1 to 10, got 20"),
        ({"c": [1.0, 20.0]}, "within its bounds 0.1 to 10, got 20"),
        ({"bounds": (2.0, 1.0)}, "curvature bounds must be two numbers, 0 <= low < high, got 2 and 1"),
        ({"aperture_constant": 0.0}, "aperture_constant is K of the entailment cones and must be positive"),
    ],
)
def test_settings_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lorentz(**options)


def test_other_settings_out_of_range() -> None:
    for build, message in (
        (lambda: Euclidean(aperture_radius=0.0), "aperture_radius must be positive"),
        (lambda: Euclidean(aperture_radius=[0.1, 0.0]), "aperture_radius must be positive and finite, got 0.0"),
        (lambda: ProductEuclidean(factors=3, aperture_radius=[0.1, 0.2]), "3 factors, 2 radii"),
        (lambda: ProductLorentz(factors=0), "at least one factor"),
        (lambda: ProductLorentz(factors=2, metric="l3"), "'l1' or 'l2', got 'l3'"),
        (lambda: ProductLorentz(factors=2, c=[1.0]), "2 factors, 1 curvatures"),
        (lambda: ProductLorentz(factors=3).lift(torch.zeros(2, 8)), "8 coordinates do not split into 3 factors"),
    ):
        with pytest.raises(ValueError, match=message):
            build()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lift_is_bounded_and_counts(dtype: torch.dtype) -> None:
    manifold = Lorentz(c=4.0).to(dtype)
    direction = torch.tensor([0.6, -0.8], dtype=dtype)
    lengths = torch.tensor([1.0, BOUND[dtype] / 2 - 1, BOUND[dtype] / 2 + 1, 1e3, 1e30], dtype=dtype)
    features = (lengths.unsqueeze(-1) * direction).requires_grad_()
    points = manifold.lift(features)
    assert manifold.bounded.item() == 3
    expected = torch.minimum(lengths, torch.tensor(BOUND[dtype] / 2, dtype=dtype))
    assert torch.allclose(manifold.radius(points), expected, rtol=1e-5)
    assert torch.allclose(points[2:] / points[2:].norm(dim=-1, keepdim=True), direction.expand(3, 2))
    (slope,) = torch.autograd.grad(manifold.radius(points).sum(), features)
    assert torch.allclose(slope[:2], direction.expand(2, 2), rtol=1e-5)
    assert slope[2:].norm(dim=-1).max() < 1e-5  # beyond the bound the radius no longer grows
    manifold.lift(features[:2])
    assert manifold.bounded.item() == 0


def test_bound_leaves_shorter_vectors_alone() -> None:
    manifold, v = Lorentz(), random_points(5, 4, dtype=torch.float32)
    assert torch.equal(manifold.lift(v), manifold.expmap0(v))


def test_half_precision_copy_of_the_module_computes_in_float32() -> None:
    manifold = Lorentz(c=1.0).half()
    x, y = random_points(2, 5, 4, dtype=torch.float32)
    assert torch.equal(manifold.distance(x, y), Lorentz(c=1.0).distance(x, y))


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_klein_and_poincare_balls(c: float) -> None:
    manifold = Lorentz(c=c).double()
    x = manifold.expmap0(random_points(20, 3) / math.sqrt(c))
    s = manifold.c.detach().sqrt() * manifold.radius(x)
    for name, norm in (("klein", torch.tanh(s)), ("poincare", torch.tanh(s / 2))):
        ball = getattr(manifold, f"to_{name}")(x)
        assert torch.allclose(ball.norm(dim=-1), norm, rtol=1e-13)
        assert torch.allclose(getattr(manifold, f"from_{name}")(ball), x, rtol=1e-9)
    # A geodesic of the Klein ball is a straight line: the midpoint lies on the chord.
    a, b, middle = (manifold.to_klein(p) for p in (x[0], x[1], manifold.midpoint(x[:2])))
    share = (middle - a).norm() / (b - a).norm()
    assert torch.allclose(a + share * (b - a), middle, rtol=1e-12)


def test_points_on_the_rim_of_a_ball_stay_finite() -> None:
    manifold = Lorentz()
    rim = torch.tensor([[1.0, 0.0], [0.6, 0.8]], requires_grad=True)
    for back in (manifold.from_klein, manifold.from_poincare):
        found = back(rim)
        assert found.isfinite().all()
        assert torch.autograd.grad(found.sum(), rim)[0].isfinite().all()


@pytest.mark.parametrize("n", [1e-8, 1.0, 1e4, 1e8])
def test_midpoint_of_equal_points_is_the_point(n: float) -> None:
    x = n * torch.tensor([0.48, -0.6, 0.64], dtype=torch.float64)
    middle = Lorentz(c=10.0).double().midpoint(x.expand(5, 3))
    assert torch.allclose(middle, x, rtol=1e-13)


def test_midpoint_is_the_normalised_centroid_and_carries_gradients() -> None:
    manifold = Lorentz(c=0.5).double()
    x, weights = random_points(6, 3).requires_grad_(), torch.rand(6, dtype=torch.float64).requires_grad_()
    total = (weights.unsqueeze(-1) * x).sum(0)
    time = (weights * manifold.time(x)).sum()
    expected = total / (manifold.c * (time**2 - total @ total)).sqrt()
    assert torch.allclose(manifold.midpoint(x, weights), expected, rtol=1e-13)
    assert torch.autograd.gradcheck(lambda x, w: manifold.midpoint(x, w), (x, weights))
    assert torch.autograd.gradcheck(lambda x: manifold.midpoint(torch.cat([x, -x])), x[:2])


@pytest.mark.parametrize("name", ["distance", "exterior_angle", "pairwise_distance", "pairwise_exterior_angle"])
def test_second_derivatives(name: str) -> None:
    manifold = Lorentz(c=0.7).double()
    x, y = random_points(3, 3).requires_grad_(), random_points(3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradgradcheck(getattr(manifold, name), (x, y))


def test_every_factor_is_its_own_hyperboloid() -> None:
    curvatures = [0.2, 1.0, 5.0]
    factors = Lorentz(c=curvatures).double()
    v = random_points(4, 3, 2)
    x, y = factors.lift(v), factors.lift(v.flip(0))
    for i, c in enumerate(curvatures):
        one = Lorentz(c=c).double()
        assert torch.equal(x[:, i], one.lift(v[:, i]))
        for name in ("distance", "exterior_angle", "inner"):
            assert torch.equal(getattr(factors, name)(x, y)[:, i], getattr(one, name)(x[:, i], y[:, i]))
        for name in ("pairwise_distance", "pairwise_exterior_angle", "pairwise_inner"):
            found = getattr(factors, name)(x, y[:2])
            assert found.shape == (4, 2, 3)
            assert torch.allclose(found[..., i], getattr(one, name)(x[:, i], y[:2, i]), rtol=1e-13)
        for name in ("half_aperture", "radius", "time", "saturated"):
            assert torch.equal(getattr(factors, name)(x)[:, i], getattr(one, name)(x[:, i]))
        assert torch.allclose(factors.midpoint(x, dim=0)[i], one.midpoint(x[:, i]), rtol=1e-14)


def test_product_combines_its_factors() -> None:
    v, w = random_points(4, 6), random_points(3, 6, seed=1)
    curvatures = [0.2, 1.0, 5.0]
    singles = [Lorentz(c=c).double() for c in curvatures]
    for metric in ("l1", "l2"):
        product = ProductLorentz(factors=3, c=curvatures, metric=metric).double()
        x, y = product.lift(v), product.lift(w)
        parts = list(zip(singles, x.split(2, -1), y.split(2, -1), strict=True))
        apart = torch.stack([m.pairwise_distance(a, b) for m, a, b in parts])
        expected = apart.mean(0) if metric == "l1" else apart.square().mean(0).sqrt()
        assert torch.allclose(product.pairwise_distance(x, y), expected, rtol=1e-14)
        assert torch.allclose(product.pairwise_inner(x, y), sum(m.pairwise_inner(a, b) for m, a, b in parts))
        assert product.describe() == {"c": pytest.approx(curvatures)}
    product.factor.log_c.data.fill_(9.0)
    product.constrain_()
    assert product.describe() == {"c": pytest.approx([10.0] * 3)}
    product.lift(torch.cat([1e4 * v[:1], v[1:]]))
    assert product.bounded.item() == 3


def test_flat_product_combines_its_factors() -> None:
    x, y, radii = random_points(4, 6), random_points(3, 6, seed=1), [0.3, 1.0, 2.0]
    singles = [Euclidean(aperture_radius=radius) for radius in radii]
    product = ProductEuclidean(factors=3, aperture_radius=radii)
    parts = list(zip(singles, x.split(2, -1), y.split(2, -1), strict=True))
    apart = torch.stack([m.pairwise_distance(a, b) for m, a, b in parts])
    assert torch.allclose(product.pairwise_distance(x, y), apart.mean(0), rtol=1e-14)
    assert torch.allclose(product.radius(x), torch.stack([m.radius(a) for m, a, _ in parts]).mean(0), rtol=1e-14)
    for i, (one, a, b) in enumerate(parts):
        assert torch.equal(product.half_aperture(x)[:, i], one.half_aperture(a))
        assert torch.equal(product.saturated(x)[:, i], one.saturated(a))
        angles = one.pairwise_exterior_angle(a, b)
        assert torch.allclose(product.pairwise_exterior_angle(x, y)[..., i], angles, rtol=1e-13)
    assert product.describe() == {}


def test_product_against_reference_scores() -> None:
    golden = np.load(Path(__file__).parents[1] / "golden" / "zero_shot.npz")
    log_c = torch.from_numpy(golden["factor_log_curv"])
    product = ProductLorentz(factors=len(log_c)).double()
    with torch.no_grad():
        product.factor.log_c.copy_(log_c)
    images, classes = (torch.from_numpy(golden[f"product_{of}"]) for of in ("image", "classifier"))
    found = product.pairwise_inner(images, classes).detach().numpy()
    np.testing.assert_allclose(found, golden["product_scores"], rtol=1e-12)
    found = product.pairwise_distance(images, classes).detach().numpy()
    np.testing.assert_allclose(found, golden["product_mean_distance"], rtol=1e-12)


def test_sphere() -> None:
    sphere = Sphere()
    x = sphere.lift(torch.tensor([[3.0, 0.0], [0.0, 0.5], [-2.0, 0.0]], dtype=torch.float64))
    quarter, half = torch.pi / 2, torch.pi
    expected = torch.tensor([[0, quarter, half], [quarter, 0, quarter], [half, quarter, 0]], dtype=torch.float64)
    assert torch.allclose(sphere.pairwise_distance(x, x), expected)
    assert torch.allclose(sphere.similarity(x, x), expected.cos())
    near = torch.tensor([[1.0, 1e-9]], dtype=torch.float64)
    assert sphere.distance(x[:1], sphere.lift(near)).item() == pytest.approx(1e-9, rel=1e-12)
    prompts = torch.tensor([[3.0, 0.0], [0.0, 0.5]])
    assert torch.allclose(sphere.average_features(prompts, 0), torch.tensor([0.5, 0.5]))
    assert torch.allclose(Lorentz().average_features(prompts, 0), torch.tensor([1.5, 0.25]))
