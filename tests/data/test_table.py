import json

import pytest

from hyvlm.data import open_data
from hyvlm.data.files import text_fault
from hyvlm.types import BadSample

BOM = "\ufeff".encode()


@pytest.fixture
def images(encoded, tmp_path):
    for name in ("a.jpg", "b.jpg", "c d.jpg"):
        (tmp_path / name).write_bytes(encoded(size=(100, 50)))
    return tmp_path


def write(path, content: str | bytes):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def texts(data) -> dict[str, list[str]]:
    return {data[i].key: data[i].texts for i in range(len(data))}


def test_csv_as_a_spreadsheet_writes_it(images):
    rows = 'image,caption\r\na.jpg,"one, with a comma"\r\nb.jpg,"says ""hi"" 犬 🐕"\r\nc d.jpg,two\r\n'
    data = open_data(write(images / "t.csv", BOM + rows.encode()))
    assert texts(data) == {"a.jpg": ["one, with a comma"], "b.jpg": ['says "hi" 犬 🐕'], "c d.jpg": ["two"]}


@pytest.mark.parametrize(
    "rows",
    [
        "image,caption\na.jpg,one\nb.jpg,three\na.jpg,two\n",
        'image,caption\na.jpg,"[""one"", ""two""]"\nb.jpg,three\n',
        "image,caption\na.jpg,\"['one', 'two']\"\nb.jpg,three\n",
    ],
)
def test_several_captions_as_rows_or_as_lists(rows, images):
    assert texts(open_data(write(images / "t.csv", rows))) == {"a.jpg": ["one", "two"], "b.jpg": ["three"]}


def test_tsv_and_jsonl(images):
    tsv = open_data(write(images / "t.tsv", "caption\timage\tnote\none, two\ta.jpg\tx\n"))
    assert texts(tsv) == {"a.jpg": ["one, two"]}
    lines = [{"image": "a.jpg", "caption": ["one", "line\u2028two"]}, {"image": "b.jpg", "caption": "three"}]
    jsonl = write(images / "t.jsonl", "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n")
    assert texts(open_data(jsonl)) == {"a.jpg": ["one", "line\u2028two"], "b.jpg": ["three"]}


def test_images_may_lie_in_a_folder_beside_the_table(encoded, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(encoded())
    assert open_data(write(tmp_path / "t.csv", "image,caption\na.jpg,one\n"))[0].image.size == (40, 30)


def test_each_image_is_looked_for_beside_the_table_and_then_in_images(encoded, tmp_path):
    (tmp_path / "images").mkdir()
    for name, colour in (("a.png", "red"), ("images/a.png", "blue"), ("images/b.png", "lime")):
        (tmp_path / name).write_bytes(encoded(colour, form="PNG"))
    rows = "image,caption\nb.png,one\na.png,two\nimages/a.png,three\ngone.png,four\n"
    data = open_data(write(tmp_path / "t.csv", rows))
    colours = [(data[i].key, data[i].image.getpixel((0, 0))) for i in range(len(data))]
    assert colours == [("b.png", (0, 255, 0)), ("a.png", (255, 0, 0)), ("images/a.png", (0, 0, 255))]
    assert data.dropped == {"image file is missing": 1}


@pytest.mark.parametrize("caption", ["[indistinct]", "[one, two]", "[1, 2", "['a': 'b']", "[" * 5000 + "]" * 4999])
def test_a_caption_that_only_looks_like_a_list_is_text(caption, images):
    cell = caption.replace('"', '""')
    data = open_data(write(images / "t.csv", f'image,caption\na.jpg,"{cell}"\n'))
    assert texts(data) == {"a.jpg": [caption]}
    assert not data.dropped


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"en": "one"}, "caption is not text"),
        (5, "caption is not text"),
        ([None, ["one"]], "caption is not text"),
        ("a \ud83d", "text is not UTF-8"),
        (["a \ud83d"], "text is not UTF-8"),
    ],
)
def test_captions_of_no_use_are_counted_and_the_others_kept(fault, reason, images):
    lines = [("a.jpg", fault), ("b.jpg", ["two", *(fault if isinstance(fault, list) else [fault])])]
    rows = "\n".join(json.dumps({"image": image, "caption": caption}) for image, caption in lines)
    data = open_data(write(images / "t.jsonl", rows))
    assert texts(data) == {"b.jpg": ["two"]}
    assert data.dropped == {reason: 2 * (len(fault) if isinstance(fault, list) else 1)}
    assert f"row 1 of {images / 't.jsonl'}: {reason}" in data.dropped_examples


def test_names_and_phrases_that_cannot_be_encoded_are_counted(images):
    box = {"box": [1, 1, 30, 30], "text": "\ud83d", "unit": "pixel"}
    lines = [{"image": "\ud83d.jpg", "caption": "one"}, {"image": "a.jpg", "caption": "two", "boxes": [box]}]
    data = open_data(write(images / "t.jsonl", "\n".join(map(json.dumps, lines))))
    assert data.dropped == {"image file is missing": 1}
    assert [bad.reason for bad in data[0].dropped] == ["text is not UTF-8"]
    assert data.dropped_examples == ["\\ud83d.jpg: image file is missing"]  # written out: reports are UTF-8 files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image,note\na.jpg,one\n", r"t\.csv has no column 'caption'; found: image, note"),
        ("", r"t\.csv has no column 'image'; found: nothing"),
        (b"image,caption\na.jpg,one\nb.jpg,caf\xe9\n", r"row 3 of .*t\.csv is not UTF-8 \(byte 0xe9\)"),
        ("image,caption\na.jpg,one, two\n", r"row 2 of .* more cells than the header"),
        ("image,caption\n", "no row with an image and a caption"),
        ("image,caption\na.jpg,\n", r"no row with an image and a caption \(1 empty caption\)"),
        ('image,caption\na.jpg,"one\nb.jpg,two\n', r"row 2 of .*t\.csv cannot be read, its quotes may not match"),
        ('image,caption\nb.jpg,x\na.jpg,"one\nb.jpg,"two"\n', r"row 3 of .*t\.csv cannot be read"),
        ('image,"caption\na.jpg,one\n', r"row 1 of .*t\.csv cannot be read"),
        ("image,caption,caption\na.jpg,one,two\n", r"t\.csv has the column 'caption' more than once"),
        ("image,caption,note,note\na.jpg,one,,\n", r"t\.csv has the column 'note' more than once"),
        ("image,caption,boxes\na.jpg,one,oops\n", r"the boxes in row 2 of .* are not \[\{"),
        (
            'image,caption,boxes\na.jpg,one,"[{""box"": [0,0,1,1], ""unit"": ""cm""}]"\n',
            "unit .* row 2 .* 'cm'; known: pixel",
        ),
        ("image,caption\nx.jpg,one\n", "none of the images that are listed exists, such as .*x.jpg"),
    ],
)
def test_tables_that_cannot_be_read_say_where(content, message, images):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_data(write(images / "t.csv", content))


def test_broken_json_lines_are_named(images):
    good = json.dumps({"image": "a.jpg", "caption": "one"})
    for line, message in (
        ("{oops", "row 2 .* not JSON"),
        ("[1]", "row 2 .* not a JSON object"),
        ("{}", "row 2 .* no column"),
    ):
        with pytest.raises(ValueError, match=message):
            open_data(write(images / "t.jsonl", f"{good}\n{line}\n"))


def test_missing_images_and_empty_captions_are_counted(images, caplog):
    rows = "image,caption\na.jpg,one\ngone.jpg,two\nb.jpg,  \n,three\n"
    data = open_data(write(images / "t.csv", rows))
    assert texts(data) == {"a.jpg": ["one"]}
    assert data.dropped == {"image file is missing": 1, "empty caption": 1, "no image path": 1}
    assert "gone.jpg: image file is missing" in caplog.text


def boxes_table(images, *boxes: dict) -> str:
    lines = [
        {"image": n, "caption": "one", "boxes": [b]} for n, b in zip(("a.jpg", "b.jpg", "c d.jpg"), boxes, strict=False)
    ]
    return write(images / "t.jsonl", "\n".join(map(json.dumps, lines)))


def sizes(path: str) -> list[tuple[int, int]]:
    data = open_data(path)
    return [part.image.size for i in range(len(data)) for part in data[i].parts]


def test_pixel_and_normalised_boxes(images):
    assert sizes(boxes_table(images, {"box": [10, 10, 30, 40], "text": "a dog"})) == [(20, 30)]
    assert sizes(boxes_table(images, {"box": [0.1, 0.2, 0.3, 0.8], "text": "a dog"})) == [(20, 30)]
    whole = {"box": [0, 0, 1, 1], "text": "all"}  # fits both: the rest of the file decides
    assert sizes(boxes_table(images, whole, {"box": [0.1, 0.2, 0.3, 0.8], "text": "a dog"})) == [(100, 50), (20, 30)]
    assert sizes(boxes_table(images, whole, {"box": [10, 10, 30, 40], "text": "a dog"})) == [(1, 1), (20, 30)]
    assert sizes(boxes_table(images, {**whole, "unit": "normalised"}, {**whole, "unit": "pixel"})) == [
        (100, 50),
        (1, 1),
    ]


def test_boxes_that_fit_both_units_or_mix_them_are_an_error(images):
    whole = {"box": [0, 0, 1, 1], "text": "all"}
    with pytest.raises(ValueError, match=r'row 1 of .*"unit"'):
        open_data(boxes_table(images, whole))
    with pytest.raises(ValueError, match=r"normalised .* at row 1 of .* but pixels at row 2"):
        open_data(boxes_table(images, {**whole, "box": [0, 0, 0.5, 1]}, {**whole, "box": [5, 5, 9, 9]}))


def test_unusable_boxes_are_counted_parts(images):
    rows = [
        {"box": [10, 10, 10, 40], "text": "a dog"},
        {"box": [200, 10, 210, 40], "text": "a dog"},
        {"box": [10, 10, 30], "text": "a dog"},
        {"box": [10, 10, 30, 40]},
        {"box": [10, 10, 30, 40], "text": "a cat"},
    ]
    line = json.dumps({"image": "a.jpg", "caption": "one", "boxes": json.dumps(rows)})
    sample = open_data(write(images / "t.jsonl", line))[0]
    assert [p.text for p in sample.parts] == ["a cat"]
    assert [str(bad) for bad in sample.dropped] == [
        "part 0 of sample 'a.jpg': box without area (x0 >= x1 or y0 >= y1)",
        "part 1 of sample 'a.jpg': box outside the image",
        "part 2 of sample 'a.jpg': box is not four numbers",
        "part 3 of sample 'a.jpg': empty phrase",
    ]


def test_boxes_repeated_beside_every_caption_count_once(images):
    cell = json.dumps([{"box": [10, 10, 30, 40], "text": "a dog"}]).replace('"', '""')
    rows = f'image,caption,boxes\na.jpg,one,"{cell}"\na.jpg,two,"{cell}"\n'
    sample = open_data(write(images / "t.csv", rows))[0]
    assert sample.texts == ["one", "two"]
    assert len(sample.parts) == 1


def test_one_text_file_among_the_images_costs_one_sample(encoded, tmp_path):
    names = [f"{i}.jpg" for i in range(10)]
    for name in names:
        (tmp_path / name).write_bytes(encoded())
    (tmp_path / "5.jpg").write_text("text")
    data = open_data(write(tmp_path / "t.csv", "image,caption\n" + "".join(f"{n},one\n" for n in names)))
    bad = []
    for i in range(len(data)):
        try:
            data[i]
        except BadSample as error:
            bad.append((i, error.reason))
    assert bad == [(5, "image is of no known format")]


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"table: no file .*gone\.csv"):
        open_data(str(tmp_path / "gone.csv"))
    with pytest.raises(ValueError, match=r"\.csv, \.tsv or \.jsonl"):
        open_data("table:captions.xls")
    for location in ("", " "):
        with pytest.raises(ValueError, match="table needs a file: table:/path"):
            open_data(f"table:{location}")
    with pytest.raises(ValueError, match=r"splits all, not 'train': leave the split out \(data\.split=null\)$"):
        open_data("table:t.csv", split="train")
    with pytest.raises(ValueError, match="table offers the contents pairs, texts, negatives, not 'classes'"):
        open_data("table:t.csv", content="classes")


def test_the_fingerprint_follows_the_content(images, encoded):
    path = write(images / "t.csv", "image,caption\na.jpg,one\n")
    first = open_data(path).fingerprint
    assert open_data(path).fingerprint == first
    (images / "a.jpg").write_bytes(encoded("blue", size=(100, 51)))
    second = open_data(path).fingerprint
    write(images / "t.csv", "image,caption\na.jpg,two!\n")
    assert len({first, second, open_data(path).fingerprint}) == 3


def test_columns_may_go_by_other_names_and_tabs_may_part_a_csv(images):
    assert texts(open_data(write(images / "t.csv", "filepath\ttitle\na.jpg\tone, two\n"))) == {"a.jpg": ["one, two"]}
    lines = [{"image": "a.jpg", "text": ["one", "two"], "title": "no"}, {"image": "b.jpg", "text": "three"}]
    jsonl = write(images / "t.jsonl", "\n".join(map(json.dumps, lines)))
    assert texts(open_data(jsonl)) == {"a.jpg": ["one", "two"], "b.jpg": ["three"]}


def test_texts_need_no_image(tmp_path):
    lines = [{"image": "gone.jpg", "caption": "one"}, {"image": "gone.jpg", "caption": "two"}, {"caption": ["three"]}]
    lines += [{"caption": " "}, {"caption": 5}]
    data = open_data(write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, lines))), content="texts")
    assert texts(data) == {"gone.jpg": ["one", "two"], "row 3": ["three"]}
    assert data[0].image is None
    assert data.dropped == {"empty caption": 1, "caption is not text": 1}
    with pytest.raises(BadSample, match="no image"):
        _ = data[0].picture


def test_negatives_are_taken_row_by_row(images):
    lines = [
        {"image": "a.jpg", "caption": "a dog", "negatives": ["a cat", " a cow ", ""]},
        {"image": "a.jpg", "caption": "a lawn", "negatives": "a lake"},
        {"image": "b.jpg", "caption": "a dog", "negatives": []},
        {"image": "gone.jpg", "caption": "a dog", "negatives": ["a cat"]},
    ]
    data = open_data(write(images / "t.jsonl", "\n".join(map(json.dumps, lines))), content="negatives")
    samples = [data[i] for i in range(len(data))]
    assert [(s.texts, s.negatives) for s in samples] == [(["a dog"], ["a cat", "a cow"]), (["a lawn"], ["a lake"])]
    assert samples[0].image.size == (100, 50)
    assert len({s.key for s in samples}) == 2
    assert data.dropped == {"image file is missing": 1, "no negatives": 1}
    cells = 'image,caption,negatives\na.jpg,a dog,"[""a cat"", ""a cow""]"\n'
    assert open_data(write(images / "t.csv", cells), content="negatives")[0].negatives == ["a cat", "a cow"]
    with pytest.raises(ValueError, match=r"t\.csv has no column 'negatives'; found: image, caption"):
        open_data(write(images / "t.csv", "image,caption\na.jpg,one\n"), content="negatives")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty caption"),
        (" \t\n\u3000", "empty caption"),
        ("\u200b\u200d\ufeff", "empty caption"),
        ("\ud800", "text is not UTF-8"),
        (7, "caption is not text"),
        ("\u200b狗", None),
        ("👩\u200d🚀", None),
        ("!", None),
    ],
)
def test_what_is_of_no_use_as_a_caption(text, fault):
    assert text_fault(text) == fault
