import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyvlm.data import open_data
from hyvlm.data.stats import part_statistics, scan_parts


def test_by_hand():
    stats = part_statistics([0, 1, 1, 2, 6])
    assert (stats.samples, stats.parts, stats.mean, stats.max) == (5, 10, 2.0, 6)
    assert stats.histogram == {0: 1, 1: 2, 2: 1, 6: 1}
    assert [stats.share(k) for k in (0, 1, 2, 3, 6)] == [0.2, 0.4, 0.2, 0, 0.2]
    assert [stats.retained(cap) for cap in (0, 1, 2, 3, 5, 6, 9)] == [0, 0.4, 0.6, 0.7, 0.9, 1, 1]
    assert [stats.whole(cap) for cap in (0, 1, 2, 5, 6)] == [0.2, 0.6, 0.8, 0.8, 1]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=50).filter(any), st.integers(1, 14))
def test_a_cap_keeps_what_cutting_every_sample_keeps(counts, cap):
    stats = part_statistics(iter(counts))
    kept = [["part"] * count for count in counts]
    cut = [parts[:cap] for parts in kept]
    assert stats.retained(cap) == pytest.approx(sum(map(len, cut)) / sum(map(len, kept)), rel=1e-12)
    assert stats.whole(cap) == pytest.approx(sum(a == b for a, b in zip(kept, cut, strict=True)) / len(kept), rel=1e-12)
    assert stats.retained(cap) <= stats.retained(cap + 1) <= stats.retained(stats.max) == 1
    assert sum(map(stats.share, stats.histogram)) == pytest.approx(1)


def test_json_holds_all_of_it():
    stats = part_statistics([1, 3], {"image is broken": 2})
    assert json.loads(json.dumps(stats.to_dict())) == {
        "samples": 2,
        "parts": 4,
        "mean": 2.0,
        "max": 3,
        "histogram": {"1": 1, "3": 1},
        "share_of_samples": {"1": 0.5, "3": 0.5},
        "caps": {
            "1": {"parts_retained": 0.5, "samples_whole": 0.5},
            "2": {"parts_retained": 0.75, "samples_whole": 0.5},
            "3": {"parts_retained": 1.0, "samples_whole": 1.0},
        },
        "skipped": {"image is broken": 2},
    }


def test_processed_shards_are_counted_without_a_look_at_an_image(write_tar, tmp_path):
    def shard(number: int, counts: list[int]) -> None:
        members = list[tuple[str, object]]()
        for i, count in enumerate(counts):
            members += [(f"k{i}.child.jpg", b"no image"), (f"k{i}.child.txt", "a caption")]
            for part in range(count):
                members += [(f"k{i}.parent{part:03d}.jpg", b"no image"), (f"k{i}.parent{part:03d}.txt", "a part")]
            members.append((f"k{i}.numparents.txt", str(count)))
        members.append(("k0.parent009.txt", "a phrase without its image"))
        write_tar(tmp_path / f"{number}.tar", members)

    shard(0, [0, 1, 2])
    shard(1, [2, 7])
    opened = list[int]()
    stats = scan_parts(f"shards:{tmp_path}/{{0..1}}.tar", show=lambda numbers: opened.extend(numbers) or numbers)
    assert stats.histogram == {0: 1, 1: 1, 2: 2, 7: 1}
    assert stats.skipped == {"part: no image or no phrase": 2}
    assert opened == []


def test_of_raw_shards_the_boxes_are_read(write_tar, encoded, tmp_path):
    boxes = [[0, 5, 0.0, 0.0, 0.5, 0.5, 0.9], [6, 11, 0.5, 0.5, 1.0, 1.0, 0.8], [0, 5, 0.0, 0.0, 0.0, 0.5, 0.7]]
    grounded = {"caption": "a dog a cat", "ref_exps": boxes}
    members = [("a.jpg", encoded()), ("a.json", grounded), ("b.jpg", b"no image"), ("b.json", grounded)]
    members += [("c.child.jpg", b"no image"), ("c.child.txt", "a caption")]
    members += [("c.parent000.jpg", b"no image"), ("c.parent000.txt", "a part")]
    path = write_tar(tmp_path / "0.tar", members)
    opened = list[int]()
    stats = scan_parts(f"shards:{path}", show=lambda numbers: opened.extend(numbers) or numbers)
    assert opened == [0, 1]
    assert stats.histogram == {1: 1, 2: 1}
    assert sum(stats.skipped.values()) == 2
    assert stats.skipped["part: box without area (x0 >= x1 or y0 >= y1)"] == 1


def test_scenes_are_counted_without_being_drawn():
    samples = open_data("scenes", split="val")
    stats = scan_parts("scenes", "val", show=lambda numbers: pytest.fail("opened") if list(numbers) else numbers)
    assert stats.samples == len(samples)
    assert [len(samples[i].parts) for i in range(4)] == [2, 3, 4, 5]
    assert stats.histogram == {2: 125, 3: 125, 4: 125, 5: 125}


def box_table(encoded, folder, counts: list[int | None]) -> str:
    """Images with so many boxes; None is a picture that cannot be read."""
    rows = []
    for i, count in enumerate(counts):
        (folder / f"{i}.jpg").write_bytes(b"no image" if count is None else encoded())
        boxes = [{"box": [0, 0, 9 + k, 9], "text": f"thing {k}", "unit": "pixel"} for k in range(count or 0)]
        rows.append(json.dumps({"image": f"{i}.jpg", "caption": "a caption", "boxes": boxes}))
    (folder / "table.jsonl").write_text("\n".join(rows))
    return f"table:{folder}/table.jsonl"


def test_samples_of_other_sets_are_opened(encoded, tmp_path):
    opened = list[int]()
    spec = box_table(encoded, tmp_path, [0, 3, None, 1])
    stats = scan_parts(spec, show=lambda numbers: opened.extend(numbers) or numbers)
    assert opened == [0, 1, 2, 3]
    assert stats.histogram == {0: 1, 1: 1, 3: 1}
    assert list(stats.skipped.values()) == [1]


def test_what_cannot_be_counted_is_told(encoded, tmp_path):
    with pytest.raises(ValueError, match=r"table\.jsonl: none of 2 samples has a part"):
        scan_parts(box_table(encoded, tmp_path, [0, 0]))
    with pytest.raises(ValueError, match=r"table\.jsonl: there is no sample to count the parts of; left out: 1 \w"):
        scan_parts(box_table(encoded, tmp_path, [None]))
    with pytest.raises(ValueError, match=r"no sample to count the parts of$"):
        part_statistics([])
    with pytest.raises(ValueError, match="0 parts or more, got -1"):
        part_statistics([1, -1])
    with pytest.raises(TypeError, match="float"):
        part_statistics([1.5])
    with pytest.raises(FileNotFoundError, match="nothing matches"):
        scan_parts("shards:/nowhere/0.tar")
