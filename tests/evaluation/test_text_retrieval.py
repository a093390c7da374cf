from __future__ import annotations

from collections import Counter

import pytest

from hyvlm.evaluation import EvalSpec, evaluate
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.tasks.text_retrieval import TextRetrieval
from hyvlm.geometry import Sphere
from hyvlm.types import BadSample, Sample

UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}


def run(model, tokenizer, samples):
    return TextRetrieval().run(Embedder(model, tokenizer), samples)


def test_the_first_caption_asks_for_the_others(by_words, tokenizer, listed) -> None:
    """Query "red red green" scores its own captions 2/3 and 1/3, the others' 1/2 and 0: AP (1 + 2/3) / 2, P@R 1/2.
    Query "blue" scores its own caption 1, all others 0: AP 1. The first captions are not in the gallery."""
    samples = listed(
        [
            Sample("a", None, texts=["red red green", "red", "green"]),
            Sample("b", None, texts=["blue", "blue"]),
            Sample("c", None, texts=["red red", "green red", "blue"]),
            Sample("d", None, texts=["alone"]),
        ],
        classes=["dog"],  # those of the boxes of the same set: no text has one
    )
    outcome = run(by_words(UNIT, Sphere()), tokenizer, samples)  # texts are ranked by the manifold: a dot product
    # a ("red" 2/3, "green red" 1/2, "green" 1/3, 0, 0): AP (1 + 2/3) / 2 = 5/6; b: "blue" twice, tied: 1/2;
    # c: ("red" 1, "green red" 1/2, then green and both blues at 0): matches stand 2nd and last: (1/2 + 2/5) / 2
    assert outcome.scores["mean_average_precision"] == pytest.approx(100 * (5 / 6 + 1 / 2 + 9 / 20) / 3)
    assert outcome.scores["precision_at_r"] == pytest.approx(100 * (1 / 2 + 0 + 1 / 2) / 3)
    assert (outcome.n, outcome.total) == (3, 4)
    assert outcome.skipped == Counter({"fewer than two captions": 1})
    assert outcome.ties == {"queries": 2}
    assert (outcome.details["queries"], outcome.details["gallery"]) == (3, 5)
    assert outcome.details["matches_by"] == "image"


def test_labelled_texts_ask_for_their_class(by_words, tokenizer, listed) -> None:
    """Every text but itself is ranked: "green" of class 1 is nearer to class 0's "green red" than to its own "blue"."""
    items = [("red", 0), ("green red", 0), ("green", 1), ("blue green", 1), ("blue", 2)]
    samples = listed([Sample(t, None, texts=[t], labels=[c]) for t, c in items], classes=["warm", "cold", "other"])
    outcome = run(by_words(UNIT), tokenizer, samples)
    # red: "green red" 1/2 first, others 0: 1. green red: red 1/2 ties with green 1/2: 1/2. green: ties of 1/2: 1/2.
    # blue green: blue and green 1/2 tie: 1/2. "blue" is alone in its class: no query, but ranked for the others
    assert outcome.scores["mean_average_precision"] == pytest.approx(100 * (1 + 1 / 2 + 1 / 2 + 1 / 2) / 4)
    assert outcome.scores["precision_at_r"] == pytest.approx(25)
    assert (outcome.n, outcome.total) == (4, 5)
    assert outcome.skipped == Counter({"the only text of its class": 1})
    assert (outcome.details["queries"], outcome.details["gallery"], outcome.details["matches_by"]) == (4, 5, "class")


def test_equal_texts_tie(by_words, tokenizer, listed) -> None:
    samples = listed([Sample(k, None, texts=["red", "red"]) for k in "abc"])
    outcome = run(by_words(UNIT), tokenizer, samples)
    assert outcome.scores == pytest.approx({"mean_average_precision": 100 / 3, "precision_at_r": 0})
    assert outcome.ties == {"queries": 3}


def test_no_image_is_asked_for_and_bad_samples_are_counted(by_words, tokenizer, listed) -> None:
    model = by_words(UNIT)
    samples = listed([Sample("a", None, texts=["red", "red"]), BadSample("empty caption", "b")])
    result = evaluate(model, tokenizer, [EvalSpec("text-retrieval", samples)])[0]
    assert model.images_seen == 0
    assert (result.outcome.n, result.outcome.total) == (1, 2)
    assert result.outcome.skipped["empty caption"] == 1
    samples.expected = 1000
    notes = evaluate(model, tokenizer, [EvalSpec("text-retrieval", samples)])[0].outcome.notes
    assert notes == ["1 of the 1,000 published samples of listed: not comparable"]


def test_sets_without_anything_to_find(by_words, tokenizer, listed) -> None:
    with pytest.raises(ValueError, match=r"no two texts that belong together: 2 fewer than two captions"):
        run(by_words(UNIT), tokenizer, listed([Sample("a", None, texts=["red"]), Sample("b", None)]))
    lonely = [Sample("a", None, texts=["red"], labels=[0]), Sample("b", None, texts=["red"])]
    with pytest.raises(ValueError, match="1 no text or not exactly one label, 1 the only text of its class"):
        run(by_words(UNIT), tokenizer, listed(lonely, classes=["x"]))
    with pytest.raises(ValueError, match="it is empty"):
        run(by_words(UNIT), tokenizer, listed([]))
