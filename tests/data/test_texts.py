"""Texts without images: folders by class, long descriptions with their parts."""

import json

import pytest

from hyvlm.data import open_data


def rows(data) -> list[tuple[str, list[str], list[int]]]:
    return [(data[i].key, data[i].texts, data[i].labels) for i in range(len(data))]


@pytest.fixture
def news(tmp_path):
    files = {
        "20news-bydate-test/sci.med/59001": "From: a\nSubject: b\n\nText é.\n".encode("latin-1"),
        "20news-bydate-test/sci.med/59002": b" \n",
        "20news-bydate-test/alt_atheism/1": "Text é.".encode("utf-8-sig"),
        "20news-bydate-test/alt_atheism/.hidden": b"x",
        "20news-bydate-test/alt_atheism/deeper/2": b"x",
        "20news-bydate-test/README": b"x",
        "20news-bydate-train/sci.med/1": b"x",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_folders_of_texts(news):
    data = open_data(f"text-folder:{news}", split="20news-bydate-test", content="texts")
    assert data.classes == ("alt atheism", "sci.med")
    assert rows(data) == [
        ("alt_atheism/1", ["Text é."], [0]),
        ("sci.med/59001", ["From: a\nSubject: b\n\nText é."], [1]),
    ]
    assert data[0].image is None
    assert data.dropped == {
        "empty text": 1,
        "hidden file": 1,
        "not a file of a class folder": 1,
        "file beside the class folders": 1,
    }
    again = open_data(f"text-folder:{news / '20news-bydate-test'}", content="texts")
    assert rows(again) == rows(data)
    (news / "20news-bydate-test/sci.med/59001").write_bytes(b"Other.")
    changed = open_data(f"text-folder:{news / '20news-bydate-test'}", content="texts")
    assert changed.fingerprint != again.fingerprint


def test_folders_without_texts_and_unknown_splits(news, tmp_path):
    with pytest.raises(ValueError, match="offers the splits 20news-bydate-test, 20news-bydate-train, not 'val'"):
        open_data(f"text-folder:{news}", split="val", content="texts")
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="no text in split 'all'"):
        open_data(f"text-folder:{tmp_path / 'none'}", content="texts")
    with pytest.raises(ValueError, match="text-folder needs a folder"):
        open_data("text-folder:", content="texts")
    with pytest.raises(ValueError, match="text-folder offers the contents texts, not 'classes'"):
        open_data(f"text-folder:{news}", content="classes")


def test_long_captions_put_the_description_first(tmp_path):
    lines = [
        {"image": "a", "text": "All.", "objects": [{"description": "A part."}, {"label": "x"}, {"description": " "}]},
        {"steps": ["First.", "First. Second."], "text": "First.  Second."},
        {"iiw": "Second one.", "docci": "First one.", "image": "b"},
        {"image": "c", "objects": 3},
        {"image": "d", "caption": ["One.", "Two."]},
    ]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, lines)))
    data = open_data(f"long-captions:{tmp_path / 'l.jsonl'}", content="texts")
    assert rows(data) == [
        ("a", ["All.", "A part."], []),
        ("row 2", ["First.  Second.", "First."], []),
        ("b", ["First one.", "Second one."], []),
        ("d", ["One.", "Two."], []),
    ]
    assert data.dropped == {"part: caption is not text": 2, "part: empty caption": 1, "no caption": 1}
    (tmp_path / "l.jsonl").write_text("{oops")
    with pytest.raises(ValueError, match=r"row 1 of .* is not JSON"):
        open_data(f"long-captions:{tmp_path / 'l.jsonl'}", content="texts")
    with pytest.raises(ValueError, match=r"long-captions needs a \.jsonl or \.jsonlines file"):
        open_data(f"long-captions:{tmp_path}", content="texts")
