import base64
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hyvlm.cli.main import main
from hyvlm.data import gligen, open_data, processed
from hyvlm.data.prepare import PREPARERS, prepare_gligen
from hyvlm.types import BadSample

CAPTION = "a red square beside a dog"
SQUARE = {"bbox": [0, 0, 30, 40], "tokens_positive": [[0, 12]]}
DOG = {"bbox": [30.5, 0.0, 29.5, 40.0], "tokens_positive": [[20, 25]]}

#: What stands in a box of a row that is otherwise good, and what it is counted under.
BAD_BOXES = {
    "box without area (x0 >= x1 or y0 >= y1)": {**SQUARE, "bbox": [5, 5, -3, 4]},
    "box outside the image": {**SQUARE, "bbox": [60, 0, 5, 5]},
    "box is not four numbers": {**SQUARE, "bbox": [0, 0, 30]},
    "box is not an object": [0, 0, 30, 40],
    "empty phrase": {"bbox": [0, 0, 30, 40]},
    "range is not [start, end]": {**SQUARE, "tokens_positive": [[0, 12.5]]},
    "phrase outside the caption": {**SQUARE, "tokens_positive": [[20, 26]]},
}
NUMBERS = [None, "[0, 0, 1, 1]", [0, 0, 1, "1"], [0, 0, 10**400, 1], [float("nan"), 0, 1, 1], [0, 0, float("inf"), 1]]


class Trap:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def embedding(raw: bytes = b"\0" * 12) -> dict[str, str]:
    text = base64.b64encode(raw).decode()
    names = ("text_embedding_before", "image_embedding_before", "text_embedding_after", "image_embedding_after")
    return dict.fromkeys(names, text)


def photograph(encoded) -> str:
    image = Image.new("RGB", (60, 40), "blue")
    image.paste((255, 0, 0), (0, 0, 30, 40))
    return base64.b64encode(encoded(image)).decode()


def line(number: int, photo: str | None, **changes: object) -> bytes:
    """A row as GLIGEN's script writes it; a value of None takes a field out."""
    row = {"data_id": number, "image": photo, "file_name": f"{number}.jpg", "caption": CAPTION}
    row |= {"annos": [{**SQUARE, "id": 2 * number, **embedding()}, {**DOG, "id": 2 * number + 1, **embedding()}]}
    row = {name: value for name, value in {**row, **changes}.items() if value is not None}
    return f"{number}\t{json.dumps(row)}\n".encode()


@pytest.fixture
def released(encoded, tmp_path) -> Path:
    """A folder as it is released, twenty rows in two files: eight are good, each other has its own damage."""
    image = photograph(encoded)
    spans = [{**DOG, "tokens_positive": [[0, 1], [20, 25]]}]
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    lines = [
        line(0, image),
        line(1, image, annos=[DOG]),
        b"2\n",
        line(3, image, annos=[]),
        b"4\t{'data_id': 4}\n",
        b'5\t["a", "list"]\n',
        b"\n",
        line(7, image, annos=spans),
        line(8, image, caption="  " + CAPTION, annos=[{**DOG, "tokens_positive": [[22, 27]]}]),
        line(9, None),
        line(10, "&&&"),
        line(11, base64.b64encode(b"this is no image").decode()),
        line(12, image[: len(image) // 2 // 4 * 4]),
        line(13, image, caption=None),
        line(14, image, caption=7),
        line(15, image, annos={"bbox": [0, 0, 1, 1]}),
        line(15, image),
        line(17, image, annos=[{**SQUARE, **embedding(trap)}]),
        line(18, image, annos=[*BAD_BOXES.values(), DOG]),
        line(19, image)[:-40],
    ]
    folder = tmp_path / "released"
    folder.mkdir()
    (folder / "train-0000.tsv").write_bytes(b"".join(lines[:10]))
    (folder / "train-0001.tsv").write_bytes(b"".join(lines[10:]))
    (folder / "train-0000.lineidx").write_text("0\n")
    return folder


DROPPED = {
    "row is not an id, a tab and JSON": 3,
    "row is empty": 1,
    "row is cut short": 1,
    "no image": 1,
    "image is not base64": 1,
    "image is of no known format": 1,
    "image is cut short": 1,
    "empty caption": 1,
    "caption is not text": 1,
    "second sample of the same key": 1,
    "part: annos is not a list of boxes": 1,
    **{f"part: {reason}": 1 for reason in BAD_BOXES},
}


def samples(out: Path) -> list:
    data = open_data(f"shards:{out}")
    return [data[i] for i in range(len(data))]


def test_twenty_rows_and_every_kind_of_damage(released, tmp_path):
    report = prepare_gligen(released, tmp_path / "out", max_dropped=0.7, workers=1)
    assert (report["shards"], report["read"], report["samples"], report["parts"]) == (2, 20, 8, 7)
    assert (report["samples_without_parts"], report["overlapping_parts"]) == (2, 0)
    assert report["dropped"] == DROPPED
    first, second = ((released / f"train-000{i}.tsv").read_bytes() for i in range(2))
    torn = first.index(b"\n2\n") + 1
    assert (
        f"row at byte {torn} of {released / 'train-0000.tsv'}: row is not an id, a tab and JSON"
        in report["dropped_examples"]
    )
    found = samples(tmp_path / "out")
    assert [sample.key for sample in found] == ["0", "1", "3", "7", "8", "15", "17", "18"]
    assert {text for sample in found for text in sample.texts} == {CAPTION}
    phrases = [[part.text for part in sample.parts] for sample in found]
    assert phrases == [
        ["a red square", "a dog"],
        ["a dog"],
        [],
        ["a a dog"],
        ["a dog"],
        [],
        ["a red square"],
        ["a dog"],
    ]
    assert not (tmp_path / "sprung").exists()  # the embeddings were not unpickled
    trap = json.loads(second.split(b"\n")[7].partition(b"\t")[2])["annos"][0]["text_embedding_before"]
    pickle.loads(base64.b64decode(trap))
    assert (tmp_path / "sprung").exists()  # which would have shown


def test_boxes_are_x_y_width_height_in_pixels(released, tmp_path):
    prepare_gligen(released, tmp_path / "out", max_dropped=0.7, workers=1)
    first = samples(tmp_path / "out")[0]
    assert [part.image.size for part in first.parts] == [(30, 40), (30, 40)]
    red, blue = (np.asarray(part.image, int).mean((0, 1)) for part in first.parts)
    assert red == pytest.approx([255, 0, 0], abs=12)
    assert blue == pytest.approx([0, 0, 255], abs=12)


@pytest.mark.parametrize("box", NUMBERS)
def test_boxes_that_are_not_four_finite_numbers(box):
    image = Image.new("RGB", (60, 40))
    parts, bad = gligen.boxed_parts({"caption": CAPTION, "annos": [{**SQUARE, "bbox": box}]}, image, "here")
    assert parts == []
    assert [fault.reason for fault in bad] == ["box is not four numbers"]


def test_too_many_drops_are_an_error_after_the_report(released, tmp_path):
    with pytest.raises(
        ValueError, match=r"prepare cc3m-gligen: 8 of 20 samples of .* could be used: 3 row is not an id"
    ):
        PREPARERS["cc3m-gligen"](str(released), tmp_path / "out", workers=1)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["dropped"] == DROPPED


def test_a_merged_file_in_pieces_is_the_same_samples(released, tmp_path):
    whole = b"".join((released / f"train-000{i}.tsv").read_bytes() for i in range(2))
    merged = tmp_path / "train-00.tsv"
    merged.write_bytes(whole)
    prepare_gligen(released, tmp_path / "a", max_dropped=0.7, workers=1)
    report = prepare_gligen(merged, tmp_path / "b", shard_bytes=len(whole) // 5 + 1, max_dropped=0.7, workers=2)
    assert (report["shards"], report["read"]) == (5, 20)
    for ours, theirs in zip(samples(tmp_path / "b"), samples(tmp_path / "a"), strict=True):
        assert (ours.key, ours.image.tobytes()) == (theirs.key, theirs.image.tobytes())
        assert [part.text for part in ours.parts] == [part.text for part in theirs.parts]


def test_a_stopped_call_goes_on_where_it_was(released, tmp_path, monkeypatch):
    expected = prepare_gligen(released, tmp_path / "whole", max_dropped=0.7, workers=1)
    out, write, written = tmp_path / "out", processed._write_sample, []

    def stopping(*args) -> None:
        if args[1].key == "11":
            raise KeyboardInterrupt
        write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(processed, "_write_sample", stopping)
        with pytest.raises(KeyboardInterrupt):
            prepare_gligen(released, out, workers=1)
    assert [path.name for path in out.glob("*.tar")] == ["00000.tar"]
    monkeypatch.setattr(processed, "_write_sample", lambda *a: (written.append(a[1].key), write(*a)))
    assert prepare_gligen(released, out, max_dropped=0.7, workers=1) == expected
    assert written == ["11", "12", "15", "15", "17", "18"]
    for name in ("00000.tar", "00001.tar"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@given(lines=st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), min_size=1), size=st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_every_line_belongs_to_one_piece(lines, size, tmp_path_factory):
    path = tmp_path_factory.mktemp("pieces") / "a.tsv"
    path.write_bytes(b"\n".join(lines) or b"x")
    ranges = gligen.pieces(path, size)
    assert all(0 < stop - start <= size for start, stop in ranges)
    assert [row for piece in ranges for row in gligen.rows(path, *piece)] == list(gligen.rows(path))
    assert b"".join(row for _, row in gligen.rows(path)) == path.read_bytes()


def test_a_row_too_long_is_not_read_as_a_whole(released, tmp_path, monkeypatch):
    monkeypatch.setattr(gligen, "MAX_ROW", 100)
    path = tmp_path / "a.tsv"
    path.write_bytes(b"1\t{}\n2\t{" + b" " * 450 + b"}\n3\t{}\n")
    found = [row for _, row in gligen.rows(path)]
    assert [len(row) for row in found] == [5, 100, 5]
    assert list(gligen.rows(path, 200)) == list(gligen.rows(path))[2:]
    with pytest.raises(BadSample, match="row is too long"):
        gligen.read_row(found[1], "here")


def test_rows_that_only_look_like_json():
    for text in (b"1\t" + b"[" * 200_000 + b"\n", b"1\t\xff\xfe{}\n", b"../1\t{}\n", b"\t{}\n"):
        with pytest.raises(BadSample, match="row is not an id, a tab and JSON"):
            gligen.read_row(text, "here")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(list(SQUARE)), inner),
    max_leaves=20,
)


@given(annos=JSON)
@settings(deadline=None, max_examples=150)
def test_whatever_annos_is_every_entry_is_a_part_or_counted(annos):
    image = Image.new("RGB", (60, 40))
    parts, bad = gligen.boxed_parts({"caption": CAPTION, "annos": annos}, image, "here")
    assert len(parts) + len(bad) == (len(annos) if isinstance(annos, list) else 1)
    assert all(min(part.image.size) > 0 and part.text for part in parts)


@given(row=st.binary(max_size=40) | JSON.map(lambda value: f"1\t{json.dumps(value)}\n".encode()))
@settings(deadline=None, max_examples=150)
def test_whatever_a_row_is_it_is_counted(row):
    with pytest.raises(BadSample) as caught:  # none of these has an image
        gligen.read_row(row, "here")
    assert caught.value.reason


WRONG = {
    "LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:e13c\nsize 1056407974\n",
        "Git LFS pointer",
    ),
    "table of addresses": (b"a very typical bus station\thttp://example.org/a.jpg\n" * 3, "no TSV of GLIGEN"),
    "index": (b"0\n185311\n370101\n", "no TSV of GLIGEN"),
    "empty": (b"", "no TSV of GLIGEN"),
    "archive": (b"\x1f\x8b\0\0" * 50, "no TSV of GLIGEN"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_files_that_are_no_such_tsv(kind, released, tmp_path, capsys):
    content, message = WRONG[kind]
    (released / "train-0001.tsv").write_bytes(content)
    assert main(["data", "prepare", "cc3m-gligen", str(released), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "train-0001.tsv" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_damaged_first_row_does_not_condemn_its_file(released, tmp_path):
    path = released / "train-0000.tsv"
    path.write_bytes(b"torn" + path.read_bytes().partition(b"\t")[2])
    assert prepare_gligen(path, tmp_path / "out", max_dropped=0.7, workers=1)["samples"] == 4


def test_edge_maps_in_the_same_layout_have_no_images(released, tmp_path):
    rows = [f'{i}\t{{"data_id": {i}, "hed_edge": "", "caption": "a"}}\n' for i in range(3)]
    (tmp_path / "train-0000.tsv").write_text("".join(rows))
    with pytest.raises(ValueError, match=r"0 of 3 samples of .* could be used: 3 no image"):
        prepare_gligen(tmp_path / "train-0000.tsv", tmp_path / "out", workers=1)


def test_rows_without_any_box_are_an_error(encoded, tmp_path):
    (tmp_path / "a.tsv").write_bytes(line(0, photograph(encoded), annos=[]))
    with pytest.raises(ValueError, match=r"no sample of .*a\.tsv has boxes in annos"):
        prepare_gligen(tmp_path / "a.tsv", tmp_path / "out", workers=1)


def test_the_command(released, tmp_path, capsys):
    out = str(tmp_path / "out")
    command = ["data", "prepare", "cc3m-gligen", f"{released}/train-*.tsv", out]
    assert main([*command, "--max-dropped", "0.7", "--max-parts", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"] == 6
    assert main([*command, "--images", str(tmp_path)]) == 2
    assert "leave --images out" in capsys.readouterr().err
    for source in (tmp_path / "gone.tsv", tmp_path / "out" / "reports"):
        assert main(["data", "prepare", "cc3m-gligen", str(source), out]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["data", "prepare", "cc3m-gligen", str(released), str(released)]) == 2
    assert "is the folder of the source" in capsys.readouterr().err
