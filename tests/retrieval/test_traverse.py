"""Traversals against a loop written step by step, and what they promise on every manifold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from hyvlm.models import DualEncoder, build_model
from hyvlm.retrieval.traverse import ROOT, Candidates, Traversal, traverse

MANIFOLDS = {
    "lorentz": {"name": "lorentz", "c": 0.5},
    "product": {"name": "product", "factors": 2, "c": [0.3, 2.0]},
    "euclidean": {"name": "euclidean"},
    "flat product": {"name": "flat_product", "factors": 2},
    "sphere": {"name": "sphere"},
}


def model(manifold: str = "lorentz", **settings: str) -> DualEncoder:
    tower = {"width": 32, "depth": 1, "heads": 1}
    config = {"image": {"image_size": 32, "patch": 16, **tower}, "text": {"context_length": 8, **tower}, "dim": 8}
    return build_model({"model": {**config, **settings}, "manifold": MANIFOLDS[manifold]}).eval()


def pool(built: DualEncoder, texts: int = 40, images: int = 30) -> Candidates:
    """Texts of small radii, images of larger ones, all in one half of the space."""
    v = torch.randn(texts + images, 8, generator=torch.Generator().manual_seed(1)).abs()
    lengths = torch.cat([torch.linspace(0.2, 1.2, texts), torch.linspace(0.9, 1.5, images)]).unsqueeze(-1)
    points = built.manifold.lift(lengths * v / v.norm(dim=-1, keepdim=True)).detach()
    names = [*(f"text {i}" for i in range(texts)), *(f"image {i}" for i in range(images))]
    return Candidates(points, names, [*["text"] * texts, *["image"] * images])


def far(built: DualEncoder, seed: int = 5) -> Tensor:
    v = torch.randn(8, generator=torch.Generator().manual_seed(seed)).abs()
    return built.manifold.lift(1.5 * v / v.norm()).detach()


def names(found: Traversal) -> list[str]:
    return [step.name for step in found.steps]


def step_by_step(built: DualEncoder, start: Tensor, candidates: Candidates, steps: int, *, entailed: bool) -> list[str]:
    """Texts on the way to the root, each once: a loop over points and candidates."""
    manifold, origin, listed = built.manifold, torch.zeros(8), list[str]()
    for t in torch.linspace(0, 1, steps):
        point = manifold.expmap0((1 - t) * manifold.logmap0(start))
        best, nearest = manifold.distance(point, origin).item(), ROOT
        for name, kind, other in zip(candidates.names, candidates.kinds, candidates.points, strict=True):
            margin = (manifold.half_aperture(other) - manifold.exterior_angle(other, point)).mean().item()
            apart = manifold.distance(point, other).item()
            if kind == "text" and (margin >= 0 or not entailed) and apart < best:
                best, nearest = apart, name
        listed += [nearest] if nearest not in listed else []
    return [name for name in listed if name != ROOT]


@pytest.mark.parametrize("entailed", [True, False])
@pytest.mark.parametrize("manifold", [m for m in MANIFOLDS if m != "sphere"])
def test_to_the_root_it_is_the_loop(manifold: str, entailed: bool) -> None:
    built = model(manifold)
    candidates, start = pool(built), far(built)
    found = traverse(built, start, candidates, steps=12, entailed=entailed)
    texts = [step.name for step in found.steps if step.kind == "text"]
    assert texts == step_by_step(built, start, candidates, 12, entailed=entailed)
    assert texts
    assert found.steps[-1].kind == "root"
    assert names(found).count(ROOT) == 1
    assert found.start_radius == pytest.approx(built.manifold.radius(start).item())
    assert found.end_radius == 0


@pytest.mark.parametrize("manifold", MANIFOLDS)
@pytest.mark.parametrize("by", ["geodesic", "radius"])
def test_what_is_listed_is_listed_once_and_in_the_order_of_the_way(manifold: str, by: str) -> None:
    built = model(manifold)
    candidates, start, end = pool(built), far(built), far(built, 6)
    ways = [end] if manifold == "sphere" else [None, end]
    for target in ways if by == "geodesic" or manifold != "sphere" else []:
        found = traverse(built, start, candidates, end=target, by=by, steps=8, entailed=False)
        assert len(found.steps) >= 2
        assert len(set(names(found))) == len(found.steps)
        shares = [step.t for step in found.steps]
        assert shares == sorted(shares)
        for step in found.steps:
            assert math.isfinite(step.distance)
            if step.row is not None:
                assert (candidates.names[step.row], candidates.kinds[step.row]) == (step.name, step.kind)
                point = built.manifold.geodesic(start, torch.zeros(8) if target is None else target, step.t)
                distance = built.manifold.distance(point, candidates.points[step.row]).item()
                assert step.distance == pytest.approx(distance, abs=1e-5)
        assert (found.steps[-1].name == ROOT) == (target is None)


def test_where_no_cone_holds_the_point_there_is_the_root() -> None:
    built = model()
    start = far(built)
    behind = Candidates((-start).unsqueeze(0), ["behind"], ["text"])
    found = traverse(built, start, behind)
    assert names(found) == [ROOT]
    assert (found.steps[0].t, found.looked, found.empty) == (0.0, 50, 0)
    between = traverse(built, start, behind, end=far(built, 6), entailed=True, steps=5)
    assert (between.steps, between.empty) == ([], 5)


def test_the_root_starts_where_nothing_else_is_nearer() -> None:
    built = model()
    start = built.manifold.lift(torch.tensor([2.0, *[0.0] * 7]))
    halfway = built.manifold.geodesic(start, torch.zeros(8), 0.5)
    found = traverse(built, start, Candidates(halfway.unsqueeze(0), ["a thing"], ["text"]), steps=101, entailed=False)
    assert names(found) == ["a thing", ROOT]
    assert found.steps[-1].t == pytest.approx(0.76, abs=0.011)  # the middle of the second half
    assert found.steps[-1].radius == pytest.approx(0.48, abs=0.03)


def test_shells_hold_candidates_of_their_radius() -> None:
    built = model()
    candidates, start = pool(built), far(built)
    found = traverse(built, start, candidates, by="radius", steps=6)
    assert not found.entailed
    half = built.manifold.radius(start).item() / 5 / 2
    for step in found.steps[:-1]:
        assert step.radius is not None
        assert step.row is not None
        assert abs(built.manifold.radius(candidates.points[step.row]).item() - step.radius) <= half + 1e-6
    assert {step.kind for step in found.steps} == {"text", "image", "root"}
    assert (found.steps[-1].t, found.steps[-1].radius) == (1.0, 0.0)
    points = {step.t for step in found.steps}
    assert found.empty == 6 - len(points)
    strict = traverse(built, start, candidates, by="radius", steps=6, entailed=True)
    for step in strict.steps[:-1]:
        apex = candidates.points[step.row]
        assert built.manifold.exterior_angle(apex, start) <= built.manifold.half_aperture(apex)


def test_a_name_is_listed_once_though_several_rows_have_it() -> None:
    built = model()
    start = far(built)
    way = built.manifold.geodesic(start, torch.zeros(8), torch.tensor([0.0, 0.2, 0.4]))
    candidates = Candidates(way, ["a dog", "a dog", "a dog"], ["text", "text", "image"])
    found = traverse(built, start, candidates, steps=11, entailed=False)
    assert [(s.kind, s.name, s.row) for s in found.steps] == [
        ("text", "a dog", 0),
        ("image", "a dog", 2),
        ("root", ROOT, None),
    ]


def test_what_is_left_out_is_not_found() -> None:
    built = model()
    candidates = pool(built)
    start = candidates.points[45]
    assert "image 5" in names(traverse(built, start, candidates, entailed=False))
    rows = candidates.rows("image 5", "image")
    assert rows == [45]
    assert "image 5" not in names(traverse(built, start, candidates, entailed=False, leave_out=rows))


def test_a_score_by_angle_has_a_direction_and_the_root_only_what_is_left() -> None:
    built = model(score="exterior_angle")
    candidates, start = pool(built), far(built)
    for kind in ("image", "text"):
        found = traverse(built, start, candidates, kind=kind, entailed=False, steps=5)
        other, rows = ("text", range(40)) if kind == "image" else ("image", range(40, 70))
        points = candidates.points[list(rows)]
        scores = built.score(start[None], points) if kind == "image" else built.score(points, start[None], by="text").mT
        first = next(step for step in found.steps if step.kind == other)
        assert first.row == rows[int(scores.argmax())]
        assert first.score == pytest.approx(scores.max().item())
        assert found.steps[-1].kind == "root"


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model()
    candidates, start = pool(built), far(built)
    whole = traverse(built, start, candidates, entailed=False)
    monkeypatch.setattr("hyvlm.retrieval.traverse.BLOCK_ROWS", 7)
    parts = traverse(built, start, candidates, entailed=False)
    assert names(parts) == names(whole)
    half = Candidates(np.asarray(candidates.points, np.float16), candidates.names, candidates.kinds)
    assert traverse(built, start, half, entailed=False).steps[-1].name == ROOT


def test_bad_input_is_one_sentence() -> None:
    built, sphere = model(), model("sphere")
    candidates, start = pool(built), far(built)
    for match, options in {
        "at least two steps": {"steps": 1},
        "unknown way 'geodesics'. Did you mean 'geodesic'": {"by": "geodesics"},
        "end must be one point": {"end": torch.zeros(3)},
        "end is not finite": {"end": torch.full((8,), torch.nan)},
    }.items():
        with pytest.raises(ValueError, match=match):
            traverse(built, start, candidates, **options)
    for match, options in {
        "has no root and no cones": {},
        "has no root": {"entailed": False},
        "has no radius": {"end": start, "by": "radius", "entailed": False},
        "has no cones": {"end": start, "entailed": True},
    }.items():
        with pytest.raises(ValueError, match=match):
            traverse(sphere, start, candidates, **options)
    with pytest.raises(ValueError, match="there are none"):
        traverse(built, start, Candidates(torch.zeros(0, 8), [], []))
    with pytest.raises(ValueError, match="a name and a kind each"):
        Candidates(torch.zeros(2, 8), ["one"], ["text"])
    with pytest.raises(ValueError, match="unknown kind of candidate 'texts'"):
        Candidates(torch.zeros(1, 8), ["one"], ["texts"])
