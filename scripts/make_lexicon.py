"""Make src/hyvlm/data/assets/lexicon.tsv from WordNet 3.0: words, and what may replace them in a hard negative.

    apt-get install wordnet-base
    python scripts/make_lexicon.py /usr/share/wordnet

Words: single lower-case lemmas of at least three letters that CLIP's vocabulary holds as one token (so they are
frequent in captions); those of less than five letters must also occur in WordNet's tagged texts. No function words, and
none that WordNet marks as slur or obscenity. A word counts in its most frequent sense over all parts of speech (by
WordNet's tag counts). Words that are usually the inflection of another one ("saw") are left out.

Siblings: nouns and verbs take their antonym ("man", "woman"; "sit", "stand"), else words with the same direct hypernym
(verbs also agree in taking an object); colours take each other, and numbers do; other adjectives take words from the
opposite cluster (the antonym and what is similar to it), since adjectives of one cluster mean nearly the same; adverbs
take their antonym. Words of one synset never replace each other.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from open_clip.tokenizer import SimpleTokenizer
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from hyvlm.data.negatives import Entry, inflect

FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
POS_OF_SENSE_KEY = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
OUT = Path(__file__).parents[1] / "src/hyvlm/data/assets/lexicon.tsv"
#: Adjective clusters whose words exclude each other, by the synsets of their heads.
CHROMATIC, ACHROMATIC, BLACK, WHITE, CARDINAL = "00366691", "00386392", "00392812", "00393105", "02183612"
EXCLUSIVE = {**dict.fromkeys((CHROMATIC, ACHROMATIC, BLACK, WHITE), "COLOUR"), CARDINAL: "NUMBER"}
#: The synsets of "ethnic slur", "obscenity" and "disparagement", which mark others by their usage.
OFFENSIVE = {"06718862", "07124340", "06717170"}
TRANSITIVE_FRAMES = {"8", "9", "10", "11"}
#: Hypernyms nearer the root than this have children that share nothing ("thing", "act").
LEAST_DEPTH = 3
#: Shorter words that never occur in WordNet's tagged texts are abbreviations and names rather than words.
SHORT = 5
#: A word is taken for another one's inflection if that one is so many times as frequent.
MUCH_MORE = 10


@dataclass
class Synset:
    """One line of a data file."""

    kind: str
    words: list[str]
    pointers: list[tuple[str, str, str]]
    frames: set[str] = field(default_factory=set)

    def to(self, symbol: str, pos: str) -> list[str]:
        """Offsets of the synsets of ``pos`` that a pointer of this kind leads to."""
        return [offset for sign, offset, kind in self.pointers if sign == symbol and kind.replace("s", "a") == pos]


def read_data(path: Path) -> dict[str, Synset]:
    """Synsets by offset (format: wndb(5WN))."""
    synsets = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        if line.startswith(" "):
            continue
        fields = line.partition(" | ")[0].split()
        count = int(fields[3], 16)
        words = [word.partition("(")[0] for word in fields[4 : 4 + 2 * count : 2]]
        rest = fields[4 + 2 * count :]
        pointers = [(rest[i], rest[i + 1], rest[i + 2]) for i in range(1, 4 * int(rest[0]) + 1, 4)]
        frames = {rest[i + 1] for i in range(len(rest) - 2) if rest[i] == "+" and i > 4 * int(rest[0])}
        synsets[fields[0]] = Synset(fields[2], words, pointers, frames)
    return synsets


def read_index(path: Path) -> dict[str, str]:
    """Lemma to the offset of its most frequent sense."""
    first = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        if not line.startswith(" "):
            fields = line.split()
            first[fields[0]] = fields[6 + int(fields[3])]
    return first


def read_counts(path: Path) -> Counter[tuple[str, str]]:
    """How often (lemma, part of speech) is tagged with its most frequent sense."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in path.read_text(encoding="latin-1").splitlines():
        key, sense, count = line.split()
        lemma, _, rest = key.partition("%")
        if sense == "1":
            counts[lemma, POS_OF_SENSE_KEY[rest[0]]] += int(count)
    return counts


def read_exceptions(path: Path) -> dict[str, list[str]]:
    """Lemma to its irregular forms."""
    forms = defaultdict(list)
    for line in path.read_text(encoding="latin-1").splitlines():
        form, *lemmas = line.split()
        for lemma in lemmas:
            forms[lemma].append(form)
    return forms


def marks(word: str, pos: str, irregular: list[str]) -> str:
    """The marks of an entry, see :class:`hyvlm.data.negatives.Entry`."""
    if pos == "n":
        return "i" if irregular or word.endswith("s") else ""
    doubles = word + word[-1] + "ing" in irregular
    entry = Entry(word, pos, "", "", "", "d" * doubles)
    regular = {inflect(entry, form) for form in ("s", "ing", "ed")}
    return "d" * doubles + "i" * (pos == "v" and not set(irregular) <= regular)


def depth(noun: str, synsets: dict[str, Synset]) -> int:
    """Edges from the synset of a noun up to a root, by first hypernyms."""
    steps = 0
    while above := synsets[noun].to("@", "n"):
        noun, steps = above[0], steps + 1
    return steps


def groups(offset: str, synsets: dict[str, Synset], pos: str) -> tuple[str, str]:
    """The group of a synset and the group, or the one synset, of its rivals; empty where there is none.

    Groups are in upper case, synsets in lower case.
    """
    synset = synsets[offset]
    opposite = synset.to("!", pos)
    if pos == "a":
        head = synset.to("&", "a")[0] if synset.kind == "s" else offset
        opposite = synsets[head].to("!", "a")
        return EXCLUSIVE.get(head, "A" + head), EXCLUSIVE.get(head, "A" + opposite[0] if opposite else "")
    above = synset.to("@", pos)
    group = ""
    if above and (pos == "v" or depth(above[0], synsets) >= LEAST_DEPTH):
        group = pos.upper() + above[0] + ("T" if pos == "v" and synset.frames & TRANSITIVE_FRAMES else "")
    return group, (pos + opposite[0] if opposite else group)


def make(folder: Path) -> list[Entry]:
    """The entries of the lexicon, by word."""
    counts = read_counts(folder / "cntlist.rev")
    synsets = {pos: read_data(folder / f"data.{name}") for pos, name in FILES.items()}
    first = {pos: read_index(folder / f"index.{name}") for pos, name in FILES.items()}
    irregular = {pos: read_exceptions(folder / f"{name}.exc") for pos, name in FILES.items()}
    frequent = {token.removesuffix("</w>") for token in SimpleTokenizer().encoder if token.endswith("</w>")}
    numbers = {w for s in synsets["a"].values() if s.to("&", "a")[:1] == [CARDINAL] for w in s.words}
    entries: dict[str, Entry] = {}
    for word in sorted(frequent):
        known = [pos for pos in "nvar" if word in first[pos]]
        if not known or len(word) < 3 or not word.isalpha() or (word in ENGLISH_STOP_WORDS and word not in numbers):
            continue
        pos = max(known, key=lambda pos: counts[word, pos])
        if len(word) < SHORT and not counts[word, pos]:
            continue
        synset = synsets[pos][first[pos][word]]
        found = groups(first[pos][word], synsets[pos], pos)
        offensive = OFFENSIVE & {offset for sign, offset, _ in synset.pointers if sign == ";u"}
        plural = pos == "n" and word.endswith("s") and not word.endswith(("ss", "us"))
        if word in synset.words and any(found) and not offensive and not plural:
            entries[word] = Entry(word, pos, pos + first[pos][word], *found, marks(word, pos, irregular[pos][word]))
    return _with_rivals(_no_inflections(entries, irregular, counts), synsets)


def _no_inflections(
    entries: dict[str, Entry], irregular: dict[str, dict[str, list[str]]], counts: Counter[tuple[str, str]]
) -> list[Entry]:
    """Without words that are rare as such and forms of a frequent word."""
    other: Counter[str] = Counter()
    for (lemma, pos), count in counts.items():
        plain = Entry(lemma, pos, "", "", "", "")
        regular = (inflect(plain, form) for form in ("s", "ing", "ed")) if pos in "nv" and len(lemma) > 1 else ()
        for form in {*regular, *irregular[pos][lemma]} - {lemma, None}:
            other[str(form)] = max(other[str(form)], count)
    return [e for e in entries.values() if other[e.word] <= MUCH_MORE * counts[e.word, e.pos]]


def _with_rivals(entries: list[Entry], synsets: dict[str, dict[str, Synset]]) -> list[Entry]:
    """Entries that some other one may replace, or that may replace another one."""
    synset_of = {entry.word: entry.synset for entry in entries}
    members = defaultdict(set)
    for entry in entries:
        members[entry.synset].add(entry.synset)
        members[entry.group].add(entry.synset)
    members.pop("", None)

    def known_rivals(entry: Entry) -> str:
        if entry.rivals in members or entry.pos not in "nv" or not entry.rivals[:1].islower():
            return entry.rivals
        opposite = synsets[entry.pos][entry.rivals[1:]].words  # no word has this as its most frequent sense
        return next((synset_of[word] for word in opposite if word in synset_of), entry.group)

    known = [replace(entry, rivals=known_rivals(entry)) for entry in entries]
    able = [e for e in known if members.get(e.rivals, set()) - {e.synset}]
    wanted = {e.rivals for e in able}
    return [e if e in able else replace(e, rivals="") for e in known if e in able or {e.synset, e.group} & wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wordnet", type=Path, help="folder with WordNet's data.noun, noun.exc, cntlist.rev, ...")
    entries = make(parser.parse_args().wordnet)
    header = "# From WordNet 3.0, see WORDNET_LICENSE. word, part of speech, synset, group, group of rivals, marks\n"
    lines = ["\t".join((e.word, e.pos, e.synset, e.group, e.rivals, e.marks)) for e in entries]
    OUT.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(entries)} words, {OUT.stat().st_size / 1000:.0f} kB: {OUT}")


if __name__ == "__main__":
    main()
