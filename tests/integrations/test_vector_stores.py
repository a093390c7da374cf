"""A collection in LanceDB and back: the same results as exact search here."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch

from hyvlm.retrieval import Collection
from hyvlm.retrieval.search import Searcher

lancedb = pytest.importorskip("lancedb")

from hyvlm.integrations.vector_stores import export, search_store, store_folder  # noqa: E402

shared = Path(__file__).parents[1] / "retrieval" / "collections_of_points.py"
fixtures = SimpleNamespace(**run_path(str(shared)))
MODELS, clustered, tiny = fixtures.MODELS, fixtures.clustered, fixtures.tiny


def stored(tmp_path: Path, name: str) -> tuple[Collection, object, Path]:
    model = tiny(name)
    images, texts = clustered(model, 800), clustered(model, 60, seed=3)
    folder = fixtures.write_collection(tmp_path / "collection", model, images=images, texts=texts)
    collection = Collection.open(folder)
    assert export(collection, model, tmp_path / "store") == 800
    return collection, model, tmp_path / "store"


@pytest.mark.parametrize("name", MODELS)
def test_the_round_trip_finds_what_exact_search_finds(name: str, tmp_path: Path) -> None:
    collection, model, store = stored(tmp_path, name)
    queries = clustered(model, 6, seed=1)
    exact = Searcher(collection, model).search(queries, by="text")
    if fixtures.has_inner_form(model):
        found = search_store(collection, model, store, queries, by="text")
        assert found.rows.tolist() == exact.rows.tolist()
        torch.testing.assert_close(found.scores, exact.scores, rtol=1e-12, atol=1e-14)
    else:
        with pytest.raises(ValueError, match="column 'tangent'"):
            search_store(collection, model, store, queries, by="text")
    by_tangent = search_store(collection, model, store, queries, by="image", column="tangent")
    near = Searcher(collection, model).search(queries, by="image")
    assert (by_tangent.rows == near.rows).double().mean() > 0.9


def test_the_table_holds_what_a_filter_needs(tmp_path: Path) -> None:
    collection, model, store = stored(tmp_path, "lorentz")
    assert export(collection, model, store, group="texts") == 60
    table = lancedb.connect(str(store)).open_table("texts")
    assert table.schema.names == ["row", "key", "radius", "text", "tangent", "inner"]
    queries = clustered(model, 4, seed=1)
    exact = Searcher(collection, model, group="texts").search(queries, by="image", radius_max=1.0)
    found = search_store(collection, model, store, queries, by="image", group="texts", where="radius <= 1.0")
    assert found.rows.tolist() == exact.rows.tolist()
    assert table.to_arrow()["text"][int(found.rows[0, 0])].as_py() == f"caption {int(found.rows[0, 0])}"


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    _, model, store = stored(tmp_path, "lorentz")
    other = fixtures.write_collection(tmp_path / "other", model, images=clustered(model, 800, seed=7))
    queries = clustered(model, 1)
    with pytest.raises(ValueError, match="was made of other images"):
        search_store(Collection.open(other), model, store, queries, by="text")
    with pytest.raises(FileNotFoundError, match="no table 'images'"):
        search_store(Collection.open(other), model, tmp_path / "nowhere", queries, by="text")
    with pytest.raises(ValueError, match="another model"):
        export(Collection.open(other), tiny("euclidean"), store)


@pytest.mark.parametrize("target", ["lancedb:", "qdrant:x", "folder"])
def test_other_stores_are_an_error(target: str) -> None:
    with pytest.raises(ValueError, match="lancedb:DIR"):
        store_folder(target)
