"""Radial distributions against kernel densities by hand, and distances from the origin in a product."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyvlm.diagnostics.radii import QUANTILES, mode, quantiles, radial_distribution, radial_distributions
from hyvlm.geometry import Lorentz, ProductEuclidean, ProductLorentz, Sphere

LISTS = st.lists(st.floats(0.1, 10), min_size=3, max_size=30).filter(lambda v: np.ptp(v) > 0.1)


def density_at(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The Gaussian kernel density with Scott's bandwidth, as its definition says."""
    bandwidth = values.std(ddof=1) * len(values) ** -0.2
    kernels = np.exp(-0.5 * ((at[:, None] - values) / bandwidth) ** 2) / (bandwidth * np.sqrt(2 * np.pi))
    return kernels.mean(1)


@settings(max_examples=40, deadline=None)
@given(LISTS)
def test_the_mode_is_where_the_density_is_highest(values: list[float]) -> None:
    found = np.array(values)
    at = np.linspace(found.min(), found.max(), 4001)
    assert density_at(found, np.array([mode(values)]))[0] >= density_at(found, at).max() * (1 - 1e-6)


def test_the_mode_of_two_unequal_clusters_is_in_the_larger_one() -> None:
    values = torch.cat([torch.linspace(0.4, 0.6, 30), torch.linspace(1.4, 1.6, 20)])
    assert mode(values) == pytest.approx(0.5, abs=0.05)


def test_equal_radii_have_a_mode_but_no_density() -> None:
    found = radial_distribution("text", torch.full((5,), 0.3, dtype=torch.float64))
    assert (found.mode, found.mean, found.quantiles["95%"]) == pytest.approx((0.3, 0.3, 0.3))
    assert (found.grid, found.density) == ([], [])


def test_the_density_is_that_of_the_definition_and_has_area_one() -> None:
    values = np.random.default_rng(0).gamma(9, 0.1, 200)
    found = radial_distribution("image", values)
    assert found.count == 200
    np.testing.assert_allclose(found.density, density_at(values, np.array(found.grid)), rtol=1e-9)
    assert np.trapezoid(found.density, found.grid) == pytest.approx(1, abs=5e-3)
    assert found.grid[0] >= 0


def test_quantiles_are_those_of_all_values_whatever_their_shape() -> None:
    values = torch.arange(101.0).reshape(1, 101)
    assert quantiles(values) == pytest.approx({name: 100 * q for name, q in QUANTILES.items()})


@pytest.mark.parametrize("values", [[], [0.5]])
def test_fewer_than_two_radii_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        radial_distribution("text", values)


def test_radii_that_are_not_finite_are_refused_with_their_number() -> None:
    with pytest.raises(ValueError, match=r"2 of 4 radii of text are not finite"):
        radial_distribution("text", [0.1, float("nan"), 0.2, float("inf")])


def test_the_radius_in_a_product_is_the_mean_of_the_factors() -> None:
    """The figure's "mean of per-factor geodesic distances"."""
    vectors = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    curved = ProductLorentz(factors=3, c=[0.1, 1.0, 4.0]).double()
    by_factor = vectors.unflatten(-1, (3, 2)).norm(dim=-1).mean(-1)
    for manifold, points in ((curved, curved.expmap0(vectors)), (ProductEuclidean(factors=3), vectors)):
        (found,) = radial_distributions(manifold, {"text": points})
        assert found.mean == pytest.approx(float(by_factor.mean()), rel=1e-10)
        assert found.quantiles["50%"] == pytest.approx(float(by_factor.quantile(0.5)), rel=1e-10)


def test_every_view_has_a_distribution_except_on_the_sphere() -> None:
    points = {"image": torch.rand(9, 4), "text": torch.rand(7, 4)}
    assert [(d.view, d.count) for d in radial_distributions(Lorentz(), points)] == [("image", 9), ("text", 7)]
    assert radial_distributions(Sphere(), points) == []
