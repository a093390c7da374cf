"""Long descriptions of the built-in scenes: a summary sentence, then everything known, in words drawn by lot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from hyvlm.data.sets.scenes.text import NUMBERS, exchanged, shuffled, turned
from hyvlm.data.sets.scenes.world import (
    FAMILIES,
    MATERIALS,
    OPPOSITE,
    SIZES,
    Relation,
    Scene,
    SceneObject,
    Stream,
    seed_of,
)

#: At most so many relations are told, and kinds of so many objects, so that the longest text fits 248 tokens of CLIP.
_MOST = 3
_SUMMARY = (
    "A scene with {number} objects: {listed}.",
    "The picture shows {number} objects: {listed}.",
    "There are {number} objects: {listed}.",
)
_PLACE = (
    "A {size} {leaf} is {place} of the picture.",
    "{Place} of the picture there is a {size} {leaf}.",
    "The {leaf} lies {place} of the image and is {size}.",
    "The {size} {leaf} can be seen {place} of the scene.",
)
_KIND = (
    "The {leaf} is a {family}.",
    "As to its kind, the {leaf} is a {family}.",
    "The {leaf} is a {size} {family}.",
    "What is called the {leaf} here is a {family}.",
)
_RELATION = (
    "The {subject} is {name} the {object}.",
    "The {subject} can be found {name} the {object}.",
    "{Name} the {object} is the {subject}.",
    "Seen by the viewer, the {subject} is {name} the {object}.",
)
_COUNTS = ("The scene holds {counts}.", "Sorted by {what}, the objects are {counts}.", "{Counts} can be counted.")


class LongTexts(NamedTuple):
    """Texts of one scene.

    Attributes:
        short: The summary: the first sentence of ``long``.
        long: The whole description.
        negatives: Descriptions made false by one fact, told so throughout: colours of two objects exchanged, materials
            of two exchanged (where that is false), the size of one object, its place, a relation turned round.
    """

    short: str
    long: str
    negatives: tuple[str, ...]


class LongWording:
    """The choices of words for one scene of ``count`` objects, drawn before its objects are looked at.

    Texts of an altered scene under the same wording therefore differ in the altered words only.
    """

    def __init__(self, stream: Stream, count: int) -> None:
        pairs = count * (count - 1) // 2
        self._summary = stream.choice(_SUMMARY)
        self._order = shuffled(stream, count)
        self._places = [stream.choice(_PLACE) for _ in range(count)]
        self._kinds = [stream.choice(_KIND) for _ in range(min(count, _MOST))]
        self._told = shuffled(stream, pairs)
        self._turned = [stream.uniform() < 0.5 for _ in range(pairs)]
        self._relations = [stream.choice(_RELATION) for _ in range(min(2 * pairs, _MOST))]
        self._counts = [stream.choice(_COUNTS), stream.choice(_COUNTS)]
        self._counts_first = stream.uniform() < 0.5
        self._lots = [stream.uniform() for _ in range(4)]

    def sentences(self, objects: Sequence[SceneObject], relations: Sequence[Relation]) -> list[str]:
        """The summary; the place of every object, kinds of some, relations; counts before or after these."""
        told = [turned(relations[i]) if self._turned[i] else relations[i] for i in self._told]
        told = [*told, *map(turned, told)][: len(self._relations)]  # of one pair, both sides are told
        in_order = [objects[i] for i in self._order]
        *most, last = (f"a {o.leaf}" for o in in_order)
        listed = f"{', '.join(most)} and {last}"
        summary = self._summary.format(number=NUMBERS[len(objects)], listed=listed)
        counts = [
            _written(t, what=what, counts=_counted([getattr(o, what) for o in objects], values))
            for t, what, values in zip(self._counts, ("material", "size"), (MATERIALS, SIZES), strict=True)
        ]
        described = [
            _described(t, o)
            for o, *templates in zip_longest(in_order, self._places, self._kinds)
            for t in templates
            if t
        ]
        related = [
            _written(t, subject=objects[r.subject].leaf, name=r.name, object=objects[r.object].leaf)
            for t, r in zip(self._relations, told, strict=True)
        ]
        body = [*counts, *described, *related] if self._counts_first else [*described, *related, *counts]
        return [summary, *body]

    def negatives(self, objects: Sequence[SceneObject], relations: Sequence[Relation]) -> tuple[str, ...]:
        """See :class:`LongTexts`."""
        altered = [exchanged(objects, "colour", self._lots[0]), exchanged(objects, "material", self._lots[1])]
        k = int(self._lots[2] * len(objects))
        size = SIZES[1 - SIZES.index(objects[k].size)]
        altered.append([replace(o, size=size) if i == k else o for i, o in enumerate(objects)])
        aside = [i for i, o in enumerate(objects) if o.place != "in the middle"]
        if aside:
            k = aside[int(self._lots[3] * len(aside))]
            altered.append([replace(o, center=_mirrored(o)) if i == k else o for i, o in enumerate(objects)])
        false = [self.sentences(scene, relations) for scene in altered if scene]
        wrong = [replace(r, name=OPPOSITE[r.name]) if i == self._told[0] else r for i, r in enumerate(relations)]
        return tuple(" ".join(s) for s in [*false, self.sentences(objects, wrong)])


@lru_cache(maxsize=16)
def long_texts(scene: Scene) -> LongTexts:
    """The long texts of a scene; the same scene always has the same."""
    wording = LongWording(Stream(*seed_of(scene.split, scene.index, 4)), len(scene.objects))
    sentences = wording.sentences(scene.objects, scene.relations)
    return LongTexts(sentences[0], " ".join(sentences), wording.negatives(scene.objects, scene.relations))


def _described(template: str, o: SceneObject) -> str:
    return _written(
        template,
        leaf=o.leaf,
        size=o.size,
        place=o.place,
        family=FAMILIES[o.shape],
        material=o.material,
        colour=o.colour,
    )


def _written(template: str, **words: str) -> str:
    """``{word}`` as it is, ``{Word}`` with a capital."""
    return template.format(**words, **{key.capitalize(): word.capitalize() for key, word in words.items()})


def _counted(found: Sequence[str], values: Sequence[str]) -> str:
    """ "no metal object and three rubber objects"."""
    numbers = [(found.count(value), value) for value in values]
    return " and ".join(f"{NUMBERS[n]} {value} object{'s' * (n != 1)}" for n, value in numbers)


def _mirrored(o: SceneObject) -> tuple[float, float]:
    """The centre on the other side: right for left; bottom for top, if it is neither left nor right."""
    x, y = o.center
    return (1 - x, y) if o.place.endswith(("left", "right")) else (x, 1 - y)
