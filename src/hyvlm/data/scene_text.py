"""The words of a built-in scene: captions from short to long, phrases of its objects, captions made false."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

from hyvlm.data.scene_world import (
    FAMILIES,
    OPPOSITE,
    HardNegative,
    Relation,
    SceneObject,
    Stream,
    seed_of,
    swappable,
    swapped,
)

T = TypeVar("T")

_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}
#: How many relations the longest caption tells, by the number of objects; so it fits CLIP's 77 tokens.
_TOLD = {2: 1, 3: 2, 4: 2, 5: 1}


def phrases(split: str, index: int, objects: Sequence[SceneObject]) -> tuple[str, ...]:
    """A phrase for each object: mostly its leaf class, at times with its size, seldom without material or colour."""
    stream = Stream(*seed_of(split, index, 1))
    named = []
    for o in objects:
        lot = stream.uniform()
        if lot < 0.65:
            named.append(f"a {o.leaf}")
        elif lot < 0.9:
            named.append(f"a {o.size} {o.leaf}")
        else:
            named.append(f"a {o.colour} {o.shape}" if lot < 0.95 else f"a {o.material} {o.shape}")
    return tuple(named)


def captions(
    split: str, index: int, objects: Sequence[SceneObject], relations: Sequence[Relation]
) -> tuple[str, str, str, str]:
    """Four captions, from short to long: two kinds of things, two related objects, all objects, everything known.

    The choices depend on ``split`` and ``index`` alone: captions of an altered scene differ in the altered words only.
    """
    stream = Stream(*seed_of(split, index, 1), 1)
    order = _shuffled(stream, range(len(objects)))
    told = _shuffled(stream, [r if stream.uniform() < 0.5 else turned(r) for r in relations])
    kinds = [FAMILIES[o.shape] if stream.uniform() < 0.25 else o.shape for o in objects]

    pair = told[0]
    general = f"a {kinds[pair.subject]} and a {kinds[pair.object]}"
    related = f"a {objects[pair.subject].leaf} {pair.name} a {objects[pair.object].leaf}"
    count, named = _NUMBERS[len(objects)], [f"a {objects[i].leaf}" for i in order]
    listed = f"{count} objects: {', '.join(named[:-1])} and {named[-1]}"
    sentences = [f"{count.capitalize()} objects."]
    sentences += [f"A {objects[i].size} {objects[i].leaf} is {objects[i].place}." for i in order]
    sentences += [
        f"The {objects[r.subject].leaf} is {r.name} the {objects[r.object].leaf}." for r in told[: _TOLD[len(objects)]]
    ]
    return general, related, listed, " ".join(sentences)


def hard_negatives(
    split: str, index: int, objects: Sequence[SceneObject], relations: Sequence[Relation]
) -> tuple[HardNegative, ...]:
    """Captions that one swap makes false: of two objects' colours or materials, of the two sides of a relation.

    A colour or material is exchanged only where that names a leaf class which the scene lacks; at least one of the two
    can be exchanged in every scene.
    """
    false = []
    stream = Stream(*seed_of(split, index, 1), 2)
    for attribute in ("colour", "material"):
        pairs = [
            (i, j)
            for i, j in combinations(range(len(objects)), 2)
            if swappable(objects[i], objects[j], objects, attribute)
        ]
        if pairs:
            i, j = stream.choice(pairs)
            altered = list(objects)
            altered[i], altered[j] = swapped(objects[i], objects[j], attribute)
            written = captions(split, index, altered, relations)
            false += [HardNegative(attribute, level, written[level]) for level in (2, 3)]
    reversed_relations = [replace(r, name=OPPOSITE[r.name]) for r in relations]
    related = captions(split, index, objects, reversed_relations)[1]
    return (*false, HardNegative("relation", 1, related))


def turned(relation: Relation) -> Relation:
    """The same fact told from the other side: "a left of b" becomes "b right of a"."""
    return Relation(relation.object, OPPOSITE[relation.name], relation.subject)


def _shuffled(stream: Stream, items: Sequence[T]) -> list[T]:
    left = list(items)
    return [left.pop(stream.below(len(left))) for _ in items]
