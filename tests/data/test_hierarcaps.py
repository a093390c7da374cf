import json

import pytest

from hyvlm.data import open_data
from hyvlm.data.sets.hierarcaps import split_captions

LEVELS = ["animal", "dog", "a red dog"]


@pytest.fixture
def images(tmp_path, encoded):
    for place in ("a.jpg", "images/b.jpg", "val2014/c.jpg"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(encoded())
    return tmp_path


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def opened(path, content="pairs"):
    data = open_data(f"hierarcaps:{path}", content=content)
    return data, [(s.key, s.texts, s.negatives) for s in (data[i] for i in range(len(data)))]


def test_captions_of_a_cell():
    assert split_captions(["a", "b"]) == ["a", "b"]
    assert split_captions('["a", "b, c"]') == ["a", "b, c"]
    assert split_captions("a => b || c => d") == ["a ", " b || c ", " d"]
    assert split_captions("a||b") == ["a", "b"]
    assert split_captions("[a] bracket") == ["[a] bracket"]
    assert split_captions(None) == split_captions(" ") == []
    assert split_captions(7) == [7]


def test_json_lines_keep_the_order_of_levels(images):
    rows = [
        {"id": 0, "image": "a.jpg", "image_id": 5, "captions": LEVELS},
        {"id": 7, "image": "b.jpg", "image_id": 6, "captions": ["cat"]},
    ]
    data, samples = opened(write(images / "h.jsonl", rows))
    assert samples == [("0", LEVELS, []), ("7", ["cat"], [])]
    assert data[1].image.size == (40, 30)
    assert data.expected == 1000


def test_the_published_table(images):
    """Captions in one cell; of a URL the file name counts, and the image may be below ``val2014``."""
    url = "http://images.cocodataset.org/val2014/c.jpg"
    (images / "h.csv").write_text(f'id,captions,image_url\n3,"animal => dog, or so => a red dog",{url}\n')
    data, samples = opened(images / "h.csv")
    assert samples == [("3", ["animal", "dog, or so", "a red dog"], [])]
    assert data.entries[0].image == "val2014/c.jpg"


def test_tsv_and_json(images):
    (images / "h.tsv").write_text("image_path\tcaptions\na.jpg\tanimal||dog\n")
    assert opened(images / "h.tsv")[1] == [("a.jpg row 2", ["animal", "dog"], [])]
    rows = [{"image": "a.jpg", "captions": LEVELS}, 3, {"image": "a.jpg", "captions": ["cat", "a cat"]}]
    for document in (rows, {"samples": rows}):
        (images / "h.json").write_text(json.dumps(document))
        data, samples = opened(images / "h.json")
        assert samples == [("a.jpg row 0", LEVELS, []), ("a.jpg row 2", ["cat", "a cat"], [])]
        assert data.dropped == {"annotation cannot be read": 1}


def test_given_negatives(images):
    rows = [
        {"image": "a.jpg", "positive": LEVELS, "negative": ["plant", "", "a blue dog"]},
        {"image": "b.jpg", "positive": ["cat"], "negative": []},
    ]
    data, samples = opened(write(images / "h.jsonl", rows), "negatives")
    assert samples == [("a.jpg row 1", LEVELS, ["plant", "a blue dog"])]
    assert data.dropped == {"part: empty caption": 1, "no negatives": 1}
    assert data.expected is None
    pairs, samples = opened(images / "h.jsonl")
    assert [negatives for _, _, negatives in samples] == [[], []]
    assert pairs.expected is None
    assert pairs.fingerprint != data.fingerprint


def test_texts_need_no_image(images):
    data, samples = opened(write(images / "h.jsonl", [{"captions": LEVELS}, {"image": "x", "captions": "b"}]), "texts")
    assert samples == [("row 1", LEVELS, []), ("x row 2", ["b"], [])]
    assert data[0].image is None


def test_what_cannot_be_used_is_counted(images):
    rows = [
        {"id": 1, "image": "a.jpg", "captions": [" dog ", 4, "\ud83d"]},
        {"id": 1, "image": "a.jpg", "captions": LEVELS},
        {"id": 2, "image": "gone.jpg", "captions": LEVELS},
        {"id": 3, "captions": LEVELS},
        {"id": 4, "image": "a.jpg"},
        {"id": 5, "image": ["a.jpg"], "captions": LEVELS},
    ]
    data, samples = opened(write(images / "h.jsonl", rows))
    assert samples == [("1", ["dog"], [])]
    assert data.dropped == {
        "part: caption is not text": 1,
        "part: text is not UTF-8": 1,
        "second sample of the same key": 1,
        "image file is missing": 1,
        "no image path": 1,
        "empty caption": 1,
        "annotation cannot be read": 1,
    }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("h.jsonl", '{"image": "a.jpg", "captions": ["a"]}\n{"image"', r"row 2 of .*h\.jsonl is not JSON"),
        ("h.jsonl", "[3]", r"row 1 of .*h\.jsonl is not a JSON object"),
        (
            "h.jsonl",
            '{"image": "a.jpg", "text": "a"}',
            r"has no column 'captions' \(or 'positive'\); found: image, text",
        ),
        ("h.jsonl", "", "no image of split 'all' has a caption"),
        ("h.json", "{}", "is not a JSON list of objects, nor an object with such a list under 'samples'"),
        ("h.json", "[", "is not JSON"),
        ("h.csv", 'image,captions\na.jpg,"never closed', r"row 2 of .*h\.csv cannot be read, its quotes"),
        ("h.txt", "", r"hierarcaps needs a \.csv or \.tsv or"),
    ],
)
def test_files_that_cannot_be_used(images, name, text, message):
    (images / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        open_data(f"hierarcaps:{images / name}")


def test_contents_and_files_that_are_not_there(images):
    path = write(images / "h.jsonl", [{"image": "a.jpg", "captions": LEVELS}])
    with pytest.raises(ValueError, match=r"has no column 'negatives' \(or 'negative'\); found: image, captions"):
        open_data(f"hierarcaps:{path}", content="negatives")
    with pytest.raises(ValueError, match="hierarcaps offers the contents pairs, negatives, texts, not 'labels'"):
        open_data(f"hierarcaps:{path}", content="labels")
    with pytest.raises(FileNotFoundError, match=r"hierarcaps: no file .*gone\.jsonl"):
        open_data(f"hierarcaps:{images / 'gone.jsonl'}")
    write(path, [{"image": "gone.jpg", "captions": LEVELS}])
    with pytest.raises(FileNotFoundError, match="none of the images that are listed exists"):
        open_data(f"hierarcaps:{path}")
