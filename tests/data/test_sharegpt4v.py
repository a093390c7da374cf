import json
import pickle
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyvlm.data import open_data
from hyvlm.data.sets import jsonlist, sharegpt4v
from hyvlm.types import BadSample


def entry(image: object = "coco/a.jpg", answer: object = "A dog. It runs.") -> dict[str, object]:
    turns = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": answer}]
    return {"id": "1", "image": image, "conversations": [*turns, {"from": "gpt", "value": "more"}]}


@pytest.fixture
def write(tmp_path, encoded, monkeypatch):
    monkeypatch.setattr(sharegpt4v, "TEST_ENTRIES", 3)

    def write(entries: object, *images: str, **how) -> str:
        path = tmp_path / "sharegpt4v" / "share.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(entries if isinstance(entries, bytes) else json.dumps(entries, **how).encode())
        for name in images:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(encoded())
        return f"sharegpt4v:{path}"

    return write


def test_the_first_entries_are_for_test_the_others_for_training(write):
    names = [f"{i}.jpg" for i in range(5)]
    spec = write(
        [entry(n, f"Text {n} 犬\n\n🐕.") for n in names], *(f"sharegpt4v/{n}" for n in names), ensure_ascii=False
    )
    test, train = open_data(spec), open_data(spec, split="train")
    assert [test[i].key for i in range(len(test))] == names[:3]
    assert [train[i].key for i in range(len(train))] == names[3:]
    assert (test.split, test.expected, train.expected) == ("test", 3, None)
    assert train[1].texts == ["Text 4.jpg 犬\n\n🐕."]
    assert train[1].image.size == (40, 30)
    assert test.fingerprint != train.fingerprint
    assert not test.dropped
    assert pickle.loads(pickle.dumps(train))[1].texts == train[1].texts


def test_a_file_too_short_for_training_says_where_its_entries_are(write):
    with pytest.raises(
        ValueError, match=r"no entry of split .train. can be used .*first 3 entries are the split 'test'"
    ):
        open_data(write([entry()], "sharegpt4v/coco/a.jpg"), split="train")


def test_images_are_found_where_they_are_published(write):
    names = ["a/1.jpg", "b/2.jpg", "c/3.jpg"]
    spec = write([entry(n) for n in names], "sharegpt4v/a/1.jpg", "sharegpt4v/images/b/2.jpg", "c/3.jpg")
    data = open_data(spec)
    assert [data[i].image.size for i in range(3)] == [(40, 30)] * 3


def test_what_cannot_be_used_is_counted(write):
    faults = [entry("gone.jpg"), entry(5), entry(answer=7), entry(answer=" "), {"image": "coco/a.jpg"}]
    faults += [{"image": "coco/a.jpg", "conversations": [{"from": "human", "value": "x"}, 3]}]
    spec = write([entry()] * 3 + [entry(), *faults], "coco/a.jpg")
    data = open_data(spec, split="train")
    assert len(data) == 1
    assert data.dropped == {
        "image file is missing": 1,
        "annotation cannot be read": 2,
        "caption is not text": 1,
        "empty caption": 1,
        "no caption": 1,
    }
    assert "entry 5 of" in data.dropped_examples[1]
    assert len(open_data(spec, split="train", content="texts")) == 2
    assert open_data(spec, content="texts")[0].image is None


def test_if_no_image_is_there_it_is_an_error(write):
    with pytest.raises(FileNotFoundError, match=r"none of the images that are listed exists, such as .*gone\.jpg"):
        open_data(write([entry("gone.jpg")] * 4))
    with pytest.raises(ValueError, match=r"no entry of split 'train' can be used"):
        open_data(write([entry()] * 2, "coco/a.jpg"), split="train")
    with pytest.raises(ValueError, match="offers the splits train, test, not 'val'"):
        open_data(write([entry()]), split="val")


def test_a_file_that_changed_after_it_was_opened_is_a_bad_sample(write, tmp_path):
    data = open_data(write([entry()] * 4, "coco/a.jpg"))
    (tmp_path / "sharegpt4v" / "share.json").write_text("[]")
    with pytest.raises(BadSample, match=r"sample 1 of .*annotation cannot be read"):
        data[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file ends at byte 0 where \\[ was due"),
        (b'{"a": 1}', "'{' found at byte 0 where \\[ was due"),
        (b'[{"a": 1} {"b": 2}]', "'{' found at byte 10 where , or \\] was due"),
        (b'[{"a": 1},]', "']' found at byte 10 where an object was due"),
        (b"[1, 2]", "'1' found at byte 1 where an object was due"),
        (b'[{"a": 1}, {"b": ', "an entry is broken at byte 11"),
        (b'[{"a": 1}', "the file ends at byte 9 where , or \\] was due"),
        (b'[{"a": 1},', "the file ends at byte 10 where an object was due"),
        (b'[{"a": oops, "b": 1234567890123456789}]', "an entry is broken at byte 1"),
        (b'[{"a": "caf\xe9"}]', "is not UTF-8 \\(byte 0xe9\\)"),
    ],
)
def test_files_that_are_no_list_of_objects_say_where(content, message, write):
    with pytest.raises(ValueError, match=message):
        open_data(write(content))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=6),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from([1, 2, 7, 64]),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_entries_are_those_of_json_wherever_the_file_is_cut(tmp_path_factory, objects, ascii_only, indent, chunk, bom):
    path = tmp_path_factory.getbasetemp() / "list.json"
    written = json.dumps(objects, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    path.write_bytes(b"\xef\xbb\xbf" * bom + b"\n " + written + b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonlist, "CHUNK", chunk)
        found = list(jsonlist.entries(path))
    assert [value for _, value in found] == json.loads(written)
    assert [jsonlist.read_entry(path, place) for place, _ in found] == json.loads(written)


def test_memory_does_not_grow_with_the_captions(write):
    spec = write([entry("coco/a.jpg", f"{i} " + "word " * 400) for i in range(4000)], "coco/a.jpg")  # 8 MB
    open_data(spec, split="train")
    tracemalloc.start()
    data = open_data(spec, split="train")
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(data) == 3997
    assert kept < 200_000
    assert peak < 7_000_000
