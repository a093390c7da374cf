"""What a collection's reader gives, and how it says what is wrong with a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import torch
from PIL import Image

from hyvlm.data import load_image
from hyvlm.models import fingerprint, save_model
from hyvlm.models.dual_encoder import build_manifold
from hyvlm.retrieval import Collection, embed
from hyvlm.retrieval.collection import describe_model
from hyvlm.types import BadSample

_fixtures = run_path(str(Path(__file__).with_name("collections_of_points.py")))
DIM, MODELS, tiny = _fixtures["DIM"], _fixtures["MODELS"], _fixtures["tiny"]
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def make(home: Path, manifold: str = "lorentz") -> Path:
    """Three images and two texts, embedded into ``home/made``."""
    (home / "photos").mkdir()
    for name, colour in COLOURS.items():
        Image.new("RGB", (20, 20), colour).save(home / "photos" / f"{name}.png")
    (home / "texts.txt").write_text("a dog\na cat\n")
    model = save_model(tiny(manifold), home / "model")
    embed(model, out=home / "made", images=str(home / "photos"), texts=str(home / "texts.txt"), show_progress=False)
    return home / "made"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("collection"))


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_rows_keys_and_places(made):
    collection = Collection.open(made)
    images, texts = collection.group("images"), collection.group("texts")
    assert collection.images is images
    assert images.keys == ["blue.png", "green.png", "red.png"]
    assert (texts.keys, texts.texts, images.texts) == (["row 1", "row 2"], ["a dog", "a cat"], None)
    assert (images.indices.tolist(), texts.indices.tolist()) == ([0, 1, 2], [0, 1])
    assert (len(images), images.points.shape, images.points.dtype) == (3, (3, DIM), np.float32)
    with pytest.raises(ValueError, match="read-only"):
        images.points[0] = 0


@pytest.mark.parametrize("name", MODELS)
def test_points_radii_and_manifold_of_every_model(name, tmp_path):
    """Against the model itself; the manifold that the manifest rebuilds measures exactly as the model's."""
    collection, model = Collection.open(make(tmp_path, name)), tiny(name)
    pixels = torch.stack([torch.tensor(COLOURS[c]).byte().view(3, 1, 1).expand(3, 16, 16) for c in sorted(COLOURS)])
    with torch.no_grad():
        expected = model.encode_image(pixels)
    points = torch.from_numpy(collection.images.points.copy())
    assert torch.allclose(points, expected, atol=1e-6)
    assert torch.equal(collection.manifold().score(points, points), model.manifold.score(points, points))
    if name == "sphere":
        assert collection.images.radii is None
    else:
        radii = torch.from_numpy(collection.images.radii.copy())
        assert torch.allclose(radii, model.manifold.radius(expected), atol=1e-6)
    collection.check_model(model)


def test_a_learned_curvature_comes_back_to_the_bit():
    for name, bound in (("lorentz", 10.0), ("product l1", 0.1)):
        model = tiny(name)
        lorentz = getattr(model.manifold, "factor", model.manifold)
        for value in (0.3, 1.234567, bound):
            with torch.no_grad():
                lorentz.log_c.fill_(torch.tensor(value).log())
            again = build_manifold(json.loads(json.dumps(describe_model(model)["manifold"])))
            assert torch.equal(getattr(again, "factor", again).log_c, lorentz.log_c)


def test_the_model_and_the_pictures_come_back(made):
    collection = Collection.open(made)
    model, preprocess, tokenizer = collection.load_model()
    assert fingerprint(model) == collection.manifest["model"]["fingerprint"]
    picture = collection.image(2)
    assert picture.getpixel((0, 0)) == COLOURS["red"]
    with torch.no_grad():
        assert np.allclose(model.encode_image(preprocess(picture)[None]), collection.images.points[2:3], atol=1e-6)
        assert np.allclose(model.encode_text(tokenizer(["a cat"])), collection.texts.points[1:], atol=1e-6)
    with pytest.raises(IndexError, match="row 3 of 3 images"):
        collection.image(3)


def test_another_model_is_named_by_what_differs(made, tmp_path):
    collection = Collection.open(made)
    for model, message in (
        (tiny("lorentz", dim=4), "its dimension is 8, that of the model given is 4"),
        (tiny("sphere"), "its manifold has .*name=lorentz, that of the model given has .*name=sphere"),
        (tiny("nearly flat"), r"its manifold has c=1.0, that of the model given has c=9.99.*e-07"),
    ):
        with pytest.raises(ValueError, match=message):
            collection.check_model(model)
    other = tiny("lorentz")
    with torch.no_grad():
        other.image_projection.weight[0, 0] += 1
    with pytest.raises(ValueError, match="its fingerprint of the weights is"):
        collection.load_model(save_model(other, tmp_path / "other"))
    assert collection.load_model(made.parent / "model")[0].dim == DIM


def test_a_source_that_has_gone_or_changed(tmp_path):
    made = make(tmp_path)
    (tmp_path / "photos" / "red.png").write_bytes(b"GIF89a")
    with pytest.raises(ValueError, match="have changed since they were embedded"):
        Collection.open(made).image(0)
    shutil.rmtree(tmp_path / "photos")
    with pytest.raises(ValueError, match="cannot be found any more"):
        Collection.open(made).image(0)


def test_a_picture_that_broke_after_the_source_was_opened(tmp_path):
    collection = Collection.open(make(tmp_path))
    assert collection.image(0).size == (20, 20)
    (tmp_path / "photos" / "red.png").unlink()
    with pytest.raises(BadSample, match=r"red.png: image file is missing"):
        collection.image(2)


def test_a_model_that_has_moved(tmp_path):
    made = make(tmp_path)
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"the model of the collection .* has moved, say where"):
        Collection.open(made).load_model()
    assert Collection.open(made).load_model(tmp_path / "moved")


def test_a_group_that_is_not_there(made, tmp_path):
    embed(made.parent / "model", out=tmp_path / "texts", texts=str(made.parent / "texts.txt"), show_progress=False)
    collection = Collection.open(tmp_path / "texts")
    assert collection.images is None
    with pytest.raises(ValueError, match="has no images: hyvlm embed with --images"):
        collection.group("images")
    with pytest.raises(ValueError, match="groups images and texts, not 'videos'"):
        collection.group("videos")


def test_what_is_no_collection(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        Collection.open(tmp_path / "none")
    with pytest.raises(ValueError, match=r"is no collection: it has no collection.json"):
        Collection.open(tmp_path)
    (tmp_path / ".partial").mkdir()
    with pytest.raises(ValueError, match="is no collection yet: run hyvlm embed again"):
        Collection.open(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}', '{"format": 1, "model": 3, "dtype": "float32"}'])
def test_a_damaged_manifest(copy, text):
    (copy / "collection.json").write_text(text)
    with pytest.raises(ValueError, match=r"collection.json is (cut short or )?not the manifest of a collection"):
        Collection.open(copy)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *[(("groups", "images", key), value) for key in ("count", "total", "source") for value in (None, "x", [])],
        (("groups", "images", "source"), {}),
        (("groups", "images", "source", "fingerprint"), 3),
        (("groups", "videos"), {}),
        *[(("model", key), value) for key in ("path", "fingerprint", "dim", "manifold") for value in (None, [], 2.5)],
        (("groups",), []),
        (("dtype",), 32),
    ],
)
def test_a_manifest_with_an_entry_of_another_kind(copy, path, value):
    manifest = inner = json.loads((copy / "collection.json").read_text())
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (copy / "collection.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"collection.json is not the manifest of a collection"):
        Collection.open(copy)


@pytest.mark.parametrize("group", ["images", "texts"])
def test_a_table_that_is_damaged_inside(copy, group):
    """Its end is whole, so that it opens: what is read later says which file it is."""
    data = bytearray((copy / f"{group}.parquet").read_bytes())
    data[4:120] = b"\xa5" * 116
    (copy / f"{group}.parquet").write_bytes(data)
    found = Collection.open(copy).group(group)
    with pytest.raises(ValueError, match=f"{group}.parquet is damaged or has no column 'key': embed again"):
        found.keys  # noqa: B018


def test_another_format_version(copy):
    manifest = json.loads((copy / "collection.json").read_text())
    (copy / "collection.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(ValueError, match="has format version 99, this hyvlm reads version 1"):
        Collection.open(copy)


@pytest.mark.parametrize("file", ["images.npy", "texts.npy", "images.parquet", "texts.parquet"])
@pytest.mark.parametrize("left", [0, 3, 0.5, -1])
def test_files_that_are_cut_short(copy, file, left):
    data = (copy / file).read_bytes()
    (copy / file).write_bytes(data[: int(len(data) * left) if left == 0.5 else left])
    with pytest.raises(ValueError, match=f"{file} is cut short"):
        Collection.open(copy)
    (copy / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"not whole: .*{file} is missing"):
        Collection.open(copy)


def test_files_that_do_not_fit_each_other(copy):
    np.save(copy / "images.npy", np.zeros((3, DIM), np.float16))
    with pytest.raises(ValueError, match=r"holds float16 \(3, 8\), collection.json says float32 \(3, 8\)"):
        Collection.open(copy)
    np.save(copy / "images.npy", np.zeros((3, DIM), np.float32))
    shutil.copy(copy / "texts.parquet", copy / "images.parquet")
    with pytest.raises(ValueError, match=r"images.parquet has 2 rows, images.npy has 3"):
        Collection.open(copy)


def test_pictures_are_read_as_elsewhere(made):
    again = load_image(made.parent / "photos" / "blue.png")
    assert Collection.open(made).image(0).tobytes() == again.tobytes()
