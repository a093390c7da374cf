"""Every function of every manifold: finite values and gradients at the points where textbook forms fail."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hyvlm.geometry import Euclidean, Lorentz, Manifold, ProductEuclidean, ProductLorentz, Sphere

MANIFOLDS = {
    "lorentz": lambda c: Lorentz(c=c),
    "euclidean": lambda c: Euclidean(),
    "sphere": lambda c: Sphere(),
    "product l1": lambda c: ProductLorentz(factors=3, c=[0.1, c, 10.0]),
    "product l2": lambda c: ProductLorentz(factors=3, c=[0.1, c, 10.0], metric="l2"),
    "flat product": lambda c: ProductEuclidean(factors=3, aperture_radius=[0.1, 1.0, 10.0]),
}
ONE = ["lift", "expmap0", "logmap0", "time", "radius", "half_aperture", "midpoint", "to_klein", "to_poincare"]
PAIRED = ["distance", "exterior_angle"]
PAIRWISE = ["pairwise_distance", "pairwise_exterior_angle", "similarity"]
#: Products of two points on the lift's bound reach 1e34, whose gradient by the features float32 cannot hold.
PRODUCTS = ["inner", "pairwise_inner", "score"]


def batch(dtype: torch.dtype, kind: str) -> Tensor:
    v = torch.randn(8, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = v / v.norm(dim=-1, keepdim=True)
    axes = torch.eye(6, dtype=torch.float64)
    points = {
        "norms": torch.cat([unit * 10.0**e for e in range(-8, 5, 2)]),
        "zero": torch.zeros(5, 6),
        "coincident": unit[:1].expand(9, 6),
        "coincident far": 1e4 * unit[:1].expand(9, 6),
        "line": unit[:1] * torch.tensor([[-1e4], [-1.0], [-1e-8], [0.0], [1e-8], [1.0], [1 + 1e-6], [1e4]]),
        "axes": torch.cat([axes, -axes, 1e-8 * axes, 1e4 * axes]),
        "tiny": 1e-30 * v,
        "mixed": torch.cat([unit, 0 * unit, unit, -unit, 1e-8 * unit, 1e4 * unit]),
    }
    return points[kind].to(dtype)


def assert_finite(manifold: Manifold, name: str, inputs: Tensor, points: Tensor) -> None:
    function = getattr(manifold, name, None)
    if function is None:
        return
    if name in PAIRED or name == "inner":
        found = function(points.unsqueeze(-2), points.unsqueeze(-3))
    elif name in PAIRWISE or name in PRODUCTS:
        found = function(points, points)
    else:
        found = function(points)
    assert found.isfinite().all(), name
    slopes = torch.autograd.grad(found.sum(), [inputs, *manifold.parameters()], allow_unused=True, retain_graph=True)
    assert all(s is None or s.isfinite().all() for s in slopes), name


@pytest.mark.parametrize("kind", ["norms", "zero", "coincident", "coincident far", "line", "axes", "tiny", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MANIFOLDS)
def test_points(name: str, dtype: torch.dtype, kind: str) -> None:
    for c in (0.1, 10.0):
        manifold = MANIFOLDS[name](c).to(dtype)
        points = batch(dtype, kind).requires_grad_()
        for function in [*ONE[2:], *PAIRED, *PAIRWISE, *PRODUCTS]:
            assert_finite(manifold, function, points, points)


@pytest.mark.parametrize("kind", ["norms", "zero", "coincident far", "line", "tiny", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [m for m in MANIFOLDS if m not in ("euclidean", "flat product")])
def test_lifted_features_up_to_the_bound(name: str, dtype: torch.dtype, kind: str) -> None:
    for c in (0.1, 1.0, 10.0):
        manifold = MANIFOLDS[name](c).to(dtype)
        for scale in (1.0, 1e12, 1e26):
            features = (scale * batch(dtype, kind)).requires_grad_()
            points = manifold.lift(features)
            for function in [*ONE[2:], *PAIRED, *PAIRWISE]:
                assert_finite(manifold, function, features, points)
            with torch.no_grad():
                assert manifold.score(points, points).isfinite().all()


@pytest.mark.parametrize("name", [m for m in MANIFOLDS if m != "sphere"])
def test_distance_from_the_origin_has_its_true_gradient(name: str) -> None:
    manifold = MANIFOLDS[name](2.0).double()
    origin = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    y = torch.randn(1, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (slope,) = torch.autograd.grad(manifold.distance(origin, y).sum(), origin)
    (pairwise,) = torch.autograd.grad(manifold.pairwise_distance(origin, y).sum(), origin)
    # The exponential map is an isometry at the origin to first order, so stepping toward y gains the whole step.
    blocks = y.unflatten(-1, (3, 2)) if "product" in name else y.unflatten(-1, (1, 6))
    radii = manifold.factor.radius(blocks) if "product" in name else torch.ones(1, 1, dtype=torch.float64)
    third = torch.full_like(radii, 1 / 3)
    share = {"product l1": third, "flat product": third, "product l2": radii / (3 * radii.square().mean(-1).sqrt())}
    expected = -(blocks / blocks.norm(dim=-1, keepdim=True) * share.get(name, radii).unsqueeze(-1)).flatten(-2)
    assert torch.allclose(slope, expected, rtol=1e-13)
    assert torch.allclose(pairwise, expected, rtol=1e-13)


@pytest.mark.parametrize("name", MANIFOLDS)
def test_coincident_points_have_zero_distance_and_gradient(name: str) -> None:
    manifold = MANIFOLDS[name](2.0)
    x = manifold.lift(torch.randn(5, 6, generator=torch.Generator().manual_seed(0))).detach().requires_grad_()
    y = x.detach().clone().requires_grad_()
    for found in (manifold.distance(x, y), manifold.pairwise_distance(x, y).diagonal()):
        assert not found.any()
        slopes = torch.autograd.grad(found.sum(), [x, y, *manifold.parameters()], allow_unused=True)
        assert not any(s.any() for s in slopes if s is not None)


@pytest.mark.parametrize("kind", ["norms", "zero", "coincident", "coincident far", "line", "axes", "tiny", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MANIFOLDS)
def test_points_on_the_way_between_two(name: str, dtype: torch.dtype, kind: str) -> None:
    for c in (0.1, 10.0):
        manifold, x = MANIFOLDS[name](c).to(dtype), batch(dtype, kind)
        for share in (0.0, 0.4, 1.0):
            found = manifold.geodesic(x.unsqueeze(-2), x.unsqueeze(-3), share)
            assert found.dtype == dtype
            assert found.isfinite().all()
            if kind.startswith("coincident") and name != "sphere":
                assert torch.allclose(found, x.expand_as(found), rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("name", MANIFOLDS)
def test_the_way_between_points_of_all_norms(name: str) -> None:
    manifold, points = MANIFOLDS[name](2.0).double(), batch(torch.float64, "norms")
    points = manifold.lift(points) if name == "sphere" else points
    x, y = torch.broadcast_tensors(points.unsqueeze(0), points.unsqueeze(1))
    whole = manifold.distance(x, y)
    for share in (0.0, 0.3, 0.5, 0.9, 1.0):
        between = manifold.geodesic(x, y, share)
        for end, part in ((x, share), (y, 1 - share)):  # a rounding moves a point at norm 1e4 by 1e-12
            assert torch.allclose(manifold.distance(end, between), part * whole, rtol=1e-9, atol=1e-10)
