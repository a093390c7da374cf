import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyvlm.data.queries import BUDGET, RULES, WEIGHTS, Query, build_queries

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/hyper3_queries.json").read_text(encoding="utf-8"))
SAMPLES = {sample["id"]: sample for sample in GOLDEN["samples"]}
CONNECTORS = {"and", "with", "near", "beside", "behind", "under", "above", "around"}
WORDS = [
    "a red fox",
    "and",
    "With",
    "next",
    "to",
    "next to",
    "state-of-the-art",
    "Dr",
    "caf\u00e9",
    "cafe\u0301",
    "l’eau",
]
OTHERS = ["一只猫", "，", "。", "कुत्ता", "हिन्दी", "ذئب", "،", "می\u200cخواهم", "👩\u200d👧", "ß", "SS", "İ", "\ud800"]
MARKS = [". ", ".", "! ", "? ", "; ", ", ", ":", "(", ")", "-", "'", "\n", "\r\n", "\u2028", "\xa0", " ", "\t", "\x1c"]
texts = st.text() | st.lists(st.sampled_from(WORDS + OTHERS + MARKS), max_size=40).map(" ".join)
texts |= st.lists(st.sampled_from(WORDS + OTHERS + MARKS), max_size=40).map("".join)
boxes = st.lists(texts | st.sampled_from(["a dog", "A DOG", "", "ox"]), max_size=8)
boxes |= st.integers(25, 45).map(lambda n: [f"thing {i}" for i in range(n)])


def rows(queries: list[Query], *, parents: bool = True) -> list[tuple]:
    return [(q.text, q.type, q.parent if parents else None, q.weight, q.box) for q in queries]


def expected(sample: dict, rules: str, cap: int | None, *, parents: bool) -> list[tuple]:
    name = "queries" if cap else "queries_uncapped"
    released = {6: "released_code_queries", None: "released_code_queries_uncapped"}[cap]
    listed = sample.get(released, sample[name]) if rules == "released" else sample[name]
    return [(q["text"], q["type"], q["parent"] if parents else None, q["weight"], q["box"]) for q in listed]


@pytest.mark.parametrize("cap", [6, None])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SAMPLES)
def test_golden_queries(name, rules, cap):
    sample = SAMPLES[name]
    parents = sample["status"] != "paper_silent"
    built = build_queries(sample["caption"], sample["text_boxes"], rules=rules, cap=cap)
    assert rows(built, parents=parents) == expected(sample, rules, cap, parents=parents)


def test_golden_covers_what_it_should():
    assert len(SAMPLES) == 33
    assert {s["status"] for s in SAMPLES.values()} == {"agreed", "paper_differs_from_code", "paper_silent"}
    assert GOLDEN["rules"]["weights"] == WEIGHTS


def phrases(caption: str, rules: str = "paper") -> list[str]:
    return [q.text for q in build_queries(caption, [], rules=rules, cap=None) if q.type == "phrase"]


def sentences(caption: str, rules: str = "paper") -> list[str]:
    return [q.text for q in build_queries(caption, [], rules=rules, cap=None) if q.type == "sentence"]


@pytest.mark.parametrize(
    ("caption", "paper", "released"),
    [
        ("a dog next  to a cat", ["a dog", "a cat"], ["a dog next to a cat"]),
        ("two dogs (with hats)", ["two dogs"], ["two dogs", "with hats"]),
        ("a dog and, a cat", ["a dog", "a cat"], ["a dog and", "a cat"]),
        ("a dog—and a cat", ["a dog", "a cat"], ["a dog and a cat"]),
        ("a cat AND\ta dog", ["a cat", "a dog"], ["a cat", "a dog"]),
        ("a hand-and-eye test. go", ["a hand-and-eye test go"], ["a hand-and eye test go"]),
        ("the andean and's top. go", ["the andean and's top go"], ["the andean and's top go"]),
        ("the l’eau bowl", [], ["the l eau bowl"]),
        ("dog-- runs - home", ["dog runs home"], ["dog runs home"]),
        ("the 'old' well_known inn.", ["the old well known inn"], ["the old well known inn"]),
        ("एक कुत्ता with लाल हिन्दी", ["एक कुत्ता", "लाल हिन्दी"], []),
        ("the cafe\u0301 sign. yes", ["the cafe\u0301 sign yes"], ["the cafe sign yes"]),
        ("a woman 👩\u200d👧 \u2764\ufe0f smiles", ["a woman smiles"], ["a woman smiles"]),
        ("一只猫，一只狗 跑", ["一只猫 一只狗 跑"], []),
    ],
)
def test_fragments_and_words(caption, paper, released):
    assert phrases(caption) == paper
    assert phrases(caption, "released") == [text for text in released if text != " ".join(caption.split())]


@pytest.mark.parametrize("gap", ["\r", "\r\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\n"])
def test_the_released_rules_know_one_line_break(gap):
    caption = f"a red barn{gap}a blue door"
    assert sentences(caption) == ["a red barn", "a blue door"]
    assert sentences(caption, "released") == (["a red barn", "a blue door"] if "\n" in gap else [])


def test_text_boxes_without_a_caption():
    assert [q.parent for q in build_queries("Hm", ["a gray owl", "a mug"])] == [None, None]
    assert [q.parent for q in build_queries("Hm", ["a gray owl", "a mug"], rules="released")] == [0, 0]
    assert build_queries(" \n", ["", "ox"]) == build_queries("", [], rules="released") == []


def test_case_folding_is_that_of_unicode():
    assert [q.text for q in build_queries("Straße am See", ["STRASSE AM SEE", "der See"])] == [
        "Straße am See",
        "der See",
    ]


@given(texts, boxes, st.sampled_from(sorted(RULES)), st.integers(1, 40))
@settings(deadline=None, max_examples=300)
def test_properties(caption, boxes, rules, cap):
    queries = build_queries(caption, boxes, rules=rules, cap=None)
    assert build_queries(caption, boxes, rules=rules, cap=cap) == queries[:cap]
    folded = [q.text.casefold() for q in queries]
    assert len(set(folded)) == len(folded)
    types = [q.type for q in queries]
    assert types == sorted(types, key=list(WEIGHTS).index)
    assert types.count("sentence") <= 5
    assert types.count("text_box") + types.count("phrase") <= BUDGET
    for place, query in enumerate(queries):
        assert query.weight == WEIGHTS[query.type]
        assert query.text == " ".join(query.text.split())
        assert len(query.text) >= 3
        assert (query.box is None) == (query.type != "text_box")
        if query.box is not None:
            assert " ".join(boxes[query.box].split()) == query.text
        if query.parent is not None and types[0] == "caption":
            assert query.parent < place
            assert query.parent == (1 if query.type == "phrase" and "sentence" in types else 0)
        if query.parent is None and rules == "paper":
            assert query.type == "caption" or types[0] != "caption"
        if query.type == "phrase":
            words = query.text.split(" ")
            assert 2 <= len(words) <= 8
            assert rules != "paper" or not CONNECTORS & {word.casefold() for word in words}


@given(st.lists(st.sampled_from(["fox", "hen", "cow", "elk"]), min_size=2, max_size=60))
def test_windows_cover_every_word_of_a_fragment(words):
    text = ", ".join([" ".join(words), "x"])  # the comma makes the whole differ from the caption
    found = phrases(text)
    windows = [words] if len(words) <= 8 else [words[i : i + 6] for i in range(0, len(words) - 1, 4)]
    assert found == list(dict.fromkeys(" ".join(w) for w in windows))[:BUDGET]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    "piece",
    [
        " ",
        "a",
        "a ",
        "\n",
        ". ",
        ",",
        "and ",
        " and",
        "next ",
        "a-",
        "-",
        "'",
        "e\u0301",
        "\u0301",
        "\u200d",
        "猫",
        "(",
        "a b, ",
    ],
)
def test_captions_of_100_000_characters_take_no_time(piece, rules):
    before = time.process_time()
    for caption in (piece * (100_000 // len(piece)), "and" + piece * (100_000 // len(piece)) + "x"):
        build_queries(caption, [caption, "a dog"], rules=rules, cap=None)
    assert time.process_time() - before < 2


def test_bad_arguments_are_told():
    with pytest.raises(ValueError, match=r"unknown set of query rules 'papers'\. Did you mean 'paper'"):
        build_queries("a", [], rules="papers")
    with pytest.raises(ValueError, match="1 or more, or None, got 0"):
        build_queries("a", [], cap=0)
