from __future__ import annotations

from collections import Counter

import pytest

from hyvlm.data.negatives import hard_negatives
from hyvlm.evaluation import EvalSpec
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.runner import specs_for
from hyvlm.evaluation.tasks.hard_negatives import HardNegatives

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}


def run(model, tokenizer, samples, **settings):
    return HardNegatives(**settings).run(Embedder(model, tokenizer), samples)


def with_negatives(sample, *negatives: str):
    sample.negatives = list(negatives)
    return sample


def test_given_negatives_by_hand(by_words, tokenizer, listed, image_of) -> None:
    """Four pairs: two right, one wrong, one tie. By type 2/2... of three, "add" has 1/1, "swap" 1/3."""
    samples = listed(
        [
            with_negatives(image_of(RED, texts=["red", "green"], labels=[0]), "blue"),
            with_negatives(image_of(GREEN, texts=["red"], labels=[1]), "green"),
            with_negatives(image_of(BLUE, texts=["blue"], labels=[1]), "green", "blue"),
            image_of(BLUE, texts=["blue"], labels=[1]),
        ],
        classes=["add", "swap", "replace"],
    )
    outcome = run(by_words(UNIT), tokenizer, samples)
    assert outcome.scores == pytest.approx(
        {
            "accuracy": 50,
            "accuracy_mean_over_types": (100 + 100 / 3) / 2,
            "accuracy_add": 100,
            "accuracy_swap": 100 / 3,
        }
    )
    assert outcome.ties == {"pairs": 1}
    assert outcome.details["pairs"] == 4
    assert (outcome.n, outcome.total) == (3, 4)
    assert outcome.skipped == Counter({"no caption with a negative": 1})
    assert outcome.intervals["accuracy"] == pytest.approx((15.0, 85.0), abs=0.1)


def test_untyped_negatives_have_one_accuracy(by_words, tokenizer, listed, image_of) -> None:
    outcome = run(by_words(UNIT), tokenizer, listed([with_negatives(image_of(RED, texts=["red"]), "blue")]))
    assert outcome.scores == {"accuracy": 100}


def test_generated_negatives_swap_one_word(by_words, tokenizer, listed, image_of) -> None:
    """The only word with siblings is the colour; captions without such a word are counted."""
    items = [image_of(RED, texts=["it is red", "red"], labels=[0]), image_of(BLUE, texts=["it is so"]), image_of(GREEN)]
    outcome = run(by_words(UNIT), tokenizer, listed(items, classes=["a class of images"]), negatives="generate")
    assert outcome.scores == {"accuracy": 100}
    assert outcome.details["pairs"] == 1
    assert (outcome.details["captions"], outcome.details["captions_without_a_word_to_swap"]) == (2, 1)
    assert outcome.skipped == Counter({"no word to swap": 2})
    assert (outcome.n, outcome.total) == (1, 3)
    assert outcome.notes == ["1 of 2 captions have no word that could be swapped"]


def test_captions_choose_what_negatives_are_generated_of(by_words, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, texts=["red", "a red dog"])])
    pairs = {
        name: run(by_words(UNIT), tokenizer, samples, negatives="generate", captions=name).details["pairs"]
        for name in ("first", "last", "all", "joined")
    }
    assert pairs == {"first": 1, "last": 2, "all": 3, "joined": 3}
    assert len(hard_negatives("red a red dog", seed=(0, 0))) == 3


def test_the_source_decides_what_the_set_must_hold() -> None:
    assert HardNegatives().opens == "negatives"
    assert HardNegatives(negatives="generate").opens == "pairs"
    spec = specs_for(["hard-negatives"], "scenes", negatives="generate", captions="last")[0]
    assert spec.build() == HardNegatives(negatives="generate", captions="last")
    assert EvalSpec("hard-negatives", "scenes").build() == HardNegatives()


def test_bad_settings_and_sets(by_words, tokenizer, listed, image_of) -> None:
    with pytest.raises(ValueError, match=r"unknown source of negatives 'generated'\. Did you mean 'generate'"):
        HardNegatives(negatives="generated")
    with pytest.raises(ValueError, match="captions needs negatives=generate"):
        HardNegatives(captions="all")
    with pytest.raises(ValueError, match="none of the 1 images of listed can be scored: no caption with a negative"):
        run(by_words(UNIT), tokenizer, listed([image_of(RED, texts=["red"])]))
    with pytest.raises(ValueError, match="can be scored: no word to swap"):
        run(by_words(UNIT), tokenizer, listed([image_of(RED, texts=["犬が走る"])]), negatives="generate")
