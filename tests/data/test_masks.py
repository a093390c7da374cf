import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hyvlm.data import open_data
from hyvlm.data.sets.scenes import LEAF_CLASSES, describe_scene
from hyvlm.types import BadSample


def palette(values: np.ndarray) -> Image.Image:
    image = Image.fromarray(values.astype(np.uint8)).convert("P")
    image.putdata(values.astype(np.uint8).ravel().tolist())
    return image


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """Four listed images: with a mask, without one, with one of another size, with one in colours."""
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation", "Annotations"):
        (tmp_path / folder).mkdir(parents=True)
    for key in ("good", "bare", "small", "colours"):
        Image.new("RGB", (6, 4), (90, 90, 90)).save(tmp_path / "JPEGImages" / f"{key}.jpg")
    good = np.zeros((4, 6), dtype=np.uint8)
    good[1, 2:4], good[3, 5] = 15, 255
    palette(good).save(tmp_path / "SegmentationClass" / "good.png")
    palette(np.zeros((2, 3))).save(tmp_path / "SegmentationClass" / "small.png")
    Image.new("RGB", (6, 4)).save(tmp_path / "SegmentationClass" / "colours.png")
    (tmp_path / "ImageSets/Segmentation/val.txt").write_text("good\nbare\nsmall\ncolours\n", encoding="utf-8")
    (tmp_path / "ImageSets/Segmentation/train.txt").write_text("good\n", encoding="utf-8")
    return tmp_path


def test_voc_masks_keep_their_values_and_what_has_none_is_counted(voc: Path) -> None:
    samples = open_data(f"voc:{voc}", content="masks")
    assert (samples.split, len(samples), samples.expected) == ("val", 3, 1449)
    assert samples.dropped == {"no mask": 1}
    assert (samples.classes[0], samples.classes[15], len(samples.classes)) == ("background", "person", 21)
    mask = np.asarray(samples[0].mask)
    assert mask.tolist() == [[0] * 6, [0, 0, 15, 15, 0, 0], [0] * 6, [0, 0, 0, 0, 0, 255]]
    with pytest.raises(BadSample, match="differ in size"):
        samples[1]
    with pytest.raises(BadSample, match="mode RGB"):
        samples[2]
    assert len(open_data(f"voc:{voc}", split="train", content="masks")) == 1
    with pytest.raises(ValueError, match="splits train, val"):
        open_data(f"voc:{voc}", split="test", content="masks")


def test_a_voc_mask_that_changes_changes_the_fingerprint(voc: Path) -> None:
    before = open_data(f"voc:{voc}", content="masks").fingerprint
    (voc / "SegmentationClass" / "small.png").write_bytes(b"no picture at all")
    samples = open_data(f"voc:{voc}", content="masks")
    assert samples.fingerprint != before
    with pytest.raises(BadSample, match="mask is broken"):
        samples[1]


def test_voc_without_any_mask_is_an_error(voc: Path) -> None:
    for file in (voc / "SegmentationClass").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="no image of split 'val' has a mask"):
        open_data(f"voc:{voc}", content="masks")


@pytest.fixture
def panoptic(tmp_path: Path) -> Path:
    """Published layout; one image with a thing (id 300), stuff (id 70000), a pixel of void; another strange segment."""
    masks = tmp_path / "annotations" / "panoptic_val2017"
    masks.mkdir(parents=True)
    (tmp_path / "val2017").mkdir()
    colours = np.zeros((2, 3, 3), dtype=np.uint8)
    colours[0, :] = (300 % 256, 300 // 256, 0)
    colours[1, :2] = (70000 % 256, 70000 // 256 % 256, 70000 // 65536)
    for key in ("1", "2"):
        Image.new("RGB", (3, 2)).save(tmp_path / "val2017" / f"{key}.jpg")
        Image.fromarray(colours).save(masks / f"{key}.png")
    segments = [{"id": 300, "category_id": 90}, {"id": 70000, "category_id": 100}]
    document = {
        "categories": [
            {"id": 90, "name": "toothbrush", "isthing": 1},
            {"id": 100, "name": "sky", "isthing": 0},
            {"id": 3, "name": "car", "isthing": 1},
        ],
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in (1, 2)],
        "annotations": [
            {"image_id": 2, "file_name": "2.png", "segments_info": segments[:1]},
            {"image_id": 1, "file_name": "1.png", "segments_info": segments},
        ],
    }
    (tmp_path / "annotations" / "panoptic_val2017.json").write_text(json.dumps(document), encoding="utf-8")
    return tmp_path


def test_coco_things_keep_their_class_and_stuff_is_background(panoptic: Path) -> None:
    samples = open_data(f"coco-panoptic:{panoptic}", content="masks")
    assert samples.classes == ("background", "car", "toothbrush")
    assert np.asarray(samples[0].mask).tolist() == [[2, 2, 2], [0, 0, 255]]
    with pytest.raises(BadSample, match=r"segment 70000: mask has a segment that is not listed"):
        samples[1]


def test_a_file_of_another_format_is_told(panoptic: Path) -> None:
    (panoptic / "annotations" / "panoptic_val2017.json").write_text('{"images": []}', encoding="utf-8")
    with pytest.raises(ValueError, match="not in COCO's panoptic format: KeyError 'categories'"):
        open_data(f"coco-panoptic:{panoptic}", content="masks")
    with pytest.raises(FileNotFoundError, match=r"neither panoptic\.json nor"):
        open_data(f"coco-panoptic:{panoptic / 'val2017'}", content="masks")


def test_scenes_say_the_class_of_every_pixel() -> None:
    samples = open_data("scenes", content="masks")
    for index in (0, 7):
        labels = np.asarray(samples[index].mask)
        shown = {samples.classes[label] for label in np.unique(labels)}
        assert shown - {"background"} <= {LEAF_CLASSES[label] for label in describe_scene(index, "test").labels}
        assert 0.02 < (labels > 0).mean() < 0.9
        assert np.asarray(samples[index].image).shape[:2] == labels.shape


@pytest.mark.skipif("HYVLM_TEST_DATA" not in os.environ, reason="needs real photographs")
def test_real_masks() -> None:
    root = Path(os.environ["HYVLM_TEST_DATA"])
    voc = open_data(f"voc:{root / 'voc-mini'}", content="masks")
    values = [np.unique(np.asarray(voc[i].mask)) for i in range(len(voc))]
    assert len(voc) == 76
    assert set(np.concatenate(values).tolist()) <= {*range(21), 255}
    coco = open_data(f"coco-panoptic:{root / 'coco-mini'}", content="masks")
    assert (len(coco), len(coco.classes)) == (69, 81)
    assert all(np.asarray(coco[i].mask).max() <= 80 or 255 in np.asarray(coco[i].mask) for i in range(len(coco)))
