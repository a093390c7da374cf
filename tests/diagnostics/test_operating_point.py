"""Operating points against mpmath, effective ranks against cases worked out by hand."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyvlm.diagnostics.operating_point import effective_rank, operating_point, operating_points, scaled_norms
from hyvlm.geometry import Euclidean, Lorentz, ProductLorentz, Sphere


def cross(lengths: list[float], dim: int) -> torch.Tensor:
    """Vectors at both ends of orthogonal axes: centred, with singular values in the ratio of the lengths."""
    ends = torch.zeros(2 * len(lengths), dim, dtype=torch.float64)
    for axis, length in enumerate(lengths):
        ends[2 * axis, axis], ends[2 * axis + 1, axis] = length, -length
    return ends


@settings(max_examples=60, deadline=None)
@given(c=st.floats(1e-3, 10), radius=st.floats(1e-6, 5))
def test_the_extent_is_the_hyperbolic_sine_of_the_radius(c: float, radius: float) -> None:
    manifold = Lorentz(c=c, bounds=None).double()
    point = manifold.expmap0(torch.tensor([[0.6 * radius, 0.8 * radius]], dtype=torch.float64))
    with mpmath.workdps(40):
        expected = float(mpmath.sinh(mpmath.exp(manifold.log_c.item() / mpmath.mpf(2)) * radius))
    assert scaled_norms(manifold, point).item() == pytest.approx(expected, rel=1e-12 * max(1, math.sqrt(c) * radius))


def test_a_product_pools_its_factors_each_with_its_own_curvature() -> None:
    manifold = ProductLorentz(factors=2, c=[0.25, 4.0]).double()
    points = torch.tensor([[1.0, 0.0, 0.0, 3.0], [2.0, 0.0, 0.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(
        scaled_norms(manifold, points), points.new_tensor([[0.5, 6.0], [1.0, 8.0]]), rtol=1e-6, atol=0
    )
    found = operating_point(manifold, "text", points)
    assert found.extent is not None
    assert found.extent["50%"] == pytest.approx(3.5)


def test_saturation_is_the_share_of_points_or_factors_within_the_ball() -> None:
    points = torch.tensor([[0.1, 0.0], [0.19, 0.0], [0.21, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert operating_point(Lorentz(c=1.0).double(), "text", points).saturated == 0.5  # 2K/sqrt(c) = 0.2
    product = ProductLorentz(factors=2, c=1.0).double()
    pairs = torch.tensor([[0.1, 0.9], [0.1, 0.1]], dtype=torch.float64)
    assert operating_point(product, "text", pairs).saturated == 0.75


def test_what_a_manifold_does_not_have_is_none() -> None:
    points = {"image": torch.eye(3), "text": torch.eye(3)}
    flat = operating_points(Euclidean(aperture_radius=2.0), points)
    assert [(p.view, p.extent, p.saturated) for p in flat] == [("image", None, 1.0), ("text", None, 1.0)]
    sphere = operating_point(Sphere(), "text", torch.eye(3))
    assert (sphere.extent, sphere.saturated) == (None, None)
    assert sphere.effective_rank == pytest.approx(2)  # an equilateral triangle spreads evenly over its plane


@pytest.mark.parametrize("lengths", [[1.0], [2.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
def test_equal_spread_along_k_axes_has_rank_k(lengths: list[float]) -> None:
    assert effective_rank(cross(lengths, 6) + 7.0) == pytest.approx(len(lengths), rel=1e-10)


def test_unequal_spread_has_the_entropy_of_its_singular_values() -> None:
    expected = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))  # 1.7548
    assert effective_rank(cross([3.0, 1.0], 5)) == pytest.approx(expected, rel=1e-10)


def test_fewer_samples_than_dimensions_bound_the_rank() -> None:
    simplex = torch.eye(4, 50, dtype=torch.float64)
    assert effective_rank(simplex) == pytest.approx(3, rel=1e-10)


def test_collapsed_vectors_have_rank_zero_although_they_are_rounded() -> None:
    assert effective_rank(torch.full((9, 7), 0.1)) == 0.0
    last_digit = torch.tensor(0.1).nextafter(torch.tensor(1.0))
    assert effective_rank(torch.where(torch.eye(9, 7) > 0, last_digit, 0.1)) == 0.0


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(1, 8), st.integers(0, 99), st.floats(0.01, 100))
def test_the_rank_is_bounded_and_blind_to_scale_and_rotation(n: int, dim: int, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator)).Q
    found = effective_rank(vectors)
    assert 1 - 1e-9 <= found <= min(n - 1, dim) + 1e-9
    assert effective_rank(scale * vectors @ rotation) == pytest.approx(found, rel=1e-8)


def test_the_rank_is_of_tangent_vectors_not_of_points() -> None:
    manifold = Lorentz(c=1.0).double()
    tangents = cross([4.0, 1.0], 3)
    found = operating_point(manifold, "text", manifold.expmap0(tangents)).effective_rank
    assert found == pytest.approx(effective_rank(tangents), rel=1e-9)


def test_one_vector_has_no_rank() -> None:
    with pytest.raises(ValueError, match="at least 2 vectors, got 1"):
        effective_rank(torch.ones(1, 4))
