"""The words of a built-in scene: captions from short to long, phrases of its objects, captions made false."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hyvlm.data.sets.scenes.world import FAMILIES, OPPOSITE, HardNegative, Relation, SceneObject, Stream, swapped, swaps

NUMBERS = {0: "no", 1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
#: How many relations the longest caption tells, by the number of objects; so it fits CLIP's 77 tokens.
_TOLD = {2: 1, 3: 2, 4: 2, 5: 1}


class Wording:
    """The choices of words for one scene of ``count`` objects, drawn before its objects are looked at.

    Captions of an altered scene under the same wording therefore differ in the altered words only.
    """

    def __init__(self, stream: Stream, count: int) -> None:
        pairs = count * (count - 1) // 2
        self._order = shuffled(stream, count)
        self._told = shuffled(stream, pairs)
        self._turned = [stream.uniform() < 0.5 for _ in range(pairs)]
        self._broad = [stream.uniform() < 0.25 for _ in range(count)]
        self._detail = [stream.uniform() for _ in range(count)]
        self._swap = {"colour": stream.uniform(), "material": stream.uniform()}

    def phrases(self, objects: Sequence[SceneObject]) -> tuple[str, ...]:
        """A phrase for each object: mostly its leaf class, at times with its size, seldom without an attribute."""
        return tuple(map(_phrase, objects, self._detail))

    def captions(self, objects: Sequence[SceneObject], relations: Sequence[Relation]) -> tuple[str, str, str, str]:
        """Four captions from short to long: two kinds of things, two related objects, all objects, everything known."""
        told = [turned(relations[i]) if self._turned[i] else relations[i] for i in self._told]
        kinds = [FAMILIES[o.shape] if broad else o.shape for o, broad in zip(objects, self._broad, strict=True)]

        pair = told[0]
        general = f"a {kinds[pair.subject]} and a {kinds[pair.object]}"
        related = f"a {objects[pair.subject].leaf} {pair.name} a {objects[pair.object].leaf}"
        count, in_order = NUMBERS[len(objects)], [objects[i] for i in self._order]
        *most, last = (f"a {o.leaf}" for o in in_order)
        listed = f"{count} objects: {', '.join(most)} and {last}"
        sentences = [f"{count.capitalize()} objects."]
        sentences += [f"A {o.size} {o.leaf} is {o.place}." for o in in_order]
        sentences += [
            f"The {objects[r.subject].leaf} is {r.name} the {objects[r.object].leaf}."
            for r in told[: _TOLD[len(objects)]]
        ]
        return general, related, listed, " ".join(sentences)

    def hard_negatives(self, objects: Sequence[SceneObject], relations: Sequence[Relation]) -> tuple[HardNegative, ...]:
        """Captions that one swap makes false: of two objects' colours or materials, of the two sides of a relation.

        A colour or material is exchanged only where that names a leaf class which the scene lacks; at least one of the
        two can be exchanged in every scene.
        """
        false = []
        for attribute, lot in self._swap.items():
            altered = exchanged(objects, attribute, lot)
            if altered:
                written = self.captions(altered, relations)
                false += [HardNegative(attribute, level, written[level]) for level in (2, 3)]
        reversed_relations = [replace(r, name=OPPOSITE[r.name]) for r in relations]
        return (*false, HardNegative("relation", 1, self.captions(objects, reversed_relations)[1]))


def turned(relation: Relation) -> Relation:
    """The same fact told from the other side: "a left of b" becomes "b right of a"."""
    return Relation(relation.object, OPPOSITE[relation.name], relation.subject)


def exchanged(objects: Sequence[SceneObject], attribute: str, lot: float) -> list[SceneObject] | None:
    """The objects with the ``attribute`` of two exchanged; ``lot`` in [0, 1) says of which; None if none can be."""
    pairs = swaps(objects, attribute)
    if not pairs:
        return None
    i, j = pairs[int(lot * len(pairs))]
    altered = list(objects)
    altered[i], altered[j] = swapped(objects[i], objects[j], attribute)
    return altered


def _phrase(o: SceneObject, detail: float) -> str:
    if detail < 0.65:
        return f"a {o.leaf}"
    if detail < 0.9:
        return f"a {o.size} {o.leaf}"
    return f"a {o.colour} {o.shape}" if detail < 0.95 else f"a {o.material} {o.shape}"


def shuffled(stream: Stream, count: int) -> list[int]:
    """0 to ``count - 1`` in an order drawn by lot."""
    left = list(range(count))
    return [left.pop(stream.below(len(left))) for _ in range(count)]
