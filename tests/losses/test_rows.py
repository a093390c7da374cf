"""Loss rows against torch's cross entropy, literal repetition and sums written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from hyvlm.geometry import Euclidean, Lorentz, ProductLorentz, Sphere
from hyvlm.losses import ConeHinge, LeakyConeHinge, calibration_rows, contrast_rows, entropy_rows, uncertainty


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows_and_gradient(similarity: torch.Tensor, *args: object, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = similarity.clone().requires_grad_()
    rows = contrast_rows(leaf, *args, **options)
    rows.square().sum().backward()
    return rows.detach(), leaf.grad


def test_contrast_is_cross_entropy() -> None:
    similarity, target = random(5, 7) * 10, torch.tensor([0, 3, 3, 6, 1])
    expected = F.cross_entropy(similarity, target, reduction="none")
    torch.testing.assert_close(contrast_rows(similarity, target), expected)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=6), exclude=st.booleans(), seed=st.integers(0, 99))
def test_counts_stand_for_repeated_columns(counts: list[int], exclude: bool, seed: int) -> None:
    """Each of the rows looks for one copy of its column among all copies of all columns."""
    owner = [column for column, count in enumerate(counts) for _ in range(count)]
    similarity, target = random(len(owner), len(counts), seed=seed), torch.tensor(owner, dtype=torch.long)
    log_count = torch.tensor(counts, dtype=torch.float64).log()
    rows, gradient = rows_and_gradient(similarity, target, log_count=log_count, exclude_positive=exclude)
    own = torch.arange(len(owner))
    repeated = similarity.clone().requires_grad_()
    expected = contrast_rows(repeated[:, target], own, exclude_positive=exclude)
    expected.square().sum().backward()
    torch.testing.assert_close(rows, expected.detach())
    torch.testing.assert_close(gradient, repeated.grad)
    assert all((gradient[:, column] == 0).all() for column, count in enumerate(counts) if count == 0)


def test_without_the_positive() -> None:
    similarity, target = random(4, 4), torch.tensor([2, 0, 1, 3])
    rows, _ = rows_and_gradient(similarity, target, exclude_positive=True)
    for i, t in enumerate(target.tolist()):
        negatives = sum(math.exp(similarity[i, k]) for k in range(4) if k != t)
        assert rows[i].item() == pytest.approx(math.log(negatives) - similarity[i, t].item())


def test_a_row_without_negatives_is_zero_and_finite() -> None:
    rows, gradient = rows_and_gradient(random(1, 1), torch.tensor([0]), exclude_positive=True)
    assert rows.item() == 0
    assert gradient.item() == 0


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("columns", [0, 3])
def test_no_row_at_all(columns: int, exclude: bool) -> None:
    similarity = torch.empty(0, columns, requires_grad=True)
    counts = torch.zeros(columns).log()
    rows = contrast_rows(similarity, torch.empty(0, dtype=torch.long), log_count=counts, exclude_positive=exclude)
    assert rows.shape == (0,)
    rows.sum().backward()
    assert similarity.grad.shape == (0, columns)


def test_hinge_on_the_axis_and_off_it() -> None:
    """Flat: from (2, 0) the point (2, 1) is seen at a right angle; the half-aperture is asin(R / 2)."""
    manifold = Euclidean(aperture_radius=1.0)
    general, specific = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([[2.0, 1.0], [5.0, 0.0]])
    rows = ConeHinge(eta=0.5)(manifold, general, specific)
    assert rows.tolist() == pytest.approx([math.pi / 2 - 0.5 * math.pi / 6, 0.0], abs=1e-6)
    leaky = LeakyConeHinge(eta=0.5, alpha=0.2)(manifold, general, specific)
    assert leaky.tolist() == pytest.approx([rows[0].item() + 0.2 * math.pi / 2, 0.0], abs=1e-6)


def test_leaky_hinge_keeps_a_gradient_inside_the_cone() -> None:
    general, specific = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.1]], requires_grad=True)
    for hinge, moves in ((ConeHinge(), False), (LeakyConeHinge(), True)):
        specific.grad = None
        hinge(Lorentz(c=0.1), general, specific).sum().backward()
        assert bool((specific.grad != 0).any()) is moves


@pytest.mark.parametrize("hinge", [ConeHinge(), LeakyConeHinge()])
def test_factors_are_averaged(hinge: ConeHinge) -> None:
    manifold = ProductLorentz(factors=2, c=1.0).double()
    general, specific = random(3, 8, seed=1), random(3, 8, seed=2)
    single = Lorentz(c=1.0).double()
    halves = [hinge(single, general[:, k : k + 4], specific[:, k : k + 4]) for k in (0, 4)]
    torch.testing.assert_close(hinge(manifold, general, specific), (halves[0] + halves[1]) / 2)


@pytest.mark.parametrize("eta", [0, -1.0, float("nan")])
@pytest.mark.parametrize("hinge", [ConeHinge, LeakyConeHinge])
def test_eta_must_be_positive(hinge: type[ConeHinge], eta: float) -> None:
    with pytest.raises(ValueError, match="eta scales the cone's half-aperture and must be positive"):
        hinge(eta=eta)


def test_uncertainty_by_norm_and_by_radius() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    by_norm = uncertainty(x, Lorentz())
    assert by_norm.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-5))])
    by_radius = uncertainty(x, Lorentz(c=4.0).double(), "radius")
    assert by_radius.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-math.asinh(10) / 2))])


def test_uncertainty_falls_with_the_norm_and_its_gradient_is_finite_at_the_origin() -> None:
    x = torch.zeros(1, 3, requires_grad=True)
    uncertainty(x, Lorentz()).sum().backward()
    assert x.grad.isfinite().all()
    far = uncertainty(torch.tensor([[0.1], [1.0], [10.0], [1e4]]), Lorentz())
    assert (far.diff() < 0).all()
    assert (far >= 0).all()


def test_uncertainty_says_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="unknown uncertainty measure 'radios'"):
        uncertainty(torch.ones(1, 2), Lorentz(), "radios")
    with pytest.raises(ValueError, match="needs a manifold with a radius, Sphere has none"):
        uncertainty(torch.ones(1, 2), Sphere(), "radius")


def test_calibration_pulls_uncertainty_to_the_log_of_the_residual() -> None:
    """``r exp(-u) + u`` is least at ``u = log r``; the residual itself gets no gradient."""
    residual = torch.tensor([1.5, 2.0], dtype=torch.float64, requires_grad=True)
    u = residual.detach().log().requires_grad_()
    rows = calibration_rows(residual, u)
    rows.sum().backward()
    assert rows.tolist() == pytest.approx([1 + math.log(1.5), 1 + math.log(2.0)])
    assert u.grad.abs().max() < 1e-15
    assert residual.grad is None
    calibration_rows(residual, u.detach(), through_residual=True).sum().backward()
    torch.testing.assert_close(residual.grad, torch.exp(-u.detach()))
    residual = residual.detach()
    assert calibration_rows(residual, u, eps=0.5)[1].item() == pytest.approx(2 / 2.5 + math.log(2))


def test_entropy_shares_add_up() -> None:
    u = random(6)
    p = u.softmax(0)
    shares = entropy_rows(u, u)
    torch.testing.assert_close(shares.sum(), -(p * p.log()).sum())
    torch.testing.assert_close(entropy_rows(u[2:4], u), shares[2:4])
    torch.testing.assert_close(entropy_rows(u, u, eps=0.1), -p * (p + 0.1).log())
    even = torch.full((5,), 0.3)
    assert entropy_rows(even, even).sum().item() == pytest.approx(math.log(5))
    assert entropy_rows(even[:0], even[:0]).shape == (0,)
