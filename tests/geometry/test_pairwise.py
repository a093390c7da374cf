"""Pairwise functions against the paired ones, which are checked against mpmath."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hyvlm.geometry import Euclidean, Lorentz, Manifold, ProductEuclidean, ProductLorentz, Sphere, pairs

MANIFOLDS = {
    "lorentz 0.1": lambda: Lorentz(c=0.1),
    "lorentz 10": lambda: Lorentz(c=10.0),
    "euclidean": Euclidean,
    "sphere": Sphere,
    "product l1": lambda: ProductLorentz(factors=2, c=[0.3, 4.0]),
    "product l2": lambda: ProductLorentz(factors=2, c=[0.3, 4.0], metric="l2"),
    "flat product": lambda: ProductEuclidean(factors=2, metric="l2"),
}
PAIRED = {"pairwise_distance": "distance", "pairwise_exterior_angle": "exterior_angle", "pairwise_inner": "inner"}
FUNCTIONS = [
    (manifold, name) for manifold in MANIFOLDS for name in PAIRED if manifold != "sphere" or name == "pairwise_distance"
]
#: Relative error of a distance, absolute error of an angle: what the matrix product may lose before it is not trusted.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


def hard_points(dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Norms 1e-8 to 1e4 and a tight cluster; equal, close, opposite and collinear partners, and the origin."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 6, generator=g, dtype=torch.float64)
    x[:24] *= 10 ** (12 * torch.rand(24, 1, generator=g, dtype=torch.float64) - 8)
    x[24:] = x[24] + 0.05 * x[24:]
    y = torch.randn(36, 6, generator=g, dtype=torch.float64)
    y[:6] = x[:6]
    y[6:12] = x[6:12] * (1 + 1e-5 * y[6:12])
    y[12:16] = x[12:16] * torch.tensor([[-1.0], [2.0], [1e-3], [-1e3]])
    y[16], x[16] = 0, 0
    y[24:] = x[24] + 0.05 * y[24:]
    return x.to(dtype).requires_grad_(), y.to(dtype).requires_grad_()


def check_against_paired(manifold: Manifold, name: str, x: Tensor, y: Tensor) -> None:
    tolerance = TOLERANCE[x.dtype]
    found = getattr(manifold, name)(x, y)
    expected = getattr(manifold, PAIRED[name])(x.unsqueeze(-2), y.unsqueeze(-3))
    assert found.shape == expected.shape
    if name == "pairwise_inner":
        scale = x.norm(dim=-1).unsqueeze(-1) * y.norm(dim=-1).unsqueeze(-2) + expected.abs()
    else:
        scale = expected if name == "pairwise_distance" else torch.ones_like(expected)
    assert ((found - expected).abs() <= tolerance * scale).all()
    weights = torch.rand(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    inputs = [x, y, *manifold.parameters()]
    slopes = torch.autograd.grad((found * weights).sum(), inputs, allow_unused=True)
    exact = torch.autograd.grad((expected * weights).sum(), inputs, allow_unused=True)
    for slope, want in zip(slopes[:2], exact[:2], strict=True):
        assert ((slope - want).abs() <= tolerance * want.abs().amax(-1, keepdim=True)).all()
    largest = max(want.abs().max() for want in exact if want is not None)  # that of c may be a tiny rest
    for slope, want in zip(slopes[2:], exact[2:], strict=True):
        assert want is None or ((slope - want).abs() <= tolerance * largest).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("manifold", "name"), FUNCTIONS)
def test_equals_paired(manifold: str, name: str, dtype: torch.dtype) -> None:
    check_against_paired(MANIFOLDS[manifold]().to(dtype), name, *hard_points(dtype))


@pytest.mark.parametrize(("manifold", "name"), FUNCTIONS)
def test_leading_axes(manifold: str, name: str) -> None:
    x, y = hard_points(torch.float64)
    x, y = x.detach().reshape(4, 10, 6), y.detach().reshape(4, 9, 6)
    check_against_paired(MANIFOLDS[manifold]().double(), name, x.requires_grad_(), y.requires_grad_())
    check_against_paired(
        MANIFOLDS[manifold]().double(), name, x.detach()[:1].requires_grad_(), y.detach().requires_grad_()
    )


@pytest.mark.parametrize(("manifold", "name"), FUNCTIONS)
def test_recomputed_in_several_steps(manifold: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_CHUNK_ON_CPU", 6 * 7)
    check_against_paired(MANIFOLDS[manifold]().double(), name, *hard_points(torch.float64))


def test_equal_points_are_at_distance_zero() -> None:
    x, _ = hard_points(torch.float32)
    for build in MANIFOLDS.values():
        manifold = build()
        points = manifold.lift(x.detach() / 1e3)
        assert not manifold.pairwise_distance(points, points).diagonal().any()


@pytest.mark.parametrize("spread", [0.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("manifold", [m for m in MANIFOLDS if m != "sphere"])
def test_collapsed_batch(manifold: str, dtype: torch.dtype, spread: float) -> None:
    g = torch.Generator().manual_seed(0)
    middle = torch.randn(1, 8, generator=g, dtype=torch.float64)
    x, y = ((middle + spread * torch.randn(n, 8, generator=g, dtype=torch.float64)).to(dtype) for n in (48, 40))
    for name in ("pairwise_distance", "pairwise_exterior_angle"):
        check_against_paired(
            MANIFOLDS[manifold]().to(dtype), name, x.clone().requires_grad_(), y.clone().requires_grad_()
        )


def test_collapsed_batch_needs_few_single_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    recomputed = []
    formula = pairs.replace_pairs

    def count(values: Tensor, where: Tensor, *rest: object) -> Tensor:
        recomputed.append(int(where.sum()))
        return formula(values, where, *rest)

    monkeypatch.setattr("hyvlm.geometry.hyperboloid.replace_pairs", count)
    g = torch.Generator().manual_seed(0)
    middle = torch.randn(1, 64, generator=g)
    noise = torch.randn(2, 100, 64, generator=g)
    manifold = Lorentz()
    manifold.pairwise_distance(middle.expand(100, -1), middle.expand(100, -1))
    manifold.pairwise_distance(middle + 1e-3 * noise[0], middle + 1e-3 * noise[1])
    manifold.pairwise_distance(*noise)
    assert recomputed == [0, 0, 0]


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize(("manifold", "name"), FUNCTIONS)
def test_no_points(manifold: str, name: str, rows: int, columns: int) -> None:
    x, y = torch.zeros(rows, 4, requires_grad=True), torch.zeros(columns, 4, requires_grad=True)
    found = getattr(MANIFOLDS[manifold](), name)(x, y)
    assert found.shape[:2] == (rows, columns)
    found.sum().backward()
    assert np.array_equal(x.grad, torch.zeros_like(x))


def test_no_graph_without_gradients() -> None:
    x, y = hard_points(torch.float64)
    with torch.no_grad():
        assert not Lorentz().double().pairwise_distance(x, y).requires_grad
