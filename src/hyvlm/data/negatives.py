"""Hard-negative captions without a language model: one content word is swapped for a sibling from a packaged hierarchy.

The hierarchy is ``assets/lexicon.tsv``, made from WordNet 3.0 by ``scripts/make_lexicon.py``, which states how words
and their siblings are chosen. HyFL-CLIP (Sec. S4.4) lets a language model replace the words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

#: A run of at least three Latin letters that is no piece of a longer word ("well-lit", "man's", "3rd").
_WORD = re.compile(r"(?<![\w'’-])[A-Za-z]{3,}(?![\w'’-])")
_ARTICLE = re.compile(r"\ban?\s+$", re.I)
#: Inflections by part of speech; adjectives and adverbs have none here.
_FORMS = {"n": ("", "s"), "v": ("", "s", "ing", "ed"), "a": ("",), "r": ("",)}


@dataclass(frozen=True)
class Entry:
    """A lemma of the lexicon.

    Attributes:
        word: The lemma, in lower case.
        pos: "n", "v", "a" or "r": noun, verb, adjective or adverb.
        synset: Which set of synonyms it belongs to.
        group: Which siblings it belongs to; may be empty.
        rivals: The group or the synset of what may replace it: its own group, or what is opposite; may be empty.
        marks: "d" if the last consonant doubles before -ing and -ed, "i" if plural or past tense are irregular.
    """

    word: str
    pos: str
    synset: str
    group: str
    rivals: str
    marks: str


def inflect(entry: Entry, form: str) -> str | None:
    """The ``form`` ("", "s", "ing" or "ed") of a lemma by the plain rules of spelling; None if they do not serve it.

    The plain rules: -es after a sibilant, -y to -ies and -ied after a consonant, a silent -e goes before -ing and -ed.
    """
    word = entry.word
    if not form:
        return word
    consonant_y = word.endswith("y") and word[-2] not in "aeiou"
    if form == "s":
        if entry.pos == "n" and "i" in entry.marks:
            return None
        if word.endswith("o") and word[-2] not in "aeiou":
            return None  # photos, but tomatoes
        if consonant_y:
            return word[:-1] + "ies"
        return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s")
    if form == "ed" and "i" in entry.marks:
        return None
    stem = word + word[-1] if "d" in entry.marks else word
    if form == "ing":
        if word.endswith("ie"):
            return word[:-2] + "ying"
        return (stem[:-1] if word.endswith("e") and not word.endswith(("ee", "oe", "ye")) else stem) + "ing"
    if consonant_y:
        return word[:-1] + "ied"
    return stem + ("d" if word.endswith("e") else "ed")


class Lexicon:
    """Words by form, and what may replace them.

    Attributes:
        forms: Word as it stands in a text, in lower case, to its entry and form; a lemma goes before an inflection.
        rivals: Entries by group and by synset.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.rivals: dict[str, list[Entry]] = {}
        self.forms: dict[str, tuple[Entry, str]] = {entry.word: (entry, "") for entry in entries}
        for entry in entries:
            self.rivals.setdefault(entry.group, []).append(entry)
            self.rivals.setdefault(entry.synset, []).append(entry)
            for form in _FORMS[entry.pos][1:]:
                inflected = inflect(entry, form)
                if inflected is not None:
                    self.forms.setdefault(inflected, (entry, form))

    def siblings(self, word: str) -> list[str]:
        """What may stand in the place of ``word``, in its form and case; in a fixed order, none if it is not known."""
        if word.lower() not in self.forms:
            return []
        entry, form = self.forms[word.lower()]
        rivals = (rival for rival in self.rivals.get(entry.rivals, ()) if rival.synset != entry.synset)
        inflected = [inflect(rival, form) for rival in rivals]
        return [_like(word, other) for other in inflected if other is not None]


@cache
def lexicon() -> Lexicon:
    """The packaged lexicon."""
    text = resources.files("hyvlm.data").joinpath("assets", "lexicon.tsv").read_text(encoding="utf-8")
    return Lexicon([Entry(*line.split("\t")) for line in text.splitlines() if not line.startswith("#")])


def hard_negatives(text: str, *, seed: int | Sequence[int], limit: int = 5) -> list[str]:
    """Up to ``limit`` captions that differ from ``text`` in one word each, every time another one.

    Nouns, verbs, adjectives and adverbs of English that the lexicon knows are drawn without replacement, and each is
    replaced by one of its siblings: "a red car" by "a green car", never by a synonym. After "a" and "an" only siblings
    that keep the article come into question. Without a context to judge by, a word has the sense that is most frequent
    in English, and a sibling may now and then be true of the image, too.

    Args:
        seed: A whole number or several; the same arguments give the same captions in every process and on every
            platform.
    Returns:
        Captions in the order of the replaced words; none if no word has a sibling. In other languages only words that
        are spelled as English ones have.
    Raises:
        ValueError: If ``limit`` is not positive.
    """
    if limit < 1:
        raise ValueError(f"a caption gets at least 1 hard negative, got a limit of {limit}")
    generator = random.Random(f"hard negatives {[seed] if isinstance(seed, int) else list(seed)}")
    places = dict(_replaceable(text))
    drawn = sorted(generator.sample(sorted(places), min(limit, len(places))))
    swaps = [(place, generator.choice(places[place])) for place in drawn]
    return [text[:start] + other + text[end:] for (start, end), other in swaps]


def _replaceable(text: str) -> Iterator[tuple[tuple[int, int], list[str]]]:
    """Start and end of every word that has siblings, and the siblings."""
    for match in _WORD.finditer(text):
        siblings = lexicon().siblings(match.group())
        if _ARTICLE.search(text, max(0, match.start() - 4), match.start()):
            siblings = [other for other in siblings if _vowel(other) == _vowel(match.group())]
        if siblings:
            yield match.span(), siblings


def _vowel(word: str) -> bool:
    return word[0].lower() in "aeiou"


def _like(word: str, other: str) -> str:
    """``other`` in the case of ``word``."""
    if word.isupper():
        return other.upper()
    return other.capitalize() if word[0].isupper() else other
