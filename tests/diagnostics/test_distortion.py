"""Ratios of curved to flat quantities: the printed closed forms at 700 digits are the judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hyvlm.diagnostics.distortion import (
    aperture_curve,
    aperture_ratio,
    distance_ratio,
    exterior_angle_ratio,
    flat_exterior_angle,
    hyperbolic_exterior_angle,
    relation_ratios,
    surface,
)
from hyvlm.diagnostics.radii import mode
from hyvlm.geometry import Euclidean, Lorentz, ProductLorentz, Sphere

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "lorentz.npz")
K = 0.1
DIGITS = 700  # cosh reaches 1e300, and the printed forms subtract such numbers for points 1e-24 apart

Number = mp.mpf


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def printed_argument(r1: Number, r2: Number, theta: Number, c: Number) -> Number:
    """``A`` of Eq. 22."""
    a, b = mp.sqrt(c) * r1, mp.sqrt(c) * r2
    return mp.cosh(a) * mp.cosh(b) - mp.sinh(a) * mp.sinh(b) * mp.cos(theta)


def printed_gap(r1: Number, r2: Number, theta: Number) -> Number:
    return mp.sqrt(r1**2 + r2**2 - 2 * r1 * r2 * mp.cos(theta))


def printed_distance_ratio(r1: Number, r2: Number, theta: Number, c: Number) -> Number:
    """Eq. 21."""
    return mp.acosh(printed_argument(r1, r2, theta, c)) / (mp.sqrt(c) * printed_gap(r1, r2, theta))


def printed_hyperbolic_angle(r1: Number, r2: Number, theta: Number, c: Number) -> Number:
    """Eq. 24."""
    a, argument = mp.sqrt(c) * r1, printed_argument(r1, r2, theta, c)
    outward = mp.cosh(mp.sqrt(c) * r2) - argument * mp.cosh(a)
    return mp.acos(outward / (mp.sinh(a) * mp.sqrt(argument**2 - 1)))


def printed_flat_angle(r1: Number, r2: Number, theta: Number) -> Number:
    """Eq. 23."""
    return mp.acos((r2 * mp.cos(theta) - r1) / printed_gap(r1, r2, theta))


def printed_aperture_ratio(r1: Number, c: Number) -> Number:
    """Eq. 27 with both arguments at most 1."""
    s, k = mp.sqrt(c) * r1, 2 * Number(K)
    return mp.asin(min(Number(1), k / mp.sinh(s))) / mp.asin(min(Number(1), k / s))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[float, float, float, float]:
    """``r1, r2, theta, c``: lengths 1e-8 to 100, equal, close or free; angles small, close to pi or free."""
    r1 = 10.0 ** draw(st.floats(-8, 2))
    apart = 10.0 ** draw(st.floats(-15, 0)) * draw(st.sampled_from([-1, 0, 1]))
    r2 = draw(st.sampled_from([10.0 ** draw(st.floats(-8, 2)), max(r1 * (1 + apart), 1e-9)]))
    small = 10.0 ** draw(st.floats(-12, -1))
    theta = draw(st.sampled_from([small, math.pi - small, math.pi, draw(st.floats(0.01, 3.14))]))
    return r1, r2, theta, 10.0 ** draw(st.floats(-2, 1))


def search(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        return settings(max_examples=examples, derandomize=True, deadline=None)(given(pairs())(test))

    return decorate


def off_by(found: Tensor, exact: Number) -> float:
    """Relative error."""
    return float(abs(Number(found.item()) / exact - 1))


@search(400)
def test_closed_forms_against_mpmath(pair: tuple[float, float, float, float]) -> None:
    r1, r2, theta, c = map(number, pair)
    with mp.workdps(DIGITS):
        exact = [Number(value) for value in pair]
        curved, flat = printed_hyperbolic_angle(*exact), printed_flat_angle(*exact[:3])
        assert off_by(distance_ratio(r1, r2, theta, c), printed_distance_ratio(*exact)) <= 1e-14
        assert off_by(hyperbolic_exterior_angle(r1, r2, theta, c), curved) <= 1e-12
        assert off_by(flat_exterior_angle(r1, r2, theta), flat) <= 1e-12
        assert off_by(exterior_angle_ratio(r1, r2, theta, c), curved / flat) <= 1e-12


@st.composite
def apexes(draw: st.DrawFn) -> tuple[float, float]:
    """``r1, c``: lengths 1e-8 to 100, some of them close to where one of the two cones begins."""
    c = 10.0 ** draw(st.floats(-2, 1))
    edges = [math.asinh(2 * K) / math.sqrt(c), 2 * K / math.sqrt(c)]
    close = draw(st.sampled_from(edges)) * (1 + draw(st.sampled_from([-1, 1])) * 10.0 ** draw(st.floats(-17, 0)))
    return draw(st.sampled_from([max(close, 1e-9), 10.0 ** draw(st.floats(-8, 2))])), c


@settings(max_examples=400, derandomize=True, deadline=None)
@given(apexes())
def test_aperture_ratio_against_mpmath(apex: tuple[float, float]) -> None:
    found = aperture_ratio(number(apex[0]), number(apex[1]), aperture_constant=K)
    s = math.sqrt(apex[1]) * apex[0]
    nearest = min(abs(s / (2 * K) - 1), abs(s / math.asinh(2 * K) - 1))
    # The arcsine is vertical where a cone begins: nearer than this share of its radius, the rounding of r1 itself, and
    # of the square root of c, moves the ratio more than 1e-10.
    tolerance = 1e-15 * (3 + s) if nearest > 0.1 else 1e-10 if nearest > 1e-10 else 3e-8
    with mp.workdps(50):
        assert off_by(found, printed_aperture_ratio(*map(Number, apex))) <= tolerance


@pytest.mark.parametrize(("i", "c"), list(enumerate(GOLDEN["c"])))
def test_golden_values(i: int, c: float) -> None:
    r1, r2, theta = (torch.from_numpy(GOLDEN[f"ratio_{name}"]) for name in ("r1", "r2", "theta"))
    same = {"equal_nan": True, "atol": 0}
    np.testing.assert_allclose(distance_ratio(r1, r2, theta, c), GOLDEN["ratio_d"][i], rtol=1e-10, **same)
    np.testing.assert_allclose(exterior_angle_ratio(r1, r2, theta, c), GOLDEN["ratio_ext"][i], rtol=1e-9, **same)
    angle, expected = hyperbolic_exterior_angle(r1, r2, theta, c).numpy(), GOLDEN["ratio_ext_lorentz_angle"][i]
    defined = ~np.isnan(expected)
    np.testing.assert_allclose(angle[defined], expected[defined], rtol=1e-10, atol=1e-15)
    apex = torch.from_numpy(GOLDEN["aper_r"])
    ratio = aperture_ratio(apex, c, aperture_constant=float(GOLDEN["K"]))
    np.testing.assert_allclose(ratio, GOLDEN["ratio_aper"][i], rtol=1e-10)


@search(100)
def test_small_vectors_are_not_distorted(pair: tuple[float, float, float, float]) -> None:
    r1, r2, theta, c = map(number, pair)
    shrink = 1e-6 / max(r1, r2)
    assert abs(distance_ratio(shrink * r1, shrink * r2, theta, c) - 1) <= 1e-11
    assert abs(exterior_angle_ratio(shrink * r1, shrink * r2, theta, c) - 1) <= 1e-11
    assert aperture_ratio(shrink * r1, c, aperture_constant=K) == 1


def test_limits() -> None:
    one, two, zero, pi, c = number(1.0), number(2.0), number(0.0), number(math.pi), 2.5
    root = math.sqrt(c)
    assert distance_ratio(one, two, zero, c) == pytest.approx(1, rel=1e-15)  # along a ray nothing changes
    assert distance_ratio(one, two, pi, c) == pytest.approx(1, rel=1e-15)
    tangential = distance_ratio(one, one, number(1e-9), c)
    assert tangential == pytest.approx(math.sinh(root) / root, rel=1e-14)
    beyond = exterior_angle_ratio(one, two, number(1e-9), c)  # both angles vanish, with their ratio
    assert beyond == pytest.approx(math.sinh(2 * root) / math.sinh(root) / 2, rel=1e-14)
    for both_pi in ((one, two, pi), (two, one, zero), (one, zero, number(1.0))):
        assert exterior_angle_ratio(*both_pi, c) == 1
    assert exterior_angle_ratio(zero, one, number(1.0), c) == pytest.approx(1, rel=1e-15)
    assert aperture_ratio(zero, c, aperture_constant=K) == 1
    assert distance_ratio(one, one, zero, c).isnan()
    assert exterior_angle_ratio(one, one, zero, c).isnan()
    assert exterior_angle_ratio(one, two, zero, c).isnan()
    own_radius = aperture_ratio(one, c, aperture_constant=K, aperture_radius=0.5)
    assert own_radius == pytest.approx(math.asin(0.2 / math.sinh(root)) / (math.pi / 6), rel=1e-14)


def points(manifold: Lorentz | ProductLorentz, n: int, dim: int, seed: int) -> Tensor:
    v = torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return manifold.expmap0(v * 2 / math.sqrt(dim)).detach()


def test_relation_ratios_are_the_manifolds_over_the_tangent_spaces() -> None:
    manifold, flat = (
        Lorentz(c=0.8),
        Euclidean(aperture_radius=2 * K / Lorentz(c=0.8).log_c.double().exp().sqrt().item()),
    )
    x, y = points(manifold, 60, 6, 0), points(manifold, 60, 6, 1)
    v, w = manifold.logmap0(x), manifold.logmap0(y)
    expected = {
        "distance": manifold.distance(x, y) / flat.distance(v, w),
        "exterior_angle": manifold.exterior_angle(x, y) / flat.exterior_angle(v, w),
        "aperture": manifold.half_aperture(x) / flat.half_aperture(v),
    }
    for quantity, values in expected.items():
        found = relation_ratios(manifold, x, y, relation="text ⊒ image", quantity=quantity)  # type: ignore[arg-type]
        quantiles = np.quantile(values.detach().numpy(), [0.05, 0.5, 0.95])
        assert (found.low, found.median, found.high) == pytest.approx(tuple(quantiles), rel=1e-12)
        assert (found.relation, found.quantity, found.n, found.undefined) == ("text ⊒ image", quantity, 60, 0)
        assert found.low < found.high


@pytest.mark.parametrize("quantity", ["distance", "exterior_angle", "aperture"])
def test_a_product_pools_its_factors(quantity: str) -> None:
    curvatures = [0.2, 1.0, 3.0]
    product = ProductLorentz(factors=3, c=curvatures)
    x, y = points(product, 40, 12, 2), points(product, 40, 12, 3)
    ratios = []
    for c, first, second in zip(curvatures, product.split(x).unbind(1), product.split(y).unbind(1), strict=True):
        factor = Lorentz(c=c)
        v, w = factor.logmap0(first).detach(), factor.logmap0(second).detach()
        if quantity == "distance":
            ratio = factor.distance(first, second) / (v - w).norm(dim=-1)
        else:
            flat = Euclidean(aperture_radius=2 * K / factor.log_c.double().exp().sqrt().item())
            own, its = (factor.exterior_angle, flat.exterior_angle), (factor.half_aperture, flat.half_aperture)
            ratio = own[0](first, second) / own[1](v, w) if quantity == "exterior_angle" else its[0](first) / its[1](v)
        ratios.append(ratio.detach())
    found = relation_ratios(product, x, y, relation="text ⊒ image", quantity=quantity)  # type: ignore[arg-type]
    assert found.n == 120
    quantiles = np.quantile(torch.cat(ratios).numpy(), [0.05, 0.5, 0.95])
    assert (found.low, found.median, found.high) == pytest.approx(tuple(quantiles), rel=1e-12)


def test_pairs_without_a_ratio_are_counted() -> None:
    manifold = Lorentz(c=1.0)
    x, y = points(manifold, 10, 4, 4), points(manifold, 10, 4, 5)
    y[:3] = x[:3]
    found = relation_ratios(manifold, x, y, relation="image -> text", quantity="distance")
    assert (found.n, found.undefined) == (10, 3)
    rest = relation_ratios(manifold, x[3:], y[3:], relation="image -> text", quantity="distance")
    assert (found.low, found.median, found.high) == (rest.low, rest.median, rest.high)
    none = relation_ratios(manifold, x, x, relation="image -> text", quantity="exterior_angle")
    assert none.undefined == none.n == 10
    assert math.isnan(none.low)
    assert math.isnan(none.median)
    at_origin = relation_ratios(manifold, 0 * x, y, relation="image -> text", quantity="exterior_angle")
    assert (at_origin.undefined, at_origin.low, at_origin.high) == (0, pytest.approx(1), pytest.approx(1))


def test_float32_points_of_a_learned_curvature() -> None:
    manifold = Lorentz(c=0.1).float()
    x, y = points(manifold, 50, 8, 6).float(), points(manifold, 50, 8, 7).float().requires_grad_()
    found = relation_ratios(manifold, x, y, relation="image -> text", quantity="distance")
    double = relation_ratios(manifold, x.double(), y.double(), relation="image -> text", quantity="distance")
    assert found == double
    assert 1 < found.low < found.high < 1.2


@pytest.mark.parametrize("quantity", ["distance", "exterior_angle"])
def test_surface(quantity: str) -> None:
    manifold = Lorentz(c=0.5)
    x, y = points(manifold, 300, 3, 8), points(manifold, 300, 3, 9)
    found = surface(manifold, x, y, relation="text ⊒ image", quantity=quantity)  # type: ignore[arg-type]
    v, w = manifold.logmap0(x).detach(), manifold.logmap0(y).detach()
    assert found.c == pytest.approx(0.5, rel=1e-6)
    assert found.r1 == pytest.approx(mode(v.norm(dim=-1)), rel=1e-9)
    r2, theta = w.norm(dim=-1), torch.acos(torch.nn.functional.cosine_similarity(v, w))
    box = found.box
    assert (box.r2_low, box.r2_high) == pytest.approx(tuple(np.quantile(r2, [0.01, 0.99])))
    assert (box.theta_low, box.theta_high) == pytest.approx(tuple(np.quantile(theta, [0.01, 0.99])))
    assert found.r2[0] <= box.r2_low < box.r2_high <= found.r2[-1]
    assert 0 < found.theta[0] < box.theta_low < box.theta_high < found.theta[-1] < math.pi
    ratio = {"distance": distance_ratio, "exterior_angle": exterior_angle_ratio}[quantity]
    for i, j in ((0, 0), (7, 40), (30, 3), (47, 47)):
        expected = ratio(number(found.r1), number(found.r2[i]), number(found.theta[j]), found.c)
        assert found.values[i][j] == pytest.approx(expected.item(), rel=1e-14)
    assert np.shape(found.values) == (len(found.r2), len(found.theta))
    assert np.isfinite(found.values).all()


def test_surface_of_a_product_takes_mean_curvature_and_all_radii() -> None:
    product = ProductLorentz(factors=2, c=[0.1, 0.7])
    x, y = points(product, 50, 6, 10), points(product, 50, 6, 11)
    found = surface(product, x, y, relation="text ⊒ image", quantity="distance")
    assert found.c == pytest.approx(0.4, rel=1e-6)
    assert found.r1 == pytest.approx(mode(product.factor.radius(product.split(x)).detach()), rel=1e-9)
    radii = product.factor.radius(product.split(y)).detach().flatten()
    assert found.box.r2_high == pytest.approx(np.quantile(radii, 0.99))


@pytest.mark.parametrize(("at", "first_row"), [(1.0, 0), (0.0, 1)])
def test_collapsed_points_still_have_a_surface(at: float, first_row: int) -> None:
    point = torch.full((5, 3), at)
    found = surface(Lorentz(c=0.5), point, point, relation="image -> text", quantity="exterior_angle")
    assert found.r2[0] < found.r2[-1]
    assert np.isfinite(found.values[first_row:]).all()  # two vectors of length 0 enclose no angle


def test_the_papers_aperture_curve_dips_to_0_93() -> None:
    manifold = Lorentz(c=0.1, aperture_constant=0.1)
    radii = torch.linspace(0.58, 0.68, 200, dtype=torch.float64)
    curve = aperture_curve(manifold, manifold.expmap0(torch.stack([radii, 0 * radii], -1)), "part_image")
    assert min(curve.ratio) == pytest.approx(0.927, abs=0.003)  # 0.93 in Fig. 4 (a), at c = 0.1
    dip = curve.r1[int(np.argmin(curve.ratio))]
    assert dip == pytest.approx(0.2 / math.sqrt(0.1), abs=1e-3)  # where the flat cone begins
    assert curve.ratio[0] == 1
    assert curve.hyperbolic[0] == curve.flat[0] == math.pi / 2
    assert curve.ratio[-1] == pytest.approx(curve.hyperbolic[-1] / curve.flat[-1])
    assert curve.r1[0] < 0.59 < 0.67 < curve.r1[-1]
    product = ProductLorentz(factors=2, c=[0.1, 0.3])
    assert aperture_curve(product, points(product, 20, 4, 12), "text").c == pytest.approx(0.2, rel=1e-6)


@pytest.mark.parametrize("manifold", [Sphere(), Euclidean()])
def test_a_model_without_curvature_has_no_ratios(manifold: Sphere | Euclidean) -> None:
    x = torch.ones(4, 3)
    with pytest.raises(ValueError, match=f"{type(manifold).__name__}, has no exponential map to compare"):
        relation_ratios(manifold, x, x, relation="image -> text", quantity="distance")
    with pytest.raises(ValueError, match="they need Lorentz or ProductLorentz"):
        surface(manifold, x, x, relation="image -> text", quantity="distance")
    with pytest.raises(ValueError, match="they need Lorentz or ProductLorentz"):
        aperture_curve(manifold, x, "text")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (torch.ones(0, 3), torch.ones(0, 3), "text ⊒ image has no points to take ratios of"),
        (torch.ones(4, 3), torch.ones(5, 3), r"paired row by row, got shapes \(4, 3\) and \(5, 3\)"),
        (torch.tensor([[1.0], [torch.nan]]), torch.ones(2, 1), "1 of 2 points of text ⊒ image are not finite"),
    ],
)
def test_points_that_cannot_be_compared(first: Tensor, second: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        relation_ratios(Lorentz(), first, second, relation="text ⊒ image", quantity="distance")


def test_a_surface_has_no_aperture() -> None:
    with pytest.raises(ValueError, match="must be 'distance' or 'exterior_angle', got 'aperture'"):
        surface(Lorentz(), torch.eye(3), torch.eye(3), relation="text", quantity="aperture")  # type: ignore[arg-type]
