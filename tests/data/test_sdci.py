"""The released layout of sDCI, written small, and the scenes laid out like it."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hyvlm.data import open_data
from hyvlm.data.sets.scenes import LEAF_CLASSES, describe_scene

POOL = {"swaps": ["swap 0", "swap 1"], "layout": ["layout 0"], "basic": ["basic 0", "basic 1"]}
SCORES = {"sum": 30.0, "swaps_0": 20.0, "swaps_1": 22.0, "layout_0": 25.0, "basic_0": 25.0, "basic_1": 1.0}


def bounds(x0: int, y0: int, x1: int, y1: int) -> dict:
    return {"topLeft": {"x": x0, "y": y0}, "bottomRight": {"x": x1, "y": y1}}


def annotation(name: str, masks: dict[int, object]) -> dict:
    keys = ["base", *(f"m-{idx}-sc" for idx in masks)]
    return {
        "image": name,
        "short_caption": "not read",
        "mask_data": {str(idx): {"idx": idx, "bounds": box, "label": "x"} for idx, box in masks.items()},
        "summaries": {key: [f"{key} {i}" for i in range(5)] for key in keys},
        "negatives": dict.fromkeys(keys, POOL),
        "clip_scores": dict.fromkeys(keys, SCORES),
    }


def write(folder: Path, **documents: object) -> str:
    root = folder / "densely_captioned_images"
    (root / "complete").mkdir(parents=True)
    (root / "photos").mkdir()
    for name, document in documents.items():
        (root / "complete" / f"{name}.json").write_text(json.dumps(document))
        pixels = np.arange(600, dtype=np.int64)
        grid = np.stack([np.add.outer(pixels // 4, pixels // 8)] * 3, -1).astype(np.uint8)
        Image.fromarray(grid).save(root / "photos" / f"{name}.png")
    (root / "splits.json").write_text(json.dumps({"train": [], "test": [f"{name}.json" for name in documents]}))
    return f"sdci:{folder}"


def test_wholes_and_their_large_parts_follow_one_another(tmp_path: Path) -> None:
    masks = {3: bounds(100, 10, 340, 234), 7: bounds(0, 0, 223, 600), 9: [[300, 300], [600, 600]]}
    samples = open_data(write(tmp_path, a=annotation("a.png", masks), b=annotation("b.png", {})), content="negatives")
    found = [samples[i] for i in range(len(samples))]
    assert [sample.key for sample in found] == ["a/base", "a/m-3-sc", "a/m-9-sc", "b/base"]
    assert [sample.labels for sample in found] == [[0, 1], [1], [1], [0]]  # of b nothing but the whole has negatives
    assert found[1].texts == [f"m-3-sc {i}" for i in range(5)]
    assert found[1].negatives == ["swap 0", "swap 1", "layout 0", "basic 0", "basic 1", "basic 0"]  # the last of equals
    whole = np.asarray(found[0].picture)
    # 15 % of 240 and of 224 pixels, cut off, on every side, but not beyond the image
    np.testing.assert_array_equal(np.asarray(found[1].picture), whole[0:267, 64:376])
    np.testing.assert_array_equal(np.asarray(found[2].picture), whole[255:600, 255:600])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["summaries"].pop("m-3-sc"), "an entry has no summary"),
        (lambda d: d["negatives"].update({"m-3-sc": {"basic": ["x"]}}), "an entry has no negative of the kind swaps"),
        (lambda d: d["negatives"].update({"base": {"swaps": ["x", " "]}}), "an entry has an empty negative"),
        (lambda d: d["clip_scores"].pop("base"), "negatives have no CLIP scores"),
        (lambda d: d.pop("clip_scores"), "negatives have no CLIP scores"),
        (lambda d: d.pop("negatives"), "annotation cannot be read"),
        (lambda d: d["mask_data"]["3"].update(bounds=[1, 2]), "annotation cannot be read"),
    ],
)
def test_an_image_that_lacks_something_is_left_out_whole(tmp_path: Path, change, reason: str) -> None:
    damaged = annotation("a.png", {3: bounds(0, 0, 300, 300)})
    change(damaged)
    samples = open_data(write(tmp_path, a=damaged, b=annotation("b.png", {})), content="negatives")
    assert dict(samples.dropped) == {reason: 1}
    assert [samples[i].key for i in range(len(samples))] == ["b/base"]


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    place = write(tmp_path, a=annotation("a.png", {}))
    with pytest.raises(ValueError, match="splits train, test, all, not 'valid'"):
        open_data(place, split="valid", content="negatives")
    with pytest.raises(ValueError, match="split 'train' has summaries and negatives"):
        open_data(place, split="train", content="negatives")
    with pytest.raises(ValueError, match="contents negatives"):
        open_data(place, content="pairs")
    assert len(open_data(place, split="all", content="negatives")) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no folder complete"):
        open_data(f"sdci:{tmp_path / 'empty'}", content="negatives")


def test_scenes_are_laid_out_alike() -> None:
    samples = open_data("scenes-parts", split="val", content="negatives")
    scene = describe_scene(0, "val")
    whole, *parts, following = (samples[i] for i in range(len(scene.objects) + 2))
    assert [whole.labels, following.labels] == [[0, 1], [0, 1]]
    assert whole.texts[0] == scene.captions[2]
    assert not set(whole.negatives) & set(whole.texts)
    for part, o in zip(parts, scene.objects, strict=True):
        assert part.labels == [1]
        assert len(part.texts) == 5
        assert all(o.leaf in text for text in part.texts)
        named = [text.removeprefix("a ") for text in part.negatives]
        assert o.leaf not in named
        assert set(named) <= set(LEAF_CLASSES)
        assert all(len(set(name.split()) ^ set(o.leaf.split())) == 2 for name in named)  # one word differs
