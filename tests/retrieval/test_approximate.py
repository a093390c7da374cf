"""Approximate search: candidates from FAISS, ranked by the model's score; files of a collection, and their refusal."""

import json
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hyvlm.geometry import Lorentz
from hyvlm.retrieval import Collection, approximate
from hyvlm.retrieval.approximate import ApproximateIndex, cells_for
from hyvlm.retrieval.index import open_prepared, write_prepared
from hyvlm.retrieval.search import Searcher

pytest.importorskip("faiss")
fixtures = SimpleNamespace(**run_path(str(Path(__file__).with_name("collections_of_points.py"))))
MODELS, clustered, tiny, write_collection = (
    fixtures.MODELS,
    fixtures.clustered,
    fixtures.tiny,
    fixtures.write_collection,
)


def recall(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Share of the rows that were to be found."""
    return float((found.unsqueeze(-1) == expected.unsqueeze(-2)).any(1).double().mean())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_it_finds_nearly_all_that_exact_search_finds(name: str, kind: str) -> None:
    model = tiny(name)
    points, queries = clustered(model, 2000), clustered(model, 20, seed=1)
    index = ApproximateIndex.build(model.manifold, points.numpy(), kind)
    exact = Searcher.over(model, points).search(queries, by="image")
    wide = {"nprobe": cells_for(2000)} if kind == "ivf" else {"ef_search": 2000}
    found = Searcher.over(model, points, approximate=index).search(queries, by="image", **wide)
    assert recall(found.rows, exact.rows) >= 0.98
    same = found.rows == exact.rows
    torch.testing.assert_close(found.scores[same], exact.scores[same], rtol=1e-12, atol=1e-12)


def test_more_cells_find_more() -> None:
    model = tiny("lorentz")
    points, queries = clustered(model, 4000, clusters=400), clustered(model, 40, seed=1, clusters=400)
    index = ApproximateIndex.build(model.manifold, points.numpy(), "ivf")
    searcher = Searcher.over(model, points, approximate=index)
    exact = Searcher.over(model, points).search(queries, by="text")
    few, many = (recall(searcher.search(queries, by="text", nprobe=n).rows, exact.rows) for n in (1, 30))
    assert few < many
    assert many > 0.95


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
@pytest.mark.parametrize("share", [0.5, 0.01])
def test_filters_hold(kind: str, share: float) -> None:
    """A mask for FAISS where many pass; where few do, the search is exact."""
    model = tiny("lorentz")
    points, queries = clustered(model, 3000), clustered(model, 10, seed=1)
    highest = float(model.manifold.radius(points).detach().quantile(share))
    index = ApproximateIndex.build(model.manifold, points.numpy(), kind)
    searcher = Searcher.over(model, points, approximate=index)
    wide = {"nprobe": 100} if kind == "ivf" else {"ef_search": 3000}
    found = searcher.search(queries, by="text", radius_max=highest, **wide)
    exact = Searcher.over(model, points).search(queries, by="text", radius_max=highest)
    assert (searcher.radii()[found.rows[found.rows >= 0].numpy()] <= highest).all()
    assert recall(found.rows, exact.rows) >= (1.0 if share < 0.1 else 0.95)


def test_an_inverted_file_in_parts_holds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(approximate, "PART", 700)
    monkeypatch.setattr(approximate, "ADDED_AT_ONCE", 300)
    model = tiny("lorentz")
    collection = Collection.open(write_collection(tmp_path / "here", model, images=clustered(model, 2000)))
    ApproximateIndex.write(collection, model, "images", "ivf")
    names = {path.name for path in collection.folder.iterdir() if "faiss" in path.name}
    assert names == {"images.faiss", "images.faiss.1", "images.faiss.2", "images.faiss.json"}
    opened = Collection.open((tmp_path / "here").rename(tmp_path / "moved"))
    queries = clustered(model, 5, seed=1)
    exact = Searcher(opened, model).search(queries, by="text", radius_max=1.0)
    found = Searcher(opened, model, exact=False).search(queries, by="text", radius_max=1.0, nprobe=1000)
    assert (found.rows == exact.rows).all()
    assert capfd.readouterr().out == ""
    monkeypatch.setattr(approximate, "PART", 5000)
    ApproximateIndex.write(opened, model, "images", "ivf")
    assert not (opened.folder / "images.faiss.1").exists()


@pytest.mark.parametrize("kind", ["exact", "ivf", "hnsw"])
def test_a_written_index_is_used(kind: str, tmp_path: Path) -> None:
    model = tiny("lorentz")
    collection = Collection.open(write_collection(tmp_path, model, images=clustered(model, 500)))
    queries = clustered(model, 5, seed=1)
    expected = Searcher(collection, model).search(queries, by="text")
    if kind == "exact":
        assert write_prepared(collection, model, "images") == tmp_path / "images.exact.npy"
        prepared = open_prepared(collection, "images")
        assert prepared is not None
        assert isinstance(prepared.rows, np.memmap)
        found = Searcher(collection, model).search(queries, by="text")
    else:
        ApproximateIndex.write(collection, model, "images", kind)  # type: ignore[arg-type]
        found = Searcher(collection, model, exact=False).search(queries, by="text")
    assert recall(found.rows, expected.rows) > (0.99 if kind == "exact" else 0.9)


@pytest.mark.parametrize("kind", ["exact", "ivf"])
def test_an_index_older_than_its_collection_is_refused(kind: str, tmp_path: Path) -> None:
    model = tiny("lorentz")
    collection = Collection.open(write_collection(tmp_path, model, images=clustered(model, 300)))
    if kind == "exact":
        write_prepared(collection, model, "images")
    else:
        ApproximateIndex.write(collection, model, "images", "ivf")
    newer = Collection.open(write_collection(tmp_path, model, images=clustered(model, 300, seed=5)))
    with pytest.raises(ValueError, match="was made of other images"):
        Searcher(newer, model, exact=kind == "exact")


def test_a_collection_of_another_model_is_refused(tmp_path: Path) -> None:
    model, other = tiny("lorentz"), tiny("lorentz")
    with torch.no_grad():
        other.manifold.log_c.fill_(0.1)  # type: ignore[union-attr]
    assert isinstance(other.manifold, Lorentz)
    collection = Collection.open(write_collection(tmp_path, model, images=clustered(model, 50)))
    for use in (lambda: Searcher(collection, other), lambda: write_prepared(collection, other, "images")):
        with pytest.raises(ValueError, match="another model"):
            use()
    with pytest.raises(ValueError, match="another model"):
        ApproximateIndex.write(collection, other, "images", "ivf")


def test_damaged_and_missing_indexes(tmp_path: Path) -> None:
    model = tiny("lorentz")
    collection = Collection.open(write_collection(tmp_path, model, images=clustered(model, 200)))
    with pytest.raises(FileNotFoundError, match="make one with hyvlm index"):
        Searcher(collection, model, exact=False)
    with pytest.raises(ValueError, match=r"kind of index 'ifv'.*ivf"):
        ApproximateIndex.write(collection, model, "images", "ifv")  # type: ignore[arg-type]
    for kind in ("ivf", "hnsw"):
        written = ApproximateIndex.write(collection, model, "images", kind)  # type: ignore[arg-type]
        written.write_bytes(written.read_bytes()[:900])
        with pytest.raises(ValueError, match="cut short or no FAISS index"):
            Searcher(collection, model, exact=False)
    rows = write_prepared(collection, model, "images")
    rows.write_bytes(rows.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"images\.exact\.npy' is cut short"):
        Searcher(collection, model)
    rows.unlink()
    with pytest.raises(FileNotFoundError, match=r"images\.exact\.npy' is missing"):
        Searcher(collection, model)
    (tmp_path / "images.exact.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="not of this version's format"):
        Searcher(collection, model)


def test_a_score_that_is_no_inner_product_has_nothing_to_prepare(tmp_path: Path) -> None:
    model = tiny("product l1")
    collection = Collection.open(write_collection(tmp_path, model, images=clustered(model, 50)))
    with pytest.raises(ValueError, match="no inner product: there is nothing to prepare"):
        write_prepared(collection, model, "images")


@pytest.mark.parametrize(
    ("kind", "setting"), [("ivf", {"ef_search": 8}), ("hnsw", {"nprobe": 8}), ("ivf", {"nprobe": 0})]
)
def test_settings_of_the_other_kind_are_an_error(kind: str, setting: dict[str, int]) -> None:
    model = tiny("lorentz")
    points = clustered(model, 100)
    index = ApproximateIndex.build(model.manifold, points.numpy(), kind)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is a positive number for an index of kind"):
        Searcher.over(model, points, approximate=index).search(points[:1], by="text", **setting)  # type: ignore[arg-type]
