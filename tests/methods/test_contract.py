"""What every registered objective promises, whatever the method."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hyvlm.geometry import MANIFOLDS, Euclidean
from hyvlm.methods import OBJECTIVES, Objective
from hyvlm.types import GROUP_OF_VIEW, LossOutput, Tokens, Views

DIM = 8
PARTS = {  # parts of each sample
    "ragged": (0, 3, 1, 0, 2),
    "no part at all": (0, 0, 0, 0),
    "one part": (0, 1, 0),
    "batch of one": (2,),
    "batch of one, no part": (0,),
    "one sample, one part": (1,),
}
QUERIES = {  # queries of each sample; the first of a sample is its root
    "ragged": (3, 1, 0, 2, 4),
    "no part at all": (2, 2, 3, 2),
    "one part": (0, 0, 0),
    "batch of one": (3,),
    "batch of one, no part": (0,),
    "one sample, one part": (2,),
    "roots alone": (1, 1, 1),
}
PARTS["roots alone"] = (1, 0, 2)
CURVED_AND_FLAT = ("lorentz", "euclidean")
PRODUCTS = {"product": {"factors": 4}, "flat_product": {"factors": 4}}
VARIANTS = [
    *((name, m, {}) for name in OBJECTIVES for m in (("sphere",) if name == "clip" else CURVED_AND_FLAT)),
    ("uncha", "lorentz", {"formulation": "paper"}),
    ("hyfl", "lorentz", {"formulation": "paper", "learn_temperature": True}),
    ("hyper3", "lorentz", {"formulation": "paper", "visual_order": "reversed"}),
    ("argent", "lorentz", {"through_weight": False}),
    ("phyclip", "lorentz", {"parts": False}),
    *((name, m, {}) for name in ("phyclip", "argent", "atmg") for m in PRODUCTS),
]
variants = pytest.mark.parametrize(("name", "manifold", "options"), VARIANTS, ids=lambda v: str(v) if v != {} else "")


Owners = dict[str, Tensor]


def complete(objective: Objective, points: dict[str, Tensor], owners: Owners) -> Views:
    """Views with what the objective needs beyond points: tokens between the origin and each point, a teacher."""
    tokens = {
        view: Tokens(
            points[view].unsqueeze(1) * torch.tensor([[0.3], [0.5], [0.9]]).to(points[view]),
            torch.tensor([[True, True, row % 2 == 0] for row in range(len(points[view]))]),
        )
        for view in objective.token_views
    }
    teacher = {view: points[view].detach().flip(-1) for view in objective.teacher_views}
    return Views.single(**points, **owners, tokens=tokens, teacher=teacher)


class Model(torch.nn.Module):
    """Two linear encoders in front of a manifold and an objective."""

    def __init__(self, name: str, manifold: str, options: dict[str, Any]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.image, self.text = (torch.nn.Parameter(torch.randn(DIM, DIM, generator=generator) / DIM) for _ in range(2))
        self.manifold = MANIFOLDS[manifold](**PRODUCTS.get(manifold, {}))
        self.objective = OBJECTIVES[name](**options)

    def views(self, features: dict[str, Tensor], owners: Owners) -> Views:
        encoders = {view: self.image if view.endswith("image") else self.text for view in features}
        points = {view: self.manifold.lift(x @ encoders[view]) for view, x in features.items()}
        return complete(self.objective, points, owners)

    def forward(self, features: dict[str, Tensor], owners: Owners) -> LossOutput:
        return self.objective(self.manifold, self.views(features, owners))


def batch(name: str, seed: int = 1) -> tuple[dict[str, Tensor], Owners]:
    """Features of every view and who owns the parts and queries; a query's parent is the one before it."""
    parts, queries = PARTS[name], QUERIES[name]
    generator = torch.Generator().manual_seed(seed)
    rows = {"whole": len(parts), "part": sum(parts), "query": sum(queries)}
    features = {view: torch.randn(rows[group], DIM, generator=generator) for view, group in GROUP_OF_VIEW.items()}
    row = torch.arange(sum(queries))
    first = torch.cat([torch.arange(n) == 0 for n in queries])
    owners = {
        "owner": torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts)),
        "query_owner": torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(queries)),
        "query_parent": torch.where(first, -1, row - 1),
        "query_weight": torch.where(first, 0.0, 1 - 0.25 * (row % 3)),
    }
    return features, owners


def learning(model: Model) -> dict[str, torch.nn.Parameter]:
    return {key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad}


def assert_learns(model: Model, output: LossOutput) -> None:
    assert output.total.isfinite()
    assert all(value.isfinite() and not value.requires_grad for value in output.terms.values())
    assert all(value.isfinite() and value.dim() == 0 and not value.requires_grad for value in output.stats.values())
    output.total.backward()
    for key, parameter in learning(model).items():
        assert parameter.grad is not None, f"{key} gets no gradient"
        assert parameter.grad.isfinite().all(), f"{key} gets no finite gradient"


@pytest.mark.parametrize("parts", PARTS)
@variants
def test_every_parameter_gets_a_finite_gradient(name: str, manifold: str, options: dict[str, Any], parts: str) -> None:
    model = Model(name, manifold, options)
    output = model(*batch(parts))
    assert_learns(model, output)
    if sum(PARTS[parts]) == 0:
        assert all(value == 0 for term, value in output.terms.items() if "part" in term)
    if not any(n > 1 for n in QUERIES[parts]):
        assert all(value == 0 for term, value in output.terms.items() if "query" in term)


@variants
def test_a_ragged_batch_moves_every_parameter(name: str, manifold: str, options: dict[str, Any]) -> None:
    model = Model(name, manifold, options)
    model(*batch("ragged")).total.backward()
    for key, parameter in learning(model).items():
        assert parameter.grad.abs().max() > 0, f"{key} does not learn"


HARD = {
    "all features zero": lambda x: torch.zeros_like(x),
    "all features equal": lambda x: torch.ones_like(x) / 3,
    "nearly equal": lambda x: torch.ones_like(x) / 3 + 1e-7 * x,
    "tiny": lambda x: 1e-8 * x,
    "opposite": lambda x: torch.sign(x[:, :1]) * torch.ones_like(x),
    "huge features": lambda x: 1e4 * x,
}


@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("parts", ["ragged", "batch of one"])
@variants
def test_hard_features(name: str, manifold: str, options: dict[str, Any], parts: str, hard: str) -> None:
    model = Model(name, manifold, options)
    features, owners = batch(parts)
    assert_learns(model, model({view: HARD[hard](x) for view, x in features.items()}, owners))


@variants
def test_points_of_norm_1e4(name: str, manifold: str, options: dict[str, Any]) -> None:
    model = Model(name, manifold, options)
    features, owners = batch("ragged")
    scale = 1.0 if manifold == "sphere" else 1e4
    points = {v: (scale * torch.nn.functional.normalize(x, dim=-1)).requires_grad_() for v, x in features.items()}
    output = model.objective(model.manifold, complete(model.objective, points, owners))
    assert output.total.isfinite()
    output.total.backward()
    assert all(points[view].grad.isfinite().all() for view in model.objective.views)


@variants
def test_autocast_does_not_lower_the_precision(name: str, manifold: str, options: dict[str, Any]) -> None:
    model = Model(name, manifold, options)
    features, owners = batch("ragged")
    views = model.views(features, owners)
    expected = model.objective(model.manifold, views)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model.objective(model.manifold, views)
    assert output.total.dtype == torch.float32
    assert torch.equal(output.total, expected.total)
    for key, value in expected.terms.items():
        assert torch.equal(output.terms[key], value)
    low = complete(model.objective, {v: x.bfloat16() for v, x in views.points.items()}, owners)
    assert model.objective(model.manifold, low).total.dtype == torch.float32


class DotProduct(Euclidean):
    """A manifold of somebody else's whose matrix product autocast would run in bfloat16."""

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y.mT


@pytest.mark.parametrize("name", OBJECTIVES)
def test_autocast_is_off_inside_the_objective(name: str) -> None:
    features, owners = batch("ragged")
    objective = OBJECTIVES[name]()
    views = complete(objective, features, owners)
    expected = objective(DotProduct(), views).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(objective(DotProduct(), views).total, expected)


@variants
def test_the_order_of_rows_does_not_matter(name: str, manifold: str, options: dict[str, Any]) -> None:
    model = Model(name, manifold, options).double()
    features, owners = batch("ragged")
    features = {view: x.double() for view, x in features.items()}
    whole, part = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([5, 2, 0, 4, 1, 3])
    query = torch.tensor([7, 3, 9, 1, 0, 5, 2, 8, 6, 4])
    order = {"whole": whole, "part": part, "query": query}
    shuffled = {view: x[order[GROUP_OF_VIEW[view]]] for view, x in features.items()}
    place, query_place = whole.argsort(), query.argsort()  # where each went
    parent = owners["query_parent"][query]
    moved = {
        "owner": place[owners["owner"]][part],
        "query_owner": place[owners["query_owner"]][query],
        "query_parent": torch.where(parent < 0, -1, query_place[parent]),
        "query_weight": owners["query_weight"][query],
    }
    actual, expected = model(shuffled, moved).total, model(features, owners).total
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


@variants
def test_stats_and_terms(name: str, manifold: str, options: dict[str, Any]) -> None:
    model = Model(name, manifold, options)
    output = model(*batch("ragged"))
    views = model.views(*batch("ragged"))
    weighted = sum(term.weight * output.terms[term.name] for term in model.objective.terms)
    torch.testing.assert_close(output.total.detach(), weighted)
    temperatures = {key.removeprefix("temperature/"): v for key, v in output.stats.items() if "temperature" in key}
    assert set(temperatures) == set(model.objective.log_scale)
    for key, value in temperatures.items():
        assert value.item() == pytest.approx(model.objective.scales[key].init_temperature, rel=1e-6)
    if manifold == "lorentz":
        assert output.stats["c"].item() == pytest.approx(1.0)
    if manifold == "product":
        assert [output.stats[f"c/{of}"].item() for of in ("mean", "min", "max")] == pytest.approx([1.0] * 3)
    if manifold == "sphere":
        return
    curved = manifold in ("lorentz", "product")
    factors = PRODUCTS.get(manifold, {"factors": 1})["factors"]
    norms = {view: x.unflatten(-1, (factors, -1)).norm(dim=-1) for view, x in views.points.items()}
    for view in model.objective.views:
        norm = norms[view]
        radius = torch.asinh(norm).mean() if curved else norm.mean()
        assert output.stats[f"radius/{view}"].item() == pytest.approx(radius.item(), rel=1e-5)
    general = {term.general for term in model.objective.terms if hasattr(term, "general")}
    assert {key.removeprefix("saturated/") for key in output.stats if "saturated" in key} == general
    edge = 0.2 if curved else 0.2 / math.sqrt(0.1)
    if "text" in general:
        share = (norms["text"] <= edge).float().mean()
        assert output.stats["saturated/text"].item() == pytest.approx(share.item())
    assert all(0 <= value <= 1 for value in output.stat_shares.values())


def test_a_view_without_points_has_no_mean_radius() -> None:
    output = Model("hycoclip", "lorentz", {})(*batch("no part at all"))
    assert "radius/image" in output.stats
    assert not any("part" in key for key in output.stats)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_scales_are_bounded_only_by_constrain(name: str) -> None:
    objective = OBJECTIVES[name]()
    with torch.no_grad():
        for parameter in objective.log_scale.values():
            parameter.fill_(6.0)
    features, owners = batch("ragged")
    points = {view: torch.nn.functional.normalize(x, dim=-1) for view, x in features.items()}
    manifold = MANIFOLDS["sphere" if name == "clip" else "lorentz"]()
    objective(manifold, complete(objective, points, owners))
    assert all(parameter.item() == 6.0 for parameter in objective.log_scale.values())
    objective.constrain_()
    assert all(parameter.item() == pytest.approx(4.6052) for parameter in objective.log_scale.values())
