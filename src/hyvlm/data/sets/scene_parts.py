"""The built-in scenes as sDCI lays its images out: whole images and parts, with five captions each and false ones."""

from __future__ import annotations

import hashlib

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import check_offer
from hyvlm.data.sets.scenes import (
    COLOURS,
    MATERIALS,
    TAXONOMY,
    Scene,
    SceneObject,
    ScenePairs,
    describe_scene,
    open_scenes,
)
from hyvlm.data.sets.sdci import MATCHING_TESTS
from hyvlm.types import Sample


class SceneParts(SampleSet):
    """Every scene, followed by the crops of its objects.

    The captions of a part name its leaf class. The false ones name a sibling in the taxonomy: another colour, the other
    material, another shape of the family. Those of a scene exchange colours, materials or sides.
    """

    classes = MATCHING_TESTS

    def __init__(self, split: str) -> None:
        pairs = open_scenes(split=split)
        assert isinstance(pairs, ScenePairs)
        self.pairs, self.name, self.split = pairs, "scenes-parts", split
        objects = (len(describe_scene(i, split).objects) for i in range(len(pairs)))
        self.places = [(i, k) for i, count in enumerate(objects) for k in range(-1, count)]
        self.fingerprint = hashlib.sha256(f"scenes-parts {pairs.fingerprint}".encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Sample:
        which, k = self.places[index]
        sample, scene = self.pairs[which], describe_scene(which, self.split)
        image, key = (sample.picture, sample.key) if k < 0 else (sample.parts[k].image, f"{sample.key}-{k}")
        texts, negatives = _of_scene(scene) if k < 0 else _of_part(scene.objects[k])
        return Sample(key, image, texts=texts, labels=[0, 1] if k < 0 else [1], negatives=negatives)


def _of_scene(scene: Scene) -> tuple[list[str], list[str]]:
    """The list of all objects first, for it tells scenes apart; its false versions first, too."""
    general, related, listed, full = scene.captions
    false = sorted(scene.hard_negatives, key=lambda negative: negative.caption != 2)
    return [listed, full, related, general, f"a picture of {listed}"], [negative.text for negative in false]


def _of_part(o: SceneObject) -> tuple[list[str], list[str]]:
    texts = [f"a {o.leaf}", f"a {o.size} {o.leaf}", f"a picture of a {o.leaf}", f"one {o.leaf}", f"the {o.leaf}"]
    turn = COLOURS.index(o.colour)
    colours = [*COLOURS[turn + 1 :], *COLOURS[:turn]]
    false = [f"{colour} {o.material} {o.shape}" for colour in colours]
    false += [f"{o.colour} {material} {o.shape}" for material in MATERIALS if material != o.material]
    siblings = [name for name, parent in TAXONOMY.items() if parent == TAXONOMY[o.shape] and name != o.shape]
    false += [f"{o.colour} {o.material} {shape}" for shape in siblings]
    return texts, [f"a {name}" for name in false]


@DATASETS.register("scenes-parts")
def open_scene_parts(location: str = "", *, split: str | None = None, content: str = "negatives") -> SampleSet:
    """The built-in scenes and their objects as sDCI lays images out. Content: negatives."""
    check_offer("scenes-parts", "content", content, ["negatives"])
    if location:
        raise ValueError(f"scenes-parts takes no location, got {location!r}")
    check_offer("scenes-parts", "split", split or "test", ["train", "val", "test"])
    return SceneParts(split or "test")
