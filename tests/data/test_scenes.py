"""The built-in scenes as data sets: contents, splits, crops, difficulty, errors."""

import numpy as np
import pytest

from hyvlm.data.catalog import open_data
from hyvlm.data.sets.scenes import (
    CANVAS,
    COLOURS,
    LEAF_CLASSES,
    MATERIALS,
    SHAPES,
    SPLITS,
    TAXONOMY,
    crop_box,
    describe_scene,
    nearest_neighbour_accuracy,
    render,
)


def test_leaf_classes_are_every_colour_material_and_shape() -> None:
    assert len(set(LEAF_CLASSES)) == len(LEAF_CLASSES) == len(SHAPES) * len(COLOURS) * len(MATERIALS) >= 24


def test_taxonomy_is_a_tree_with_three_levels_above_every_leaf() -> None:
    tops = set()
    for leaf in LEAF_CLASSES:
        chain = [leaf]
        while chain[-1] in TAXONOMY:
            chain.append(TAXONOMY[chain[-1]])
            assert len(chain) == len(set(chain)), f"{leaf} is its own ancestor"
        assert len(chain) - 1 >= 3
        tops.add(chain[-1])
    assert tops == {"solid"}
    assert TAXONOMY["red metal cube"] == "metal cube"
    assert not set(LEAF_CLASSES) & set(TAXONOMY.values())


def test_splits_share_no_scene() -> None:
    counts = {"train": 2000, "val": 500, "test": 500}
    seen = {split: {describe_scene(i, split).signature for i in range(counts[split])} for split in SPLITS}
    assert not seen["train"] & seen["val"]
    assert not seen["train"] & seen["test"]
    assert not seen["val"] & seen["test"]


def test_full_captions_tell_held_out_scenes_apart() -> None:
    captions = {describe_scene(i, "val").captions[-1] for i in range(500)}
    assert len(captions) >= 495


@pytest.mark.parametrize("content", ["pairs", "classes", "labels"])
def test_a_sample_does_not_depend_on_what_was_read_before(content: str) -> None:
    once, again = open_data("scenes", split="val", content=content), open_data("scenes", split="val", content=content)
    first = once[41]
    for i in range(60, 20, -1):
        second = again[i]
        if i == 41:
            break
    assert first.key == second.key
    assert (first.texts, first.labels) == (second.texts, second.labels)
    assert first.image.tobytes() == second.image.tobytes()
    assert [(p.text, p.image.tobytes()) for p in first.parts] == [(p.text, p.image.tobytes()) for p in second.parts]


def test_a_changed_sample_leaves_the_data_set_alone() -> None:
    pairs = open_data("scenes", split="val")
    sample, before = pairs[0], pairs[0].image.tobytes()
    for image in (sample.image, sample.parts[0].image):
        image.paste("white", (0, 0, *image.size))
    sample.texts.clear()
    assert pairs[0].image.tobytes() == before
    assert pairs[0].texts
    assert np.asarray(pairs[0].parts[0].image).std() > 0


def test_pairs_hold_an_image_captions_and_a_part_for_every_object() -> None:
    pairs = open_data("scenes", split="test")
    for i in range(20):
        sample, scene = pairs[i], describe_scene(i, "test")
        assert sample.image.size == (CANVAS, CANVAS)
        assert sample.image.mode == "RGB"
        lengths = [len(text.split()) for text in sample.texts]
        assert lengths == sorted(lengths)
        assert 4 <= len(sample.texts) <= 5
        assert sample.texts[-1].count(".") > len(scene.objects)
        assert len(sample.parts) == len(scene.objects) == 2 + i % 4
        for part, one in zip(sample.parts, scene.objects, strict=True):
            assert set(part.text.split()) - {"a"} <= {one.size, one.colour, one.material, one.shape}


def test_labels_and_crops_agree_with_the_scenes() -> None:
    pairs, labels = open_data("scenes", split="val"), open_data("scenes", split="val", content="labels")
    crops = open_data("scenes", split="val", content="classes")
    assert labels.classes == crops.classes == LEAF_CLASSES
    assert labels.parents == crops.parents == TAXONOMY
    assert len(pairs) == len(labels) == 500
    at = 0
    for i in range(12):
        whole, names = pairs[i], [o.leaf for o in describe_scene(i, "val").objects]
        assert whole.image.tobytes() == labels[i].image.tobytes()
        assert [LEAF_CLASSES[label] for label in labels[i].labels] == sorted(names, key=LEAF_CLASSES.index)
        for part, name in zip(whole.parts, names, strict=True):
            assert LEAF_CLASSES[crops[at].labels[0]] == name
            assert crops[at].image.tobytes() == part.image.tobytes()
            at += 1
    assert len(crops) == sum(len(describe_scene(i, "val").objects) for i in range(500))


def test_a_crop_is_a_square_that_holds_the_visible_object() -> None:
    for i in range(60):
        scene = describe_scene(i, "test")
        for k, mask in enumerate(render(scene)[1]):
            x0, y0, x1, y1 = crop_box(scene, k, mask)
            assert x1 - x0 == y1 - y0
            assert min(x0, y0) >= 0
            assert max(x1, y1) <= CANVAS
            assert mask[y0:y1, x0:x1].sum() == mask.sum()
            assert mask[y0:y1, x0:x1].mean() > 0.08, "the crop is mostly surroundings"


def test_every_class_occurs_in_training_about_equally_often() -> None:
    counts = np.bincount(
        [label for i in range(1000) for label in describe_scene(i).labels], minlength=len(LEAF_CLASSES)
    )
    assert counts.min() > 0.5 * counts.mean()
    assert counts.max() < 1.6 * counts.mean()


def test_fingerprints_tell_contents_apart_and_join_equal_images() -> None:
    sets = {c: open_data("scenes", split="test", content=c) for c in ("pairs", "classes", "labels")}
    assert len({s.fingerprint for s in sets.values()}) == 3
    assert sets["pairs"].image_fingerprint == sets["labels"].image_fingerprint != sets["classes"].image_fingerprint
    assert open_data("scenes:70", split="train").fingerprint != open_data("scenes:80", split="train").fingerprint
    assert open_data("scenes:70", split="val").fingerprint == open_data("scenes", split="val").fingerprint


def test_defaults() -> None:
    assert (open_data("scenes").split, len(open_data("scenes"))) == ("test", 500)
    assert len(open_data("scenes", split="train")) == 10_000
    assert open_data("scenes", content="classes").split == "test"
    few = open_data("scenes:30", split="train")
    assert len(few) == 30
    assert len(open_data("scenes:30", split="test", content="labels")) == 500
    assert [len(few[i].parts) for i in range(4)] == [2, 3, 4, 5]


@pytest.mark.parametrize("location", ["0", "-5", "many", "1e3", "²"])
def test_a_bad_number_of_scenes_is_one_sentence(location: str) -> None:
    with pytest.raises(ValueError, match=r"number of training scenes, a positive whole number") as caught:
        open_data(f"scenes:{location}")
    assert location in str(caught.value)


def test_bad_names_and_places_are_told() -> None:
    with pytest.raises(ValueError, match=r"unknown split of scenes 'trian'\. Did you mean 'train'"):
        open_data("scenes", split="trian")
    with pytest.raises(ValueError, match="must not be negative"):
        describe_scene(-1)
    with pytest.raises(ValueError, match="16 to 512"):
        render(describe_scene(0), size=8)
    with pytest.raises(IndexError, match="which has 500"):
        open_data("scenes", split="val")[500]


def test_nearest_neighbour_of_the_training_set_itself_is_always_right() -> None:
    crops = open_data("scenes:12", split="train", content="classes")
    assert nearest_neighbour_accuracy(crops, crops) == 1.0


def test_raw_pixels_do_not_solve_the_classes() -> None:
    train, test = (open_data("scenes:1500", split=split, content="classes") for split in ("train", "val"))
    accuracy = nearest_neighbour_accuracy(train, test)
    assert 10 / len(LEAF_CLASSES) < accuracy < 0.6
