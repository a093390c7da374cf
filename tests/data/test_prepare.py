import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hyvlm.data import open_data, processed
from hyvlm.data.prepare import PREPARERS, prepare_grit

CAPTION = "a red square beside a dog"
ROWS = [[0, 12, 0.0, 0.0, 0.5, 1.0, 0.9], [0, 12, 0.0, 0.0, 0.51, 1.0, 0.8], [20, 25, 0.5, 0.0, 1.0, 1.0, 0.7]]


def picture(size: tuple[int, int] = (60, 40)) -> Image.Image:
    image = Image.new("RGB", size, "blue")
    image.paste((255, 0, 0), (0, 0, size[0] // 2, size[1]))
    return image


@pytest.fixture
def raw(encoded, write_tar, tmp_path):
    """Three raw shards of four samples; in each, the last has a broken image and the third no usable box."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for shard in range(3):
        members = []
        for i in range(4):
            rows = [[0, 5, 2.0, 2.0, 3.0, 3.0, 0.9]] if i == 2 else ROWS
            members.append((f"{shard}{i}.jpg", b"broken" if i == 3 else encoded(picture())))
            members.append((f"{shard}{i}.json", {"caption": CAPTION, "ref_exps": rows, "noun_chunks": []}))
        write_tar(folder / f"{shard}.tar", members)
    return folder


def test_raw_shards_become_processed_shards(raw, tmp_path):
    out = tmp_path / "out"
    report = prepare_grit(raw, out, workers=1)
    assert sorted(p.name for p in out.iterdir()) == ["00000.tar", "00001.tar", "00002.tar", "report.json", "reports"]
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(report))
    assert (report["shards"], report["read"], report["samples"], report["parts"]) == (3, 12, 9, 12)
    assert (report["samples_without_parts"], report["overlapping_parts"]) == (3, 6)
    assert report["dropped"] == {"image is of no known format": 3, "part: box outside the image": 3}
    assert f"sample '03' of {raw / '0.tar'}: image is of no known format" in report["dropped_examples"]

    processed = open_data(f"shards:{out}/{{00000..00002}}.tar")
    assert [processed[i].key for i in range(3)] == ["00", "01", "02"]
    sample, direct = processed[0], open_data(f"shards:{raw}")[0]
    assert sample.texts == [CAPTION]
    assert [p.text for p in sample.parts] == [p.text for p in direct.parts] == ["a red square", "a dog"]
    for ours, cut in zip(sample.parts, direct.parts, strict=True):
        assert ours.image.size == cut.image.size == (30, 40)
        assert np.abs(np.asarray(ours.image, int) - np.asarray(cut.image, int)).mean() < 3


def test_processes_change_nothing(raw, tmp_path):
    reports = [prepare_grit(raw, tmp_path / name, workers=n) for name, n in (("one", 1), ("two", 2))]
    assert reports[0] == reports[1]
    for i in range(3):
        shards = [(tmp_path / name / f"{i:05d}.tar").read_bytes() for name in ("one", "two")]
        assert shards[0] == shards[1]


@pytest.mark.parametrize("stop_at", [0, 1, 3, 5, 8])
def test_a_stopped_call_goes_on_where_it_was(stop_at, raw, tmp_path, monkeypatch):
    expected = prepare_grit(raw, tmp_path / "whole", workers=1)
    out, written = tmp_path / "out", []
    write = processed._write_sample

    def stopping(*args) -> None:
        if len(written) == stop_at:
            raise KeyboardInterrupt
        written.append(args[1].key)
        write(*args)

    monkeypatch.setattr(processed, "_write_sample", stopping)
    with pytest.raises(KeyboardInterrupt):
        prepare_grit(raw, out, workers=1)
    done = len(list(out.glob("*.tar")))
    assert done == stop_at // 4
    assert not list(out.glob(".0*"))

    rewritten = []
    monkeypatch.setattr(processed, "_write_sample", lambda *a: (rewritten.append(a[1].key), write(*a)))
    report = prepare_grit(raw, out, workers=1)
    assert len(rewritten) == 12 - 4 * done
    assert report == expected
    for i in range(3):
        assert (out / f"{i:05d}.tar").read_bytes() == (tmp_path / "whole" / f"{i:05d}.tar").read_bytes()


def test_a_killed_process_leaves_nothing_half_done(encoded, write_tar, tmp_path):
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    big = encoded(picture((900, 600)))
    document = {"caption": CAPTION, "ref_exps": ROWS}
    for shard in range(2):
        write_tar(raw / f"{shard}.tar", [m for i in range(20) for m in ((f"{i}.jpg", big), (f"{i}.json", document))])
    process = multiprocessing.get_context("fork").Process(target=prepare_grit, args=(raw, out), kwargs={"workers": 1})
    process.start()
    deadline = time.monotonic() + 40
    while not list(out.glob(".0*")) and time.monotonic() < deadline and process.is_alive():
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL  # it was at work
    assert list(out.glob(".0*"))
    assert not (out / "report.json").exists()
    assert prepare_grit(raw, out, workers=1)["samples"] == 40
    assert not list(out.glob(".0*"))
    assert len(open_data(f"shards:{out}")) == 40


def test_other_settings_or_a_changed_source_are_done_again(raw, encoded, write_tar, tmp_path):
    out = tmp_path / "out"
    assert prepare_grit(raw, out, workers=1)["parts"] == 12
    assert prepare_grit(raw, out, workers=1, max_parts=1)["parts"] == 6
    write_tar(raw / "1.tar", [("n.jpg", encoded(picture())), ("n.json", {"caption": CAPTION, "ref_exps": ROWS})])
    assert prepare_grit(raw, out, workers=1, max_parts=1)["samples"] == 7


def test_shards_of_a_larger_source_are_not_mixed_in(raw, tmp_path):
    prepare_grit(raw, tmp_path / "out", workers=1)
    with pytest.raises(ValueError, match=r"out holds 00001\.tar, which is not from .*0\.tar: choose another folder"):
        prepare_grit(raw / "0.tar", tmp_path / "out", workers=1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("how", ["folder", "one shard", "link to the folder", "shards are links", "parquet"])
def test_the_source_is_never_written_over(how, raw, tmp_path):
    for number in range(3):
        (raw / f"{number}.tar").rename(raw / f"{number:05d}.tar")  # img2dataset's names are those of the result
    before = contents(raw)
    source, out = raw, raw
    if how == "one shard":
        source = raw / "00001.tar"
    elif how == "link to the folder":
        out = tmp_path / "link"
        out.symlink_to(raw)
    elif how == "shards are links":
        source = tmp_path / "links"
        source.mkdir()
        for name in before:
            (source / name).symlink_to(raw / name)
    elif how == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        source = raw / "g.parquet"
        parquet.write_table(pa.Table.from_pylist([{"key": "a", "caption": CAPTION, "ref_exps": ROWS}]), source)
        before = contents(raw)
    with pytest.raises(ValueError, match=r"is the folder of the source .*: choose another folder"):
        prepare_grit(source, out, workers=1)
    assert contents(raw) == before


@pytest.mark.parametrize("name", ["00000.tar", "0.tar", "mine.tar"])
def test_tar_files_of_others_are_never_written_over(name, raw, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_bytes(b"precious")
    with pytest.raises(ValueError, match=f"out holds {name}, which is not from"):
        prepare_grit(raw, out, workers=1)
    assert contents(out) == {name: b"precious"}


def test_a_call_stopped_between_a_shard_and_its_report_goes_on(raw, tmp_path, monkeypatch):
    out, write = tmp_path / "out", processed._write_json

    def stopping(path: Path, content: dict) -> None:
        if "stamp" in content:
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(processed, "_write_json", stopping)
        with pytest.raises(KeyboardInterrupt):
            prepare_grit(raw, out, workers=1)
    assert (out / "00000.tar").is_file()
    assert prepare_grit(raw, out, workers=1)["samples"] == 9


def test_size_and_form_of_the_images(encoded, write_tar, tmp_path):
    members = [("w.jpg", encoded(picture((600, 400)))), ("w.json", {"caption": CAPTION, "ref_exps": ROWS})]
    path = write_tar(tmp_path / "raw.tar", members)
    prepare_grit(path, tmp_path / "a", size=100, workers=1)
    sample = open_data(f"shards:{tmp_path / 'a'}")[0]
    assert sample.image.size == (150, 100)
    assert sample.parts[0].image.size == (100, 133)
    prepare_grit(path, tmp_path / "b", size=100, square=True, workers=1)
    sample = open_data(f"shards:{tmp_path / 'b'}")[0]
    assert sample.image.size == sample.parts[0].image.size == (100, 100)
    assert min(sample.image.getpixel((50, 2))) > 240  # the white border


def test_keys_lose_their_dots(encoded, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    (tmp_path / "images").mkdir()
    for key in ("a.1", "a.2"):
        (tmp_path / "images" / f"{key}.jpg").write_bytes(encoded(picture()))
    rows = [{"key": key, "caption": CAPTION, "ref_exps": ROWS} for key in ("a.1", "a.2")]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "g.parquet")
    prepare_grit(tmp_path / "g.parquet", tmp_path / "out", workers=1)
    data = open_data(f"shards:{tmp_path / 'out'}")
    assert [data[i].key for i in range(2)] == ["a_1", "a_2"]


@pytest.fixture
def grit_parquet(encoded, tmp_path) -> Path:
    """Twenty rows, images named by key, id or local url; three are missing, a caption is empty, a key comes twice."""
    import pyarrow as pa
    from pyarrow import parquet

    images, rows = tmp_path / "images", []
    images.mkdir()
    for i in range(20):
        row = {"key": f"k{i:03d}", "id": 1000 + i, "caption": CAPTION, "url": "https://example.org/x.jpg"}
        row |= {"ref_exps": ROWS if i % 2 else [], "noun_chunks": ROWS[2:], "clip_similarity_vitb32": 0.3}
        name = {0: f"k{i:03d}.jpg", 1: f"{1000 + i}.png", 2: f"local_{i}.jpg"}[i % 3]
        if i % 3 == 2:
            row["url"] = f"file://local_{i}.jpg"
        if i not in (4, 5, 6):
            (images / name).write_bytes(encoded(picture(), form="PNG"))
        rows.append(row)
    rows[10]["caption"] = " "
    rows[12]["key"] = "k000"
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "grit.parquet", row_group_size=6)
    return tmp_path / "grit.parquet"


def test_parquet_and_images(grit_parquet, tmp_path):
    report = PREPARERS["grit"](str(grit_parquet), tmp_path / "out", shard_size=8, workers=1)
    dropped = {"image file is missing": 3, "empty caption": 1, "second sample of the same key": 1}
    assert report["dropped"] == {"image file is missing": 3, "empty caption": 1}  # the same key, but in another shard
    assert (report["shards"], report["read"], report["samples"]) == (3, 20, 16)
    assert any("row 4 (key 'k004', id 1004)" in example for example in report["dropped_examples"])
    data = open_data(f"shards:{tmp_path / 'out'}")
    assert len(data) == 16
    assert [p.text for p in data[0].parts] == ["a dog"]  # noun_chunks stand in
    assert [p.text for p in data[1].parts] == ["a red square", "a dog"]
    one = prepare_grit(grit_parquet, tmp_path / "one", images=tmp_path / "images", workers=1)
    assert one["dropped"] == dropped
    assert one["samples"] == 15


def test_phrases_count_from_the_start_of_the_caption_as_it_stands_in_the_file(grit_parquet, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    row = {"key": "k000", "caption": "\n " + CAPTION, "ref_exps": [[22, 27, 0.5, 0.0, 1.0, 1.0, 0.7]]}
    parquet.write_table(pa.Table.from_pylist([row]), grit_parquet)
    prepare_grit(grit_parquet, tmp_path / "out", workers=1)
    sample = open_data(f"shards:{tmp_path / 'out'}")[0]
    assert (sample.texts, [part.text for part in sample.parts]) == ([CAPTION], ["a dog"])


def test_too_many_drops_are_an_error_after_the_report(grit_parquet, tmp_path):
    with pytest.raises(
        ValueError, match=r"16 of 20 samples of .* could be used: 3 image file is missing, 1 empty caption"
    ):
        prepare_grit(grit_parquet, tmp_path / "out", shard_size=8, workers=1, max_dropped=0.1)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["samples"] == 16


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_of_drops_is_one(share, grit_parquet, tmp_path):
    with pytest.raises(ValueError, match="max_dropped is a share, from 0 to 1, got"):
        prepare_grit(grit_parquet, tmp_path / "out", workers=1, max_dropped=share)
    assert not (tmp_path / "out").exists()


def test_sources_that_are_not_raw_grit(raw, encoded, write_tar, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing matches"):
        prepare_grit(tmp_path / "gone.tar", tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="no folder of images"):
        prepare_grit(raw, tmp_path / "x", images=tmp_path / "gone")
    prepare_grit(raw, tmp_path / "out", workers=1)
    with pytest.raises(ValueError, match=r"00000\.tar is in the processed layout already"):
        prepare_grit(tmp_path / "out", tmp_path / "x", workers=1)
    plain = write_tar(tmp_path / "plain.tar", [("a.jpg", encoded()), ("a.txt", "text")])
    with pytest.raises(ValueError, match=r"no sample of .* has boxes in ref_exps or noun_chunks"):
        prepare_grit(plain, tmp_path / "y", workers=1)
    with pytest.raises(ValueError, match=r"unknown layout of raw data 'girt'. Did you mean 'grit'"):
        PREPARERS["girt"]


def test_parquet_without_the_columns_names_those_it_has(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    (tmp_path / "images").mkdir()
    parquet.write_table(pa.table({"url": ["x"], "text": ["y"]}), tmp_path / "g.parquet")
    with pytest.raises(ValueError, match=r"g\.parquet has no column 'caption'; found: url, text"):
        prepare_grit(tmp_path / "g.parquet", tmp_path / "out", workers=1)


def test_a_raw_shard_cut_short_gives_what_is_left(raw, tmp_path):
    path = raw / "0.tar"
    os.truncate(path, 3000)
    report = prepare_grit(raw, tmp_path / "out", workers=1)
    assert report["dropped"]["shard is cut short"] == 1
    assert report["samples"] < 9


def test_captions_that_a_processed_sample_cannot_hold_are_counted(encoded, write_tar, tmp_path):
    captions = [CAPTION, [CAPTION, "two", 3], "a \ud83d"]
    members = [
        member
        for i, caption in enumerate(captions)
        for member in ((f"{i}.jpg", encoded(picture())), (f"{i}.json", {"caption": caption, "ref_exps": ROWS}))
    ]
    report = prepare_grit(write_tar(tmp_path / "raw.tar", members), tmp_path / "out", workers=1)
    assert (report["read"], report["samples"]) == (3, 2)
    assert report["dropped"] == {
        "caption: caption is not text": 1,
        "caption: processed samples have one caption": 1,
        "text is not UTF-8": 1,
        "part: phrase outside the caption": 3,
    }
