"""Queries of an image with their parents: caption, sentences, text boxes and phrases (Hyper3-CLIP, Sec. 2.1 and 3).

The rules are those of the paper's paragraph on query construction; where the released code does something else, its
behaviour goes by the name ``released``. Both know the marks that the paper names and no others: a full stop or comma
of another script ends nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal

import regex  # has classes of Unicode characters, which re lacks

from hyvlm.registry import unknown

QueryType = Literal["caption", "sentence", "text_box", "phrase"]

#: Weight of each type in the loss (Table 1), in the order of construction.
WEIGHTS: Mapping[QueryType, float] = MappingProxyType(
    {"caption": 0.0, "sentence": 1.0, "text_box": 0.75, "phrase": 0.5}
)
MIN_CHARACTERS = 3
MAX_SENTENCES = 5  # candidates, accepted or not
BUDGET = 30  # accepted text boxes and phrases together
MAX_PHRASE_WORDS = 8
WINDOW_WORDS, WINDOW_STEP = 6, 4


@dataclass(frozen=True, slots=True)
class Query:
    """One query of an image.

    Attributes:
        text: What is encoded: white space collapsed, the caption's spelling kept.
        type: Where it comes from.
        parent: Place of the more specific query in the same list; None for a root, which no relation counts.
        weight: Its weight in the loss, see :data:`WEIGHTS`.
        box: Place of its text box among the image's; None for other types.
    """

    text: str
    type: QueryType
    parent: int | None
    weight: float
    box: int | None = None


@dataclass(frozen=True)
class Rules:
    """Where captions are cut.

    Attributes:
        sentence: Between sentences.
        fragment: Between the fragments that phrases are made of.
        word: The words of a fragment.
        orphan: Parent of a text box whose caption is no query.
    """

    sentence: Any
    fragment: Any
    word: Any
    orphan: int | None


_CONNECTORS = "and|with|near|beside|behind|under|above|around"
# Combining marks and joiners belong to the letter before them: most Indic words and decomposed accents have some.
_MARKS = r"\p{M}\u200c\u200d"
_LETTERS = rf"(?:[\p{{L}}\p{{N}}][{_MARKS}]*+)++"
_INSIDE = "[-\u2010\u2011'\u2019]"  # hyphens and apostrophes, straight and curly

RULES: Mapping[str, Rules] = MappingProxyType(
    {
        "paper": Rules(
            sentence=re.compile(r"(?<=[.!?;])\s+|[\n\r\v\f\x85\u2028\u2029]+"),
            fragment=regex.compile(  # connectors that are words of their own
                rf"[,;:()]|(?<![\p{{L}}\p{{N}}{_MARKS}])(?<![\p{{L}}\p{{N}}{_MARKS}]{_INSIDE})"
                rf"(?:{_CONNECTORS}|next\s++to)(?![\p{{L}}\p{{N}}{_MARKS}])(?!{_INSIDE}[\p{{L}}\p{{N}}])",
                regex.IGNORECASE,
            ),
            word=regex.compile(rf"{_LETTERS}(?:{_INSIDE}{_LETTERS})*+"),
            orphan=None,
        ),
        "released": Rules(
            sentence=re.compile(r"(?<=[.!?;])\s+|\n+"),
            fragment=re.compile(rf"[,;:()]|(?<!\s)\s++(?:{_CONNECTORS}|next to)\s++", re.IGNORECASE),
            word=re.compile("[A-Za-z0-9]+(?:[-'][A-Za-z0-9]+)?"),
            orphan=0,
        ),
    }
)


def build_queries(caption: str, boxes: Sequence[str], *, rules: str = "paper", cap: int | None = 6) -> list[Query]:
    """The queries of one image: its caption, then sentences, text boxes and phrases.

    A candidate is accepted if, with runs of white space collapsed, it has at least 3 characters (code points) and no
    accepted one differs from it by case alone.

    - Sentences: the first 5 pieces of the caption, cut at white space after ``.``, ``!``, ``?`` or ``;`` and at line
      breaks. Their parent is the caption.
    - Text boxes: as they are; their parent is the caption.
    - Phrases: the words of the caption's fragments between ``,``, ``;``, ``:``, ``(``, ``)`` and the connectors "and",
      "with", "near", "beside", "behind", "under", "above", "around" and "next to"; a fragment of 2 to 8 words is one
      phrase, a longer one is cut into windows of at most 6 words that start every 4. Their parent is the first accepted
      sentence, else the caption. Text boxes and phrases share a budget of 30.

    A word is a run of letters and digits of any script, with single hyphens or apostrophes inside. So a sentence of a
    script without spaces is one word, and gives no phrase. Text boxes of an image whose caption is too short are roots.

    Args:
        caption: May be empty.
        boxes: Phrases of the image's parts, in their order.
        rules: "paper", or "released" for what the released code does otherwise: a word is ASCII and keeps one hyphen
            or apostrophe; a connector cuts only between white space, of which two connectors cannot share one, and
            "next to" with one plain space inside; LF is the only line break; without a caption, text boxes name query 0
            as their parent, the first of them itself.
        cap: Most queries, the first in order; None keeps all.
    Returns:
        The queries; empty if nothing is accepted.
    Raises:
        ValueError: Unknown rules, or a cap below 1.
    Source: Hyper3-CLIP, Table 1 and Sec. 3.
    """
    if rules not in RULES:
        raise ValueError(unknown("set of query rules", rules, list(RULES)))
    if cap is not None and cap < 1:
        raise ValueError(f"the cap on an image's queries is 1 or more, or None, got {cap}")
    chosen, queries, seen = RULES[rules], list[Query](), set[str]()

    def offer(text: str, kind: QueryType, parent: int | None, box: int | None = None) -> None:
        text = " ".join(text.split())
        if len(text) >= MIN_CHARACTERS and text.casefold() not in seen:
            seen.add(text.casefold())
            queries.append(Query(text, kind, parent, WEIGHTS[kind], box))

    offer(caption, "caption", None)
    root = 0 if queries else chosen.orphan
    first = len(queries)
    sentences = [piece for piece in chosen.sentence.split(caption) if piece.strip()]
    for sentence in sentences[:MAX_SENTENCES]:
        offer(sentence, "sentence", root)
    phrase_parent = first if len(queries) > first else root
    full = len(queries) + BUDGET
    texts: Iterator[tuple[str, QueryType, int | None, int | None]] = chain(
        ((text, "text_box", root, number) for number, text in enumerate(boxes)),
        ((text, "phrase", phrase_parent, None) for text in _phrases(caption, chosen)),
    )
    for candidate in texts:
        if len(queries) >= (full if cap is None else min(cap, full)):
            break
        offer(*candidate)
    return queries[:cap]


def _phrases(caption: str, rules: Rules) -> Iterator[str]:
    for fragment in rules.fragment.split(caption):
        words = rules.word.findall(fragment)
        if len(words) <= MAX_PHRASE_WORDS:
            windows = [words]
        else:
            windows = [words[start : start + WINDOW_WORDS] for start in range(0, len(words), WINDOW_STEP)]
        yield from (" ".join(window) for window in windows if len(window) >= 2)
