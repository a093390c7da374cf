"""LVIS and Open Images as published, in miniature; boxes that cannot be used are counted."""

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from hyvlm.data import open_data
from hyvlm.types import BadSample

ON_REAL = pytest.mark.skipif("HYVLM_TEST_DATA" not in os.environ, reason="needs real photographs: HYVLM_TEST_DATA")


def quadrants() -> Image.Image:
    image = Image.new("RGB", (40, 20), "black")
    image.paste((255, 0, 0), (0, 0, 20, 10))
    image.paste((0, 255, 0), (20, 10, 40, 20))
    return image


@pytest.fixture
def lvis(encoded, tmp_path):
    """Images of both of COCO's splits, one of them missing with its two boxes; a box outside, one of one pixel."""
    images = [
        {"id": i, "coco_url": f"http://images.cocodataset.org/{folder}/{i:012d}.jpg", "neg_category_ids": []}
        for i, folder in ((9, "val2017"), (4, "train2017"), (5, "train2017"))
    ]
    boxes = [(9, 2, [0, 0, 20, 10]), (4, 1, [20, 10, 20, 10]), (4, 1, [3, 3, 1, 1]), (4, 2, [50, 50, 3, 3])]
    boxes += [(5, 1, [0, 0, 5, 5]), (5, 2, [0, 0, 5, 5])]
    categories = [{"id": 2, "name": "bow_(weapon)", "frequency": "r"}, {"id": 1, "name": "alarm_clock"}]
    annotations = [{"id": n, "image_id": i, "category_id": c, "bbox": b} for n, (i, c, b) in enumerate(boxes)]
    (tmp_path / "annotations").mkdir()
    document = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "annotations" / "lvis_v1_val.json").write_text(json.dumps(document))
    for folder, i in (("val2017", 9), ("train2017", 4)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{i:012d}.jpg").write_bytes(encoded(quadrants(), form="PNG"))
    return tmp_path


def test_lvis_as_published(lvis):
    data = open_data(f"lvis:{lvis}", content="classes")
    assert (data.split, data.classes) == ("val", ("alarm clock", "bow (weapon)"))
    assert len(data) == 4
    assert (data[0].key, data[0].labels) == ("train2017/000000000004.jpg#0", [0])
    assert data[0].image.getcolors() == [(200, (0, 255, 0))]
    assert data[1].image.size == (1, 1)
    with pytest.raises(BadSample, match="box outside the image"):
        data[2]
    assert (data[3].labels, data[3].image.getcolors()) == ([1], [(200, (255, 0, 0))])
    assert data.dropped == {"image file is missing": 2}  # boxes, as every other sample of this content


@pytest.mark.parametrize("inner", ["images", ""])
def test_lvis_elsewhere(inner, lvis):
    (lvis / "annotations" / "lvis_v1_val.json").rename(lvis / "lvis_v1_train.json")
    if inner:
        (lvis / inner).mkdir()
        for folder in ("train2017", "val2017"):
            (lvis / folder).rename(lvis / inner / folder)
    assert (open_data(f"lvis:{lvis}", content="classes").split, len(open_data(f"lvis:{lvis}", content="classes"))) == (
        "train",
        4,
    )
    with pytest.raises(ValueError, match="offers the splits train, not 'val'"):
        open_data(f"lvis:{lvis}", split="val", content="classes")


def test_lvis_that_lacks_something(lvis, tmp_path_factory):
    with pytest.raises(FileNotFoundError, match=r"has no lvis_v1_SPLIT\.json"):
        open_data(f"lvis:{tmp_path_factory.mktemp('empty')}", content="classes")
    with pytest.raises(ValueError, match="offers the contents classes, not 'labels'"):
        open_data(f"lvis:{lvis}", content="labels")
    for image in (lvis / "val2017", lvis / "train2017"):
        next(image.iterdir()).unlink()
    with pytest.raises(FileNotFoundError, match="none of the images that are listed exists"):
        open_data(f"lvis:{lvis}", content="classes")


HEADER = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
ROWS = [
    "aa,xclick,/m/01,1,0,0.5,0,0.5,0,0,0,0,0",
    "bb,xclick,/m/02,1,0.5,1,0.5,1,0,0,0,1,0",
    "aa,xclick,/m/02,1,0,1,0,1,0,0,1,0,0",  # a group
    "aa,xclick,/m/02,1,0.999,1,0.999,1,0,0,0,0,0",  # within one pixel
    "aa,xclick,/m/02,1,0.2,0.2,0.1,0.4,0,0,0,0,0",  # no area
    "aa,xclick,/m/none,1,0,1,0,1,0,0,0,0,0",
    "aa,xclick,/m/02,1,,1,0,1,0,0,0,0,0",
    "cc,xclick,/m/02,1,0,1,0,1,0,0,0,0,0",  # its image is missing
]


@pytest.fixture
def open_images(encoded, tmp_path):
    (tmp_path / "validation-annotations-bbox.csv").write_text("\n".join([HEADER, *ROWS, ""]))
    (tmp_path / "class-descriptions-boxable.csv").write_text('/m/01,Dog\n/m/02,"Sports car, old"\n')
    (tmp_path / "validation").mkdir()
    for key in ("aa", "bb"):
        (tmp_path / "validation" / f"{key}.jpg").write_bytes(encoded(quadrants(), form="PNG"))
    return tmp_path


def test_open_images_as_published(open_images):
    data = open_data(f"open-images:{open_images}", content="classes")
    assert (data.split, data.classes) == ("validation", ("Dog", "Sports car, old"))
    assert [data.objects[i] for i in range(len(data))] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert (data[0].key, data[0].labels, data[0].image.getcolors()) == ("aa#0", [0], [(200, (255, 0, 0))])
    assert data[1].image.size == (1, 1)
    with pytest.raises(BadSample, match="object 2 of 'aa': box without area"):
        data[2]
    assert (data[3].labels, data[3].image.getcolors()) == ([1], [(200, (0, 255, 0))])
    assert data.dropped == {"box of a group": 1, "annotation cannot be read": 2, "image file is missing": 1}
    assert "row 4 of" in data.dropped_examples[0]


@pytest.mark.parametrize("images", ["images/train", "images"])
def test_open_images_of_later_versions(images, open_images):
    """V6 and V7 put their version before some names, and a header on the class names."""
    (open_images / "annotations").mkdir()
    old = open_images / "validation-annotations-bbox.csv"
    old.rename(open_images / "annotations" / "oidv6-train-annotations-bbox.csv")
    names = (open_images / "class-descriptions-boxable.csv").read_text()
    (open_images / "class-descriptions-boxable.csv").unlink()
    (open_images / "annotations" / "oidv7-class-descriptions-boxable.csv").write_text(f"LabelName,DisplayName\n{names}")
    (open_images / images).parent.mkdir(exist_ok=True)
    (open_images / "validation").rename(open_images / images)
    data = open_data(f"open-images:{open_images}", content="classes")
    assert (data.split, len(data), data.classes[0]) == ("train", 4, "Dog")


def test_open_images_that_lack_something(open_images, tmp_path_factory):
    with pytest.raises(FileNotFoundError, match=r"has no SPLIT-annotations-bbox\.csv"):
        open_data(f"open-images:{tmp_path_factory.mktemp('empty')}", content="classes")
    with pytest.raises(ValueError, match="offers the splits validation, not 'test'"):
        open_data(f"open-images:{open_images}", split="test", content="classes")
    (open_images / "class-descriptions-boxable.csv").write_text("/m/01\n")
    with pytest.raises(ValueError, match=r"is not a list of labels and names, such as '/m/0199g,Bicycle'"):
        open_data(f"open-images:{open_images}", content="classes")
    (open_images / "class-descriptions-boxable.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no \*class-descriptions-boxable\.csv"):
        open_data(f"open-images:{open_images}", content="classes")
    (open_images / "class-descriptions-boxable.csv").write_text("/m/01,Dog\n/m/02,Car\n")
    (open_images / "validation").rename(open_images / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"open-images: no image folder .*validation or .*images"):
        open_data(f"open-images:{open_images}", content="classes")
    (open_images / "elsewhere").rename(open_images / "validation")
    (open_images / "validation-annotations-bbox.csv").write_text("ImageID,LabelName\naa,/m/01\n")
    with pytest.raises(ValueError, match="has no column 'XMin'"):
        open_data(f"open-images:{open_images}", content="classes")


@ON_REAL
def test_boxes_that_are_left_out_are_counted():
    root = Path(os.environ["HYVLM_TEST_DATA"])
    coco = open_data(f"coco:{root / 'coco-mini'}", content="classes")
    assert (len(coco), dict(coco.dropped)) == (4306, {"box of a crowd": 22})  # 4,328 boxes, says the folder's README
    voc = open_data(f"voc:{root / 'voc-mini'}", content="classes")
    assert (len(voc), dict(voc.dropped)) == (425, {"box marked difficult": 16})


@ON_REAL
def test_coco_as_lvis_gives_the_same_crops(tmp_path):
    """The real photographs under LVIS' layout: the names of its files, no file_name, no crowds."""
    root = Path(os.environ["HYVLM_TEST_DATA"]) / "coco-mini"
    document = json.loads((root / "instances.json").read_text())
    for image in document["images"]:
        image["coco_url"] = f"http://images.cocodataset.org/val2017/{image.pop('file_name')}"
    document["annotations"] = [a for a in document["annotations"] if not a["iscrowd"]]
    (tmp_path / "lvis_v1_val.json").write_text(json.dumps(document))
    (tmp_path / "val2017").symlink_to(root / "images")
    lvis = open_data(f"lvis:{tmp_path}", content="classes")
    coco = open_data(f"coco:{root}", content="classes")
    assert lvis.classes == coco.classes
    objects = {f"val2017/{image.name}": image.objects for image in coco.images}
    assert {image.name: image.objects for image in lvis.images} == objects
    assert len(lvis) == len(coco)
    assert [lvis[i].image.size for i in range(20)] == [coco[i].image.size for i in range(20)]
