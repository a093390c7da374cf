"""The sentences of a caption, and captions perturbed word by word or sentence by sentence (HyFL-CLIP, Sec. S1.2.1)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from hyvlm.registry import unknown

#: French quotes may stand apart from the mark.
_CLOSERS = "[\"'”’»«›‹)\\]}」』）】》〉]*(?:[^\\S\\n]»(?=\\s|$))?"
#: Where a sentence may end: Latin marks before white space, marks of other scripts anywhere, an empty line.
_END = re.compile(
    rf"(?<![.!?…])(?P<latin>[.!?…]++){_CLOSERS}(?=\s|$)"
    rf"|(?:[。！？｡؟۔।॥]|．(?!\d))[.!?…。！？｡．؟۔।॥]*+{_CLOSERS}"
    r"|\n[^\S\n]*\n"
)
_ABBREVIATIONS = (
    "mr|mrs|ms|dr|prof|rev|hon|gen|col|capt|lt|sgt|gov|sen|rep|st|mt|ft|jr|sr|vs|etc|approx|dept|est|figs?|nos?|vol|inc|"
    "ltd|corp|co|bros|ave|blvd|rd|tel|min|max|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
)
#: What a single dot after it leaves open: an abbreviation, initials (J., U.S., e.g., p.m.), a number before an item.
_OPEN = re.compile(rf"(?:^|[^\w.])(?:(?:{_ABBREVIATIONS}|(?:[^\W\d_]\.)*[^\W\d_])\.)$|^\s*\d+\.$", re.I)
_OPEN_REACH = 16  # characters that the longest of them needs
#: Short words that are no abbreviations, though their letters are one: "No. 5" is, "he said no." is not.
_BEFORE_NUMBERS = re.compile(r"\b(?:no|nos|fig|figs|vol|min|max|mar|est)\.$", re.I)


def split_sentences(text: str) -> list[str]:
    """The sentences of ``text``: the one rule that every part of the library follows.

    A sentence ends

    - after ``.``, ``!``, ``?`` or ``…`` (a run of them is one mark) if white space or the end of the text follows: so
      not within "3.5" or "a.jpg", but at the free-standing marks of tokenised captions ("a dog runs .");
    - after ``。``, ``！``, ``？``, ``｡``, ``．`` (not before a digit), ``؟``, ``۔``, ``।`` or ``॥``, whatever follows;
    - at an empty line. A single line break is a space.

    Closing quotes and brackets after the mark belong to the sentence. A single dot ends none after a common
    abbreviation ("Mr.", "etc."; "No.", "Fig." and the like only before a number), after initials ("J.", "U.S.", "e.g.",
    "p.m.") and after a number that begins the sentence ("2. A dog."); at the end of the text or before an empty line
    that makes no difference. A piece of nothing but punctuation joins the sentence before it (or, at the start, after
    it). Case is not looked at, so that captions in lower case are split as well.

    Returns:
        The sentences in order, stripped, never empty; together they hold every character of ``text`` but white space
        between them. A text of white space alone has none.
    """
    pieces, start = list[str](), 0
    for end in _END.finditer(text):
        if end["latin"] == "." and _left_open(text, start, end):
            continue
        pieces.append(text[start : end.end()])
        start = end.end()
    pieces.append(text[start:])
    sentences = list[list[str]]()
    worded = False
    for piece in pieces:
        if sentences and not (worded and _has_words(piece)):
            sentences[-1].append(piece)
        else:
            sentences.append([piece])
        worded = worded or _has_words(piece)
    return [whole for sentence in sentences if (whole := "".join(sentence).strip())]


def _left_open(text: str, start: int, end: re.Match[str]) -> bool:
    """Whether the dot at ``end`` belongs to an abbreviation, initials or the number of a list."""
    head = text[max(start, end.end("latin") - _OPEN_REACH) : end.end("latin")]
    if not _OPEN.search(head):
        return False
    after = text[end.end() : end.end() + 3].lstrip()
    return after[:1].isdigit() if _BEFORE_NUMBERS.search(head) else True


def _has_words(piece: str) -> bool:
    return any(unicodedata.category(c)[0] not in "PZC" for c in piece)


def perturb(text: str, how: str, *, seed: int | Sequence[int]) -> str:
    """``text`` perturbed; the same arguments give the same text in every process and on every platform.

    Perturbed sentences are joined by single spaces, kept words likewise. A text of one sentence (or none) stays as it
    is under every perturbation of sentences.

    Args:
        text: The caption.
        how: One of :data:`PERTURBATIONS`:

            - ``word_dropout_0.3``, ``word_dropout_0.5``: each word, as white space parts them, is left out on its own
              with that probability. If that leaves nothing, one word drawn at random stays. Text without white space
              (Chinese, Japanese, Thai) is one word per run, so most of such a caption stays or goes as a whole.
            - ``first_removed``: without the first sentence.
            - ``shuffled``: the sentences in an order drawn uniformly, which may be the old one.
            - ``random_2``, ``random_3``: so many sentences (or all, if there are fewer), drawn without replacement, in
              the order in which they were drawn, as the paper's Table S11 shows.
        seed: A whole number from 0, or several, such as the run's seed and the caption's index.
    Raises:
        ValueError: ``how`` is unknown, or a seed is negative.
    Source: HyFL-CLIP, Sec. S1.2.1 and Table S11.
    """
    if how not in PERTURBATIONS:
        raise ValueError(unknown("perturbation", how, PERTURBATIONS))
    seeds = (seed,) if isinstance(seed, int | np.integer) else tuple(seed)
    if any(s < 0 for s in seeds):
        raise ValueError(f"seeds of a perturbation are whole numbers from 0, got {seed}")
    return PERTURBATIONS[how](text, np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds))))


def _drop_words(text: str, generator: np.random.Generator, *, p: float) -> str:
    words = text.split()
    lots = generator.random(len(words) + 1)
    kept = [word for word, lot in zip(words, lots, strict=False) if lot >= p]
    if words and not kept:
        kept = [words[int(lots[-1] * len(words))]]
    return " ".join(kept)


def _drop_first(text: str, generator: np.random.Generator) -> str:
    return " ".join(split_sentences(text)[1:]) or text


def _draw_sentences(text: str, generator: np.random.Generator, *, n: int | None = None) -> str:
    """``n`` sentences in the order of their drawing; None draws all."""
    left = split_sentences(text)
    if len(left) < 2:
        return text
    # generator.random is a raw draw divided by 2^53: unlike permutation, the same under every version of numpy
    lots = generator.random(len(left) if n is None else min(n, len(left)))
    return " ".join(left.pop(int(lot * len(left))) for lot in lots)


#: Perturbations by name: functions of a text and a generator.
PERTURBATIONS: Mapping[str, Callable[[str, np.random.Generator], str]] = MappingProxyType(
    {
        "word_dropout_0.3": partial(_drop_words, p=0.3),
        "word_dropout_0.5": partial(_drop_words, p=0.5),
        "first_removed": _drop_first,
        "shuffled": _draw_sentences,
        "random_2": partial(_draw_sentences, n=2),
        "random_3": partial(_draw_sentences, n=3),
    }
)
