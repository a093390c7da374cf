"""Contrast in panels against the whole matrix, in float64 by autograd: value and every gradient."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hyvlm.geometry import Euclidean, Lorentz, Manifold, ProductEuclidean, ProductLorentz, Sphere, angle_similarity
from hyvlm.losses import (
    Search,
    angle_scores_of,
    contrast_rows,
    contrast_totals,
    kernel_report,
    scores_of,
    tiled,
    tiled_kernels,
    tiled_torch,
)

MANIFOLDS: dict[str, Callable[[], Manifold]] = {
    "lorentz 0.1": lambda: Lorentz(c=0.1),
    "lorentz 2": lambda: Lorentz(c=2.0),
    "euclidean": Euclidean,
    "sphere": Sphere,
    "product l1": lambda: ProductLorentz(factors=2, c=[0.3, 4.0]),
    "product l2": lambda: ProductLorentz(factors=2, c=[0.3, 4.0], metric="l2"),
    "flat product l1": lambda: ProductEuclidean(factors=2),
    "flat product l2": lambda: ProductEuclidean(factors=2, metric="l2"),
}
WITH_ANGLES = [*MANIFOLDS, "angle lorentz 2", "angle euclidean", "angle product l1"]
KERNELS = ["torch", "numba"]
D = 8


@dataclass
class Problem:
    """Points and options of one contrast, and of that of the columns if ``both``."""

    name: str
    x: Tensor
    y: Tensor
    target: Tensor
    scale: float = 1 / 0.07
    tempering: Tensor | None = None
    log_count: Tensor | None = None
    exclude_positive: bool = False
    both: bool = False

    def solve(self, dtype: torch.dtype, *, panels: bool) -> dict[str, Tensor]:
        """The total, and its gradients with respect to points, logarithm of the scale, and curvature."""
        manifold = MANIFOLDS[self.name.removeprefix("angle ")]().to(dtype)
        x, y = (points.to(dtype).clone().requires_grad_() for points in (self.x, self.y))
        log_scale = torch.tensor(math.log(self.scale), dtype=dtype, requires_grad=True)
        weight = torch.linspace(0.5, 1.5, len(x), dtype=dtype) / len(x)
        scale = log_scale.exp().expand(len(x))
        if self.tempering is not None:
            scale = scale * self.tempering.to(dtype)
        counts = None if self.log_count is None else self.log_count.to(dtype)
        totals = (self._in_panels if panels else self._whole)(manifold, x, y, scale, log_scale.exp(), weight, counts)
        value = totals[0] + 0.4 * totals[-1] if self.both else totals[0]
        parameters = list(manifold.parameters())
        leaves = [x, y, log_scale, *parameters]
        found = torch.autograd.grad(value, leaves)
        return dict(zip(("value", "x", "y", "scale", "c"), (value.detach(), *found), strict=False))

    def _whole(
        self, manifold: Any, x: Tensor, y: Tensor, scale: Tensor, plain: Tensor, weight: Tensor, counts: Any
    ) -> Any:
        angles = self.name.startswith("angle")
        s = angle_similarity(manifold, x, y, at="text") if angles else manifold.similarity(x, y)
        options = {"log_count": counts, "exclude_positive": self.exclude_positive}
        totals = [(weight * contrast_rows(s * scale.unsqueeze(1), self.target, **options)).sum()]
        if self.both:
            totals.append((weight * contrast_rows(s.T * plain, self.target, **options)).sum())
        return totals

    def _in_panels(
        self, manifold: Any, x: Tensor, y: Tensor, scale: Tensor, plain: Tensor, weight: Tensor, counts: Any
    ) -> Any:
        if self.name.startswith("angle"):
            scores, unit = angle_scores_of(manifold, x, y, at="text"), torch.ones(())
        else:
            scores, unit = scores_of(manifold, x, y)
        rows = Search(scale * unit, weight, self.target, counts, self.exclude_positive)
        if not self.both:
            return contrast_totals(scores, rows)
        columns = Search((plain * unit).expand(len(y)), weight, self.target, counts, self.exclude_positive)
        return contrast_totals(scores, rows, columns)


def points(n: int, name: str, seed: int = 0) -> Tensor:
    """Ordinary points, as float32 holds them."""
    x = torch.randn(n, D, generator=torch.Generator().manual_seed(seed)) * 0.6
    return (x / x.norm(dim=1, keepdim=True) if name == "sphere" else x).double()


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], relative: float) -> None:
    """Each within ``relative`` of its largest entry."""
    for name, want in expected.items():
        error = (found[name].double() - want).abs().max().item()
        assert error <= relative * want.abs().max().item(), f"{name}: off by {error:.3g} of {want.abs().max():.3g}"


def options(name: str, kind: str) -> Problem:
    n, m = 23, 17
    target = torch.randint(m, (n,), generator=torch.Generator().manual_seed(1))
    problem = Problem(name, points(n, name), points(m, name, 1), target)
    if kind in ("repeated", "repeated, tempered, without the positive"):
        problem.log_count = torch.bincount(target, minlength=m).double().log()
    if kind == "repeated, tempered, without the positive":
        problem.tempering = torch.linspace(0.6, 1.0, n).double()
        problem.exclude_positive = True
    if kind.startswith("both"):
        problem.x, problem.target, problem.both = problem.x[:m], torch.arange(m), True
        problem.tempering = torch.linspace(0.6, 1.0, m).double()
        problem.exclude_positive = kind.endswith("positive")
    return problem


KINDS = ["rows", "repeated", "repeated, tempered, without the positive", "both ways", "both ways without the positive"]
#: Numbers in a panel and columns up to which it holds whole rows: one panel, several, and pieces of rows.
SHAPES = {"one panel": (2**21, 2**15), "rows": (40, 2**15), "pieces": (24, 12)}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "PANEL", SHAPES[request.param][0])
    monkeypatch.setattr(tiled, "WHOLE_ROWS", SHAPES[request.param][1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WITH_ANGLES)
def test_equals_the_whole_matrix(name: str, kind: str, shape: None) -> None:
    problem = options(name, kind)
    assert_near(problem.solve(torch.float64, panels=True), problem.solve(torch.float64, panels=False), 1e-11)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("scale", "relative"), [(1 / 0.07, 1e-5), (100.0, 1e-4)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WITH_ANGLES)
def test_float32(
    name: str, kind: str, scale: float, relative: float, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(kernels, monkeypatch)
    problem = options(name, kind)
    problem.scale = scale
    assert_near(problem.solve(torch.float32, panels=True), problem.solve(torch.float64, panels=False), relative)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", ["repeated", "both ways"])
@pytest.mark.parametrize("name", MANIFOLDS)
def test_close_and_coincident_pairs(name: str, kind: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to acosh arguments of 1 + 1e-9 and to no distance at all; positives and others."""
    choose(kernels, monkeypatch)
    problem = options(name, kind)
    own = problem.y[problem.target]
    noise = points(len(own), "lorentz 2", 5)
    for row, apart in enumerate((0.0, 1e-4, 1e-3, 1e-2)):
        problem.x[row] = (own[row] + apart * noise[row]).float()
        problem.x[row + 4] = (problem.y[-1 - row] + apart * noise[row]).float()
    if name == "sphere":
        problem.x = (problem.x / problem.x.norm(dim=1, keepdim=True)).float().double()
    expected = problem.solve(torch.float64, panels=False)
    assert_near(problem.solve(torch.float64, panels=True), expected, 1e-10)
    assert_near(problem.solve(torch.float32, panels=True), expected, 1e-5)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("spread", [0.0, 1e-3])
@pytest.mark.parametrize("name", [name for name in MANIFOLDS if name != "sphere"])
def test_collapsed_batch(name: str, spread: float, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(kernels, monkeypatch)
    middle = points(1, name, 7)
    x, y = ((middle + spread * points(12, name, seed)).float().double() for seed in (8, 9))
    problem = Problem(name, x, y, torch.arange(12), both=True)
    found, expected = problem.solve(torch.float32, panels=True), problem.solve(torch.float64, panels=False)
    if spread == 0:
        assert found["value"].item() == pytest.approx(1.4 * math.log(12), rel=1e-6)
        assert not any(found[leaf].any() for leaf in ("x", "y", "scale"))
    else:
        assert_near({k: found[k] for k in ("value", "x", "y")}, {k: expected[k] for k in ("value", "x", "y")}, 1e-5)


def test_collapsed_batch_needs_few_single_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyvlm.losses.tiled_scores.DistanceScores._one_by_one", None)  # would be called
    middle = points(1, "lorentz 2", 7)
    x, y = ((middle + 1e-3 * points(20, "lorentz 2", seed)).float().double() for seed in (8, 9))
    problem = Problem("lorentz 2", x, y, torch.arange(20))
    assert problem.solve(torch.float32, panels=True)["value"].isfinite()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("far", [1e-6, 1e4])
@pytest.mark.parametrize("name", ["lorentz 2", "euclidean", "product l1"])
def test_points_near_the_origin_and_far_away(
    name: str, far: float, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(kernels, monkeypatch)
    problem = options(name, "rows")
    problem.x[3:9] *= far
    problem.y[2:5] *= far
    problem.x, problem.y = problem.x.float().double(), problem.y.float().double()
    expected = problem.solve(torch.float64, panels=False)
    assert_near(problem.solve(torch.float64, panels=True), expected, 1e-9)
    found = problem.solve(torch.float32, panels=True)
    assert_near({"value": found["value"]}, {"value": expected["value"]}, 1e-5)
    assert all(gradient.isfinite().all() for gradient in found.values())


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    name=st.sampled_from(list(MANIFOLDS)),
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    repeated=st.booleans(),
    exclude=st.booleans(),
    scale=st.sampled_from([1.0, 14.0, 100.0]),
    panel=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_uneven_parts(
    name: str, counts: list[int], repeated: bool, exclude: bool, scale: float, panel: int, seed: int
) -> None:
    """Parts look for wholes, of which some own none; also a single sample, and no part at all."""
    owner = torch.tensor([whole for whole, n in enumerate(counts) for _ in range(n)], dtype=torch.long)
    problem = Problem(name, points(len(owner), name, seed), points(len(counts), name, seed + 100), owner, scale)
    problem.exclude_positive = exclude
    if repeated:
        problem.log_count = torch.tensor(counts).double().log()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "PANEL", panel)
        patch.setattr(tiled, "WHOLE_ROWS", 4 * panel)
        found, expected = problem.solve(torch.float64, panels=True), problem.solve(torch.float64, panels=False)
    for leaf, want in expected.items():
        torch.testing.assert_close(found[leaf], want, rtol=1e-9, atol=1e-12 * scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    problem = options("lorentz 2", "both ways")
    expected = problem.solve(torch.float32, panels=True)
    with torch.autocast("cpu", dtype=dtype):
        found = problem.solve(torch.float32, panels=True)
    for leaf, want in expected.items():
        assert torch.equal(found[leaf], want)


@pytest.mark.parametrize("kernels", KERNELS)
def test_nan_is_not_hidden(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(kernels, monkeypatch)
    for kind in ("rows", "both ways"):
        problem = options("lorentz 2", kind)
        problem.x[4, 2] = torch.nan
        assert problem.solve(torch.float32, panels=True)["value"].isnan()


def small(requires_grad: bool = True) -> tuple[Any, Search]:
    x = points(4, "euclidean").requires_grad_(requires_grad)
    scores, _ = scores_of(Euclidean(), x, points(4, "euclidean", 1))
    ones = torch.ones(4, dtype=torch.float64)
    return scores, Search(ones, ones, torch.arange(4))


def test_a_second_derivative_is_a_clear_error() -> None:
    scores, rows = small()
    total = contrast_totals(scores, rows)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(total, scores.tensors[2], create_graph=True, allow_unused=True)


def test_backward_again_and_without_gradients() -> None:
    scores, rows = small()
    totals = contrast_totals(scores, rows, rows)
    left = scores.tensors[0]
    first, second = (torch.autograd.grad(totals.sum(), left, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    with torch.no_grad():
        assert torch.equal(contrast_totals(scores, rows, rows), totals)


def test_both_ways_needs_pairs() -> None:
    scores, rows = small()
    shifted = Search(rows.scale, rows.weight, rows.target.roll(1))
    with pytest.raises(ValueError, match="need row i and column i to be a pair, got 4 x 4"):
        contrast_totals(scores, shifted, rows)
    counted = Search(rows.scale, rows.weight, rows.target, torch.zeros(4))
    with pytest.raises(ValueError, match="count every row and column once"):
        contrast_totals(scores, counted, rows)


def test_a_manifold_of_ones_own_needs_a_similarity_only() -> None:
    class Bent(Manifold):
        def __init__(self) -> None:
            super().__init__()
            self.bend = torch.nn.Parameter(torch.tensor(1.3, dtype=torch.float64))

        def similarity(self, x: Tensor, y: Tensor) -> Tensor:
            return -(torch.cdist(x, y) ** self.bend)

    x, y, manifold = points(5, "").requires_grad_(), points(6, "", 1), Bent()
    scores, unit = scores_of(manifold, x, y)
    weight, target = torch.full((5,), 0.2, dtype=torch.float64), torch.tensor([0, 5, 2, 2, 1])
    found = torch.autograd.grad(
        contrast_totals(scores, Search(3 * unit.expand(5), weight, target))[0], [x, manifold.bend]
    )
    expected = contrast_rows(3 * manifold.similarity(x, y), target).mean()
    for one, other in zip(found, torch.autograd.grad(expected, [x, manifold.bend]), strict=True):
        torch.testing.assert_close(one, other)


def test_kernels_say_which_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYVLM_KERNELS", "torch")
    assert kernel_report() == "torch (HYVLM_KERNELS=torch)"
    assert tiled_kernels.kernels_for(torch.ones(1)) is tiled_torch
    monkeypatch.delenv("HYVLM_KERNELS")
    monkeypatch.setattr(tiled_kernels, "_compiled", lambda: None)
    assert kernel_report() == "torch (numba is not installed)"
    assert tiled_kernels.kernels_for(torch.ones(1)) is tiled_torch


def choose(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels == "torch":
        monkeypatch.setenv("HYVLM_KERNELS", "torch")
    else:
        pytest.importorskip("numba")
        monkeypatch.delenv("HYVLM_KERNELS", raising=False)


MEMORY = """
import resource, torch
from hyvlm.geometry import Lorentz
from hyvlm.losses import Search, contrast_totals, scores_of
torch.manual_seed(0)
def run(n):
    x, y = torch.randn(n, 8).requires_grad_(), torch.randn(n, 8).requires_grad_()
    scores, unit = scores_of(Lorentz(), x, y)
    rows = Search((14 * unit).expand(n), torch.full((n,), 1 / n), torch.arange(n))
    contrast_totals(scores, rows, rows).sum().backward()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(512)
before = peak()
run(8192)
print((peak() - before) / 1024)
"""


@pytest.mark.parametrize("kernels", KERNELS)
def test_memory_stays_far_below_the_matrix(kernels: str) -> None:
    """8,192 pairs: the matrix alone would take 256 MiB, its softmax and gradients several times that."""
    if kernels == "numba":
        pytest.importorskip("numba")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HYVLM_KERNELS": kernels}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert float(done.stdout) < 80
