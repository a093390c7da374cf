"""Declarations: what relations, scales and builders accept, and what they say about what they do not."""

from __future__ import annotations

import math

import pytest
import torch

from hyvlm.geometry import MANIFOLDS, Lorentz
from hyvlm.losses import ConeHinge
from hyvlm.methods import OBJECTIVES, Objective, Scale, calibrate, contrast, entail, entropy_of
from hyvlm.types import Views


def points(rows: int) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))


def test_the_four_methods_and_the_views_they_need() -> None:
    wholes = ("image", "text")
    everything = (*wholes, "part_image", "part_text")
    expected = {"clip": wholes, "meru": wholes, "hycoclip": everything, "uncha": everything}
    assert {name: OBJECTIVES[name]().views for name in expected} == expected


def test_initial_temperatures() -> None:
    def initial(objective: Objective) -> dict[str, float]:
        return {name: round(torch.exp(-p).item(), 6) for name, p in objective.log_scale.items()}

    for name in ("clip", "meru", "hycoclip"):
        assert initial(OBJECTIVES[name]()) == {"global": 0.07}
    assert initial(OBJECTIVES["uncha"]()) == {"global": 0.07, "local": 0.05, "global_local": 0.06}
    paper = OBJECTIVES["uncha"](formulation="paper")
    assert initial(paper) == {"global": 0.07, "local": 0.07, "global_local": 0.06}
    assert initial(OBJECTIVES["uncha"](formulation="paper", local_temperature=0.1))["local"] == 0.1


def test_a_scale_starts_within_its_bound() -> None:
    assert Objective(contrast("image -> text"), scales={"global": Scale(init_temperature=1e-3)}).log_scale[
        "global"
    ].item() == pytest.approx(4.6052)


def test_hycoclip_scores_parts_against_each_whole_once() -> None:
    """A second part of a sample adds a row, but no column: the other rows keep their loss."""
    whole, part = points(3), points(2)
    objective = Objective(contrast("part_image -> text", over_rows="sum"))

    def loss(owner: list[int]) -> torch.Tensor:
        views = Views.single(whole, whole, part[: len(owner)], None, torch.tensor(owner))
        return objective(MANIFOLDS["euclidean"](), views).total

    alone = Views.single(whole, whole, part[1:], None, torch.tensor([1]))
    expected = loss([1]) + objective(MANIFOLDS["euclidean"](), alone).total
    torch.testing.assert_close(loss([1, 1]), expected)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: contrast("image -> txt"), "unknown view 'txt'. Did you mean 'text'"),
        (lambda: contrast("image => text"), "a relation is written 'view -> view', got 'image => text'"),
        (lambda: contrast("image -> part_text"), "an image owns any number of part_text"),
        (lambda: contrast("image -> text", owner_repeated=True), "owner_repeated needs parts"),
        (lambda: contrast("part_image -> text", tempered_by="length"), "unknown uncertainty measure 'length'"),
        (lambda: entail(ConeHinge(), "text -> image"), "a relation is written 'view ⊒ view'"),
        (lambda: entail(ConeHinge(), "text ⊒ box"), "unknown view 'box'"),
        (lambda: entail(ConeHinge(), "part_text ⊒ query_text"), "part_text and query_text are parts and queries"),
        (lambda: entail(ConeHinge(), "text ⊒ parent text"), "only queries have parents, got 'text ⊒ parent text'"),
        (lambda: contrast("query_text -> parent query_text"), "unknown view 'parent query_text'"),
        (lambda: contrast("image -> query_text"), "an image owns any number of query_text"),
        (lambda: calibrate(ConeHinge(), "text ⊒ image", measure="angle"), "unknown uncertainty measure 'angle'"),
        (lambda: entropy_of("parts"), "unknown view 'parts'"),
        (lambda: entropy_of("part_text", measure="angle"), "unknown uncertainty measure 'angle'"),
        (lambda: Objective(), "needs at least one relation"),
        (lambda: Objective(contrast("image -> text"), reduction="local"), "unknown reduction 'local'"),
        (lambda: Objective(contrast("image -> text", scale="lokal")), "scale of 'image -> text': unknown scale"),
        (
            lambda: Objective(contrast("image -> text", weight=-1)),
            "weight of 'image -> text' must be finite and not negative",
        ),
        (lambda: Objective(contrast("image -> text", "image -> text")), "names 'image -> text' twice"),
        (lambda: Scale(init_temperature=0), "temperature must be positive"),
        (lambda: OBJECTIVES["unca"], "unknown objective 'unca'. Did you mean 'uncha'"),
        (
            lambda: OBJECTIVES["meru"](eta=0),
            "eta scales the cone's half-aperture and must be positive and finite, got 0",
        ),
        (lambda: OBJECTIVES["meru"](entail_weight=-0.2), "weight of 'text ⊒ image' must be finite and not negative"),
        (lambda: OBJECTIVES["hycoclip"](eta_intra=-1.2), "must be positive and finite, got -1.2"),
        (lambda: OBJECTIVES["uncha"](alpha=-0.1), "alpha weighs the exterior angle"),
        (lambda: OBJECTIVES["uncha"](alpha=math.inf), "must be finite and not negative, got inf"),
        (lambda: OBJECTIVES["uncha"](eta_inter=math.inf), "must be positive and finite, got inf"),
        (lambda: OBJECTIVES["uncha"](entail_weight=math.inf), "must be finite and not negative, got inf"),
        (lambda: OBJECTIVES["uncha"](formulation="papper"), "unknown formulation 'papper'. Did you mean 'paper'"),
        (lambda: OBJECTIVES["uncha"](uncertainty="norms"), "unknown uncertainty measure 'norms'. Did you mean 'norm'"),
        (lambda: OBJECTIVES["uncha"](reduction="rank"), "unknown reduction 'rank'. Did you mean 'per_rank'"),
        (lambda: OBJECTIVES["clip"](temperature=-1.0), "temperature must be positive"),
    ],
)
def test_mistakes_become_one_sentence(build: object, message: str) -> None:
    with pytest.raises(ValueError) as error:
        build()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


class LearnedHinge(ConeHinge):
    """A loss with a parameter, as a method of somebody else may bring."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(()))

    def forward(self, manifold: Lorentz, general: torch.Tensor, specific: torch.Tensor) -> torch.Tensor:
        return self.factor * super().forward(manifold, general, specific)


def test_parameters_of_a_loss_belong_to_the_objective() -> None:
    objective = Objective(entail(LearnedHinge(), "text ⊒ image", "image ⊒ text"))
    assert [name for name, _ in objective.named_parameters() if "factor" in name] == ["term_modules.0.factor"]
    objective(Lorentz(), Views.single(points(3), points(3) + 1)).total.backward()
    assert objective.term_modules[0].factor.grad != 0


def test_a_missing_view_is_named() -> None:
    with pytest.raises(ValueError, match="needs view 'part_image', the batch has image, text"):
        OBJECTIVES["hycoclip"]()(MANIFOLDS["lorentz"](), Views.single(points(2), points(2)))


def test_views_of_one_group_have_equally_many_points() -> None:
    with pytest.raises(ValueError, match="view 'part_text' has 3 points, its group 'part' 2 rows"):
        Views.single(points(2), points(2), points(2), points(3), torch.tensor([0, 1]))


def test_queries_have_one_parent_and_one_weight_each() -> None:
    queries = {"query_text": points(3), "query_owner": torch.tensor([0, 0, 1])}
    views = Views.single(points(2), points(2), **queries)
    assert views.query_parent.tolist() == [-1, -1, -1]
    assert views.query_weight.tolist() == [1, 1, 1]
    assert torch.equal(views.rows("query_text"), points(3))
    with pytest.raises(ValueError, match=r"the group 'query' has 3 rows, its parents have shape \(2,\)"):
        Views.single(points(2), points(2), **queries, query_parent=torch.tensor([-1, 0]))
    with pytest.raises(ValueError, match=r"the group 'query' has 3 rows, its weights have shape \(3, 1\)"):
        Views.single(points(2), points(2), **queries, query_weight=torch.ones(3, 1))
    with pytest.raises(ValueError, match="view 'query_text' has 3 points, its group 'query' 0 rows"):
        Views.single(points(2), points(2), query_text=points(3))


def test_roots_and_queries_without_weight_do_not_count() -> None:
    """Also in contrasts: they are candidates, but no rows."""
    parent, weight = torch.tensor([-1, 0, 1, 0]), torch.tensor([1.0, 0.5, -1.0, 0.25])
    views = Views.single(
        points(2),
        points(2),
        query_image=points(4),
        query_text=points(4) * 1.5,
        query_owner=torch.tensor([0, 0, 0, 1]),
        query_parent=parent,
        query_weight=weight,
    )
    manifold = Lorentz()
    hinge = ConeHinge()
    objective = Objective(
        entail(hinge, "query_text ⊒ parent query_text", "query_image ⊒ image"),
        contrast("query_image -> query_text", "query_text -> image"),
    )
    terms = objective(manifold, views).terms
    image, text = views.points["query_image"], views.points["query_text"]
    upward = hinge(manifold, text[[1, 3]], text[[0, 0]])
    whole = hinge(manifold, image[[1, 3]], views.points["image"][[0, 1]])
    logits = manifold.similarity(image, text) / 0.07
    found = logits.logsumexp(1) - logits.diagonal()
    logits = manifold.similarity(text, views.points["image"]) / 0.07
    placed = logits.logsumexp(1) - logits.gather(1, views.owner["query"].unsqueeze(1)).squeeze(1)
    counting = torch.tensor([0.5, 0.25])
    for name, rows in (
        ("query_text ⊒ parent query_text", upward),
        ("query_image ⊒ image", whole),
        ("query_image -> query_text", found[[1, 3]]),
        ("query_text -> image", placed[[1, 3]]),
    ):
        torch.testing.assert_close(terms[name], (counting * rows).sum() / 2)


def test_cones_are_asked_of_a_manifold_that_has_them() -> None:
    with pytest.raises(ValueError, match="'text ⊒ image' needs entailment cones, which Sphere does not have"):
        OBJECTIVES["meru"]()(MANIFOLDS["sphere"](), Views.single(points(2), points(2)))


@pytest.mark.parametrize("name", ["uncha", "hyper3"])
def test_a_radius_is_asked_of_a_manifold_that_has_one(name: str) -> None:
    objective = OBJECTIVES[name](entail_weight=0.0, uncertainty="radius")
    with pytest.raises(ValueError, match="'part_image -> text' needs a radius, which Sphere does not have"):
        objective.check_manifold(MANIFOLDS["sphere"]())
    objective.check_manifold(MANIFOLDS["euclidean"]())


def test_an_unused_uncertainty_is_still_checked() -> None:
    with pytest.raises(ValueError, match="unknown uncertainty measure"):
        OBJECTIVES["uncha"](uncertainty="norms", calibration=False, uncertainty_temperature=False)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("formulation", "papr", "paper"),
        ("eta", -1.2, "eta"),
        ("distill_weight", -0.05, "weight"),
        ("temperature", -0.07, "temperature"),
        ("teacher_temperature", -0.07, "teacher_temperature"),
        ("distill_temperature", 0.0, "distill_temperature"),
        ("entail_temperature", -0.07, "entail_temperature"),
    ],
)
def test_a_wrong_setting_of_hyfl_is_named_in_one_line(name: str, value: float | str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        OBJECTIVES["hyfl"](**{name: value})
    assert "\n" not in str(error.value)


def test_entailment_in_steps_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    objective, manifold = OBJECTIVES["uncha"](), MANIFOLDS["lorentz"]()
    found = []
    for step in (2**19, 8):
        monkeypatch.setattr("hyvlm.losses.stepwise.STEP", step)
        generator.manual_seed(0)
        rows = [torch.randn(n, 4, generator=generator).requires_grad_() for n in (5, 5, 7, 7)]
        total = objective(manifold, Views.single(*rows, torch.tensor([0, 0, 1, 2, 4, 4, 4]))).total
        found.append([total, *torch.autograd.grad(total, [*rows, manifold.log_c])])
    for whole, in_steps in zip(*found, strict=True):
        torch.testing.assert_close(in_steps, whole)


def test_entailment_in_steps_has_no_second_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyvlm.losses.stepwise.STEP", 8)
    image, text = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    output = OBJECTIVES["meru"]()(MANIFOLDS["lorentz"](), Views.single(image, text))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(output.total, image, create_graph=True)
