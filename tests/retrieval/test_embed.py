"""``hyvlm embed``: every kind of source, damaged files, points, settings."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path
from runpy import run_path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from hyvlm.cli.main import main
from hyvlm.data import load_image
from hyvlm.data.sets.image_files import open_pictures
from hyvlm.models import DualEncoder, save_model
from hyvlm.retrieval import Collection
from hyvlm.types import BadSample

_fixtures = run_path(str(Path(__file__).with_name("collections_of_points.py")))
DIM, MODELS, tiny = _fixtures["DIM"], _fixtures["MODELS"], _fixtures["tiny"]
_runs = run_path(str(Path(__file__).with_name("embedding_runs.py")))
encoded, photos, run = (_runs[name] for name in ("encoded", "photos", "run"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tiny("lorentz"), tmp_path_factory.mktemp("home") / "model")


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


# Sources of images


def test_a_folder_with_all_below_it(model, tmp_path):
    photos(tmp_path / "in" / "deep" / "er", 2)
    photos(tmp_path / "in" / ".hidden", 1)
    photos(tmp_path / "in", 1)
    (tmp_path / "in" / "a.JPEG").write_bytes(encoded(3))
    (tmp_path / "in" / "notes.txt").write_text("not an image")
    (tmp_path / "in" / "ein schönes Bild.png").write_bytes(encoded(4))
    os.symlink("nowhere", tmp_path / "in" / "z.png")
    images = run(model, tmp_path / "out", images=tmp_path / "in").images
    assert images.keys == ["00000.png", "a.JPEG", "ein schönes Bild.png", "deep/er/00000.png", "deep/er/00001.png"]
    assert images.info["skipped"] == {
        "folder is hidden": 1,
        "file is no image by its suffix": 1,
        "image file is missing": 1,
    }
    assert images.info["total"] == 6  # a folder, and a file of another kind, are no images


def test_shards_with_and_without_captions(model, tmp_path):
    tar(tmp_path / "0.tar", {"a.png": encoded(0), "b.png": encoded(1), "b.txt": b"a text"})
    tar(tmp_path / "1.tar", {"c.txt": b"no image", "d.png": b"broken", "e.png": encoded(2)})
    expected = {"no image": 1, "image is of no known format": 1}
    for number, spec in enumerate([f"{tmp_path}/{{0..1}}.tar", f"shards:{tmp_path}"]):
        images = run(model, tmp_path / f"out{number}", images=spec).images
        assert images.keys == ["a", "b", "e"]
        assert images.info["skipped"] == expected
        assert images.info["total"] == 5
        assert images.indices.tolist() == [0, 1, 3]
    assert Collection.open(tmp_path / "out0").image(2).tobytes() == Image.open(io.BytesIO(encoded(2))).tobytes()


@pytest.mark.parametrize("content", ["classes", "table"])
def test_data_sets_by_name(model, tmp_path, content):
    photos(tmp_path / "in" / "dog", 2)
    (tmp_path / "t.csv").write_text("image,caption\nin/dog/00000.png,a dog\nin/dog/00001.png,two dogs\n")
    spec = f"folder:{tmp_path / 'in'}" if content == "classes" else f"table:{tmp_path / 't.csv'}"
    collection = run(model, tmp_path / "out", images=spec)
    assert len(collection.images) == 2
    assert collection.image(1).size == (12, 9)


def test_a_data_set_without_images_is_one_line(model, tmp_path, capsys):
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    assert (
        main(["embed", str(model), "--images", f"long-captions:{tmp_path}/t.jsonl", "--out", str(tmp_path / "o")]) == 2
    )
    assert "has no images" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


# Sources of texts

ROWS = [{"caption": "a dog", "key": "k1"}, {"caption": "", "key": "k2"}, {"caption": "a dog", "key": "k3"}]


def text_file(folder: Path, suffix: str) -> Path:
    path = folder / f"t{suffix}"
    if suffix == ".txt":
        path.write_bytes("\ufeffa dog\r\n  \r\na dog".encode())
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        comma = {".csv": ",", ".tsv": "\t"}[suffix]
        path.write_text(
            "\n".join(comma.join(line) for line in (("key", "text"), ("k1", "a dog"), ("k2", ""), ("k3", "a dog")))
        )
    return path


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".tsv", ".jsonl", ".parquet"])
def test_texts_of_every_kind_of_file(model, tmp_path, suffix):
    """Equal texts of two keys are two rows; an empty one is counted."""
    texts = run(model, tmp_path / "out", texts=text_file(tmp_path, suffix)).texts
    assert texts.keys == (["row 1", "row 3"] if suffix == ".txt" else ["k1", "k3"])
    assert texts.texts == ["a dog", "a dog"]
    assert texts.indices.tolist() == [0, 2]
    assert (texts.info["count"], texts.info["total"], texts.info["skipped"]) == (2, 3, {"empty text": 1})
    assert np.allclose(texts.points[0], texts.points[1], atol=1e-6)


def test_captions_of_data_sets(model, tmp_path):
    """All captions of a sample, and those of shards without a look at the images."""
    (tmp_path / "t.csv").write_text('image,caption\na.png,"[""a dog"", ""an animal""]"\nb.png,a cat\n')
    assert run(model, tmp_path / "one", texts=f"table:{tmp_path / 't.csv'}").texts.keys == [
        "a.png#0",
        "a.png#1",
        "b.png",
    ]
    shard = tar(
        tmp_path / "0.tar",
        {"a.png": b"broken", "a.txt": b"a dog", "b.png": encoded(0), "c.png": encoded(1), "c.txt": b""},
    )
    texts = run(model, tmp_path / "two", texts=shard).texts
    assert (texts.keys, texts.texts) == (["a"], ["a dog"])
    assert texts.info["total"] == 3


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.txt", b"", "has no text that could be used"),
        ("t.txt", b"\n \n", "has no text that could be used .2 empty text"),
        ("t.txt", b"\xff\xfe", "row 1 .* is not UTF-8"),
        ("t.csv", b"image,words\na,b\n", "has no column 'caption'"),
        ("t.jsonl", b"{", "row 1 .* is not JSON"),
        ("t.parquet", b"PAR1", "is cut short or no Parquet file"),
        ("t.md", b"a dog", "is no file of texts"),
        ("none.txt", None, "no file of texts"),
        ("nothing", None, "unknown dataset"),
    ],
)
def test_texts_that_cannot_be_read(model, tmp_path, capsys, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    given = str(tmp_path / name) if "." in name else name
    assert main(["embed", str(model), "--texts", given, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0
    assert re.search(message, error)
    assert not (tmp_path / "out").exists()


# What is left out


def test_damaged_files_are_counted_by_reason(model, tmp_path, capsys):
    folder = photos(tmp_path / "in", 40)
    whole = (folder / "00000.png").read_bytes()
    (folder / "00001.png").write_bytes(b"")
    (folder / "00007.png").write_bytes(whole[:-24])
    (folder / "00020.png").write_bytes(b"hello, this is not an image")
    arguments = ["embed", str(model), "--images", str(folder), "--out", str(tmp_path / "out"), "--num-workers", "2"]
    assert main([*arguments, "--batch-size", "3"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-1] == f"collection: {tmp_path / 'out'} (37 of 40 images)"
    assert "1 image is empty" in output.err
    assert "00001.png: image is empty" in output.err
    images = Collection.open(tmp_path / "out").images
    assert images.indices.tolist() == [n for n in range(40) if n not in (1, 7, 20)]
    reasons = {"image is empty", "image is cut short", "image is of no known format"}
    assert images.info["skipped"] == dict.fromkeys(sorted(reasons), 1)


def test_no_image_that_can_be_used_is_one_line(model, tmp_path, capsys):
    folder = photos(tmp_path / "in", 2)
    for path in folder.iterdir():
        path.write_bytes(b"")
    arguments = ["embed", str(model), "--images", str(folder), "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"hyvlm: none of the 2 images of {folder} could be used: 2 image is empty"
    photos(folder, 2)  # and once they are mended, the same folder will do
    assert main(arguments) == 0


@pytest.mark.parametrize("shape", ["empty", "tar inside", "missing"])
def test_a_folder_without_images(model, tmp_path, capsys, shape):
    if shape != "missing":
        (tmp_path / "in").mkdir()
    if shape == "tar inside":
        tar(tmp_path / "in" / "0.tar", {"a.png": encoded(0)})
    assert main(["embed", str(model), "--images", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert {"empty": "no image below", "tar inside": "/*.tar'", "missing": "in"}[shape] in error
    assert error.count("\n") == 1


def test_a_folder_that_may_not_be_read(tmp_path):
    """As a user without rights, which root becomes for the time: what may not be read is counted."""
    folder = photos(tmp_path / "in", 3)
    photos(folder / "shut", 2)
    (folder / "00001.png").chmod(0)
    (folder / "shut").chmod(0)
    for parent in (tmp_path, *(p for p in tmp_path.parents if "pytest-of-" in str(p))):
        parent.chmod(0o755)
    load_image(folder / "00000.png")  # imports what it needs while all of it may be read
    if os.getuid() == 0:
        os.seteuid(65534)
    try:
        samples = open_pictures(str(folder))
        assert samples[2].key == "00002.png"
        with pytest.raises(BadSample, match="image file may not be read"):
            samples[1]
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        (folder / "shut").chmod(0o755)
    assert samples.dropped == {"folder may not be read": 1}
    assert len(samples) == 3


def test_an_out_that_cannot_be_a_folder(model, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    photos(tmp_path / "in", 1)
    for out, message in (("file", "is a file"), ("in", "holds other files, none of a collection")):
        assert main(["embed", str(model), "--images", str(tmp_path / "in"), "--out", str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err


def far_out(factor: float) -> DualEncoder:
    """A model whose images lie ``factor`` times as far out."""
    built = tiny("euclidean")
    with torch.no_grad():
        built.image_projection.weight.mul_(factor)
    return built


def test_points_that_are_not_finite_or_too_far_out(tmp_path):
    photos(tmp_path / "in", 3)
    (tmp_path / "t.txt").write_text("a dog\n")
    far = save_model(far_out(1e6), tmp_path / "far")
    settings = {"images": tmp_path / "in", "texts": tmp_path / "t.txt"}
    assert len(run(far, tmp_path / "float32", **settings).images) == 3
    with pytest.raises(ValueError, match=r"none of the 3 images .* 3 point is too far out for float16"):
        run(far, tmp_path / "float16", **settings, dtype="float16")
    infinite = save_model(far_out(float("nan")), tmp_path / "nan")
    with pytest.raises(ValueError, match="3 point is not finite"):
        run(infinite, tmp_path / "nans", **settings)


def test_float16_is_the_rounded_float32(model, tmp_path):
    folder = photos(tmp_path / "in", 20)
    half = run(model, tmp_path / "half", images=folder, dtype="float16").images
    full = run(model, tmp_path / "full", images=folder).images
    assert half.points.dtype == np.float16
    assert np.array_equal(half.points, full.points.astype(np.float16))
    assert np.array_equal(half.radii, full.radii)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_embeds_both(name, tmp_path):
    """Against encoding one by one, in batches that do not divide the count."""
    built = tiny(name)
    folder, lines = photos(tmp_path / "in", 5), [f"a {word} dog" for word in ("big", "red", "very small")]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    saved = save_model(built, tmp_path / "model")
    made = run(saved, tmp_path / "out", images=folder, texts=tmp_path / "t.txt", batch_size=2)
    _, preprocess, tokenizer = made.load_model()
    with torch.no_grad():
        for row in range(5):
            one = built.encode_image(preprocess(Image.open(folder / f"{row:05d}.png"))[None])[0].numpy()
            assert np.allclose(made.images.points[row], one, atol=1e-5)
        for row, line in enumerate(lines):
            assert np.allclose(made.texts.points[row], built.encode_text(tokenizer([line]))[0].numpy(), atol=1e-5)
    assert made.images.points.shape == (5, DIM)


def test_settings_that_are_wrong(model, tmp_path, capsys):
    folder = photos(tmp_path / "in", 1)
    for options, message in (
        ([], "say what to embed"),
        (["--images", str(folder), "--dtype", "float64"], "float32 or float16, not 'float64'"),
        (["--images", str(folder), "--resize", "stretch"], "resize is 'squash' or 'crop'"),
        (["--images", str(folder), "--split", "test"], "files and folders have no splits"),
        (["--images", str(folder), "--device", "quantum"], "no device 'quantum'"),
        (["--images", "nothing:here"], "unknown dataset 'nothing'"),
        (["--images", "nowhere/in"], "neither a folder nor a data set (hyvlm list datasets) called nowhere/in"),
        (["--images", str(folder / "00000.png")], "00000.png is a file: images are a folder, .tar shards"),
    ):
        assert main(["embed", str(model), *options, "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
    assert main(["embed", str(tmp_path / "no"), "--images", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert "no model at" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_split_is_that_of_the_data_set(model, tmp_path):
    photos(tmp_path / "in" / "test" / "dog", 2)
    (tmp_path / "t.txt").write_text("a dog\n")
    made = run(model, tmp_path / "out", images=f"folder:{tmp_path / 'in'}", texts=tmp_path / "t.txt", split="test")
    assert (len(made.images), len(made.texts)) == (2, 1)
    assert made.image(0).size == (12, 9)
