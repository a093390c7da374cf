"""The cheap form of the exterior angle against the exact one in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hyvlm.geometry import Euclidean, Lorentz

MANIFOLDS = {"lorentz": Lorentz(c=0.7), "factors": Lorentz(c=[0.2, 1.0, 5.0]), "flat": Euclidean()}


def pairs(kind: str, count: int = 300, dim: int = 64) -> tuple[Tensor, Tensor]:
    """At norms of 1e-8 to 1e4 and any angle, with equal and collinear pairs and origins among them."""
    draws = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    shape = (count, 3) if kind == "factors" else (count,)
    x = 10 ** (12 * torch.rand(*shape, 1, generator=draws, dtype=torch.float64) - 8) * normal(*shape, dim) / dim**0.5
    near = 10 ** normal(*shape, 1) * (x * normal(*shape, 1) + x.norm(dim=-1, keepdim=True) * normal(*shape, dim) / 8)
    y = torch.where(torch.arange(count).view(-1, *[1] * len(shape)) % 2 == 0, near, x[torch.randperm(count)])
    y[0], x[1], y[2], y[3] = x[0], 0.0, 0.0, 2 * x[3]
    return x.float(), y.float()


def derivatives(manifold: Lorentz | Euclidean, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    leaves = [x.clone().requires_grad_(), y.clone().requires_grad_(), *manifold.parameters()]
    angle = manifold.exterior_angle(leaves[0], leaves[1])
    return angle.detach(), list(torch.autograd.grad(angle.sum(), leaves))


@pytest.mark.parametrize("kind", MANIFOLDS)
def test_float32_agrees_with_float64(kind: str) -> None:
    x, y = pairs(kind)
    manifold = MANIFOLDS[kind].float()
    angle, slopes = derivatives(manifold, x, y)
    expected, exact = derivatives(manifold.double(), x.double(), y.double())
    assert (angle - expected).abs().max() < 2e-6
    largest = torch.maximum(exact[0].norm(dim=-1), exact[1].norm(dim=-1))
    collinear = torch.zeros_like(largest, dtype=torch.bool)
    collinear[:4] = True
    for found, wanted in zip(slopes[:2], exact[:2], strict=True):
        assert not found[collinear].any()
        assert ((found - wanted).norm(dim=-1) <= 1e-5 * largest)[~collinear].all()
    for found, wanted in zip(slopes[2:], exact[2:], strict=True):
        assert torch.allclose(found.double(), wanted, rtol=1e-4)


def test_a_batch_of_nothing_but_collinear_pairs() -> None:
    x, _ = pairs("lorentz", dim=8)
    angle, (by_x, by_y, _) = derivatives(Lorentz(), x[2:], 0.5 * x[2:])
    assert torch.allclose(angle, torch.full_like(angle, torch.pi))
    assert not by_x.any()
    assert not by_y.any()


@pytest.mark.parametrize("kind", MANIFOLDS)
def test_leading_axes_broadcast(kind: str) -> None:
    x, y = (points[10:40] for points in pairs(kind))
    manifold = MANIFOLDS[kind].float()
    found, slopes = derivatives(manifold, x[:1], y)
    expected, exact = derivatives(manifold, x[:1].expand_as(y), y)
    assert torch.equal(found, expected)
    assert torch.allclose(slopes[0], exact[0].sum(0, keepdim=True), rtol=1e-5)


@pytest.mark.parametrize("kind", MANIFOLDS)
def test_second_derivatives_in_float32_are_those_of_the_exact_form(kind: str) -> None:
    torch.manual_seed(0)
    shape = (5, 3, 4) if kind == "factors" else (5, 4)
    x, y, way = torch.randn(shape), torch.randn(shape), torch.randn(shape)

    def second(dtype: torch.dtype) -> list[Tensor]:
        manifold = MANIFOLDS[kind].to(dtype)
        leaves = [x.to(dtype).requires_grad_(), y.to(dtype).requires_grad_()]
        first = torch.autograd.grad(manifold.exterior_angle(*leaves).sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum((slope * way.to(dtype)).sum() for slope in first), leaves))

    for found, wanted in zip(second(torch.float32), second(torch.float64), strict=True):
        assert torch.allclose(found.double(), wanted, rtol=1e-4, atol=1e-4)
        assert wanted.abs().max() > 0.1
