from __future__ import annotations

import re
import string
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyvlm.data.negatives import Entry, hard_negatives, inflect, lexicon

CAPTION = "A red dog is sitting near two small boys, and a woman walks outside."


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.mark.parametrize(
    ("word", "siblings"),
    [
        ("man", {"woman"}),
        ("Man", {"Woman"}),
        ("MAN", {"WOMAN"}),
        ("boys", {"girls"}),
        ("sitting", {"standing"}),
        ("dogs", {"foxes"}),
    ],
)
def test_siblings_keep_form_and_case(word: str, siblings: set[str]) -> None:
    assert siblings <= set(lexicon().siblings(word))


def test_colours_and_numbers_take_each_other() -> None:
    assert {"blue", "green", "black", "white"} <= set(lexicon().siblings("red"))
    assert {"red", "white"} <= set(lexicon().siblings("black"))
    assert {"three", "ten"} <= set(lexicon().siblings("two"))


def test_other_adjectives_take_the_opposite_not_what_means_nearly_the_same() -> None:
    siblings = set(lexicon().siblings("huge"))
    assert "small" in siblings
    assert not {"large", "giant", "enormous"} & siblings


def test_synonyms_never_replace_each_other() -> None:
    entries = [entry for entry, form in lexicon().forms.values() if not form]
    synset = {entry.word: entry.synset for entry in entries}
    for entry in entries:
        siblings = lexicon().siblings(entry.word)
        assert entry.word not in siblings
        assert all(synset[other] != entry.synset for other in siblings)
    assert "gray" not in lexicon().siblings("grey")


@pytest.mark.parametrize("word", ["the", "with", "saw", "xyzzy", "sheep-dog", "photograp", "Ünder", "men"])
def test_words_that_no_plain_rule_serves_stay(word: str) -> None:
    assert lexicon().siblings(word) == []


@pytest.mark.parametrize(
    ("word", "pos", "marks", "forms"),
    [
        ("dog", "n", "", ["dog", "dogs"]),
        ("fox", "n", "", ["fox", "foxes"]),
        ("city", "n", "", ["city", "cities"]),
        ("boy", "n", "", ["boy", "boys"]),
        ("man", "n", "i", ["man", None]),
        ("potato", "n", "", ["potato", None]),
        ("walk", "v", "", ["walk", "walks", "walking", "walked"]),
        ("jog", "v", "d", ["jog", "jogs", "jogging", "jogged"]),
        ("ride", "v", "i", ["ride", "rides", "riding", None]),
        ("tie", "v", "", ["tie", "ties", "tying", "tied"]),
        ("carry", "v", "", ["carry", "carries", "carrying", "carried"]),
        ("see", "v", "i", ["see", "sees", "seeing", None]),
        ("watch", "v", "", ["watch", "watches", "watching", "watched"]),
    ],
)
def test_inflections_by_plain_rules(word: str, pos: str, marks: str, forms: list[str | None]) -> None:
    entry = Entry(word, pos, "", "", "", marks)
    assert [inflect(entry, form) for form in ("", "s", "ing", "ed")[: len(forms)]] == forms


def test_each_negative_differs_in_one_other_word() -> None:
    negatives = hard_negatives(CAPTION, seed=(0, 1))
    assert len(negatives) == 5
    places = []
    for negative in negatives:
        pairs = list(zip(words(CAPTION), words(negative), strict=True))
        changed = [i for i, (a, b) in enumerate(pairs) if a != b]
        assert len(changed) == 1
        places += changed
        assert re.sub(r"\w+", "", negative) == re.sub(r"\w+", "", CAPTION)
    assert len(set(places)) == 5


def test_the_article_stays_right() -> None:
    for seed in range(50):
        for negative in hard_negatives("an orange in a red box, an old car", seed=seed):
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", negative), negative


def test_the_same_seed_gives_the_same_captions_anywhere() -> None:
    assert hard_negatives("A man in a red shirt.", seed=(0, 7), limit=2) == hard_negatives(
        "A man in a red shirt.", seed=[0, 7], limit=2
    )
    assert hard_negatives("A man sits.", seed=3) == ["A woman sits.", "A man stands."]
    assert len({tuple(hard_negatives(CAPTION, seed=seed)) for seed in range(10)}) > 5


@pytest.mark.parametrize("text", ["", "   ", "犬が公園を走っている。", "Собака бежит.", "12 34", "of the"])
def test_a_text_without_a_known_word_has_none(text: str) -> None:
    assert hard_negatives(text, seed=0) == []


@given(st.text(string.printable, max_size=200), st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_any_text_gives_at_most_so_many_other_texts(text: str, seed: int, limit: int) -> None:
    negatives = hard_negatives(text, seed=seed, limit=limit)
    assert len(negatives) <= limit
    assert all(negative != text for negative in negatives)
    assert negatives == hard_negatives(text, seed=seed, limit=limit)


def test_a_limit_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1 hard negative, got a limit of 0"):
        hard_negatives(CAPTION, seed=0, limit=0)


def test_the_lexicon_is_small_and_carries_its_licence() -> None:
    assets = resources.files("hyvlm.data").joinpath("assets")
    assert len(assets.joinpath("lexicon.tsv").read_bytes()) < 400_000
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in assets.joinpath("WORDNET_LICENSE").read_text()
