"""Gradients of the curvature against central differences of the objective itself, in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hyvlm.diagnostics.gradients import CurvatureGradients, curvature_gradients, term_gradient_cosines
from hyvlm.geometry import Euclidean, Lorentz, Manifold, ProductLorentz, Sphere
from hyvlm.methods import OBJECTIVES, Calibration, Contrast, Objective, Term
from hyvlm.types import Views

SAMPLES, PARTS, DIM = 6, 9, 8
OWNER = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 5])


def tangents(count: int = SAMPLES, owner: Tensor = OWNER) -> dict[str, Tensor]:
    """Vectors of every view, texts nearer the origin than images."""
    generator = torch.Generator().manual_seed(0)
    rows = {"image": count, "text": count, "part_image": len(owner), "part_text": len(owner)}
    scale = {"image": 0.6, "text": 0.3, "part_image": 0.4, "part_text": 0.2}
    return {
        view: scale[view] * torch.randn(n, DIM, dtype=torch.float64, generator=generator) for view, n in rows.items()
    }


def lifted(manifold: Manifold, vectors: dict[str, Tensor], owner: Tensor = OWNER) -> Views:
    points = {view: manifold.expmap0(rows).detach() for view, rows in vectors.items()}
    return Views.single(**points, owner=owner)


def lorentz(c: list[float]) -> Manifold:
    return Lorentz(c=c[0], bounds=None).double()


def product(c: list[float]) -> Manifold:
    return ProductLorentz(factors=len(c), c=c, bounds=None).double()


def terms_at(objective: Objective, manifold: Manifold, log_c: Tensor) -> dict[str, float]:
    """The objective's terms where the same tangent vectors are lifted at another curvature."""
    holder = manifold.factor if isinstance(manifold, ProductLorentz) else manifold
    with torch.no_grad():
        holder.log_c.copy_(log_c)
        return {name: float(v) for name, v in objective(manifold, lifted(manifold, tangents())).terms.items()}


@pytest.mark.parametrize(("make", "c"), [(lorentz, [0.7]), (product, [0.1, 0.5, 1.0, 2.0])])
@pytest.mark.parametrize("name", ["meru", "hycoclip", "argent", "uncha", "phyclip", "atmg"])
def test_gradients_are_central_differences(name: str, make: Callable[[list[float]], Manifold], c: list[float]) -> None:
    objective, manifold, step = OBJECTIVES[name]().double(), make(c), 1e-5
    found = curvature_gradients(objective, manifold, lifted(manifold, tangents()))
    log_c = (manifold.factor if isinstance(manifold, ProductLorentz) else manifold).log_c.detach().clone()
    slopes = []
    for factor in range(len(c)):
        nudge = torch.zeros(len(c), dtype=torch.float64)
        nudge[factor] = step
        above = terms_at(objective, make(c), log_c + nudge.reshape(log_c.shape))
        below = terms_at(objective, make(c), log_c - nudge.reshape(log_c.shape))
        slopes.append({term: (above[term] - below[term]) / (2 * step) for term in above})
    assert [entry.term for entry in found.terms] == [term.name for term in objective.terms]
    at_rest = terms_at(objective, make(c), log_c)
    for entry, term in zip(found.terms, objective.terms, strict=True):
        assert entry.value == pytest.approx(at_rest[entry.term], rel=1e-10)
        if detaches(term):
            continue
        expected = slopes[0][entry.term] if len(c) == 1 else math.hypot(*(slope[entry.term] for slope in slopes))
        assert entry.gradient == pytest.approx(expected, rel=1e-6, abs=1e-9)
    check_shares(found)


def detaches(term: Term) -> bool:
    """Whether a stopped gradient sets the gradient of training apart from the slope of the value."""
    return isinstance(term, Calibration) or (isinstance(term, Contrast) and term.tempered_by is not None)


def check_shares(found: CurvatureGradients) -> None:
    pulls = [abs(entry.weight * entry.gradient) for entry in found.terms]
    assert [entry.share for entry in found.terms] == pytest.approx([pull / sum(pulls) for pull in pulls])
    assert sum(entry.share or 0 for entry in found.terms) == pytest.approx(1)


@pytest.mark.parametrize("name", ["hycoclip", "uncha"])
def test_weighted_gradients_add_up_to_that_of_the_loss(name: str) -> None:
    objective, manifold = OBJECTIVES[name]().double(), lorentz([0.4])
    found = curvature_gradients(objective, manifold, lifted(manifold, tangents()))
    points = {view: manifold.expmap0(rows) for view, rows in tangents().items()}
    objective(manifold, Views.single(**points, owner=OWNER)).total.backward()
    assert sum(e.weight * e.gradient for e in found.terms) == pytest.approx(manifold.log_c.grad.item(), rel=1e-9)


def test_batches_are_consecutive_samples_with_their_parts_and_an_incomplete_one_is_left_out() -> None:
    objective, manifold = OBJECTIVES["hycoclip"](), lorentz([0.4])
    count, owner = 7, torch.tensor([6, 0, 0, 4, 3, 1, 5])
    vectors = tangents(count, owner)
    found = curvature_gradients(objective, manifold, lifted(manifold, vectors, owner), batch_size=3)
    assert (found.batches, found.batch_size) == (2, 3)
    values = []
    for start in (0, 3):
        part = (owner >= start) & (owner < start + 3)
        batch = {v: rows[part] if v.startswith("part") else rows[start : start + 3] for v, rows in vectors.items()}
        values.append(objective(manifold, lifted(manifold, batch, owner[part] - start)).terms)
    for entry in found.terms:
        assert entry.value == pytest.approx(float(sum(v[entry.term] for v in values) / 2), rel=1e-6)
    first = curvature_gradients(objective, manifold, lifted(manifold, vectors, owner), batch_size=3, max_batches=1)
    assert first.batches == 1
    assert first.terms[0].value == pytest.approx(float(values[0][first.terms[0].term]), rel=1e-6)
    whole = curvature_gradients(objective, manifold, lifted(manifold, vectors, owner), batch_size=100)
    assert (whole.batches, whole.batch_size) == (1, 7)


def test_a_batch_without_a_part_pulls_with_its_wholes_alone() -> None:
    manifold, owner = lorentz([0.4]), torch.tensor([], dtype=torch.long)
    found = curvature_gradients(OBJECTIVES["hycoclip"](), manifold, lifted(manifold, tangents(4, owner), owner))
    pulls = {entry.term: entry.gradient for entry in found.terms}
    assert pulls["part_image -> text"] == 0
    assert pulls["image -> text"] != 0
    assert all(math.isfinite(pull) for pull in pulls.values())


def test_a_curvature_that_does_not_learn_has_gradients_too_and_stays_as_it_is() -> None:
    fixed, learned = Lorentz(c=0.4, learn=False).double(), lorentz([0.4])
    views = lifted(fixed, tangents())
    found = curvature_gradients(OBJECTIVES["hycoclip"](), fixed, views)
    assert not found.learned
    assert not fixed.log_c.requires_grad
    twin = curvature_gradients(OBJECTIVES["hycoclip"](), learned, views)
    assert twin.learned
    assert learned.log_c.grad is None
    assert [e.gradient for e in found.terms] == [e.gradient for e in twin.terms]


def test_terms_whose_views_are_missing_are_named_with_the_reason() -> None:
    manifold = lorentz([0.4])
    vectors = tangents()
    views = Views.single(*(manifold.expmap0(vectors[view]).detach() for view in ("image", "text")))
    found = curvature_gradients(OBJECTIVES["hyfl"](), manifold, views)
    assert [e.term for e in found.terms] == ["image -> text", "text -> image", "minus radius entropy text"]
    assert "distillation short_text -> image: needs a teacher's features" in " ".join(found.left_out)
    assert "tokens of text ⊒ text: needs single tokens of text" in " ".join(found.left_out)
    assert len(found.terms) + len(found.left_out) == len(OBJECTIVES["hyfl"]().terms)
    assert found.reason is None


@pytest.mark.parametrize("manifold", [Euclidean(), Sphere()])
def test_without_a_curvature_there_is_a_reason_instead(manifold: Manifold) -> None:
    views = Views.single(torch.rand(4, 3), torch.rand(4, 3))
    found = curvature_gradients(OBJECTIVES["clip"](), manifold, views)
    assert found.terms == []
    assert found.reason == f"points of a {type(manifold).__name__} manifold have no curvature"


def test_where_nothing_pulls_there_is_no_share() -> None:
    manifold = lorentz([0.4])
    still = torch.zeros(4, 3, dtype=torch.float64)
    found = curvature_gradients(OBJECTIVES["meru"](), manifold, Views.single(still, still))
    assert [(e.gradient, e.share) for e in found.terms] == [(0.0, None)] * 3


def test_where_a_gradient_is_not_finite_no_share_is_known() -> None:
    objective = OBJECTIVES["meru"]()
    with torch.no_grad():
        objective.log_scale["global"].fill_(math.nan)
    found = curvature_gradients(objective, lorentz([0.4]), lifted(lorentz([0.4]), tangents()))
    assert [math.isfinite(entry.gradient) for entry in found.terms] == [False, False, True]
    assert [entry.share for entry in found.terms] == [None] * 3


@pytest.mark.parametrize("setting", [{"batch_size": 1}, {"max_batches": 0}])
def test_batches_that_say_nothing_are_refused(setting: dict[str, int]) -> None:
    views = Views.single(torch.rand(4, 3), torch.rand(4, 3))
    with pytest.raises(ValueError, match="batches of at least 2 samples"):
        curvature_gradients(OBJECTIVES["meru"](), Lorentz(), views, **setting)


def training_gradient(objective: Objective, manifold: Manifold, names: set[str]) -> Tensor:
    """The gradient of some terms' weighted sum with respect to all tangent vectors, from the objective itself."""
    vectors = {view: rows.clone().requires_grad_(True) for view, rows in tangents().items()}
    points = {view: manifold.expmap0(rows) for view, rows in vectors.items()}
    chosen = Objective([t for t in objective.terms if t.name in names], scales=objective.scales).double()
    chosen(manifold, Views.single(**points, owner=OWNER)).total.backward()
    return torch.cat([torch.zeros_like(v).flatten() if v.grad is None else v.grad.flatten() for v in vectors.values()])


@pytest.mark.parametrize(("make", "c"), [(lorentz, [0.7]), (product, [0.5, 2.0])])
def test_cosines_are_those_of_a_training_steps_gradients(
    make: Callable[[list[float]], Manifold], c: list[float]
) -> None:
    objective, manifold = OBJECTIVES["uncha"]().double(), make(c)
    views = lifted(manifold, tangents())
    found = term_gradient_cosines(objective, manifold, views)
    assert found.names == ["contrast", "tempered contrast", "entailment", "calibration"]
    kinds = {
        "contrast": {"image -> text", "text -> image", "part_image -> part_text", "part_text -> part_image"},
        "tempered contrast": {"part_image -> text", "part_text -> image"},
        "entailment": {"text ⊒ image", "part_text ⊒ part_image", "part_image ⊒ image", "part_text ⊒ text"},
    }
    kinds["calibration"] = {term.name for term in objective.terms} - set().union(*kinds.values())
    gradients = [training_gradient(objective, make(c), names) for names in kinds.values()]
    expected = [[float(torch.cosine_similarity(a, b, dim=0)) for b in gradients] for a in gradients]
    torch.testing.assert_close(torch.tensor(found.cosines), torch.tensor(expected), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.tensor(found.norms), torch.stack([g.norm() for g in gradients]).float())
    assert (found.batch_size, found.batches, found.left_out) == (6, 1, ())
    single = term_gradient_cosines(objective, manifold, views, by_kind=False, batch_size=3)
    assert (single.batches, single.names) == (2, [term.name for term in objective.terms])


def test_cosines_on_the_sphere_and_of_terms_without_a_gradient() -> None:
    sphere = Sphere().double()
    points = {view: torch.nn.functional.normalize(rows, dim=-1) for view, rows in tangents().items()}
    found = term_gradient_cosines(OBJECTIVES["clip"]().double(), sphere, Views.single(**points, owner=OWNER))
    assert found.names == ["contrast"]
    assert found.cosines == [[pytest.approx(1)]]
    at_origin = {view: torch.zeros_like(rows) for view, rows in tangents().items()}
    manifold = lorentz([1.0])
    flat = term_gradient_cosines(OBJECTIVES["hycoclip"]().double(), manifold, lifted(manifold, at_origin))
    assert 0 in flat.norms
    assert [value is None for value in flat.cosines[0]] == [0 in (norm, flat.norms[0]) for norm in flat.norms]
    with pytest.raises(ValueError, match="at least 2 samples, got 8 of 1"):
        term_gradient_cosines(OBJECTIVES["clip"](), sphere, Views.single(**points, owner=OWNER), batch_size=1)
