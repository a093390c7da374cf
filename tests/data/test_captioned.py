"""Published caption sets in small: DOCCI, DCI, Long-DCI, Urban-1k, Karpathy's files, nocaps, Flickr30K, COCO."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hyvlm.data import open_data


def texts(data) -> dict[str, list[str]]:
    return {data[i].key: data[i].texts for i in range(len(data))}


@pytest.fixture
def put(tmp_path, encoded) -> Callable[..., Path]:
    """Writes files below tmp_path: images by suffix .jpg, bytes as they are, text as UTF-8, anything else as JSON."""

    def write(files: dict[str, object]) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                content = encoded()
            elif isinstance(content, str):
                content = content.encode()
            elif not isinstance(content, bytes):
                content = json.dumps(content).encode()
            path.write_bytes(content)
        return tmp_path

    return write


def lines(*rows: object) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n"


def docci(number: int, split: str = "test", **changed: object) -> dict[str, object]:
    row = {"example_id": f"{split}_{number}", "image_file": f"{split}_{number}.jpg", "description": f"Text {number}."}
    return {**row, "split": split, **changed}


def test_docci(put):
    rows = [docci(0), docci(1, "train"), docci(2, "qual_dev"), docci(3, "qual_test"), docci(4), docci(5), docci(4)]
    rows += [docci(6, description=" "), {"description": "x"}, docci(7, image_file=3)]
    root = put({"docci_descriptions.jsonlines": lines(*rows), "images/test_0.jpg": None, "images/test_5.jpg": None})
    data = open_data(f"docci:{root}")
    assert texts(data) == {"test_0": ["Text 0."], "test_5": ["Text 5."]}
    assert (data.split, data.expected) == ("test", 5000)
    assert data[0].image.size == (40, 30)
    assert data.dropped == {
        "image file is missing": 1,
        "second sample of the same key": 1,
        "empty caption": 1,
        "annotation cannot be read": 2,
    }
    without = open_data(f"docci:{root}", content="texts")
    assert list(texts(without)) == ["test_0", "test_4", "test_5"]
    assert without[0].image is None
    assert without.fingerprint != data.fingerprint
    assert open_data(f"docci:{root}", split="train", content="texts").expected == 9647
    with pytest.raises(ValueError, match="offers the splits qual_dev, qual_test, test, train, not 'dev'"):
        open_data(f"docci:{root}", split="dev")
    with pytest.raises(FileNotFoundError, match=r"none of the images that are listed exists, such as .*train_1\.jpg"):
        open_data(f"docci:{root}", split="train")


def test_docci_that_cannot_be_read(put):
    with pytest.raises(FileNotFoundError, match=r"docci: no file .*docci_descriptions\.jsonlines"):
        open_data(f"docci:{put({'images/a.jpg': None})}")
    with pytest.raises(ValueError, match=r"row 2 of .*docci_descriptions\.jsonlines is not JSON"):
        open_data(f"docci:{put({'docci_descriptions.jsonlines': lines(docci(0)) + '{oops'})}")
    with pytest.raises(ValueError, match=r"row 1 of .* is not UTF-8 \(byte 0xe9\)"):
        open_data(f"docci:{put({'docci_descriptions.jsonlines': 'café'.encode('latin-1')})}")
    for content in ("", lines({"a": 1}, 3)):
        with pytest.raises(ValueError, match=r"docci_descriptions\.jsonlines has no row with a split"):
            open_data(f"docci:{put({'docci_descriptions.jsonlines': content})}")


@pytest.fixture
def dci(put) -> Path:
    entries = {
        "b": {"image": "sa_1.jpg", "short_caption": "A dog", "extra_caption": " It runs. "},
        "a": {"image": "sa_2.jpg", "short_caption": "A cat.", "extra_caption": ""},
        "c": {"image": "sa_3.jpg", "short_caption": "", "extra_caption": "Gone."},
        "e": {"image": "sa_1.jpg", "short_caption": "", "extra_caption": ""},
    }
    files: dict[str, object] = {f"dci/annotations/{name}.json": entry for name, entry in entries.items()}
    files |= {
        "dci/annotations/d.json": "{broken",
        "dci/splits.json": {"test": ["b.json"], "train": ["a.json", "x.json"]},
    }
    return put({**files, "dci/photos/sa_1.jpg": None, "dci/photos/sa_2.jpg": None}) / "dci"


def test_dci(dci):
    data = open_data(f"dci:{dci}")
    assert texts(data) == {"sa_2.jpg": ["A cat."], "sa_1.jpg": ["A dog\nIt runs."]}
    assert (data.split, data.expected) == ("all", 7805)
    assert data.dropped == {
        "image file is missing": 1,
        "annotation cannot be read": 1,
        "second sample of the same key": 1,
    }
    assert texts(open_data(f"dci:{dci}", split="test")) == {"sa_1.jpg": ["A dog\nIt runs."]}
    train = open_data(f"dci:{dci}", split="train")
    assert (len(train), train.expected, train.dropped) == (1, None, {"annotation cannot be read": 1})
    with pytest.raises(ValueError, match="offers the splits all, test, train, not 'val'"):
        open_data(f"dci:{dci}", split="val")
    with pytest.raises(FileNotFoundError, match="has no folder annotations"):
        open_data(f"dci:{dci / 'photos'}")


def test_long_dci_from_the_folder_of_dci_or_from_its_csv(dci, encoded):
    data = open_data(f"long-dci:{dci}")
    assert texts(data) == {"sa_1.jpg": ["It runs."]}
    assert data.expected == 7602
    assert data.dropped["empty caption"] == 1
    (dci / "dci_long.csv").write_text('filepath\ttitle\nsa_1.jpg\t"It runs, fast."\nsa_2.jpg\t\nsa_9.jpg\tGone.\n')
    table = open_data(f"long-dci:{dci / 'dci_long.csv'}")
    assert texts(table) == {"sa_1.jpg": ["It runs, fast."]}
    assert table.dropped == {"empty caption": 1, "image file is missing": 1}


def test_urban1k(put):
    files = {
        "caption/10.txt": "\nTen.\nmore",
        "caption/9.txt": "Nine.\r\n",
        "caption/1.txt": b"caf\xe9",
        "caption/2.txt": "",
    }
    root = put({**files, "caption/3.txt": "x", **{f"image/{n}.jpg": None for n in (1, 2, 9, 10, 11)}})
    data = open_data(f"urban1k:{root}")
    assert texts(data) == {"9": ["Nine."], "10": ["Ten."]}
    assert data.expected == 1000
    assert data.dropped == {
        "text is not UTF-8": 1,
        "empty caption": 1,
        "no caption": 2,  # the images of the unreadable text and without any
        "image file is missing": 1,
    }
    with pytest.raises(FileNotFoundError, match=r"has no \.txt file"):
        open_data(f"urban1k:{root / 'image'}")


def karpathy(name: str, split: str, *raw: object, **more: object) -> dict[str, object]:
    return {"filename": name, "split": split, "sentences": [{"raw": text} for text in raw], **more}


def test_karpathy(put):
    images = [
        karpathy("a.jpg", "test", "One.", 3, "two ", "", filepath="val2014"),
        karpathy("b.jpg", "train", "Three.", filepath="train2014"),
        karpathy("c.jpg", "restval", filepath="val2014"),
        karpathy("d.jpg", "test", "Gone.", filepath="val2014"),
        {"split": "test"},
    ]
    file = put({"k/dataset_coco.json": {"dataset": "coco", "images": images}, "k/images/val2014/a.jpg": None})
    spec = f"karpathy:{file / 'k' / 'dataset_coco.json'}"
    data = open_data(spec)
    assert texts(data) == {"val2014/a.jpg": ["One.", "two"]}
    assert (data.split, data.expected) == ("test", 5000)
    assert data.dropped == {
        "image file is missing": 1,
        "annotation cannot be read": 1,
        "part: caption is not text": 1,
        "part: empty caption": 1,
    }
    whole = open_data(spec, split="all", content="texts")
    assert (len(whole), whole.expected) == (3, 123_287)
    with pytest.raises(ValueError, match="offers the splits all, restval, test, train, not 'val'"):
        open_data(spec, split="val")


def test_karpathy_flickr_and_files_of_another_kind(put):
    images = [karpathy("1.jpg", "test", "One."), karpathy("1.jpg", "test", "Again.")]
    root = put({"dataset_flickr30k.json": {"dataset": "flickr30k", "images": images}, "flickr30k-images/1.jpg": None})
    data = open_data(f"karpathy:{root / 'dataset_flickr30k.json'}")
    assert texts(data) == {"1.jpg": ["One."]}
    assert data.expected == 1000
    assert data.dropped == {"second sample of the same key": 1}
    for content in ([], {"images": 3}):
        with pytest.raises(ValueError, match="is no file of Karpathy's"):
            open_data(f"karpathy:{put({'x.json': content}) / 'x.json'}")
    for images in ([], [{"filename": "1.jpg", "sentences": [{"raw": "One."}]}]):
        with pytest.raises(ValueError, match="the only split is 'all', not 'test'"):
            open_data(f"karpathy:{put({'x.json': {'images': images}}) / 'x.json'}")
    with pytest.raises(ValueError, match=r"x\.json is not JSON"):
        open_data(f"karpathy:{put({'x.json': '{'}) / 'x.json'}")
    with pytest.raises(ValueError, match=r"karpathy needs a \.json file"):
        open_data(f"karpathy:{root}")


def test_nocaps(put):
    images = [{"id": 7, "file_name": "b.jpg"}, {"id": 3, "file_name": "a.jpg"}, {"id": 4, "file_name": "c.jpg"}, 5]
    annotations = [{"image_id": i, "caption": text} for i, text in ((3, "One."), (7, "Two."), (3, "3"))]
    root = put({"nocaps.json": {"images": images, "annotations": [*annotations, 1]}})
    data = open_data(f"nocaps:{root / 'nocaps.json'}", content="texts")
    assert texts(data) == {"b.jpg": ["Two."], "a.jpg": ["One.", "3"]}
    assert (data.split, data.expected) == ("val", 4500)
    assert data.dropped == {"annotation cannot be read": 2, "caption is not text": 1}
    with pytest.raises(FileNotFoundError, match="none of the images"):
        open_data(f"nocaps:{root / 'nocaps.json'}")
    put({"validation/a.jpg": None})
    assert list(texts(open_data(f"nocaps:{root / 'nocaps.json'}"))) == ["a.jpg"]
    with pytest.raises(ValueError, match="is not in COCO format"):
        open_data(f"nocaps:{put({'x.json': []}) / 'x.json'}")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results_20130124.token", "1.jpg#0\tA dog # 1 .\n1.jpg#1\tTwo .\n2.jpg#0\tGone .\n3.jpg oops\n"),
        (
            "results.csv",
            "image_name| comment_number| comment\n1.jpg| 0| A dog # 1 .\n1.jpg|1| Two .\n2.jpg|0|x\n3.jpg| 4\n",
        ),
    ],
)
def test_flickr30k(name, content, put):
    root = put({name: content, "flickr30k_images/1.jpg": None})
    data = open_data(f"flickr30k:{root}")
    assert texts(data) == {"1.jpg": ["A dog # 1 .", "Two ."]}
    assert data.expected == 31_783
    assert data.dropped == {"annotation cannot be read": 1, "image file is missing": 1}
    with pytest.raises(FileNotFoundError, match=r"neither results_20130124\.token nor results\.csv"):
        open_data(f"flickr30k:{root / 'flickr30k_images'}")


def test_texts_of_coco_need_no_images(put):
    images = [{"id": 2, "file_name": "b.jpg"}, {"id": 1, "file_name": "a.jpg"}, {"id": 3, "file_name": "c.jpg"}]
    captions = [
        {"image_id": 1, "caption": "one"},
        {"image_id": 2, "caption": "two"},
        {"image_id": 1, "caption": "three"},
    ]
    document = {"images": images, "annotations": captions}
    data = open_data(f"coco:{put({'annotations/captions_val2017.json': document})}", content="texts")
    assert texts(data) == {"a.jpg": ["one", "three"], "b.jpg": ["two"]}
    assert data[0].image is None
    assert data.dropped == {"no caption": 1}
    assert data.expected == 5000


def test_the_fingerprint_follows_texts_and_images(put, encoded):
    root = put({"docci_descriptions.jsonlines": lines(docci(0)), "images/test_0.jpg": None})
    prints = [open_data(f"docci:{root}").fingerprint, open_data(f"docci:{root}").fingerprint]
    put({"images/test_0.jpg": encoded("blue", size=(41, 30))})
    prints.append(open_data(f"docci:{root}").fingerprint)
    put({"docci_descriptions.jsonlines": lines(docci(0, description="Other."))})
    prints.append(open_data(f"docci:{root}").fingerprint)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize("name", ["docci", "dci", "long-dci", "urban1k", "flickr30k"])
def test_a_folder_is_asked_for(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} needs a folder"):
        open_data(f"{name}:")
    with pytest.raises(FileNotFoundError, match=f"{name}: no folder .*gone"):
        open_data(f"{name}:{tmp_path / 'gone'}")
    with pytest.raises(ValueError, match="offers the contents pairs, texts, not 'classes'"):
        open_data(f"{name}:{tmp_path}", content="classes")


@pytest.mark.parametrize("name", ["karpathy", "nocaps", "sharegpt4v"])
def test_a_file_is_asked_for(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} needs a file: {name}:/path/to/file.json"):
        open_data(f"{name}:")
    with pytest.raises(FileNotFoundError, match=rf"{name}: no file .*gone\.json"):
        open_data(f"{name}:{tmp_path / 'gone.json'}")
    with pytest.raises(ValueError, match=rf"{name} needs a \.json file, such as .*; got .*x\.txt"):
        open_data(f"{name}:{tmp_path / 'x.txt'}")
