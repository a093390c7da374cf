"""``hyvlm index`` and ``hyvlm search``: what they print, and one line for what the user can mend."""

import json
import os
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

import hyvlm
from hyvlm.cli.main import main
from hyvlm.models import save_model
from hyvlm.retrieval import Collection
from hyvlm.retrieval.search import Searcher

pytest.importorskip("faiss")
shared = Path(__file__).parents[1] / "retrieval" / "collections_of_points.py"
fixtures = SimpleNamespace(**run_path(str(shared)))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    model = fixtures.tiny("lorentz")
    images, texts = fixtures.clustered(model, 200), fixtures.clustered(model, 80, seed=3)
    return str(fixtures.write_collection(tmp_path / "collection", model, images=images, texts=texts))


def results(printed: str) -> list[dict[str, object]]:
    return list(json.loads(printed)["results"])


def test_a_search_prints_what_the_api_finds(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", folder, "a red bicycle", "--k", "3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    collection = Collection.open(folder)
    model, _, tokenizer = collection.load_model()
    with torch.no_grad():
        query = model.encode_text(tokenizer(["a red bicycle"]))
    hits = Searcher(collection, model).search(query, by="text", k=3)
    found = printed["results"]
    assert [result["key"] for result in found] == [collection.group("images").keys[row] for row in hits.rows[0]]
    assert [result["score"] for result in found] == pytest.approx(hits.scores[0].tolist())
    assert printed["score"] == "Lorentz inner product"
    assert main(["search", folder, "a red bicycle", "--k", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "3 of 200 images; score: Lorentz inner product" in lines[0]
    assert lines[1].split()[0] == "1"
    assert lines[1].split()[-1] == found[0]["key"]


@pytest.mark.parametrize("text", ["一辆红色的自行车", "دراجة حمراء", "🚲", "a" * 5000])
def test_any_script_and_length(text: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", folder, text, "--in", "texts", "--json"]) == 0
    found = results(capsys.readouterr().out)
    assert len(found) == 10
    assert str(found[0]["text"]).startswith("caption")


def test_images_and_keys_are_queries(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (20, 30), "red").save(tmp_path / "red.png")
    for group in ("images", "texts"):
        assert main(["search", folder, "--image", str(tmp_path / "red.png"), "--in", group, "--json"]) == 0
        assert len(results(capsys.readouterr().out)) == 10
    assert main(["search", folder, "--key", "image-7", "--json"]) == 0
    assert results(capsys.readouterr().out)[0]["key"] == "image-7"
    assert main(["search", folder, "--key", "text-7", "--in", "texts"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("text-7  caption 7")


@pytest.mark.parametrize("kind", ["exact", "ivf", "hnsw"])
def test_an_index_is_made_and_used(kind: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", folder, "a cat", "--in", "texts", "--json"]
    assert main(asked) == 0
    plain = results(capsys.readouterr().out)
    assert main(["index", folder, "--kind", kind]) == 0
    printed = capsys.readouterr().out
    assert f"({kind}, 200 images)" in printed
    assert f"({kind}, 80 texts)" in printed
    assert not [path.name for path in Path(folder).iterdir() if path.name.startswith(".")]
    wide = {"exact": [], "ivf": ["--approximate", "--nprobe", "99"], "hnsw": ["--approximate", "--ef-search", "80"]}
    assert main([*asked, *wide[kind]]) == 0
    found = results(capsys.readouterr().out)
    assert [result["key"] for result in found] == [result["key"] for result in plain]


def test_filters(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", folder, "a cat", "--radius-min", "0.5", "--radius-max", "1", "--k", "200", "--json"]) == 0
    radii = [result["radius"] for result in results(capsys.readouterr().out)]
    assert radii
    assert all(0.5 <= float(radius) <= 1 for radius in radii)  # type: ignore[arg-type]
    assert main(["search", folder, "a cat", "--within", "an animal", "--k", "200", "--json"]) == 0
    assert len(results(capsys.readouterr().out)) < 200
    assert main(["search", folder, "a cat", "--radius-min", "50"]) == 0
    assert "none of the 200 images passes the filters" in capsys.readouterr().err


def test_a_vector_store(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lancedb")
    assert main(["index", folder, "--to", f"lancedb:{tmp_path / 'store'}", "--group", "texts"]) == 0
    assert capsys.readouterr().out == f"texts: 80 rows in lancedb:{tmp_path / 'store'}\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["search", "{folder}"], "look for one thing"),
        (["search", "{folder}", "a cat", "--key", "image-1"], "look for one thing"),
        (["search", "{folder}", "  "], "the text is empty"),
        (["search", "{folder}", "a cat", "--within", ""], "the text is empty"),
        (["search", "{folder}", "a cat", "--in", "image"], "images"),
        (["search", "{folder}", "a cat", "--approximate"], "make one with hyvlm index"),
        (["search", "{folder}", "a cat", "--nprobe", "4"], "add --approximate"),
        (["search", "{folder}", "a cat", "--radius-min", "2", "--radius-max", "1"], "radii must be"),
        (["search", "{folder}", "--image", "{folder}/collection.json"], "no picture that can be read"),
        (["search", "{folder}", "--image", "nowhere.png"], "there is no picture"),
        (["search", "{folder}", "--key", "image-999"], "has the key 'image-999'"),
        (["search", "{folder}", "a cat", "--model", "{other}"], "is of another model"),
        (["search", "nowhere", "a cat"], "no collection at nowhere"),
        (["index", "{folder}", "--kind", "ivff"], "ivf"),
        (["index", "{folder}", "--group", "image"], "images"),
        (["index", "{folder}", "--model", "{other}"], "is of another model"),
        (["index", "{folder}", "--to", "qdrant:x"], "lancedb:DIR"),
        (["index", "{folder}", "--to", "lancedb:{folder}/collection.json"], "collection.json is a file"),
        (["index", "{folder}", "--to", "lancedb:{folder}/collection.json/x"], "collection.json is a file"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], hint: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = hyvlm.load(Path(folder) / "model")[0]
    with torch.no_grad():
        other.manifold.log_c.fill_(0.5)  # type: ignore[union-attr, operator]
    save_model(other, tmp_path / "other")
    before = sorted(path.name for path in Path(folder).iterdir())
    assert main([argument.format(folder=folder, other=tmp_path / "other") for argument in arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert hint in error
    assert len(error.splitlines()) == 1
    assert sorted(path.name for path in Path(folder).iterdir()) == before


def test_a_sphere_has_no_cones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = fixtures.tiny("sphere")
    folder = str(fixtures.write_collection(tmp_path / "flat", model, images=fixtures.clustered(model, 30)))
    assert main(["search", folder, "a cat", "--within", "an animal"]) == 2
    assert "the sphere of CLIP has none" in capsys.readouterr().err
    assert main(["search", folder, "a cat"]) == 0
    assert "score: cosine" in capsys.readouterr().out


@pytest.mark.parametrize("k", [8, 10**6, 10**15])
def test_more_than_there_are(k: int, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    count = len(Collection.open(folder).images or ())
    for way in ([], ["--radius-min", "0"]):
        assert main(["search", folder, "a cat", "--json", "--k", str(k), *way]) == 0
        assert len(json.loads(capsys.readouterr().out)["results"]) == min(k, count)


def test_an_index_of_few_points_is_made_without_a_warning(folder: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["index", folder, "--kind", "ivf"]) == 0
    assert capfd.readouterr().err == ""


def test_names_of_any_kind_are_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A newline, bytes that are no UTF-8, and a text of 200,000 characters; the bytes find their image again."""
    pictures = tmp_path / "in"
    pictures.mkdir()
    odd = os.fsdecode(b"odd\xff.png")
    for name in ("a\nb.png", odd, "plain.png"):
        Image.new("RGB", (9, 9)).save(pictures / name)
    (tmp_path / "t.txt").write_text("word " * 40_000 + "\na dog\n")
    model = str(save_model(fixtures.tiny("lorentz"), tmp_path / "model"))
    out = str(tmp_path / "out")
    options = ["--images", str(pictures), "--texts", str(tmp_path / "t.txt"), "--num-workers", "0"]
    assert main(["embed", model, *options, "--out", out]) == 0
    capsys.readouterr()
    for way in (
        ["search", out, "--key", odd],
        ["search", out, "a", "--in", "texts"],
        ["traverse", out, "--any", "--from-key", odd],
    ):
        assert main(way) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) < 300
        assert all(line.strip()[0].isdigit() for line in lines[1:-1])
