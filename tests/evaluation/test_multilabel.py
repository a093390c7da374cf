"""Normalised scores of label sets, by hand and against scikit-learn and scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax
from sklearn.metrics import average_precision_score

from hyvlm.evaluation import TASKS
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.metrics import average_precision
from hyvlm.evaluation.tasks.multilabel import NORMALIZATIONS, normalised

UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}
SCORES = np.array([[-1.0, -3.0, -5.0], [-20.0, -10.0, -10.0]])


def test_normalisations_by_hand() -> None:
    assert normalised(SCORES, "none") == pytest.approx(SCORES)
    assert normalised(SCORES, "min_max") == pytest.approx(np.array([[1, 0.5, 0], [0, 1, 1]]))
    assert np.exp(normalised(SCORES, "softmax")) == pytest.approx(softmax(SCORES, axis=1))
    root = np.sqrt(1.5)
    assert normalised(SCORES, "z_score") == pytest.approx(
        np.array([[root, 0, -root], [-np.sqrt(2), np.sqrt(0.5), np.sqrt(0.5)]])
    )
    assert normalised(SCORES, "z_score_class") == pytest.approx(np.array([[1, 1, 1], [-1, -1, -1]]))


@pytest.mark.parametrize("how", NORMALIZATIONS)
def test_scores_that_do_not_vary_stay_ties(how: str) -> None:
    """0.1 is no binary fraction: a mean of equal scores may differ from them in the last digit."""
    values = normalised(np.full((7, 7), 0.1, dtype=np.float32), how)
    assert np.isfinite(values).all()
    assert len(np.unique(values)) == 1


def test_softmax_ranks_where_probabilities_underflow() -> None:
    scores = np.array([[0.0, -2000.0], [0.0, -1500.0]])
    assert np.exp(normalised(scores, "softmax"))[:, 1].tolist() == [0, 0]
    assert normalised(scores, "softmax")[:, 1].tolist() == [-2000, -1500]


@given(arrays(np.float32, (6, 4), elements=st.floats(-50, 0, width=32)), st.integers(0, 2**24 - 1))
def test_a_rescaling_of_each_class_moves_no_class(scores: np.ndarray, bits: int) -> None:
    positive = np.array([bits >> i & 1 for i in range(24)], dtype=bool).reshape(6, 4)
    scores = np.round(scores, 2)  # differences that survive rescaling
    raw, scaled = (average_precision(normalised(scores, how), positive) for how in ("none", "z_score_class"))
    assert scaled == pytest.approx(raw, nan_ok=True)


@pytest.mark.parametrize("how", NORMALIZATIONS)
def test_the_task_agrees_with_scikit_learn(how: str, stub, tokenizer, listed, image_of) -> None:
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (40, 3))
    labels = [[k for k in range(3) if rng.random() < 0.4] for _ in colours]
    images = [image_of(tuple(map(int, colour)), labels=row) for colour, row in zip(colours, labels, strict=True)]
    outcome = run(stub(UNIT), tokenizer, listed(images, classes=list(UNIT)), normalize=how)
    scores = normalised((colours / 255).astype(np.float32), how)
    positive = np.array([[k in row for k in range(3)] for row in labels])
    macro, micro = (100 * average_precision_score(positive, scores, average=a) for a in ("macro", "micro"))
    assert outcome.scores["mean_average_precision"] == pytest.approx(macro)
    assert outcome.scores["average_precision_micro"] == pytest.approx(micro)


def run(model, tokenizer, samples, **settings):
    task = TASKS["multilabel"](templates="name", **settings)
    task.check(model, samples)
    return task.run(Embedder(model, tokenizer), samples)


def test_normalisation_may_decide_a_ranking(stub, tokenizer, listed, image_of) -> None:
    """A dark red image is redder than its other colours; raw scores put a bright yellow one above it."""
    images = [image_of((60, 0, 0), labels=[0]), image_of((250, 255, 0), labels=[1])]
    samples = listed(images, classes=["red", "green"])
    scores = {
        how: run(stub(UNIT), tokenizer, samples, normalize=how).scores["mean_average_precision"]
        for how in ("none", "min_max")
    }
    assert scores == {"none": 75, "min_max": 100}


def test_an_unknown_normalisation_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown normalisation of scores 'softmx'\. Did you mean 'softmax'"):
        TASKS["multilabel"](normalize="softmx")
