from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from hyvlm.evaluation import EvalSpec
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.tasks.part_uncertainty import Uncertainty, correlation, part_uncertainty
from hyvlm.geometry import Lorentz, ProductLorentz, Sphere


@pytest.mark.parametrize("manifold", [Lorentz(c=0.5), ProductLorentz(factors=2, c=[0.5, 2.0])])
def test_parts_on_the_ray_of_their_whole(manifold) -> None:
    """Their cosine is 1, their distance the difference of the radii, their uncertainty that of norm or radius."""
    tangent = torch.tensor([[2.0, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.float64)
    manifold = manifold.double()
    wholes, owner = manifold.expmap0(tangent), torch.tensor([0, 0, 1])
    parts = manifold.expmap0(tangent[owner] * torch.tensor([[0.5], [0.25], [0.1]]))
    parts, radius = parts.detach(), manifold.radius(parts).detach()
    for measure, r in (("norm", parts.norm(dim=-1)), ("radius", radius)):
        found = part_uncertainty(manifold, wholes, parts, owner, measure=measure)
        np.testing.assert_allclose(found.uncertainty, [math.log1p(math.exp(-float(v))) for v in r], rtol=1e-12)
    np.testing.assert_allclose(found.cosine, 1, rtol=1e-12)
    if isinstance(manifold, Lorentz):
        np.testing.assert_allclose(found.similarity, (radius - manifold.radius(wholes)[owner]).detach(), rtol=1e-9)
    np.testing.assert_array_equal(found.owner, owner)
    with pytest.raises(ValueError, match="a Sphere have none"):
        part_uncertainty(Sphere(), wholes, parts, owner)


def test_correlations_are_scipys_and_intervals_hold_whole_owners() -> None:
    """Parts that all repeat one pair of their whole: 40 times as many of them tell no more than the wholes do."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=30)
    y = -x + generator.normal(size=30)
    for kind, reference in (("pearson", pearsonr), ("spearman", spearmanr)):
        once = correlation(x, y, np.arange(30), kind=kind)
        assert once.value == pytest.approx(reference(x, y).statistic)
        assert once.interval[0] < once.value < once.interval[1] < 0
        often = correlation(np.tile(x, 40), np.tile(y, 40), np.tile(np.arange(30), 40), kind=kind)
        assert often.value == pytest.approx(once.value)
        assert often.interval == pytest.approx(once.interval)
    fisher = pearsonr(x, y).confidence_interval()
    assert correlation(x, y, np.arange(30)).interval == pytest.approx((fisher.low, fisher.high), abs=0.15)


def test_what_has_no_correlation() -> None:
    flat = correlation(np.ones(4), np.arange(4.0), np.arange(4))
    assert math.isnan(flat.value)
    with pytest.raises(ValueError, match="at least 3 parts of 2 wholes, got 4 of 1"):
        correlation(np.arange(4.0), np.arange(4.0), np.zeros(4, dtype=int))


GREY = (200, 200, 200)


def shades(image_of):
    """White wholes with grey parts: the darker a part, the nearer the origin and the farther from its whole."""
    return [image_of((255, 255, 255), parts=[((v, v, v), "x"), ((v + 40, v, v), "x")]) for v in (20, 60, 110, 150, 210)]


def test_the_task_on_a_world_without_noise(stub, tokenizer, listed, image_of) -> None:
    samples = listed([*shades(image_of), image_of(GREY)])
    outcome = Uncertainty().run(Embedder(stub({}), tokenizer), samples)
    assert outcome.scores["spearman"] == pytest.approx(-1, abs=0.05)
    assert outcome.scores["pearson"] < -0.95
    assert outcome.intervals["pearson"][0] <= outcome.scores["pearson"] <= outcome.intervals["pearson"][1]
    assert outcome.details["parts"] == 10
    assert (outcome.n, outcome.total) == (5, 6)
    cropped = Uncertainty(crops=3).run(Embedder(stub({}), tokenizer), samples)
    assert cropped.details["parts"] == 18
    assert cropped.scores["spearman_cosine"] != outcome.scores["spearman_cosine"]


def test_what_cannot_be_measured(stub, tokenizer, listed, image_of) -> None:
    with pytest.raises(ValueError, match="set crops"):
        Uncertainty().run(Embedder(stub({}), tokenizer), listed([image_of(GREY)]))
    with pytest.raises(ValueError, match="points of a Sphere have none"):
        Uncertainty().check(stub({}, Sphere()), listed([image_of(GREY)]))
    with pytest.raises(ValueError, match="unknown uncertainty measure 'norms'"):
        EvalSpec("uncertainty", "scenes", measure="norms").build()
    with pytest.raises(ValueError, match="at least 1 random crop"):
        EvalSpec("uncertainty", "scenes", crops=0).build()
