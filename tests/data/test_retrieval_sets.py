"""Retrieval sets by name: each opens the split that it is called after, and says what was published."""

import json
from pathlib import Path

import pytest

from hyvlm.data import open_data
from hyvlm.data.sets.retrieval_sets import RETRIEVAL_SIZES

CAPTIONS = ["A dog.", "A brown dog."]


def karpathy(dataset: str, folder: str | None) -> dict:
    place = {} if folder is None else {"filepath": folder}
    sentences = [{"raw": text} for text in CAPTIONS]
    images = [{"filename": f"{s}.jpg", "split": s, "sentences": sentences, **place} for s in ("train", "test")]
    return {"dataset": dataset, "images": images}


def coco(*names: str) -> dict:
    images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
    annotations = [{"image_id": i, "caption": text} for i in range(len(names)) for text in CAPTIONS]
    return {"images": images, "annotations": annotations}


TOKEN = "".join(f"{name}.jpg#{i}\t{text}\n" for name in ("1", "2") for i, text in enumerate(CAPTIONS))
#: Files of each set in small (images are None), and the split and keys that its name stands for.
LAYOUTS = {
    "coco-val2017": (
        {
            "annotations/captions_val2017.json": coco("1.jpg"),
            "annotations/captions_train2017.json": coco("9.jpg"),
            "val2017/1.jpg": None,
        },
        "val2017",
        ["1.jpg"],
    ),
    "coco-karpathy-test": (
        {"dataset_coco.json": karpathy("coco", "val2014"), "val2014/test.jpg": None},
        "test",
        ["val2014/test.jpg"],
    ),
    "flickr30k-test": (
        {"dataset_flickr30k.json": karpathy("flickr30k", None), "flickr30k-images/test.jpg": None},
        "test",
        ["test.jpg"],
    ),
    "flickr30k-full": (
        {"results_20130124.token": TOKEN, "flickr30k-images/1.jpg": None, "flickr30k-images/2.jpg": None},
        "all",
        ["1.jpg", "2.jpg"],
    ),
    "nocaps-val": ({"nocaps_val_4500_captions.json": coco("a.jpg"), "val/a.jpg": None}, "val", ["a.jpg"]),
}


@pytest.fixture
def laid_out(tmp_path, encoded):
    def write(name: str) -> Path:
        for place, content in LAYOUTS[name][0].items():
            path = tmp_path / place
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.write_bytes(encoded())
            else:
                path.write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return write


@pytest.mark.parametrize("name", RETRIEVAL_SIZES)
def test_a_name_stands_for_one_split_and_its_published_sizes(name, laid_out):
    root = laid_out(name)
    data = open_data(f"{name}:{root}")
    _, split, keys = LAYOUTS[name]
    assert (data.name, data.split) == (f"{name}:{root}", split)
    assert [data[i].key for i in range(len(data))] == keys
    assert data[0].texts == CAPTIONS
    assert (data.expected, data.expected_captions) == RETRIEVAL_SIZES[name]
    assert open_data(f"{name}:{root}", split=split, content="texts")[0].image is None
    with pytest.raises(ValueError, match="offers the splits"):
        open_data(f"{name}:{root}", split="train")
    with pytest.raises(ValueError, match="offers the contents pairs, texts"):
        open_data(f"{name}:{root}", content="labels")


def test_sizes_are_those_of_the_publications():
    # five captions an image (ten in nocaps); COCO's annotators wrote a sixth or seventh for some images
    assert RETRIEVAL_SIZES["flickr30k-test"][1] == 5 * RETRIEVAL_SIZES["flickr30k-test"][0]
    assert RETRIEVAL_SIZES["flickr30k-full"][1] == 5 * RETRIEVAL_SIZES["flickr30k-full"][0]
    assert RETRIEVAL_SIZES["nocaps-val"][1] == 10 * RETRIEVAL_SIZES["nocaps-val"][0]
    assert all(25_000 < RETRIEVAL_SIZES[name][1] < 25_020 for name in ("coco-val2017", "coco-karpathy-test"))


def test_the_file_itself_and_a_flat_folder_will_do(laid_out, tmp_path):
    root = laid_out("flickr30k-test")
    assert len(open_data(f"flickr30k-test:{root}/dataset_flickr30k.json")) == 1
    flat = tmp_path / "flat"
    (flat / "images").mkdir(parents=True)
    (flat / "images" / "1.jpg").write_bytes((root / "flickr30k-images" / "test.jpg").read_bytes())
    (flat / "captions.json").write_text(json.dumps(coco("1.jpg")))
    data = open_data(f"coco-val2017:{flat}")
    assert (len(data), data.split, data.expected) == (1, "all", 5000)


@pytest.mark.parametrize("name", RETRIEVAL_SIZES)
def test_an_empty_folder_says_what_is_missing(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} has n"):
        open_data(f"{name}:{tmp_path}")
    with pytest.raises(FileNotFoundError, match="no f"):
        open_data(f"{name}:{tmp_path}/nowhere")
    with pytest.raises(ValueError, match="needs a f"):
        open_data(name)
