"""Scenes of one large object among small ones, one to five in all: what SimCo shows, from the built-in solids."""

from __future__ import annotations

import hashlib

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import check_offer
from hyvlm.data.sets.scenes.drawing import CANVAS, render
from hyvlm.data.sets.scenes.world import (
    LEAF_CLASSES,
    SCENES_VERSION,
    TAXONOMY,
    Scene,
    Stream,
    place_objects,
    seed_of,
    signature,
    split_of,
)
from hyvlm.types import Sample

COUNT = 2000
#: Most objects of a scene; scene i has 1 + i % MOST.
MOST = 5
_PURPOSE = 5  # of the streams of these scenes


def describe_objects(index: int) -> Scene:
    """Scene ``index``, without texts: objects of different leaf classes, a large one and small ones, in any depth.

    Its description is that of no training or validation scene of the other built-in sets.
    """
    stream = Stream(*seed_of("test", index, _PURPOSE))
    count = 1 + index % MOST
    while True:
        large = stream.below(count)
        objects = place_objects(stream, count, sizes=["large" if i == large else "small" for i in range(count)])
        if objects is not None and split_of(signature(objects)) == "test":
            labels = tuple(sorted(LEAF_CLASSES.index(o.leaf) for o in objects))
            return Scene("test", index, objects, (), (), (), labels, ())


class SceneObjects(SampleSet):
    """Whole images with the set of leaf classes that each one shows."""

    split = "all"
    classes = LEAF_CLASSES
    parents = TAXONOMY

    def __init__(self, count: int, name: str) -> None:
        self.name, self.count = name, count
        facts = repr(("scenes-objects", SCENES_VERSION, CANVAS, MOST, count))
        self.fingerprint = hashlib.sha256(facts.encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.count:
            raise IndexError(f"sample {index} of {self.name}, which has {self.count}")
        scene = describe_objects(index)
        return Sample(f"scene-objects-{index:06d}", render(scene)[0], labels=list(scene.labels))


@DATASETS.register("scenes-objects")
def open_scenes_objects(location: str = "", *, split: str | None = None, content: str = "labels") -> SampleSet:
    """Built-in scenes of one to five objects, one of them large. Content: labels (40 leaf classes).

    ``location`` is empty or the number of scenes (2,000 if empty).
    """
    check_offer("scenes-objects", "content", content, ["labels"])
    check_offer("scenes-objects", "split", split or "all", ["all"])
    if location and not (location.isascii() and location.isdigit() and int(location) > 0):
        raise ValueError(f"scenes-objects:{location}: what follows is the number of scenes, a positive whole number")
    return SceneObjects(int(location or COUNT), f"scenes-objects:{location}" if location else "scenes-objects")
