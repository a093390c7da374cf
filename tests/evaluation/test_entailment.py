from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyvlm.data import open_data
from hyvlm.evaluation import EvalSpec, evaluate
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.tasks import entailment
from hyvlm.evaluation.tasks.entailment import (
    Entailment,
    Pairs,
    cone_angle,
    cone_margin,
    given_negatives,
    negatives_of_others,
    pair_scores,
    separation,
)
from hyvlm.geometry import Euclidean, Lorentz, ProductLorentz, Sphere
from hyvlm.models import Tokenizer, build_model
from hyvlm.types import BadSample

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
WORDS = {"red": [0.6, 0.1, 0.2], "green": [0.1, 0.7, 0], "blue": [0, 0.3, 0.5], "thing": [0.1, 0.1, 0.1]}


@pytest.fixture
def samples(listed, image_of):
    """Three images of two, three and one captions; the middle caption of the second is the finest of the third."""
    return listed(
        [
            image_of(RED, texts=["thing", "red"]),
            image_of(GREEN, texts=["thing", "blue", "green"]),
            image_of(BLUE, texts=["blue"]),
        ]
    )


def run(model, tokenizer, samples, **settings):
    return Entailment(**settings).run(Embedder(model, tokenizer), samples)


def test_average_precision_and_auroc_by_hand() -> None:
    """Steps at 0.9 (1 of 1), 0.8 (2 of 3, one of them negative) and 0.1 (3 of 4); of three comparisons 1, 1/2 and 0."""
    found = separation(np.array([0.8, 0.1, 0.9, 0.8]), np.array([False, True, True, True]))
    assert found.average_precision == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    assert found.auroc == pytest.approx(1.5 / 3)
    assert (found.distinct_scores, found.most_common_score, found.most_common_share) == (3, 0.8, 0.5)
    assert found.zero_share == 0
    assert (found.mean_positive, found.mean_negative) == pytest.approx((0.6, 0.8))


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_ties_by_brute_force(pairs) -> None:
    scores = np.array([float(score) for score, _ in pairs])
    positive = np.array([is_positive for _, is_positive in pairs])
    if positive.all() or not positive.any():
        with pytest.raises(ValueError, match="there must be positives and negatives"):
            separation(scores, positive)
        return
    found = separation(scores, positive)
    precision = [positive[scores >= score].mean() for score in scores[positive]]
    assert found.average_precision == pytest.approx(np.mean(precision))
    above = [(p > n) + (p == n) / 2 for p in scores[positive] for n in scores[~positive]]
    assert found.auroc == pytest.approx(np.mean(above))
    assert found.zero_share == pytest.approx((scores == 0).mean())
    assert found.distinct_scores == len(set(scores))
    assert found.most_common_share == pytest.approx(max(Counter(scores).values()) / len(scores))


def test_scores_that_are_not_numbers() -> None:
    with pytest.raises(ValueError, match="not a number"):
        separation(np.array([0.5, float("nan")]), np.array([True, False]))


def test_the_cone_stands_at_the_caption() -> None:
    """On the axis, at 45 degrees, at a right angle and behind; with the cone at the image the first is 0, too."""
    caption = torch.tensor([[1.0, 0.0]]).expand(4, 2)
    image = torch.tensor([[2.0, 0.0], [2.0, 1.0], [1.0, 3.0], [0.5, 0.0]])
    manifold = Euclidean(aperture_radius=0.5)
    torch.testing.assert_close(cone_angle(manifold, image, caption), torch.tensor([1, 0.5, 0, 0]))
    assert cone_angle(manifold, caption, image)[0] == 0
    aperture, right = math.pi / 6, math.pi / 2
    expected = torch.tensor([aperture, aperture - right / 2, aperture - right, aperture - 2 * right])
    torch.testing.assert_close(cone_margin(manifold, image, caption), expected)


def test_factors_are_averaged() -> None:
    """The first factor sees its image on the axis, the second behind: (1 + 0) / 2."""
    manifold, factor = ProductLorentz(factors=2), Lorentz()
    caption, image = torch.tensor([[1.0, 0, 1, 0]]), torch.tensor([[2.0, 0, 0.5, 0]])
    parts = [(image[:, k : k + 2], caption[:, k : k + 2]) for k in (0, 2)]
    assert cone_angle(manifold, image, caption).item() == pytest.approx(0.5, abs=1e-3)
    for how in (cone_angle, cone_margin):
        expected = sum(how(factor, i, c) for i, c in parts) / 2
        torch.testing.assert_close(how(manifold, image, caption), expected, atol=1e-5, rtol=0)
    baselines = pair_scores(manifold, "angle")
    assert baselines["norm_difference"](manifold, image, caption).item() == pytest.approx((1 - 0.5) / 2)
    assert baselines["cosine"](manifold, image, torch.tensor([[0, 3.0, 4, 0]])).item() == pytest.approx(0.5)


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(0, 2**40),
)
def test_no_negative_is_a_caption_of_its_image(captions, limit, seed) -> None:
    for chosen_seed in (seed, None):
        chosen = negatives_of_others(captions, limit, chosen_seed)
        assert chosen == negatives_of_others(captions, limit, chosen_seed)
        for own, negatives in zip(captions, chosen, strict=True):
            pool = [other[-1] for other in captions if other[-1] not in own]
            assert len(negatives) == min(limit, len(pool))
            assert not Counter(negatives) - Counter(pool)  # as often as there are images with it
            assert chosen_seed is not None or negatives == pool[:limit]


def test_draws_are_uniform_and_depend_on_seed_and_image() -> None:
    captions = [["thing", f"caption {i}"] for i in range(200)]
    first, second = negatives_of_others(captions, 20, 0), negatives_of_others(captions, 20, 1)
    assert first != second
    assert len({tuple(texts) for texts in first}) == 200
    drawn = Counter(text for texts in first for text in texts)
    assert len(drawn) == 200
    assert 5 <= min(drawn.values()) <= max(drawn.values()) <= 40  # 20 expected of each, standard deviation 4.3


def test_first_100_as_released() -> None:
    """Captions of others in file order, without own ones, cut at 100: image 0 reaches to the 101st other image."""
    captions = [["thing", f"caption {i}"] for i in range(120)]
    captions[0] = ["caption 3", "caption 0"]
    chosen = negatives_of_others(captions, 100)
    assert chosen[0] == [f"caption {i}" for i in range(1, 102) if i != 3]
    assert chosen[50] == [f"caption {i}" for i in range(101) if i != 50]
    assert chosen[119] == chosen[118] == [f"caption {i}" for i in range(100)]


def test_given_negatives_leave_own_captions_out() -> None:
    annotations = [SimpleNamespace(texts=["a", "b"], negatives=["c", "b", "d", "e"])]
    assert given_negatives(annotations, 2) == [["c", "d"]]


@pytest.mark.parametrize("manifold", [Lorentz(c=0.7), Euclidean(), ProductLorentz(factors=3), Sphere()], ids=type)
@pytest.mark.parametrize("cone", ["angle", "margin"])
def test_all_scores_equal_the_loops(by_words, tokenizer, samples, manifold, cone) -> None:
    """Every pair is scored by itself; the finest caption of the third image is an own one of the second."""
    outcome = run(by_words(WORDS, manifold), tokenizer, samples, cone=cone)
    captions = [["thing", "red"], ["thing", "blue", "green"], ["blue"]]
    negatives = [["green", "blue"], ["red"], ["red", "green"]]
    pairs = [(i, text, True) for i, own in enumerate(captions) for text in own]
    pairs += [(i, text, False) for i, others in enumerate(negatives) for text in others]
    images, positive = torch.eye(3), np.array([p for _, _, p in pairs])
    scores = {}
    for name, how in pair_scores(manifold, cone).items():
        with torch.no_grad():
            each = [how(manifold, images[i : i + 1], torch.tensor([WORDS[text]])).item() for i, text, _ in pairs]
        found = separation(np.array(each), positive)
        scores |= {f"average_precision_{name}": found.average_precision, f"auroc_{name}": found.auroc}
    assert outcome.scores == pytest.approx({name: 100 * value for name, value in scores.items()})
    assert (outcome.details["positives"], outcome.details["negatives"]) == (6, 5)
    readings = ["distance", "cosine"]
    if not isinstance(manifold, Sphere):
        readings = ["cone", *readings, "inner", "norm_difference"]
    assert list(outcome.details["separation"]) == readings
    assert any("no entailment cones" in note for note in outcome.notes) == isinstance(manifold, Sphere)
    assert outcome.notes[0] == "a random ranking has an average precision of 54.55%"


def test_blocks_do_not_change_the_scores(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(5, 4, generator=generator), torch.randn(9, 4, generator=generator)
    pairs = Pairs.of([["a", "b"], ["c"], ["d"], ["e"], ["f", "g"]], [["h"], ["i", "a"], [], ["a"], []])
    assert pairs.texts == list("abcdefghi")
    assert pairs.image.tolist() == [0, 0, 1, 2, 3, 4, 4, 0, 1, 1, 3]
    assert pairs.caption.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]
    assert pairs.positive.tolist() == [True] * 7 + [False] * 4
    with torch.no_grad():
        whole = pairs.score(cone_margin, Lorentz(), images, texts)
        monkeypatch.setattr(entailment, "BLOCK", 8)  # two pairs at once
        np.testing.assert_allclose(pairs.score(cone_margin, Lorentz(), images, texts), whole, rtol=1e-6)


def test_given_negatives_of_a_set(by_words, tokenizer, samples) -> None:
    samples.items[0].negatives = ["blue", "red", "green"]
    outcome = run(by_words(WORDS), tokenizer, samples, negatives="given")
    assert (outcome.details["positives"], outcome.details["negatives"]) == (6, 2)
    assert Entailment(negatives="given").opens == "negatives"
    assert Entailment().opens == Entailment(negatives="first_100").opens == "pairs"
    for sample in samples.items:
        sample.negatives = []
    samples.fingerprint = "another"
    with pytest.raises(ValueError, match="no negative for any of the 3 images of listed: none comes with the set"):
        run(by_words(WORDS), tokenizer, samples, negatives="given")


def test_ties_are_told(by_words, tokenizer, listed, image_of) -> None:
    """Both captions point away from both images: every angle is beyond a right one."""
    points = {"a": [-1, 0, -1], "b": [-2, 0, -1]}
    samples = listed([image_of(RED, texts=["a", "a"]), image_of(BLUE, texts=["b"])])
    outcome = run(by_words(points), tokenizer, samples)
    assert outcome.scores["average_precision_cone"] == pytest.approx(60)  # 3 positives, 2 negatives
    assert outcome.scores["auroc_cone"] == 50
    assert outcome.details["separation"]["cone"]["zero_share"] == 1
    assert "100% of the pairs tie at a cone score of 0; the cone score 'margin' does not level off" in outcome.notes
    margin = run(by_words(points), tokenizer, samples, cone="margin")
    assert margin.details["separation"]["cone"]["distinct_scores"] > 1


def test_what_is_left_out_is_counted(by_words, tokenizer, samples, image_of) -> None:
    samples.items += [BadSample("image file is missing", "x.jpg"), image_of(RED)]
    outcome = run(by_words(WORDS), tokenizer, samples)
    assert (outcome.n, outcome.total) == (3, 5)
    assert outcome.skipped == Counter({"image file is missing": 1, "no caption": 1})
    assert "3 images have fewer than 100 negatives, down to 1" in outcome.notes


def test_sets_without_negatives_or_levels(by_words, tokenizer, listed, image_of) -> None:
    model = by_words(WORDS)
    with pytest.raises(ValueError, match="no negative for any of the 1 images of listed: other images must have"):
        run(model, tokenizer, listed([image_of(RED, texts=["thing", "red"])]))
    same = [image_of(colour, texts=["thing", "thing"]) for colour in (RED, GREEN)]
    with pytest.raises(ValueError, match="no negative for any of the 2 images"):
        run(model, tokenizer, listed(same, fingerprint="same"))
    single = listed([image_of(RED, texts=["red"]), image_of(BLUE, texts=["blue"])], fingerprint="single")
    outcome = run(model, tokenizer, single)
    assert "no image has more than one caption: there is no hierarchy in this set" in outcome.notes
    assert outcome.scores["auroc_cosine"] == 100


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match=r"unknown cone score 'angel'\. Did you mean 'angle'"):
        Entailment(cone="angel")
    with pytest.raises(ValueError, match=r"unknown source of negatives 'first'\. Did you mean 'first_100'"):
        Entailment(negatives="first")
    with pytest.raises(ValueError, match="negatives_per_image must be at least 1, got 0"):
        Entailment(negatives_per_image=0)
    with pytest.raises(ValueError, match="first_100 takes 100 negatives an image, not 50"):
        Entailment(negatives="first_100", negatives_per_image=50)
    for settings in ({"seed": -1}, {"seed": 1, "negatives": "given"}):
        with pytest.raises(ValueError, match="seed belongs to negatives=sampled"):
            Entailment(**settings)


def test_the_runner_hands_the_settings_on(tmp_path) -> None:
    """The built-in scenes go from general to full; the same seed gives the same numbers."""
    torch.manual_seed(0)
    model = build_model(
        {
            "model": {"preset": "tiny", "text": {"context_length": 32, "depth": 1}, "image": {"depth": 1}},
            "manifold": {"name": "lorentz"},
        }
    )
    data = open_data("scenes:6", split="train")
    settings = {"negatives_per_image": 3, "cone": "margin"}
    specs = [EvalSpec("entailment", data, seed=seed, **settings) for seed in (4, 5, 4)]
    first, other, again = evaluate(model, Tokenizer(32), specs, out=tmp_path, show_progress=False)
    assert first.settings["negatives_per_image"] == 3
    assert (first.outcome.details["positives"], first.outcome.details["negatives"]) == (24, 18)
    assert first.outcome.details["negatives_hash"] == again.outcome.details["negatives_hash"]
    assert first.outcome.details["negatives_hash"] != other.outcome.details["negatives_hash"]
    assert first.scores == again.scores
