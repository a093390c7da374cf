import os
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hyvlm.data import TrainViews, open_data, train_loader
from hyvlm.data.sets.shards import expand_shards
from hyvlm.data.tarindex import cache_folder, index_shard, scan_shard
from hyvlm.types import BadSample

COLOURS = ["red", "lime", "blue", "black", "white", "yellow", "cyan", "magenta", "gray", "orange"]


@pytest.fixture
def plain(encoded, write_tar):
    """A shard of ``n`` images with txt captions."""

    def write(path: Path, n: int = 10, start: int = 0) -> Path:
        members = []
        for i in range(start, start + n):
            members += [(f"{i:05d}.jpg", encoded(COLOURS[i % 10])), (f"{i:05d}.txt", f"picture {i}")]
        return write_tar(path, members)

    return write


@pytest.fixture
def processed(encoded, write_tar):
    """A shard in the processed GRIT layout; sample ``i`` has ``i`` parts."""

    def members(i: int) -> list[tuple[str, object]]:
        own = [(f"k{i}.child.jpg", encoded("white")), (f"k{i}.child.txt", f"caption {i}")]
        own.append((f"k{i}.numparents.txt", str(i)))
        for p in range(i):
            own += [(f"k{i}.parent{p:03d}.jpg", encoded(COLOURS[p], (20, 20))), (f"k{i}.parent{p:03d}.txt", COLOURS[p])]
        return own

    def write(path: Path, n: int = 4) -> Path:
        return write_tar(path, [m for i in range(n) for m in members(i)])

    return write


def keys(data) -> list[str]:
    return [data[i].key for i in range(len(data))]


def test_processed_layout(processed, tmp_path):
    data = open_data(f"shards:{processed(tmp_path / '0.tar')}")
    assert keys(data) == ["k0", "k1", "k2", "k3"]
    sample = data[3]
    assert sample.texts == ["caption 3"]
    assert [p.text for p in sample.parts] == COLOURS[:3]
    assert [p.image.getpixel((9, 9))[0] > 200 for p in sample.parts] == [True, False, False]
    assert data[0].parts == []
    assert not data.dropped


def test_a_bare_path_needs_no_name(plain, tmp_path):
    assert len(open_data(str(plain(tmp_path / "0.TAR".lower())))) == 10


def test_raw_layout_cuts_boxes_and_chooses_greedily(encoded, write_tar, tmp_path):
    image = Image.new("RGB", (100, 100), "black")
    image.paste((255, 255, 255), (50, 0, 100, 50))
    caption = "a white square beside a dog"
    rows = [
        [0, 14, 0.5, 0.0, 1.0, 0.5, 0.7],
        [0, 14, 0.5, 0.0, 1.0, 0.52, 0.9],  # the same thing, better
        [22, 27, 0.0, 0.0, 0.4, 1.0, 0.8],
        [2, 14, 0.6, 0.1, 0.7, 0.2, 0.6],  # nested in the first: it stays
        [0, 14, 0.3, 0.3, 0.3, 0.9, 0.5],
        [0, 14, 1.5, 1.5, 2.0, 2.0, 0.5],
        [20, 90, 0.0, 0.0, 0.4, 0.4, 0.5],
        [1, 2, 3],
    ]
    document = {"caption": caption, "ref_exps": rows, "noun_chunks": []}
    path = write_tar(tmp_path / "0.tar", [("k.jpg", encoded(image, quality=95)), ("k.json", document)])
    sample = open_data(str(path))[0]
    assert sample.texts == [caption]
    assert [p.text for p in sample.parts] == ["a white square", "a dog", "white square"]
    assert sample.parts[0].image.size == (50, 52)
    assert sample.parts[2].image.size == (10, 10)
    assert np.asarray(sample.parts[2].image).min() > 240
    assert Counter(bad.reason for bad in sample.dropped) == {
        "box without area (x0 >= x1 or y0 >= y1)": 1,
        "box outside the image": 1,
        "phrase outside the caption": 1,
        "row is not [start, end, x0, y0, x1, y1, score]": 1,
    }
    assert str(sample.dropped[0]).startswith(f"part 4 of sample 'k' of {path}: box")


def test_noun_chunks_stand_in_for_missing_expressions(encoded, write_tar, tmp_path):
    document = {"caption": "a dog", "ref_exps": [], "noun_chunks": [[0, 5, 0, 0, 1, 1, 1.0]]}
    path = write_tar(tmp_path / "0.tar", [("k.jpg", encoded()), ("k.json", document), ("k.txt", "a dog")])
    assert [p.text for p in open_data(str(path))[0].parts] == ["a dog"]


@pytest.mark.parametrize("suffix", ["jpg", "JPG", "jpeg", "png", "webp"])
def test_plain_layout_takes_images_of_any_kind_and_case(suffix, encoded, write_tar, tmp_path):
    members = [
        (f"x.{suffix}", encoded()),
        ("x.txt", "by txt"),
        (f"y.{suffix}", encoded()),
        ("y.json", {"caption": "by json"}),
    ]
    data = open_data(str(write_tar(tmp_path / "0.tar", members)))
    assert [data[i].texts for i in range(2)] == [["by txt"], ["by json"]]


def test_members_that_are_not_adjacent_belong_together(encoded, write_tar, tmp_path):
    members = [("0.jpg", encoded("red")), ("1.jpg", encoded("blue")), ("0.txt", "red"), ("1.txt", "blue")]
    data = open_data(str(write_tar(tmp_path / "0.tar", members)))
    assert [data[i].texts[0] for i in range(len(data))] == ["red", "blue"]
    assert data[1].image.getpixel((5, 5))[2] > 200


def test_equal_keys_in_two_shards_are_two_samples_and_in_one_a_counted_drop(encoded, write_tar, tmp_path, caplog):
    for name, text in (("a", "one"), ("b", "two")):
        write_tar(tmp_path / f"{name}.tar", [("0.jpg", encoded()), ("0.txt", text)])
    data = open_data(f"shards:{tmp_path}")
    assert [data[i].texts[0] for i in range(len(data))] == ["one", "two"]

    double = [("0.jpg", encoded()), ("0.txt", "first"), ("0.jpg", encoded()), ("0.txt", "second")]
    data = open_data(str(write_tar(tmp_path / "c.tar", double)))
    assert len(data) == 1
    assert data[0].texts == ["first"]
    assert data.dropped == {"second sample of the same key": 1}
    assert "c.tar" in data.dropped_examples[0]
    assert "second sample of the same key" in caplog.text


def test_names_with_dots_are_told_about(encoded, write_tar, tmp_path):
    dotted = [(f"a.{i}.{s}", encoded() if s == "jpg" else "text") for i in (1, 2) for s in ("jpg", "txt")]
    with pytest.raises(
        ValueError, match=r"0 of 1 samples .* found: 1\.jpg, 1\.txt, 2\.jpg, 2\.txt; a key ends at the first dot"
    ):
        open_data(str(write_tar(tmp_path / "0.tar", dotted)))
    data = open_data(str(write_tar(tmp_path / "1.tar", [*dotted, ("b.jpg", encoded()), ("b.txt", "fine")])))
    assert keys(data) == ["b"]
    assert data.dropped == {"name has dots before its suffix": 1}


def test_shards_without_captions_say_what_they_hold(encoded, write_tar, tmp_path):
    members = [m for i in range(20) for m in ((f"{i}.jpg", encoded()), (f"{i}.cls", str(i)))]
    path = write_tar(tmp_path / "0.tar", members)
    with pytest.raises(ValueError, match=f"{path}: 0 of 20 samples have txt/json caption; found: cls, jpg"):
        open_data(str(path))


def test_captions_that_are_empty_or_not_utf8_are_bad_samples(encoded, write_tar, tmp_path):
    texts = ["fine", "  \n", "caf\xe9".encode("latin-1"), "\ufeffmarked", "emoji 🐕 犬"]
    members = [m for i, t in enumerate(texts) for m in ((f"{i}.jpg", encoded()), (f"{i}.txt", t))]
    members += [("5.jpg", encoded()), ("5.json", b"{not json"), ("6.jpg", encoded()), ("6.json", {"url": "x"})]
    data = open_data(str(write_tar(tmp_path / "0.tar", members)))
    got = []
    for i in range(len(data)):
        try:
            got.append(data[i].texts[0])
        except BadSample as bad:
            got.append(bad.reason)
    assert got == [
        "fine",
        "empty caption",
        "text is not UTF-8",
        "marked",
        "emoji 🐕 犬",
        "json cannot be read",
        "empty caption",
    ]


def test_captions_of_a_json_may_be_a_list_and_must_be_text(encoded, write_tar, tmp_path):
    captions = [["one", " ", "uno"], ["one", None, "a \ud83d"], 5, {"en": "one"}, [None], "a \ud83d", [], None]
    members = [m for i, c in enumerate(captions) for m in ((f"{i}.jpg", encoded()), (f"{i}.json", {"caption": c}))]
    members += [("8.jpg", encoded()), ("8.json", {"caption": 5}), ("8.txt", "by txt")]
    path = write_tar(tmp_path / "0.tar", members)
    data = open_data(str(path))
    got = []
    for i in range(len(data)):
        try:
            got.append(data[i].texts)
        except BadSample as bad:
            got.append(bad.reason)
    faults = ["caption is not text"] * 3 + ["text is not UTF-8"] + ["empty caption"] * 2
    assert got == [["one", "uno"], ["one"], *faults, ["by txt"]]
    assert [str(bad) for bad in data[1].dropped] == [
        f"caption 1 of sample '1' of {path}: caption is not text",
        f"caption 2 of sample '1' of {path}: text is not UTF-8",
    ]


def test_shards_have_no_splits(plain, tmp_path):
    path = plain(tmp_path / "0.tar")
    with pytest.raises(ValueError, match=r"splits all, not 'train': leave the split out \(data\.split=null\)$"):
        open_data(str(path), split="train")


def test_a_broken_image_is_a_bad_sample_and_names_shard_and_key(encoded, write_tar, tmp_path):
    path = write_tar(
        tmp_path / "0.tar", [("a.jpg", b"no image"), ("a.txt", "text"), ("b.jpg", encoded()), ("b.txt", "b")]
    )
    data = open_data(str(path))
    with pytest.raises(BadSample, match=f"sample 'a' of {path}: image is of no known format"):
        data[0]
    assert data[1].key == "b"


def test_broken_and_nameless_parts_are_counted(encoded, write_tar, tmp_path, tokenizer):
    members = [
        *(("k.child.jpg", encoded()), ("k.child.txt", "c"), ("k.numparents.txt", "4")),
        *(("k.parent000.jpg", b"broken"), ("k.parent000.txt", "broken")),
        *(("k.parent001.jpg", encoded()), ("k.parent001.txt", " ")),
        ("k.parent002.jpg", encoded()),
        *(("k.parent003.jpg", encoded("blue")), ("k.parent003.txt", "good")),
    ]
    data = open_data(str(write_tar(tmp_path / "0.tar", members)))
    assert data.dropped == {"part: no image or no phrase": 1}
    sample = data[0]
    assert [p.text for p in sample.parts] == ["broken", "good"]
    views = TrainViews(data, tokenizer, image_size=8, augment={"name": "none"}, parts={"max": 5, "choice": "first"})
    (batch,) = train_loader(views, 1, steps=1)
    assert len(batch.part_image) == 1
    assert batch.skipped == {"part: image is of no known format": 1, "part: empty phrase": 1}


def offset_in_member(path: Path, name: str, share: float) -> int:
    import tarfile

    with tarfile.open(path) as tar:
        info = tar.getmember(name)
        return info.offset_data + int(info.size * share)


@pytest.mark.parametrize(
    ("member", "share", "left"), [("00006.txt", 0.5, 6), ("00006.jpg", 0.5, 6), ("00007.jpg", 0.0, 7)]
)
def test_a_shard_cut_short_loses_only_its_tail(member, share, left, plain, tmp_path, caplog):
    path = plain(tmp_path / "0.tar")
    os.truncate(path, offset_in_member(path, member, share))
    data = open_data(str(path))
    assert keys(data) == [f"{i:05d}" for i in range(left)]
    assert data.dropped == {"shard is cut short": 1}
    assert "shard is cut short" in caplog.text
    assert "0.tar" in caplog.text
    assert data[left - 1].image.size == (40, 30)


def test_any_cut_leaves_only_whole_samples(processed, tmp_path):
    path = processed(tmp_path / "0.tar")
    whole = path.read_bytes()
    previous = 0
    for cut in range(512, len(whole) - 1024, 1500):
        path.write_bytes(whole[:cut])
        index = scan_shard(path)
        assert index.drops.counts["shard is cut short"] == 1
        assert [s["key"].decode() for s in index.samples] == [f"k{i}" for i in range(len(index.samples))]
        assert index.samples["parts"].tolist() == list(range(len(index.samples)))
        assert len(index.samples) >= previous
        previous = len(index.samples)
    assert previous == 3


def test_damage_in_the_middle_is_told_and_does_not_go_unseen(plain, tmp_path):
    path = plain(tmp_path / "0.tar")
    data = bytearray(path.read_bytes())
    start = offset_in_member(path, "00005.jpg", 0) - 512
    data[start : start + 512] = b"\x55" * 512
    path.write_bytes(data)
    opened = open_data(str(path))
    assert keys(opened) == [f"{i:05d}" for i in range(5)]
    assert opened.dropped == {"shard is cut short": 1}


def test_files_that_are_no_plain_tar_are_refused(plain, tmp_path):
    import gzip

    path = plain(tmp_path / "0.tar")
    (tmp_path / "1.tar").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "2.tar").write_bytes(b"no tar at all " * 100)
    with pytest.raises(ValueError, match=r"1\.tar is a compressed tar file; unpack"):
        open_data(str(tmp_path / "1.tar"))
    with pytest.raises(ValueError, match=r"2\.tar is not a tar file"):
        open_data(str(tmp_path / "2.tar"))


def test_empty_shards_are_told_about_and_only_empty_ones_are_an_error(plain, write_tar, tmp_path, caplog):
    empty = write_tar(tmp_path / "empty.tar", [])
    (tmp_path / "zero.tar").touch()
    with pytest.raises(ValueError, match="hold no samples"):
        open_data(str(empty))
    with pytest.raises(ValueError, match="hold no samples"):
        open_data(str(tmp_path / "zero.tar"))
    plain(tmp_path / "full.tar")
    data = open_data(f"shards:{tmp_path}")
    assert len(data) == 10
    assert "empty.tar holds no samples" in caplog.text
    assert data.dropped == {"shard is cut short": 1}


def test_links_and_folders_in_a_tar_are_not_followed(encoded, tmp_path):
    import io
    import tarfile

    (tmp_path / "secret.txt").write_text("secret")
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for name, data in (("a.jpg", encoded()), ("../b.jpg", encoded()), ("../b.txt", b"up")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("a.txt")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.txt")
        tar.addfile(link)
        folder = tarfile.TarInfo("a.json")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    before = sorted(tmp_path.iterdir())
    data = open_data(str(tmp_path / "0.tar"))
    assert keys(data) == ["../b"]
    assert data.dropped == {"no txt or json caption": 1}
    assert sorted(tmp_path.iterdir()) == before


def test_patterns(plain, tmp_path):
    paths = [plain(tmp_path / f"{i:05d}.tar", 1, i) for i in range(4)]
    t = str(tmp_path)
    assert expand_shards(f"{t}/{{00000..00003}}.tar") == paths
    assert expand_shards(f"{t}/*.tar") == paths
    assert expand_shards(t) == paths
    assert expand_shards(f"{t}/00001.tar,{t}/0000{{2,3}}.tar") == paths[1:]
    with pytest.raises(FileNotFoundError, match=r"nothing matches '.*nowhere/\{00\.\.03\}\.tar'"):
        expand_shards(f"{t}/nowhere/{{00..03}}.tar")
    with pytest.raises(FileNotFoundError, match=r"4 of 6 shards .* first that is missing is .*00004\.tar"):
        expand_shards(f"{t}/{{00000..00005}}.tar")
    with pytest.raises(ValueError, match="listed twice"):
        open_data(f"shards:{t}/*.tar,{t}/00000.tar")
    with pytest.raises(ValueError, match="needs a location"):
        open_data("shards")


def test_what_shards_do_not_offer(plain, tmp_path):
    path = str(plain(tmp_path / "0.tar"))
    with pytest.raises(ValueError, match="shards offers the contents pairs, not 'labels'"):
        open_data(path, content="labels")
    with pytest.raises(ValueError, match="shards offers the splits all, not 'val'"):
        open_data(path, split="val")


def test_the_index_is_cached_and_remade_when_the_shard_changes(plain, tmp_path, monkeypatch):
    path = plain(tmp_path / "0.tar")
    first = open_data(str(path))
    (folder,) = cache_folder().iterdir()

    with monkeypatch.context() as patch:
        patch.setattr("hyvlm.data.tarindex.scan_shard", lambda p: pytest.fail("scanned again"))
        again = open_data(str(path))
        assert keys(again) == keys(first)
        assert again.fingerprint == first.fingerprint

    (folder / "samples.npy").write_bytes(b"damaged")
    assert keys(open_data(str(path))) == keys(first)
    plain(path, 5)
    assert len(open_data(str(path))) == 5
    assert open_data(str(path)).fingerprint != first.fingerprint
    assert not [f for f in cache_folder().iterdir() if f.name.startswith(".draft")]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(plain, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    data = open_data(str(plain(tmp_path / "0.tar")))
    assert len(data) == 10
    assert keys(pickle.loads(pickle.dumps(data))) == keys(data)


def test_an_index_crosses_processes_without_its_arrays(plain, tmp_path):
    index = index_shard(plain(tmp_path / "0.tar", 200))
    sent = pickle.dumps(index)
    assert len(sent) < 1500
    assert np.array_equal(pickle.loads(sent).samples, index.samples)


def test_many_shards_are_indexed_in_order(plain, tmp_path):
    for i in range(10):
        plain(tmp_path / f"{i}.tar", 2, 2 * i)
    assert keys(open_data(f"shards:{tmp_path}")) == [f"{i:05d}" for i in range(20)]


def test_fewer_shards_than_workers_and_ranks(plain, tmp_path, tokenizer):
    for i in range(2):
        plain(tmp_path / f"{i}.tar", 5, 5 * i)
    views = TrainViews(open_data(f"shards:{tmp_path}"), tokenizer, image_size=8, augment={"name": "none"})
    seen: Counter[str] = Counter()
    for rank in range(2):
        for batch in train_loader(views, 4, steps=3, workers=2, rank=rank, world_size=2):
            seen.update(batch.keys)
    assert seen == Counter(f"{i:05d}" for i in range(10))


def test_a_shard_that_vanishes_during_a_run_is_an_error(plain, tmp_path):
    path = plain(tmp_path / "0.tar")
    data = open_data(str(path))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"0\.tar was there when the run began"):
        data[0]
    with pytest.raises(IndexError):
        data[10]


def test_webdataset_reads_the_same_samples(processed, tmp_path):
    import webdataset

    path = processed(tmp_path / "0.tar")
    data = open_data(str(path))
    theirs = list(webdataset.WebDataset(str(path), shardshuffle=False))
    assert [s["__key__"] for s in theirs] == keys(data)
    for i, sample in enumerate(theirs):
        assert sample["child.txt"].decode() == data[i].texts[0]
        assert int(sample["numparents.txt"]) == len(data[i].parts)
        for p, part in enumerate(data[i].parts):
            assert sample[f"parent{p:03d}.txt"].decode() == part.text
