import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyvlm.data.sentences import PERTURBATIONS, perturb, split_sentences

OF_SENTENCES = ("first_removed", "shuffled", "random_2", "random_3")
#: The long text of the paper's Table S11.
PAPER = (
    "The image shows an urban street intersection with vehicular and pedestrian activity. In the foreground, "
    "there is a pedestrian crossing the street marked with white zebra lines and a black car in the middle of the "
    "crosswalk. The traffic light for pedestrians is visible, displaying a red hand signal indicating a “Do Not "
    "Walk” command. A man wearing a white jacket and dark pants is walking away from the camera while carrying a "
    "black bag in his left hand. To the left, another pedestrian wearing a white and red outfit is crossing the "
    "street. Buildings with varying facades line the street, and clear blue skies with scattered clouds appear "
    "above."
)
marked = st.lists(
    st.sampled_from(
        ["a dog", "Mr", "U.S", "3", ".5", "“", "”", ")", "?!", ". ", ".", "…", "。", "犬", "🐕", "\n\n", "\n", " "]
    )
).map("".join)
texts = st.text() | marked


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \n ", []),
        ("A dog", ["A dog"]),
        ("A dog runs. A cat sits! Why? ", ["A dog runs.", "A cat sits!", "Why?"]),
        ("a dog runs . a man walks .", ["a dog runs .", "a man walks ."]),
        ("It is 3.5 m high. See a.jpg for it.", ["It is 3.5 m high.", "See a.jpg for it."]),
        ("Mr. Li met J. R. Ho, e.g. at 5 p.m. here. Bye.", ["Mr. Li met J. R. Ho, e.g. at 5 p.m. here.", "Bye."]),
        ("In the U.S. army. Two. In Washington D.C.", ["In the U.S. army.", "Two.", "In Washington D.C."]),
        ("Bus No. 5 stops. He says no. It goes.", ["Bus No. 5 stops.", "He says no.", "It goes."]),
        ('A sign says "Stop." It is red. (Very red.) Yes', ['A sign says "Stop."', "It is red.", "(Very red.)", "Yes"]),
        ("He waits... Then he goes?! Yes…", ["He waits...", "Then he goes?!", "Yes…"]),
        ("1. A dog. 2. A cat.", ["1. A dog.", "2. A cat."]),
        ("There are 2. Both are red.", ["There are 2.", "Both are red."]),
        ("No mark at the end\n\nA second paragraph", ["No mark at the end", "A second paragraph"]),
        ("One line\nis broken. Two.", ["One line\nis broken.", "Two."]),
        ("一只狗在跑。「是吗？」好．它３．５米", ["一只狗在跑。", "「是吗？」", "好．", "它３．５米"]),
        ("एक कुत्ता। एक बिल्ली।", ["एक कुत्ता।", "एक बिल्ली।"]),
        ("Un chien court. Où est-il ? « Là. » Oui !", ["Un chien court.", "Où est-il ?", "« Là. »", "Oui !"]),
        ("A dog 🐕. 🐈!", ["A dog 🐕.", "🐈!"]),
        ("A dog. . . A cat.", ["A dog. . .", "A cat."]),
        ("... a dog.", ["... a dog."]),
        ("...", ["..."]),
        ("A dog runs. etc.", ["A dog runs.", "etc."]),
        ("The Adriatic. The comic. Aspic.", ["The Adriatic.", "The comic.", "Aspic."]),
    ],
)  # fmt: skip
def test_the_rule(text, sentences):
    assert split_sentences(text) == sentences


def test_the_papers_example_has_six_sentences():
    assert [len(s.split()) for s in split_sentences(PAPER)] == [12, 25, 18, 24, 15, 16]


@given(texts)
@settings(deadline=None)
def test_sentences_hold_every_character_in_order_and_split_no_further(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(s and s == s.strip() for s in sentences)
    assert bool(sentences) == bool(text.strip())


@given(
    st.lists(st.sampled_from(["A dog runs.", "一只猫！", "He says “Stop.”", "Is it 3.5 m?", "so .", "🐕!"]), max_size=6)
)
def test_joined_sentences_are_found_again(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "text", ["!" * 20_000 + "x", ". " * 20_000, "e.g. " * 20_000, "\n" + " " * 20_000 + "x", '.»"' * 20_000]
)
def test_odd_texts_take_no_time(text):
    before = time.process_time()
    assert len(split_sentences(text)) == 1
    assert time.process_time() - before < 2


@given(texts, st.sampled_from(sorted(PERTURBATIONS)), st.integers(0, 2**32))
@settings(deadline=None)
def test_every_perturbation_is_defined_for_every_text(text, how, seed):
    new = perturb(text, how, seed=seed)
    assert new == perturb(text, how, seed=(seed,))
    assert bool(new.strip()) == bool(text.strip())
    assert not Counter(new.split()) - Counter(text.split()) or not text.isascii()  # 。 may part words that were joined
    if len(split_sentences(text)) < 2 and how in OF_SENTENCES:
        assert new == text


@given(st.integers(0, 2**63), st.integers(1, 7))
def test_perturbed_sentences_are_those_of_the_text(seed, count):
    old = [f"Sentence {i} here." for i in range(count)]
    text = " ".join(old)
    new = {how: split_sentences(perturb(text, how, seed=(seed, count))) for how in OF_SENTENCES}
    assert new["first_removed"] == (old[1:] or old)
    assert sorted(new["shuffled"]) == old
    for n in (2, 3):
        drawn = new[f"random_{n}"]
        assert len(drawn) == len(set(drawn)) == min(n, count)
        assert set(drawn) <= set(old)


@pytest.mark.parametrize(("how", "outcomes"), [("shuffled", 6), ("random_2", 6), ("random_3", 6)])
def test_every_order_is_equally_likely(how, outcomes):
    counts = Counter(perturb("One dog. Two cats. Three men.", how, seed=(7, i)) for i in range(3000))
    assert len(counts) == outcomes
    assert max(abs(n - 500) for n in counts.values()) < 100  # five standard deviations of a binomial


@pytest.mark.parametrize("p", [0.3, 0.5])
def test_each_word_is_dropped_with_its_probability_on_its_own(p):
    words = [f"w{i}" for i in range(40)]
    kept = Counter()
    for seed in range(1000):
        left = perturb(" ".join(words), f"word_dropout_{p}", seed=seed).split()
        assert left == [w for w in words if w in left]
        kept.update(left)
    assert sum(kept.values()) / 40_000 == pytest.approx(1 - p, abs=0.0125)  # five standard deviations
    assert max(abs(kept[w] / 1000 - (1 - p)) for w in words) < 0.08


def test_a_dropout_that_would_leave_nothing_keeps_one_word_at_random():
    counts = Counter(perturb("one two", "word_dropout_0.5", seed=i) for i in range(2000))
    assert set(counts) == {"one two", "one", "two"}
    assert counts["one two"] == pytest.approx(500, abs=100)
    assert counts["one"] == pytest.approx(750, abs=100)  # a quarter of the draws keep it, half of those that keep none
    assert perturb("一只狗在跑。一只猫。", "word_dropout_0.5", seed=0) == "一只狗在跑。一只猫。"
    assert perturb("", "word_dropout_0.5", seed=0) == ""


@pytest.mark.parametrize(
    ("how", "golden"),
    [
        ("word_dropout_0.3", "dog. Two cats. Three men. Four cars."),
        ("word_dropout_0.5", "Three men. cars."),
        ("first_removed", "Two cats. Three men. Four cars."),
        ("shuffled", "Two cats. Three men. One dog. Four cars."),
        ("random_2", "Two cats. Three men."),
        ("random_3", "Two cats. Three men. One dog."),
    ],
)
def test_golden_values_hold_in_every_process(how, golden):  # whose hashes of text differ
    assert perturb("One dog. Two cats. Three men. Four cars.", how, seed=(3, 1)) == golden


def test_bad_arguments_are_told():
    with pytest.raises(ValueError, match=r"unknown perturbation 'shufled'\. Did you mean 'shuffled'"):
        perturb("a", "shufled", seed=0)
    with pytest.raises(ValueError, match="whole numbers from 0, got -1"):
        perturb("a", "shuffled", seed=-1)
