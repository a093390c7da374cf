"""Images named after their objects, listed in a table, or drawn."""

import hashlib
import json

import numpy as np
import pytest

from hyvlm.data import open_data
from hyvlm.data.sets.scene_objects import describe_objects
from hyvlm.data.sets.scenes import LEAF_CLASSES, describe_scene
from hyvlm.data.sets.scenes.world import split_of

PINNED = [[29], [0, 36], [16, 33, 35], [10, 20, 30, 34], [2, 21, 33, 36, 39], [19], [10, 33]]
DIGEST = "d77948bed195bea8"


@pytest.fixture
def comco(encoded, tmp_path):
    """Two sets as ComCo has them, of two and of three objects, and what does not belong there."""
    for name in ("two/boat_cake.png", "two/cake_boat.png", "three/boat_traffic light_cake.png", "two/_cake.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encoded(form="PNG"))
    (tmp_path / "two" / "notes.txt").write_text("no image")
    return tmp_path


def test_file_names_are_objects(comco, caplog):
    data = open_data(f"multi-object:{comco}", content="labels")
    assert data.classes == ("boat", "cake", "traffic light")
    assert [(data[i].key, data[i].labels) for i in range(len(data))] == [
        ("three/boat_traffic light_cake.png", [0, 1, 2]),
        ("two/boat_cake.png", [0, 1]),
        ("two/cake_boat.png", [0, 1]),
    ]
    assert data[0].image.size == (40, 30)
    assert data.dropped == {"file name is not objects with _ between them": 1}
    assert "_cake.png" in caplog.text
    assert open_data(f"multi-object:{comco / 'two'}", content="labels").classes == ("boat", "cake")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_tables_list_objects(kind, comco, tmp_path):
    rows = [("two/boat_cake.png", ["ship", "pie", "ship"], "a"), ("two/cake_boat.png", ["pie"], "b")]
    rows += [("two/missing.png", ["pie"], "a"), ("", ["pie"], "a"), ("two/_cake.png", [], "a")]
    table = tmp_path / f"objects.{kind}"
    if kind == "csv":
        lines = [f"{image},{';'.join(objects)},{split}" for image, objects, split in rows]
        table.write_text("\n".join(["image,objects,split", *lines]))
    else:
        keys = ("image", "objects", "split")
        table.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    data = open_data(f"multi-object:{table}", content="labels")
    assert (data.classes, [data[i].labels for i in range(len(data))]) == (("pie", "ship"), [[0, 1, 1], [0]])
    assert data.dropped == {"row without an image and its objects": 2, "image file is missing": 1}
    assert len(open_data(f"multi-object:{table}", split="b", content="labels")) == 1
    with pytest.raises(ValueError, match="offers the splits all, a, b, not 'c'"):
        open_data(f"multi-object:{table}", split="c", content="labels")


def test_sets_that_lack_something(comco, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(ValueError, match="has no image with objects"):
        open_data(f"multi-object:{empty}", content="labels")
    with pytest.raises(FileNotFoundError, match="multi-object: no folder /nowhere"):
        open_data("multi-object:/nowhere", content="labels")
    with pytest.raises(FileNotFoundError, match=r"multi-object: no file /nowhere\.csv"):
        open_data("multi-object:/nowhere.csv", content="labels")
    with pytest.raises(ValueError, match="offers the contents labels, not 'pairs'"):
        open_data(f"multi-object:{comco}")
    table = empty / "twice.csv"
    table.write_text("image,objects\na.png,x\na.png,y\n")
    with pytest.raises(ValueError, match=r"row 3 of .*twice\.csv lists the image 'a.png' again"):
        open_data(f"multi-object:{table}", content="labels")


def test_fingerprints_follow_the_labels(comco):
    before = open_data(f"multi-object:{comco}", content="labels").fingerprint
    assert open_data(f"multi-object:{comco}", content="labels").fingerprint == before
    path = comco / "two" / "boat_cake.png"
    path.rename(path.with_name("boat_pie.png"))
    assert open_data(f"multi-object:{comco}", content="labels").fingerprint != before


def test_scenes_of_one_large_object():
    scenes = [describe_objects(i) for i in range(100)]
    assert [len(scene.objects) for scene in scenes] == [1 + i % 5 for i in range(100)]
    assert all([o.size for o in scene.objects].count("large") == 1 for scene in scenes)
    assert len({[o.size for o in scene.objects].index("large") for scene in scenes}) == 5
    assert all(list(scene.labels) == sorted({LEAF_CLASSES.index(o.leaf) for o in scene.objects}) for scene in scenes)
    assert {split_of(scene.signature) for scene in scenes} == {"test"}
    assert {split_of(describe_scene(i, "train").signature) for i in range(50)} == {"train"}


def test_the_scenes_never_change():
    """Numbers on this set compare only while it stays the same; a change needs a new SCENES_VERSION."""
    data = open_data("scenes-objects:7", content="labels")
    assert (len(data), len(open_data("scenes-objects", content="labels"))) == (7, 2000)
    labels = [data[i].labels for i in range(7)]
    assert labels == PINNED
    assert all(np.asarray(data[i].image).std() > 10 for i in range(7))
    assert open_data("scenes-objects:8", content="labels").fingerprint != data.fingerprint
    with pytest.raises(IndexError, match="sample 7 of scenes-objects:7, which has 7"):
        data[7]
    with pytest.raises(ValueError, match="a positive whole number"):
        open_data("scenes-objects:many", content="labels")
    words = repr([(o.leaf, o.size, o.center, o.radius) for o in describe_objects(4).objects])
    assert hashlib.sha256(words.encode()).hexdigest()[:16] == DIGEST
