"""Exact search finds what a brute force in float64 finds, for every score, wherever the points are."""

import math
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from hyvlm.evaluation.tasks.entailment import cone_margin
from hyvlm.models import DualEncoder
from hyvlm.retrieval import exact
from hyvlm.retrieval.search import Hits, Searcher, scorer

fixtures = SimpleNamespace(**run_path(str(Path(__file__).with_name("collections_of_points.py"))))
DIM, MODELS, clustered, tiny = (fixtures.DIM, fixtures.MODELS, fixtures.clustered, fixtures.tiny)
WAYS = [("image", "text"), ("text", "image"), ("image", "image")]


def brute_force(
    model: DualEncoder, points: Tensor, queries: Tensor, kind: str, by: str, k: int
) -> tuple[Tensor, Tensor]:
    """Every score in float64, sorted; equal points score equally, and the lower row goes first."""
    distinct, place = torch.unique(points, dim=0, return_inverse=True)
    with torch.no_grad():
        scores = scorer(model, kind, by)(queries.double(), distinct.double())[:, place]
    values, rows = scores.sort(dim=-1, descending=True, stable=True)
    return rows[:, :k], values[:, :k]


def check(
    model: DualEncoder, points: Tensor, queries: Tensor, kind: str = "image", by: str = "text", k: int = 10
) -> Hits:
    """Search, and compare with the brute force wherever float64 tells the scores apart."""
    found = Searcher.over(model, points, kind=kind).search(queries, by=by, k=k)
    rows, scores = brute_force(model, points, queries, kind, by, k)
    n = rows.shape[1]
    torch.testing.assert_close(found.scores[:, :n], scores, rtol=1e-9, atol=0 if scores.abs().max() < 1e-3 else 1e-12)
    differ = found.rows[:, :n] != rows
    gaps = (scores[:, 1:] - scores[:, :-1]).abs()
    close = gaps <= 1e-12 * scores.abs()[:, 1:]
    undecided = torch.nn.functional.pad(close, (1, 0)) | torch.nn.functional.pad(close, (0, 1))
    undecided[:, -1] = True if n < len(points) and close.any() else undecided[:, -1]
    assert not (differ & ~undecided).any()
    assert (found.rows[:, n:] == -1).all()
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("kind", "by"), WAYS)
def test_it_finds_what_a_brute_force_finds(name: str, kind: str, by: str) -> None:
    model = tiny(name)
    check(model, clustered(model, 1500), clustered(model, 7, seed=1), kind, by)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", [1e-24, 1e-6, 8.0])
def test_tiny_and_huge_points(name: str, scale: float) -> None:
    model = tiny(name)
    check(model, clustered(model, 700, scale=scale), clustered(model, 3, seed=1, scale=scale))


@pytest.mark.parametrize("name", ["lorentz", "euclidean"])
def test_points_of_every_size_at_once(name: str) -> None:
    model = tiny(name)
    sizes = [1e-22, 1e-4, 1.0, 8.0]
    points = torch.cat([clustered(model, 300, seed=i, scale=scale) for i, scale in enumerate(sizes)])
    queries = torch.cat([clustered(model, 2, seed=9, scale=scale) for scale in sizes])
    check(model, points, queries)


def test_a_cluster_that_float32_cannot_resolve() -> None:
    """Points within one float32 rounding of an inner product: the second pass decides, in float64."""
    model = tiny("euclidean")
    draws = torch.Generator().manual_seed(0)
    points = 1000 + 1e-3 * torch.randn(2000, DIM, generator=draws)
    found = check(model, points, points[:5])
    assert found.rows[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", MODELS)
def test_of_equal_points_the_lower_row_is_first(name: str) -> None:
    model = tiny(name)
    points = clustered(model, 40).repeat(30, 1)
    found = check(model, points, clustered(model, 4, seed=1), k=45)
    first = found.rows[:, :30]
    assert (first % 40 == first[:, :1]).all()
    assert (first.diff() == 40).all()


@pytest.mark.parametrize("name", ["lorentz", "product l1"])
def test_one_query_a_batch_and_more_than_there_are(name: str) -> None:
    model = tiny(name)
    points, queries = clustered(model, 25), clustered(model, 600, seed=1)
    assert check(model, points, queries[:1], k=40).rows[0, 25:].tolist() == [-1] * 15
    assert check(model, points, queries, k=3).rows.shape == (600, 3)
    assert Searcher.over(model, points).search(queries[:0], by="text").rows.shape == (0, 10)


def test_blocks_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, groups of columns within one, and merges of blocks in between."""
    monkeypatch.setattr(exact, "BLOCK_ROWS", 2048)
    monkeypatch.setattr(exact.ByForm, "block_rows", 2048)
    monkeypatch.setattr(exact, "BLOCKS_AT_ONCE", 2)
    model = tiny("lorentz")
    check(model, clustered(model, 9000), clustered(model, 20, seed=1))


def test_the_best_columns_are_those_of_topk() -> None:
    draws = torch.Generator().manual_seed(0)
    for n in (16 * 128, 16 * 128 + 1, 5):
        scores = torch.randn(6, n, generator=draws)
        values, columns = exact.top_columns(scores, 20)
        torch.testing.assert_close(values, scores.topk(min(20, n)).values, rtol=0, atol=0)
        torch.testing.assert_close(scores.gather(1, columns), values, rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "sphere"])
def test_filters_leave_the_best_of_what_passes(name: str) -> None:
    model = tiny(name)
    points, queries = clustered(model, 1200), clustered(model, 5, seed=1)
    searcher = Searcher.over(model, points)
    radii = model.manifold.radius(points.double()).detach()
    low, high = (float(value) for value in radii.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64)))
    apex = 0.2 * points[3]
    with torch.no_grad():
        margin = cone_margin(model.manifold, points.double(), apex.double().expand(len(points), -1))
    passes = (radii.float() >= low) & (radii.float() <= high) & (margin >= 0)
    assert 0 < passes.sum() < len(points)
    found = searcher.search(queries, by="text", k=10, radius_min=low, radius_max=high, within=apex)
    rows = passes.nonzero().squeeze(-1)
    expected, scores = brute_force(model, points[rows], queries, "image", "text", 10)
    n = expected.shape[1]
    torch.testing.assert_close(found.scores[:, :n], scores, rtol=1e-9, atol=1e-12)
    assert (found.rows[:, :n] == rows[expected]).all()
    assert (found.rows[:, n:] == -1).all()


def test_no_point_passes_a_filter() -> None:
    model = tiny("lorentz")
    found = Searcher.over(model, clustered(model, 50)).search(clustered(model, 2), by="text", radius_min=100.0)
    assert (found.rows == -1).all()
    assert (found.scores == -math.inf).all()


def test_the_rim_of_a_cone_is_settled_in_float64() -> None:
    """Points a hair's breadth on either side of the rim, closer than float32 resolves."""
    model = tiny("lorentz")
    manifold = model.manifold
    apex = torch.zeros(DIM)
    apex[0] = 0.9
    aperture = manifold.half_aperture(apex.double()).item()
    out = torch.zeros(400, DIM, dtype=torch.float64)
    out[:, 0], out[:, 1] = 0.9 + torch.linspace(0.01, 2, 400), 1.0
    low, high = torch.zeros(400), torch.full((400,), 3.0)  # where along the second axis the ray meets the rim
    for _ in range(60):
        out[:, 1] = (low + high).double() / 2
        inside = manifold.exterior_angle(apex.double(), out) <= aperture
        low, high = torch.where(inside, out[:, 1].float(), low), torch.where(inside, high, out[:, 1].float())
    points = torch.cat([out.float(), (out * (1 + 1e-7)).float()])
    with torch.no_grad():
        margin = cone_margin(manifold, points.double(), apex.double().expand(len(points), -1))
    assert 0 < (margin >= 0).sum() < len(points)
    allowed = Searcher.over(model, points).allowed(within=apex)
    assert allowed is not None
    np.testing.assert_array_equal(allowed, (margin >= 0).numpy())


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"k": 0}, "k is how many"),
        ({"radius_min": 2.0, "radius_max": 1.0}, "radii must be"),
        ({"radius_min": -1.0}, "radii must be"),
        ({"radius_max": math.nan}, "radii must be"),
    ],
)
def test_mistakes_are_said(options: dict[str, float], hint: str) -> None:
    model = tiny("lorentz")
    with pytest.raises(ValueError, match=hint):
        Searcher.over(model, clustered(model, 9)).search(clustered(model, 2), by="text", **options)  # type: ignore[arg-type]


def test_a_sphere_has_no_origin() -> None:
    model = tiny("sphere")
    points = clustered(model, 9)
    searcher = Searcher.over(model, points)
    for options in ({"radius_max": 1.0}, {"within": points[0]}):
        with pytest.raises(ValueError, match="needs an origin, and the sphere"):
            searcher.search(points, by="text", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["lorentz", "product l1"])
def test_what_is_not_a_number_is_said(name: str) -> None:
    model = tiny(name)
    points = clustered(model, 9)
    with pytest.raises(ValueError, match="queries must be"):
        Searcher.over(model, points).search(points[:, :3], by="text")
    bad = points.clone()
    bad[4] = math.nan
    with pytest.raises(ValueError, match="query 4 is not finite"):
        Searcher.over(model, points).search(bad, by="text")
    with pytest.raises(ValueError, match="NaN"):
        Searcher.over(model, bad).search(points, by="text")
