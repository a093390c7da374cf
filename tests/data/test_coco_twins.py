"""COCO's files name images and categories by id: ids and names that come twice, or are no text, are said."""

import json

import pytest
from PIL import Image

from hyvlm.data import open_data

CATEGORIES = [{"id": 1, "name": "dog", "isthing": 1}, {"id": 2, "name": "cat", "isthing": 1}]


@pytest.fixture
def write(tmp_path):
    """Write a flat COCO folder of two images with a box each."""
    for folder in ("images", "panoptic"):
        (tmp_path / folder).mkdir()
    for name in ("a.jpg", "b.jpg"):
        Image.new("RGB", (20, 20)).save(tmp_path / "images" / name)

    def _write(file="instances.json", **changes):
        images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}]
        boxes = [{"id": i, "image_id": i, "category_id": i, "bbox": [1, 1, 9, 9]} for i in (1, 2)]
        document = {"images": images, "annotations": boxes, "categories": CATEGORIES, **changes}
        (tmp_path / file).write_text(json.dumps(document))
        return tmp_path

    return _write


@pytest.mark.parametrize(
    ("twin", "message"),
    [({"id": 1, "name": "cow"}, "with the id 1:"), ({"id": 3, "name": "dog"}, "with the name 'dog'")],
)
@pytest.mark.parametrize(
    ("opened", "content", "file"),
    [
        ("coco", "classes", "instances.json"),
        ("coco", "labels", "instances.json"),
        ("coco-panoptic", "masks", "panoptic.json"),
    ],
)
def test_two_categories_with_one_id_or_name_are_refused(opened, content, file, twin, message, write):
    root = write(file, categories=[*CATEGORIES, {"isthing": 1, **twin}])
    with pytest.raises(ValueError, match=f"{file} has two categories {message}"):
        open_data(f"{opened}:{root}", content=content)


def test_a_second_image_of_one_id_is_counted(write):
    root = write(images=[{"id": i, "file_name": name} for i, name in ((1, "a.jpg"), (1, "b.jpg"), (2, "b.jpg"))])
    samples = open_data(f"coco:{root}", content="classes")
    assert len(samples) == 2
    assert samples.dropped == {"image id is taken by an earlier image": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"categories": [{"id": 1, "name": 3, "isthing": 1}]},
        {"images": [{"id": 1, "file_name": 3}]},
        {"annotations": [{"image_id": 1, "file_name": None, "segments_info": []}]},
    ],
)
def test_names_in_a_panoptic_file_are_text(change, write):
    annotations = [{"image_id": 1, "file_name": "a.png", "segments_info": []}]
    root = write("panoptic.json", **{"annotations": annotations, **change})
    with pytest.raises(ValueError, match=r"panoptic.json is not in COCO's panoptic format: .* where a name should be"):
        open_data(f"coco-panoptic:{root}", content="masks")


def test_sets_of_the_same_images_say_so(write):
    root = write()
    captions = [{"id": i, "image_id": i, "caption": "a picture"} for i in (1, 2)]
    write("captions.json", annotations=captions)
    pairs, labels, crops = (open_data(f"coco:{root}", content=content) for content in ("pairs", "labels", "classes"))
    assert pairs.image_fingerprint == labels.image_fingerprint
    assert pairs.fingerprint != labels.fingerprint
    assert not hasattr(crops, "image_fingerprint")  # samples are boxes
    write("captions.json", annotations=captions[:1])  # b.jpg has no caption any more
    assert open_data(f"coco:{root}", content="pairs").image_fingerprint != labels.image_fingerprint
    Image.new("RGB", (30, 20)).save(root / "images" / "b.jpg")
    assert open_data(f"coco:{root}", content="labels").image_fingerprint != labels.image_fingerprint
