"""The Lorentz model and its flat counterpart against values of 90 decimal digits (tests/golden/README.md)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hyvlm.geometry import Euclidean, Lorentz

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "lorentz.npz")
LABEL = GOLDEN["pair_label"]
CURVATURES = list(enumerate(GOLDEN["c"]))
GENERIC = LABEL == "generic"


def given(name: str, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(GOLDEN[name]).to(dtype)


def lorentz(c: float, dtype: torch.dtype = torch.float64) -> Lorentz:
    """With ``c`` in the module's dtype from the start: a float32 logarithm would cost seven digits."""
    manifold = Lorentz(c=float(c), aperture_constant=float(GOLDEN["K"])).to(dtype)
    with torch.no_grad():
        manifold.log_c.copy_(torch.tensor(float(c), dtype=torch.float64).log())
    return manifold


def assert_close(found: Tensor, expected: np.ndarray, *, rel: float = 0.0, abs: float = 0.0) -> None:
    """Compare entries that are defined (not NaN)."""
    defined = ~np.isnan(expected)
    assert defined.any()
    np.testing.assert_allclose(found.detach().double().numpy()[defined], expected[defined], rtol=rel, atol=abs)


@pytest.mark.parametrize(("i", "c"), CURVATURES)
def test_maps_and_radii(i: int, c: float) -> None:
    manifold, points = lorentz(c), given("points")
    assert_close(manifold.expmap0(given("tangent")), GOLDEN["exp_space"][i], rel=1e-13)
    assert_close(manifold.lift(given("tangent")), GOLDEN["exp_space"][i], rel=1e-13)
    assert_close(manifold.logmap0(points), GOLDEN["log_space"][i], rel=1e-13)
    assert_close(manifold.time(points), GOLDEN["time"][i], rel=1e-13)
    assert_close(manifold.radius(points), GOLDEN["origin_dist"][i], rel=1e-13)


@pytest.mark.parametrize(("i", "c"), CURVATURES)
def test_half_aperture(i: int, c: float) -> None:
    points = given("points")
    on_edge = (GOLDEN["points_label"] == "norm~0.2") & (c == 1)  # exactly where the cones begin
    flat = Euclidean(aperture_radius=2 * float(GOLDEN["K"]) / np.sqrt(c))
    for manifold, name in ((lorentz(c), "half_aperture"), (flat, "euclid_half_aperture")):
        found, expected = manifold.half_aperture(points), GOLDEN[name][i]
        assert_close(found[~on_edge], expected[~on_edge], abs=1e-13)
        assert_close(found, expected, abs=2e-8)
    assert np.array_equal(
        lorentz(c).saturated(points).numpy()[~on_edge], GOLDEN["half_aperture_saturated"][i][~on_edge]
    )


@pytest.mark.parametrize(("i", "c"), CURVATURES)
def test_pairwise(i: int, c: float) -> None:
    manifold, x, y = lorentz(c), given("pw_x"), given("pw_y")
    assert_close(manifold.pairwise_inner(x, y), GOLDEN["pw_inner"][i], rel=1e-13)
    assert_close(manifold.pairwise_distance(x, y), GOLDEN["pw_dist"][i], rel=1e-11, abs=1e-15)


@pytest.mark.parametrize(("i", "c"), CURVATURES)
def test_pairs(i: int, c: float) -> None:
    manifold, x, y = lorentz(c), given("pair_x"), given("pair_y")
    cancelling = np.array(["coincident" in label and "norm_1e3" in label for label in LABEL])
    inner = manifold.inner(x, y)
    assert_close(inner[~cancelling], GOLDEN["pair_inner"][i][~cancelling], rel=1e-13)
    assert_close(inner[cancelling], GOLDEN["pair_inner"][i][cancelling], abs=1e-7)
    assert_close(manifold.distance(x, y), GOLDEN["pair_dist"][i], rel=1e-11)
    near = np.array([label.startswith("near_coincident") for label in LABEL])
    angle = manifold.exterior_angle(x, y)
    assert_close(angle[~near], GOLDEN["pair_ext"][i][~near], abs=1e-10)
    assert_close(angle[near], GOLDEN["pair_ext"][i][near], abs=1e-6)


def test_flat_pairs() -> None:
    manifold, x, y = Euclidean(), given("pair_x"), given("pair_y")
    assert_close(manifold.distance(x, y), GOLDEN["pair_euclid_dist"], rel=1e-11)
    near = np.array([label.startswith("near_coincident") for label in LABEL])
    angle = manifold.exterior_angle(x, y)
    assert_close(angle[~near], GOLDEN["pair_euclid_ext"][~near], abs=1e-10)
    assert_close(angle[near], GOLDEN["pair_euclid_ext"][near], abs=1e-6)


@pytest.mark.parametrize(("i", "c"), CURVATURES)
def test_midpoints(i: int, c: float) -> None:
    manifold, points = lorentz(c), given("mid_points")
    for name, weights in (("mid_weighted", given("mid_weights")), ("mid_unweighted", None)):
        expected = GOLDEN[name][i]
        error = np.abs(manifold.midpoint(points, weights).detach().numpy() - expected)
        assert (error <= 1e-12 * np.abs(expected).max(-1, keepdims=True)).all()


@pytest.mark.parametrize(("i", "c"), CURVATURES)
def test_ratios_of_curved_to_flat(i: int, c: float) -> None:
    manifold, flat = lorentz(c), Euclidean(aperture_radius=2 * float(GOLDEN["K"]) / np.sqrt(c))
    r1, r2, theta = GOLDEN["ratio_r1"], GOLDEN["ratio_r2"], GOLDEN["ratio_theta"]
    sine = np.where(theta == np.pi, 0.0, np.sin(theta))  # that entry stands for pi itself
    v1 = torch.from_numpy(np.stack([r1, np.zeros_like(r1)], -1))
    v2 = torch.from_numpy(np.stack([r2 * np.cos(theta), r2 * sine], -1))
    x, y = manifold.lift(v1), manifold.lift(v2)
    assert_close(manifold.distance(x, y) / flat.distance(v1, v2), GOLDEN["ratio_d"][i], rel=1e-9)
    assert_close(manifold.exterior_angle(x, y) / flat.exterior_angle(v1, v2), GOLDEN["ratio_ext"][i], rel=1e-9)
    r = given("aper_r").unsqueeze(-1)
    assert_close(manifold.half_aperture(manifold.lift(r)) / flat.half_aperture(r), GOLDEN["ratio_aper"][i], abs=1e-13)


def gradients(name: str, manifold: Lorentz) -> np.ndarray:
    """Derivatives of the paired function by x, y and c, one row a pair, ``(pairs, 9)``."""
    rows = []
    for x, y in zip(given("pair_x"), given("pair_y"), strict=True):
        inputs = [x.requires_grad_(), y.requires_grad_(), manifold.log_c]
        by_x, by_y, by_log_c = torch.autograd.grad(getattr(manifold, name)(x, y), inputs)
        rows.append(torch.cat([by_x, by_y, (by_log_c / manifold.c.detach()).unsqueeze(0)]).numpy())
    return np.stack(rows)


@pytest.mark.parametrize(("i", "c"), CURVATURES)
@pytest.mark.parametrize(("name", "key"), [("distance", "pair_dist"), ("exterior_angle", "pair_ext")])
def test_gradients(i: int, c: float, name: str, key: str) -> None:
    found = gradients(name, lorentz(c))
    assert np.isfinite(found).all()
    by_x, by_y, by_c = (GOLDEN[f"{key}_grad_{of}"][i] for of in ("x", "y", "c"))
    expected = np.concatenate([by_x, by_y, by_c[:, None]], -1)
    held = 0
    for label, got, want in zip(LABEL, found, expected, strict=True):
        stated = label.startswith(("generic", "norms_")) or ("ext_angle_near" in label and label.endswith("_0.001"))
        if np.isnan(want).any() or not (stated or name == "distance"):
            continue
        tolerance = 1e-6 if name == "distance" and label.endswith("_norm_1e3") else 1e-9
        assert np.abs(got - want).max() <= tolerance * np.abs(want).max(), label
        held += 1
    assert held >= 11


@pytest.mark.parametrize(("i", "c"), CURVATURES)
def test_float32_on_generic_pairs(i: int, c: float) -> None:
    dtype = torch.float32
    manifold, x, y = lorentz(c, dtype), given("pair_x", dtype)[GENERIC], given("pair_y", dtype)[GENERIC]
    assert_close(manifold.inner(x, y), GOLDEN["pair_inner"][i][GENERIC], rel=1e-5)
    assert_close(manifold.distance(x, y), GOLDEN["pair_dist"][i][GENERIC], rel=1e-5)
    assert_close(manifold.exterior_angle(x, y), GOLDEN["pair_ext"][i][GENERIC], rel=1e-5)
    assert_close(manifold.pairwise_distance(x, y).diagonal(), GOLDEN["pair_dist"][i][GENERIC], rel=1e-5)
    assert_close(manifold.pairwise_exterior_angle(x, y).diagonal(), GOLDEN["pair_ext"][i][GENERIC], rel=1e-5)
    generic = GOLDEN["points_label"] == "generic"
    points = given("points", dtype)[generic]
    assert_close(manifold.logmap0(points), GOLDEN["log_space"][i][generic], rel=1e-5)
    assert_close(manifold.radius(points), GOLDEN["origin_dist"][i][generic], rel=1e-5)
    assert_close(manifold.half_aperture(points), GOLDEN["half_aperture"][i][generic], rel=1e-5)
    generic = GOLDEN["tangent_label"] == "generic"
    assert_close(manifold.lift(given("tangent", dtype)[generic]), GOLDEN["exp_space"][i][generic], rel=1e-5)
