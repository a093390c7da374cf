import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hyvlm.diagnostics import separation as module
from hyvlm.diagnostics.separation import median_distance, mmd, separation, wasserstein2

RADII = arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 10, width=32))


@given(RADII, st.floats(-3, 3))
def test_a_shift_moves_both_wasserstein_distances_by_itself(radii: np.ndarray, shift: float) -> None:
    found = separation(radii, radii + shift, bandwidth=1.0)
    assert (found.w1, found.w2) == pytest.approx((abs(shift), abs(shift)), abs=1e-6)


@given(RADII, RADII)
def test_distances_are_symmetric_and_ordered(a: np.ndarray, b: np.ndarray) -> None:
    one, other = separation(a, b, bandwidth=0.7), separation(b, a, bandwidth=0.7)
    assert (one.mmd, one.w1, one.w2) == pytest.approx((other.mmd, other.w1, other.w2), abs=1e-7)
    assert one.w2 >= one.w1 - 1e-9
    assert 0 <= one.mmd <= math.sqrt(2)


def test_samples_of_different_sizes_by_hand() -> None:
    """Quantiles of {0, 0, 3} and {0, 6}: up to 1/2 both are 0, up to 2/3 they are 0 and 6, then 3 and 6."""
    a, b = np.array([3.0, 0, 0]), np.array([6.0, 0])
    found = separation(a, b, bandwidth=2.0)
    assert found.w1 == pytest.approx(6 / 6 + 3 / 3)
    assert found.w2 == pytest.approx(math.sqrt(36 / 6 + 9 / 3))
    kernel = lambda x, y: math.exp(-((x - y) ** 2) / 8)  # noqa: E731
    means = [np.mean([kernel(x, y) for x in p for y in q]) for p, q in ((a, a), (b, b), (a, b))]
    assert found.mmd == pytest.approx(math.sqrt(means[0] + means[1] - 2 * means[2]))


def test_gaussians_are_as_far_apart_as_theory_says() -> None:
    """W2 of normal distributions: the means' distance and that of the deviations; MMD in closed form."""
    generator = np.random.default_rng(0)
    a, b = generator.normal(0, 1, 4000), generator.normal(2, 3, 5000)
    assert wasserstein2(a, b) == pytest.approx(math.sqrt(2**2 + 2**2), rel=0.03)
    h = 1.5
    mean = lambda d, v: math.sqrt(h**2 / (h**2 + v)) * math.exp(-(d**2) / (2 * (h**2 + v)))  # noqa: E731
    assert mmd(a, b, bandwidth=h) == pytest.approx(math.sqrt(mean(0, 2) + mean(0, 18) - 2 * mean(2, 10)), rel=0.03)


def test_blocks_change_nothing_and_bandwidths_are_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 50))
    whole = separation(a, b)
    monkeypatch.setattr(module, "ROWS", 7)
    assert separation(a, b).mmd == pytest.approx(whole.mmd)
    pooled = np.concatenate([a, b])
    pairs = [abs(x - y) for i, x in enumerate(pooled) for y in pooled[:i]]
    assert whole.bandwidth == pytest.approx(np.median(pairs))
    assert median_distance([2.0, 2.0, 2.0]) == 1
    monkeypatch.setattr(module, "SAMPLE", 60)
    assert median_distance(pooled) == pytest.approx(whole.bandwidth, rel=0.1)


@pytest.mark.parametrize("wholes", [[], [1.0, math.nan]])
def test_radii_must_be_finite(wholes: list[float]) -> None:
    with pytest.raises(ValueError, match="finite radii of wholes"):
        separation(wholes, [1.0])
    with pytest.raises(ValueError, match="must be positive"):
        separation([1.0], [1.0], bandwidth=0.0)
