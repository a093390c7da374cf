import json
from pathlib import Path

import pytest
from PIL import Image

from hyvlm.data import open_data
from hyvlm.types import BadSample

CATEGORIES = [
    {"id": 18, "name": "dog", "supercategory": "animal"},
    {"id": 1, "name": "person", "supercategory": "person"},
    {"id": 47, "name": "apple", "supercategory": "food"},
]


def quadrants() -> Image.Image:
    image = Image.new("RGB", (40, 20), "black")
    image.paste((255, 0, 0), (0, 0, 20, 10))
    image.paste((0, 255, 0), (20, 10, 40, 20))
    return image


@pytest.fixture
def coco(encoded, tmp_path):
    """Three images: two captions and three boxes (one a crowd), one caption and bad boxes, no caption and no box."""
    entries = [{"id": i, "file_name": f"{i}.png", "split": "val" if i == 3 else "train"} for i in (2, 1, 3)]
    captions = [(1, "one"), (2, "two"), (1, "uno"), (2, " ")]
    objects = [(1, 18, [0, 0, 20, 10], 0), (1, 47, [20, 10, 20, 10], 0), (1, 1, [0, 0, 40, 20], 1)]
    objects += [(2, 18, [5, 5, 0, 3], 0), (2, 18, [90, 5, 3, 3], 0), (2, 1, [30, 0, 99, 20], 0)]
    (tmp_path / "images").mkdir()
    for i in (1, 2, 3):
        (tmp_path / "images" / f"{i}.png").write_bytes(encoded(quadrants(), form="PNG"))
    texts = [{"image_id": i, "caption": c} for i, c in captions]
    boxes = [{"image_id": i, "category_id": c, "bbox": b, "iscrowd": w} for i, c, b, w in objects]
    (tmp_path / "captions.json").write_text(json.dumps({"images": entries, "annotations": texts}))
    document = {"images": entries, "annotations": boxes, "categories": CATEGORIES}
    (tmp_path / "instances.json").write_text(json.dumps(document))
    return tmp_path


def test_coco_pairs(coco, caplog):
    data = open_data(f"coco:{coco}")
    assert [data[i].texts for i in range(len(data))] == [["one", "uno"], ["two"]]
    first, second = data[0], data[1]
    assert [p.text for p in first.parts] == ["a dog", "an apple"]
    assert first.parts[0].image.getcolors() == [(200, (255, 0, 0))]
    assert first.parts[1].image.getcolors() == [(200, (0, 255, 0))]
    assert [p.text for p in second.parts] == ["a person"]
    assert second.parts[0].image.size == (10, 20)
    reasons = ["box without area (x0 >= x1 or y0 >= y1)", "box outside the image"]
    assert [bad.reason for bad in second.dropped] == reasons
    assert second.dropped[0].where == "part 0 of sample '2.png'"
    assert data.dropped == {"no caption": 1}
    assert "3.png: no caption" in caplog.text


@pytest.mark.parametrize("content", ["pairs", "labels", "classes"])
def test_a_changed_sample_leaves_the_set_alone(content, coco):
    data = open_data(f"coco:{coco}", content=content)
    before = data[0]
    for image in (before.image, *(part.image for part in before.parts)):
        image.paste("white", (0, 0, *image.size))
    before.texts.append("more")
    after = data[0]
    assert "more" not in after.texts
    assert all(image.getpixel((0, 0)) != (255, 255, 255) for image in (after.image, *(p.image for p in after.parts)))


def test_coco_classes_and_labels(coco):
    crops = open_data(f"coco:{coco}", content="classes")
    assert crops.classes == ("person", "dog", "apple")
    assert crops.parents == {"dog": "animal", "apple": "food"}
    assert len(crops) == 5
    assert (crops[0].key, crops[0].labels, crops[0].image.size) == ("1.png#0", [1], (20, 10))
    with pytest.raises(BadSample, match=r"object 0 of '2.png': box without area"):
        crops[2]
    labels = open_data(f"coco:{coco}", content="labels")
    assert [(labels[i].labels, labels[i].ignored) for i in range(3)] == [([1, 2], [0]), ([0, 1], []), ([], [])]


def test_coco_splits_of_a_flat_folder(coco):
    assert len(open_data(f"coco:{coco}", split="train", content="labels")) == 2
    with pytest.raises(ValueError, match="offers the splits all, train, val, not 'test'"):
        open_data(f"coco:{coco}", split="test")
    with pytest.raises(ValueError, match="no image of split 'val' has what content 'pairs' needs"):
        open_data(f"coco:{coco}", split="val")


@pytest.mark.parametrize("folder", ["val2017", "images/val2017"])
def test_coco_as_published(folder, coco):
    (coco / "annotations").mkdir()
    for kind in ("captions", "instances"):
        (coco / f"{kind}.json").rename(coco / "annotations" / f"{kind}_val2017.json")
    (coco / "images").rename(coco / "moved")
    (coco / folder).parent.mkdir(exist_ok=True)
    (coco / "moved").rename(coco / folder)
    data = open_data(f"coco:{coco}")
    assert data.split == "val2017"
    assert len(data) == 2
    with pytest.raises(ValueError, match="offers the splits val2017, not 'train2017'"):
        open_data(f"coco:{coco}", split="train2017")


def test_coco_folders_that_lack_something(coco, tmp_path_factory):
    with pytest.raises(ValueError, match="coco needs a folder"):
        open_data("coco")
    with pytest.raises(FileNotFoundError, match="coco: no folder /nowhere"):
        open_data("coco:/nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"neither captions.json or instances.json nor annotations/captions_SPLIT"
    ):
        open_data(f"coco:{tmp_path_factory.mktemp('empty')}")
    (coco / "images" / "1.png").unlink()
    assert open_data(f"coco:{coco}").dropped == {"image file is missing": 1, "no caption": 1}
    (coco / "captions.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"content 'pairs' needs .*captions\.json"):
        open_data(f"coco:{coco}")
    (coco / "instances.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"instances\.json is not in COCO format: it lacks annotations and images"):
        open_data(f"coco:{coco}", content="labels")
    (coco / "instances.json").write_text("{oops")
    with pytest.raises(ValueError, match=r"instances\.json is not JSON"):
        open_data(f"coco:{coco}", content="labels")


BOX = {"id": 77, "image_id": 1, "category_id": 18, "bbox": [0, 0, 9, 9]}
TEXT = {"id": 77, "image_id": 1, "caption": "more"}


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        *(("captions", {k: v for k, v in TEXT.items() if k != gone}) for gone in ("caption", "image_id")),
        *(("captions", TEXT | {"caption": caption}) for caption in (None, 5, ["one"])),
        *(("instances", {k: v for k, v in BOX.items() if k != gone}) for gone in ("image_id", "category_id", "bbox")),
        *(("instances", BOX | {"bbox": box}) for box in ([], [1, 2, 3], None, "box", [1, 2, 3, "4"])),
        *(("instances", BOX | {"category_id": key}) for key in (999, None, [18])),
        *((kind, BOX | TEXT | {"image_id": [1]}) for kind in ("captions", "instances")),
    ],
)
def test_one_coco_annotation_that_cannot_be_read_is_a_counted_drop(kind, entry, coco):
    path = coco / f"{kind}.json"
    document = json.loads(path.read_text())
    document["annotations"].insert(0, entry)
    path.write_text(json.dumps(document))
    for content, size in (("pairs", 2), ("labels", 3), ("classes", 5)):
        data = open_data(f"coco:{coco}", content=content)
        assert len(data) == size
        assert data.dropped["annotation cannot be read"] == 1
        assert f"annotation with id 77 of {path}: annotation cannot be read" in data.dropped_examples


def test_other_coco_entries_that_cannot_be_read_are_counted(coco):
    path = coco / "captions.json"
    document = json.loads(path.read_text())
    document["annotations"] += ["text", TEXT | {"caption": "a \ud83d"}]
    document["images"] += [5, {"id": 9}, {"file_name": "9.png"}]
    path.write_text(json.dumps(document))
    reasons = {"annotation cannot be read": 1, "text is not UTF-8": 1, "image entry cannot be read": 3, "no caption": 1}
    assert open_data(f"coco:{coco}").dropped == reasons


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": 5}, "its images are not a list"),
        ({"annotations": {}}, "its annotations are not a list"),
        ({"categories": [{"id": 1}]}, "its categories are not a list of entries with id and name"),
    ],
)
def test_a_file_that_is_no_coco_json_is_named(change, message, coco):
    path = coco / "instances.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"instances\.json is not in COCO format: {message}"):
        open_data(f"coco:{coco}")


def voc_xml(*objects: tuple[str, tuple[int, int, int, int], int]) -> str:
    def node(name: str, box: tuple[int, ...], difficult: int) -> str:
        sides = "".join(f"<{s}>{v}</{s}>" for s, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
        return f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{sides}</bndbox></object>"

    return f"<annotation>{''.join(node(*o) for o in objects)}</annotation>"


@pytest.fixture
def voc(encoded, tmp_path):
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / folder).mkdir(parents=True)
    files = {
        "a": voc_xml(("dog", (1, 1, 20, 10), 0), ("diningtable", (21, 11, 40, 20), 0), ("dog", (1, 1, 5, 5), 0)),
        "b": voc_xml(("person", (1, 1, 40, 20), 0), ("dog", (1, 1, 5, 5), 1)),
        "c": voc_xml(("cat", (1, 1, 5, 5), 1)),
        "d": "<annotation><object>",
    }
    for key, xml in files.items():
        (tmp_path / "JPEGImages" / f"{key}.jpg").write_bytes(encoded(quadrants(), form="PNG"))
        (tmp_path / "Annotations" / f"{key}.xml").write_text(xml)
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("b\na\n\nc\nd\ngone\n")
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("a\n")
    (tmp_path / "ImageSets" / "Main" / "dog_train.txt").write_text("a 1\nb -1\n")
    return tmp_path


def test_voc_pairs(voc):
    data = open_data(f"voc:{voc}", split="train")
    assert [data[i].texts for i in range(2)] == [["a photo of a person"], ["a photo of a dog and a dining table"]]
    parts = data[1].parts
    assert [p.text for p in parts] == ["a dog", "a dining table", "a dog"]
    assert parts[0].image.getcolors() == [(200, (255, 0, 0))]  # 1-based, last pixel included
    assert parts[1].image.getcolors() == [(200, (0, 255, 0))]
    missing = {"no object to name in a caption": 1, "annotation cannot be read": 1, "image file is missing": 1}
    assert data.dropped == missing


def test_voc_labels_ignore_what_is_only_difficult(voc):
    data = open_data(f"voc:{voc}", split="train", content="labels")
    names = [
        ([data.classes[k] for k in s.labels], [data.classes[k] for k in s.ignored])
        for s in map(data.__getitem__, range(3))
    ]
    assert names == [(["person"], ["dog"]), (["dining table", "dog"], []), ([], ["cat"])]
    assert len(data.classes) == 20


def test_voc_classes_and_splits(voc):
    data = open_data(f"voc:{voc}", content="classes")
    assert data.split == "val"
    assert [data.classes[data[i].labels[0]] for i in range(3)] == ["dog", "dining table", "dog"]
    with pytest.raises(ValueError, match="offers the splits train, val, not 'dog_train'"):
        open_data(f"voc:{voc}", split="dog_train")
    (voc / "Annotations" / "a.xml").write_text(voc_xml(("zebra", (1, 1, 5, 5), 0), ("dog", (1, 1, 5, 5), 0)))
    assert open_data(f"voc:{voc}", content="classes").classes == ("dog", "zebra")


def test_voc_without_lists_takes_every_annotation(voc):
    for path in (voc / "ImageSets" / "Main").iterdir():
        path.unlink()
    data = open_data(f"voc:{voc}", content="labels")
    assert data.split == "all"
    assert len(data) == 3
    with pytest.raises(FileNotFoundError, match=r"voc: no folder .*Annotations"):
        open_data(f"voc:{voc / 'JPEGImages'}")


@pytest.fixture
def folders(encoded, tmp_path) -> Path:
    for name, images in {"polar_bear": ["x.jpg", "X.jpg"], "cat": ["1.png"], "empty class": []}.items():
        (tmp_path / name).mkdir()
        for image in images:
            (tmp_path / name / image).write_bytes(encoded())
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / ".hidden.jpg").write_text("x")
    return tmp_path


def test_class_folders(folders):
    data = open_data(f"folder:{folders}", content="classes")
    assert data.classes == ("cat", "empty class", "polar bear")
    assert [(data[i].key, data[i].labels) for i in range(len(data))] == [
        *(("cat/1.png", [0]), ("polar_bear/X.jpg", [2]), ("polar_bear/x.jpg", [2]))
    ]
    assert data.dropped == {"suffix is not that of an image": 1, "hidden file": 1}


def test_what_class_folders_leave_out_is_counted(folders, encoded, caplog):
    (folders / "cat" / "kittens" / "small").mkdir(parents=True)
    for name in ("kittens/1.png", "kittens/small/2.png", "kittens/small/notes"):
        (folders / "cat" / name).write_bytes(encoded())
    (folders / "cat" / "gone.png").symlink_to(folders / "nowhere.png")
    (folders / "gone class").symlink_to(folders / "nowhere")
    (folders / "LICENSE").write_text("text")
    (folders / ".cache").mkdir()
    data = open_data(f"folder:{folders}", content="classes")
    assert len(data) == 3
    reasons = {"file in a deeper folder": 3, "link to nothing": 2, "hidden file": 2}
    assert data.dropped == {**reasons, "file beside the class folders": 1, "suffix is not that of an image": 1}
    assert "left out: 3 file in a deeper folder" in caplog.text


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_one_folder_named_like_a_split_is_told_about(name, encoded, tmp_path, caplog):
    (tmp_path / name / "cat").mkdir(parents=True)
    (tmp_path / name / "cat" / "a.png").write_bytes(encoded())
    with pytest.raises(ValueError, match=f"found: {name}/; {name} is a split, not a class: give --split {name}"):
        open_data(f"folder:{tmp_path}", content="classes")
    (tmp_path / name / "b.png").write_bytes(encoded())
    assert open_data(f"folder:{tmp_path}", content="classes").dropped == {"file in a deeper folder": 1}
    assert f"one class only; {name} is a split, not a class: give --split {name}" in caplog.text


def test_class_folders_without_splits_say_to_leave_the_split_out(folders):
    with pytest.raises(ValueError, match=r"splits all, not 'train': leave the split out \(data\.split=null\)$"):
        open_data(f"folder:{folders}", split="train", content="classes")


def test_class_folders_inside_split_folders(folders, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    folders.rename(root / "val")
    assert len(open_data(f"folder:{root}", split="val", content="classes")) == 3
    with pytest.raises(ValueError, match="no folder of images for each class; found: val/"):
        open_data(f"folder:{root}", content="classes")
    with pytest.raises(ValueError, match="offers the splits val, not 'test'"):
        open_data(f"folder:{root}", split="test", content="classes")


def test_class_folders_that_cannot_be_told_apart(folders):
    (folders / "polar bear").mkdir()
    with pytest.raises(ValueError, match="two folders for the class 'polar bear'"):
        open_data(f"folder:{folders}", content="classes")


def test_names_and_contents_that_are_not_known(folders):
    with pytest.raises(ValueError, match=r"unknown dataset 'coko'. Did you mean 'coco'"):
        open_data("coko:/data")
    with pytest.raises(ValueError, match="unknown content 'boxes'; known: pairs"):
        open_data("coco:/data", content="boxes")
    with pytest.raises(ValueError, match=f"{folders} is a path: put the kind of data set before it, such as coco:"):
        open_data(str(folders))
    for nothing in ("", ":/data"):
        with pytest.raises(ValueError, match=f"no data set in '{nothing}': say NAME or NAME:LOCATION"):
            open_data(nothing)
    with pytest.raises(ValueError, match="folder offers the contents classes, not 'pairs'"):
        open_data(f"folder:{folders}")


def test_voc_sets_of_the_same_images_say_so(voc):
    (voc / "ImageSets" / "Main" / "val.txt").write_text("a\nb\n")
    pairs, labels = (open_data(f"voc:{voc}", split="val", content=content) for content in ("pairs", "labels"))
    assert pairs.image_fingerprint == labels.image_fingerprint
    pairs, labels = (open_data(f"voc:{voc}", split="train", content=content) for content in ("pairs", "labels"))
    assert pairs.image_fingerprint != labels.image_fingerprint  # only labels show c, whose one object is difficult
