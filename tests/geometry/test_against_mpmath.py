"""Values and gradients against the textbook formulas at 150 digits; hypothesis looks for points where they part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hyvlm.geometry import Euclidean, Lorentz

Number = mp.mpf
Vector = list[Number]
K = 0.1
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
mp.mp.dps = 150  # the chord of points 1e-24 apart needs 50 digits before the difference quotient takes its own


def size(v: Vector) -> Number:
    return mp.sqrt(mp.fdot(v, v))


def time(x: Vector, c: Number) -> Number:
    return mp.sqrt(1 / c + mp.fdot(x, x))


def distance(x: Vector, y: Vector, c: Number) -> Number:
    return mp.acosh(max(Number(1), c * (time(x, c) * time(y, c) - mp.fdot(x, y)))) / mp.sqrt(c)


def exterior_angle(x: Vector, y: Vector, c: Number) -> Number:
    inner = mp.fdot(x, y) - time(x, c) * time(y, c)
    cosine = (time(y, c) + time(x, c) * c * inner) / (size(x) * mp.sqrt((c * inner) ** 2 - 1))
    return mp.acos(max(Number(-1), min(Number(1), cosine)))


def flat_exterior_angle(x: Vector, y: Vector, c: Number) -> Number:
    gap = size([b - a for a, b in zip(x, y, strict=True)])
    cosine = (mp.fdot(y, y) - mp.fdot(x, x) - gap**2) / (2 * size(x) * gap)
    return mp.acos(max(Number(-1), min(Number(1), cosine)))


def flat_distance(x: Vector, y: Vector, c: Number) -> Number:
    return size([b - a for a, b in zip(x, y, strict=True)])


def exact_gradient(f: Callable[..., Number], points: list[Vector], c: Number) -> np.ndarray:
    """Central differences by every coordinate and, last, by log c; steps are 1e-30 of the smallest length there is."""
    lengths = [size(p) for p in points]
    if len(points) == 2:
        lengths.append(flat_distance(*points, c))
    step = mp.mpf(10) ** -30 * min([length for length in lengths if length > 0] or [Number(1)])
    dim, slopes = len(points[0]), []
    flat = [a for p in points for a in p]

    def at(coordinates: Vector, c: Number) -> Number:
        return f(*(coordinates[i : i + dim] for i in range(0, len(coordinates), dim)), c)

    for i in range(len(flat)):
        up, down = list(flat), list(flat)
        up[i] += step
        down[i] -= step
        slopes.append((at(up, c) - at(down, c)) / (2 * step))
    step = mp.mpf(10) ** -30
    slopes.append((at(flat, c * mp.exp(step)) - at(flat, c * mp.exp(-step))) / (2 * step))
    return np.array([float(s) for s in slopes])


def evaluate(f: Callable[..., Tensor], points: list[Tensor], manifold: torch.nn.Module) -> tuple[float, np.ndarray]:
    """Value and gradient by the coordinates and log c (0 for a manifold without)."""
    points = [p.clone().requires_grad_() for p in points]
    value = f(*points)
    parameters = list(manifold.parameters())
    slopes = torch.autograd.grad(value, [*points, *parameters], allow_unused=True)
    last = slopes[-1] if parameters and slopes[-1] is not None else torch.zeros(())
    return value.item(), torch.cat([*(s.flatten() for s in slopes[: len(points)]), last.reshape(1)]).double().numpy()


@dataclass
class Case:
    """Points as the module sees them, in its dtype, and the same numbers for mpmath."""

    dtype: torch.dtype
    points: list[list[float]]
    log_c: float

    def __post_init__(self) -> None:
        self.manifold = Lorentz(bounds=None, aperture_constant=K).to(self.dtype)
        with torch.no_grad():
            self.manifold.log_c.fill_(self.log_c)
        self.tensors = [torch.tensor(p, dtype=self.dtype) for p in self.points]
        self.exact = [[Number(a) for a in t.tolist()] for t in self.tensors]
        self.c = mp.exp(Number(self.manifold.log_c.item()))

    @property
    def stretch(self) -> float:
        """Largest norm in units of the radius of curvature."""
        return float(mp.sqrt(self.c) * max(size(p) for p in self.exact))


LOG_C = st.floats(np.log(0.1), np.log(10))


def norms() -> st.SearchStrategy[float]:
    return st.floats(-8, 4).map(lambda e: 10.0**e)


@st.composite
def directions(draw: st.DrawFn, dim: int) -> np.ndarray:
    v = np.array(draw(st.lists(st.floats(-1, 1), min_size=dim, max_size=dim)))
    length = np.linalg.norm(v)
    return v / length if length > 0.1 else np.eye(dim)[0]


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype) -> Case:
    """A pair in one of the positions that are hard: close, collinear, opposite, nearly so, or with the origin."""
    dim = draw(st.integers(1, 4))
    n, m = draw(norms()), draw(norms())
    x, other = n * draw(directions(dim)), draw(directions(dim))
    small = 10.0 ** draw(st.floats(-14, 0))
    relation = draw(
        st.sampled_from(["any", "close", "outward", "opposite", "nearly collinear", "ulp", "origin", "equal"])
    )
    y = {
        "any": m * other,
        "close": x + small * n * other,
        "outward": x * (m / n),
        "opposite": -x * (m / n),
        "nearly collinear": (m / n) * x * draw(st.sampled_from([1, -1])) + small * m * other,
        "ulp": np.nextafter(x, np.inf),
        "origin": 0 * x,
        "equal": x,
    }[relation]
    x, y = (np.where(np.abs(p) < 1e-18, 0.0, p) for p in (x, y))  # whose squares float32 still holds
    swapped = draw(st.booleans())
    return Case(dtype, [y.tolist(), x.tolist()] if swapped else [x.tolist(), y.tolist()], draw(LOG_C))


def search(dtype: torch.dtype, examples: int) -> Callable[[Callable[[Case], None]], Callable[[], None]]:
    def decorate(test: Callable[[Case], None]) -> Callable[[], None]:
        return settings(max_examples=examples, derandomize=True, deadline=None)(given(cases(dtype))(test))

    return decorate


def check_distance(case: Case, value_tolerance: float, gradient_tolerance: float) -> None:
    value, gradient = evaluate(case.manifold.distance, case.tensors, case.manifold)
    if case.exact[0] == case.exact[1]:
        assert value == 0
        assert not gradient.any()
        return
    exact = distance(*case.exact, case.c)
    assert abs(value - exact) <= value_tolerance * exact
    expected = exact_gradient(distance, case.exact, case.c)
    assert np.abs(gradient - expected).max() <= gradient_tolerance * np.abs(expected).max()


@search(torch.float64, 300)
def test_distance(case: Case) -> None:
    check_distance(case, 4e-15, 1e-12)


@search(torch.float32, 150)
def test_distance_in_float32(case: Case) -> None:
    check_distance(case, 2e-6, 1e-5)


def check_angle(
    case: Case, manifold: Lorentz | Euclidean, exact: Callable[..., Number], value_tolerance: float, tolerance: float
) -> None:
    value, gradient = evaluate(manifold.exterior_angle, case.tensors, manifold)
    x, y = case.exact
    assert np.isfinite(gradient).all()
    if size(x) == 0 or x == y:
        assert value == 0
        assert not gradient.any()
        return
    assert abs(value - exact(x, y, case.c)) <= value_tolerance
    across = mp.sqrt(max(0, mp.fdot(y, y) - (mp.fdot(x, y) / size(x)) ** 2))
    if across <= 100 * EPS[case.dtype] ** 2 * size(y):
        return  # exactly collinear, or to twice the digits of the coordinates: at a kink of the angle
    expected = exact_gradient(exact, case.exact, case.c)
    assert np.abs(gradient - expected).max() <= tolerance * np.abs(expected).max()


@search(torch.float64, 300)
def test_exterior_angle(case: Case) -> None:
    check_angle(case, case.manifold, exterior_angle, 1e-15, 1e-12)


@search(torch.float32, 150)
def test_exterior_angle_in_float32(case: Case) -> None:
    check_angle(case, case.manifold, exterior_angle, 1e-6, 1e-5)


@search(torch.float64, 100)
def test_flat_exterior_angle(case: Case) -> None:
    check_angle(case, Euclidean(), flat_exterior_angle, 1e-15, 1e-12)


@pytest.mark.parametrize("factor", [0.0, 0.25, 4.0, -0.5, -2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("manifold", [Lorentz(), Euclidean()])
def test_exactly_collinear_points_have_zero_angle_gradient(
    manifold: Lorentz | Euclidean, dtype: torch.dtype, factor: float
) -> None:
    x = torch.randn(200, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    y = (factor * x.detach()).requires_grad_()
    angle = manifold.exterior_angle(x, y)
    assert torch.allclose(angle, torch.full_like(angle, 0.0 if factor > 1 else torch.pi))
    assert not any(g.any() for g in torch.autograd.grad(angle.sum(), [x, y]))


SHARES = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0]))


@pytest.mark.parametrize(("dtype", "examples"), [(torch.float64, 200), (torch.float32, 100)])
def test_geodesic(dtype: torch.dtype, examples: int) -> None:
    @settings(max_examples=examples, derandomize=True, deadline=None)
    @given(cases(dtype), SHARES)
    def check(case: Case, share: float) -> None:
        """Within a few roundings of the two terms that are added; s radii of curvature apart cost s of them."""
        found = case.manifold.geodesic(*case.tensors, share).tolist()
        (x, y), t = case.exact, Number(torch.tensor(share, dtype=dtype).item())
        s = distance(x, y, case.c) * mp.sqrt(case.c)
        from_x, from_y = (mp.sinh((1 - t) * s) / mp.sinh(s), mp.sinh(t * s) / mp.sinh(s)) if s else (1 - t, t)
        error = size([Number(f) - (from_x * a + from_y * b) for f, a, b in zip(found, x, y, strict=True)])
        assert error <= 8 * EPS[dtype] * (1 + s) * (from_x * size(x) + from_y * size(y))

    check()


@st.composite
def single_points(draw: st.DrawFn, largest: float) -> Case:
    n = min(draw(st.one_of(st.just(0.0), norms())), largest)
    return Case(torch.float64, [(n * draw(directions(draw(st.integers(1, 4))))).tolist()], draw(LOG_C))


MAPS = {"expmap0": lambda s: mp.sinh(s) / s, "lift": lambda s: mp.sinh(s) / s, "logmap0": lambda s: mp.asinh(s) / s}
WEIGHTS = [0.3, -1.1, 0.7, 0.2]


@pytest.mark.parametrize(("name", "largest"), [("expmap0", 10.0), ("lift", 10.0), ("logmap0", 1e4)])
def test_maps(name: str, largest: float) -> None:
    def exact(v: Vector, c: Number) -> Number:
        """A weighted sum of the coordinates of the image."""
        s = mp.sqrt(c) * size(v)
        return (MAPS[name](s) if s else Number(1)) * mp.fdot(v, [Number(w) for w in WEIGHTS[: len(v)]])

    @settings(max_examples=80, derandomize=True, deadline=None)
    @given(single_points(largest))
    def check(case: Case) -> None:
        weights = torch.tensor(WEIGHTS, dtype=torch.float64)
        image = getattr(case.manifold, name)
        value, gradient = evaluate(lambda v: image(v) @ weights[: v.shape[-1]], case.tensors, case.manifold)
        expected = exact_gradient(exact, case.exact, case.c)
        assert np.abs(gradient - expected).max() <= 1e-13 * np.abs(expected).max()
        assert abs(value - exact(*case.exact, case.c)) <= 1e-13 * image(case.tensors[0]).norm().item()

    check()


LENGTHS = {"radius": lambda x, c: mp.asinh(mp.sqrt(c) * size(x)) / mp.sqrt(c), "time": time}


@pytest.mark.parametrize("name", LENGTHS)
def test_radius_and_time(name: str) -> None:
    @settings(max_examples=80, derandomize=True, deadline=None)
    @given(single_points(1e4))
    def check(case: Case) -> None:
        value, gradient = evaluate(getattr(case.manifold, name), case.tensors, case.manifold)
        exact = LENGTHS[name](*case.exact, case.c)
        assert abs(value - exact) <= 1e-15 * exact
        if size(case.exact[0]) == 0:
            assert not gradient[:-1].any()
            return
        expected = exact_gradient(LENGTHS[name], case.exact, case.c)
        assert np.abs(gradient - expected).max() <= 1e-14 * np.abs(expected).max()

    check()


@settings(max_examples=150, derandomize=True, deadline=None)
@given(single_points(1e4))
def test_half_aperture(case: Case) -> None:
    value, gradient = evaluate(case.manifold.half_aperture, case.tensors, case.manifold)
    if case.stretch <= 2 * K * (1 - 1e-12):
        assert value == np.pi / 2
        assert not gradient.any()
        return

    def exact(x: Vector, c: Number) -> Number:
        return mp.asin(min(Number(1), 2 * Number(K) / (mp.sqrt(c) * size(x))))

    slope = 1 / max(1 - 2 * K / case.stretch, 1e-12)  # the arcsine becomes vertical at the edge of its domain
    assert abs(value - exact(*case.exact, case.c)) <= 1e-15 * slope
    expected = exact_gradient(exact, case.exact, case.c)
    assert np.abs(gradient - expected).max() <= 1e-14 * slope * np.abs(expected).max()
