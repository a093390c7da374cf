from __future__ import annotations

import pytest
import torch

from hyvlm.data.sentences import PERTURBATIONS
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.tasks.perturbed_ranks import PerturbedRankStatistics, entailment_margin, perturbed_ranks
from hyvlm.evaluation.tasks.perturbed_retrieval import PAPER_SETTINGS, perturb_all
from hyvlm.geometry import Euclidean, Lorentz, ProductLorentz, Sphere

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
WORDS = {"red": [1, 0, 0.2], "green": [0.1, 1, 0], "blue": [0, 0.3, 1], "dark": [0.1, 0.1, 0.1], "very": [2, 2, 2.5]}
CAPTIONS = ["red dark. very red. green.", "green. blue very. green dark.", "blue. very dark. red blue. green."]


@pytest.fixture
def samples(listed, image_of):
    return listed([image_of(c, texts=[t]) for c, t in zip((RED, GREEN, BLUE), CAPTIONS, strict=True)])


def test_ranks_equal_the_loops(by_words, tokenizer, samples) -> None:
    """Every score and angle is computed for one pair at a time."""
    model = by_words(WORDS, Lorentz(c=1.0, aperture_constant=0.3))
    result = perturbed_ranks(Embedder(model, tokenizer), samples, seeds=3)
    images = torch.eye(3)
    manifold = model.manifold

    def point(text: str) -> torch.Tensor:
        return model.encode_text(tokenizer([text]))[0]

    def margin(general: str, specific: torch.Tensor) -> float:
        g = point(general)
        return (manifold.half_aperture(g) - manifold.exterior_angle(g, specific)).item()

    readings = {
        "score": lambda text, i: float(images[i] @ point(text)),
        "entailment": lambda text, i: margin(text, point(CAPTIONS[i])),
        "entailment_image": lambda text, i: margin(text, images[i]),
    }
    assert result.ranks.keys() == readings.keys()
    exact = 0
    for reading, value in readings.items():
        assert list(result.ranks[reading]) == list(PERTURBATIONS)
        for how, ranks in result.ranks[reading].items():
            for seed in range(3):
                for i, text in enumerate(perturb_all(CAPTIONS, how, seed)):
                    mine = value(text, i)
                    # the means of the same words in another order differ by rounding
                    above, or_level = (sum(value(t, i) > mine + gap for t in CAPTIONS) for gap in (1e-6, -1e-6))
                    assert 1 + above <= ranks[seed, i] <= 1 + or_level, (reading, how, text)
                    exact += above == or_level
    assert exact > 100


def test_an_unchanged_caption_stands_behind_itself(by_words, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, texts=["red"]), image_of(BLUE, texts=["blue"])])
    result = perturbed_ranks(Embedder(by_words(WORDS), tokenizer), samples, seeds=2, perturbations=["shuffled"])
    assert result.ranks["score"]["shuffled"].tolist() == [[2, 2], [2, 2]]
    assert result.unchanged == {"shuffled": 4}
    assert result.owner.tolist() == [0, 1]


def test_statistics_pool_the_papers_perturbations(by_words, tokenizer, samples) -> None:
    embedder = Embedder(by_words(WORDS), tokenizer)
    outcome = PerturbedRankStatistics(seeds=2).run(embedder, samples)
    ranks = perturbed_ranks(embedder, samples, seeds=2).ranks["entailment"]
    pooled = torch.stack([ranks[how] for how in PAPER_SETTINGS]).double()
    assert outcome.scores["mean_rank_entailment"] == pytest.approx(pooled.mean().item())
    assert outcome.scores["rank_variance_entailment"] == pytest.approx(((pooled - pooled.mean()) ** 2).mean().item())
    assert list(outcome.scores) == [
        f"{name}_{reading}"
        for reading in ("score", "entailment", "entailment_image")
        for name in ("mean_rank", "rank_variance")
    ]
    assert outcome.details["ranks"]["score"].keys() == PERTURBATIONS.keys()
    assert outcome.details["texts_per_perturbation"] == 6


def test_a_sphere_has_the_score_alone(by_words, tokenizer, samples) -> None:
    outcome = PerturbedRankStatistics(seeds=1).run(Embedder(by_words(WORDS, Sphere()), tokenizer), samples)
    assert list(outcome.scores) == ["mean_rank_score", "rank_variance_score"]
    assert "a Sphere has no entailment cones: captions are ranked by score alone" in outcome.notes


@pytest.mark.parametrize("manifold", [Lorentz(), Euclidean(), ProductLorentz(factors=2)])
def test_the_margin_is_positive_inside_a_cone(manifold) -> None:
    """The general point lies between the origin and the specific one: the axis of its cone."""
    direction = torch.tensor([[0.5, 0.1, 0.2, 0.4], [0.4, 0.3, 0.3, 0.1]])
    margin = entailment_margin(manifold)(2 * direction, direction)
    assert margin.shape == (2, 2)
    assert (margin.diagonal() > 0).all()
    apertures = manifold.half_aperture(direction)
    expected = apertures if apertures.ndim == 1 else apertures.mean(-1)
    torch.testing.assert_close(margin.diagonal(), expected, atol=1e-3, rtol=0)


def test_every_caption_of_an_image_counts(by_words, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, texts=["red. red.", "red dark. very."]), image_of(BLUE, texts=["blue. dark."])])
    embedder = Embedder(by_words(WORDS), tokenizer)
    result = perturbed_ranks(embedder, samples, seeds=1)
    assert result.owner.tolist() == [0, 0, 1]
    assert result.ranks["score"]["random_2"].shape == (1, 3)
    assert perturbed_ranks(embedder, samples, seeds=1, captions="joined").owner.tolist() == [0, 1]


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="at least 1, got -1"):
        PerturbedRankStatistics(seeds=-1)
    with pytest.raises(ValueError, match="unknown choice of captions"):
        PerturbedRankStatistics(captions="none")
