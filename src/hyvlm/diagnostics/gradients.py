"""How hard each term of the objective pulls at the curvature, and which terms pull at the points alike."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hyvlm.diagnostics.relations import why_left_out
from hyvlm.geometry import Lorentz, Manifold, ProductLorentz, Sphere
from hyvlm.methods import AlignedViews, Calibration, Contrast, Entailment, Entropy, Objective, Term
from hyvlm.methods.relations import check_manifold
from hyvlm.types import Views


@dataclass(frozen=True)
class TermGradient:
    """Of one term of the objective.

    Attributes:
        weight: Of the term in the objective.
        value: Of the term without its weight, mean over the batches.
        gradient: ``d value / d log c``; of a product the norm over the factors.
        share: ``|weight * gradient|`` over the sum of those of all terms; None if none pulls, or one is not finite.
    """

    term: str
    weight: float
    value: float
    gradient: float
    share: float | None


@dataclass(frozen=True)
class CurvatureGradients:
    """Of an objective.

    Attributes:
        terms: One entry a term that could be computed.
        learned: Whether the curvature is a parameter of the model; else the gradients are what would pull at it.
        batch_size: Samples a batch, the candidates of each other's contrast.
        batches: How many batches the gradients are a mean of.
        left_out: Each term that could not be computed, with the reason.
        reason: Why no gradient is there at all; None if there are some.
    """

    terms: list[TermGradient]
    learned: bool
    batch_size: int
    batches: int
    left_out: tuple[str, ...]
    reason: str | None


def curvature_gradients(
    objective: Objective, manifold: Manifold, views: Views, *, batch_size: int = 256, max_batches: int = 8
) -> CurvatureGradients:
    """Gradient of every term with respect to ``log c``, the logarithm of the curvature magnitude.

    The tangent vectors at the origin are held fixed, as the encoders give them, and lifted anew: ``c`` is the only
    variable. What the objective detaches stays detached, so these are the gradients of a training step. Batches are
    consecutive samples with all their parts, in float64; a shorter last one counts only if it is the only one.

    Args:
        views: Points on ``manifold``.
        batch_size: Samples a batch; the value of a contrast depends on it.
        max_batches: Only the first so many batches.
    Raises:
        ValueError: ``batch_size`` below 2 or ``max_batches`` below 1.
    """
    if batch_size < 2 or max_batches < 1:
        raise ValueError(f"gradients need batches of at least 2 samples, got {max_batches} of {batch_size}")
    if not isinstance(manifold, Lorentz | ProductLorentz):
        reason = f"points of a {type(manifold).__name__} manifold have no curvature"
        return CurvatureGradients([], False, batch_size, 0, (), reason)
    reasons = {term.name: _why_left_out(term, manifold, views) for term in objective.terms}
    terms = [term for term in objective.terms if reasons[term.name] is None]
    scales = {name: parameter.detach().double().exp() for name, parameter in objective.log_scale.items()}
    at_rest, moving = copy.deepcopy(manifold).double(), copy.deepcopy(manifold).double()
    log_c = (moving.factor if isinstance(moving, ProductLorentz) else moving).log_c.requires_grad_(True)
    values: dict[str, list[float]] = {term.name: [] for term in terms}
    pulls: dict[str, list[Tensor]] = {term.name: [] for term in terms}
    batches = list(_batches(views, batch_size))[:max_batches]
    for batch in batches:
        points = {view: moving.expmap0(at_rest.logmap0(rows.double())) for view, rows in batch.points.items()}
        aligned = AlignedViews(moving, dataclasses.replace(batch, points=points), scales, objective.reduction)
        for term in terms:
            share = term.share(aligned)
            values[term.name].append(float(share.detach()))
            pulls[term.name].append(_pull(share, log_c))
    means = {name: torch.stack(found).mean(0) for name, found in pulls.items()}
    pull = {name: float(mean.norm() if mean.dim() else mean) for name, mean in means.items()}
    total = sum(abs(term.weight * pull[term.name]) for term in terms)
    return CurvatureGradients(
        terms=[
            TermGradient(
                term=term.name,
                weight=term.weight,
                value=sum(values[term.name]) / len(batches),
                gradient=pull[term.name],
                share=abs(term.weight * pull[term.name]) / total if 0 < total < math.inf else None,
            )
            for term in terms
        ],
        learned=any(True for _ in manifold.parameters()),
        batch_size=len(batches[0].points["image"]),
        batches=len(batches),
        left_out=tuple(f"{name}: {reason}" for name, reason in reasons.items() if reason is not None),
        reason=None if terms else "no term of the objective can be computed from these views",
    )


@dataclass(frozen=True)
class GradientCosines:
    """Cosines between the gradients of an objective's parts with respect to the points (UNCHA, Fig. S.8a).

    Attributes:
        names: Of the k parts: the single terms, or the kinds of :func:`kind_of`.
        cosines: k rows of k; None with a part that has no gradient.
        norms: Of each part's gradient, weight included.
        batch_size: Samples a batch.
        batches: How many batches the gradients are joined over.
        left_out: Each term that could not be computed, with the reason.
    """

    names: list[str]
    cosines: list[list[float | None]]
    norms: list[float]
    batch_size: int
    batches: int
    left_out: tuple[str, ...]


def kind_of(term: Term) -> str:
    """What a term is counted as: "contrast", "tempered contrast" (by uncertainty), "entailment" or "calibration".

    The entropy of uncertainties belongs to their calibration, as in UNCHA's Eq. 17; other terms have their own name.
    """
    if isinstance(term, Contrast):
        return "contrast" if term.tempered_by is None else "tempered contrast"
    if isinstance(term, Calibration | Entropy):
        return "calibration"
    return "entailment" if isinstance(term, Entailment) else term.name


def term_gradient_cosines(
    objective: Objective,
    manifold: Manifold,
    views: Views,
    *,
    by_kind: bool = True,
    batch_size: int = 256,
    max_batches: int = 8,
) -> GradientCosines:
    """Whether the terms of an objective pull at the points in one direction.

    The gradients are those of a training step (what is stopped stays stopped, weights are included) with respect to the
    tangent vectors of all points, which are what the towers and their scales put out; on the sphere, to the points. The
    paper does not say with respect to what its cosines are.

    Args:
        by_kind: Add terms of one :func:`kind_of` up before the cosines are taken.
        batch_size, max_batches: As of :func:`curvature_gradients`.
    Raises:
        ValueError: ``batch_size`` below 2 or ``max_batches`` below 1; no term can be computed.
    """
    if batch_size < 2 or max_batches < 1:
        raise ValueError(f"gradients need batches of at least 2 samples, got {max_batches} of {batch_size}")
    reasons = {term.name: _why_left_out(term, manifold, views) for term in objective.terms}
    terms = [term for term in objective.terms if reasons[term.name] is None]
    if not terms:
        raise ValueError("no term of the objective can be computed from these views")
    names = list(dict.fromkeys(kind_of(term) if by_kind else term.name for term in terms))
    scales = {name: parameter.detach().double().exp() for name, parameter in objective.log_scale.items()}
    space = copy.deepcopy(manifold).double().requires_grad_(False)
    gram = torch.zeros(len(names), len(names), dtype=torch.float64)
    batches = list(_batches(views, batch_size))[:max_batches]
    for batch in batches:
        points = {view: rows.detach().double() for view, rows in batch.points.items()}
        flat = {view: _tangent(space, rows).requires_grad_(True) for view, rows in points.items()}
        points = {view: _point(space, rows) for view, rows in flat.items()}
        aligned = AlignedViews(space, dataclasses.replace(batch, points=points), scales, objective.reduction)
        rows = torch.zeros(len(names), sum(one.numel() for one in flat.values()), dtype=torch.float64)
        for term in terms:
            pull = _pulls(term.weight * term.share(aligned), list(flat.values()))
            rows[names.index(kind_of(term) if by_kind else term.name)] += pull.cpu()
        gram += rows @ rows.T
    norms = gram.diagonal().sqrt()
    cosines = gram / torch.outer(norms, norms)
    return GradientCosines(
        names=names,
        cosines=[[None if math.isnan(v) else v for v in row] for row in cosines.clamp(-1, 1).tolist()],
        norms=norms.tolist(),
        batch_size=len(batches[0].points["image"]),
        batches=len(batches),
        left_out=tuple(f"{name}: {reason}" for name, reason in reasons.items() if reason is not None),
    )


def _tangent(manifold: Manifold, points: Tensor) -> Tensor:
    return (points if isinstance(manifold, Sphere) else manifold.logmap0(points)).detach()  # type: ignore[operator]


def _point(manifold: Manifold, vectors: Tensor) -> Tensor:
    return vectors if isinstance(manifold, Sphere) else manifold.expmap0(vectors)  # type: ignore[operator]


def _pulls(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """The gradient of ``value`` with respect to all leaves, as one vector; zero where it does not depend on them."""
    if not value.requires_grad:
        return torch.cat([torch.zeros_like(leaf).flatten() for leaf in leaves])
    found = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([one.flatten() for one in found])


def _why_left_out(term: Term, manifold: Manifold, views: Views) -> str | None:
    reason = why_left_out(term, views.points)
    if reason is None:
        try:
            check_manifold(manifold, term)
        except ValueError as error:
            return str(error)
    return reason


def _batches(views: Views, size: int) -> Iterator[Views]:
    """Consecutive samples with all their parts; those that are too few for a batch count only if there is no other."""
    count = len(views.points["image"])
    owner = views.owner["part"]
    for start in range(0, max(count - size, 0) + 1, size):
        part = (owner >= start) & (owner < start + size)
        whole = {view: rows[start : start + size] for view, rows in views.points.items() if not view.startswith("part")}
        parts = {view: rows[part] for view, rows in views.points.items() if view.startswith("part")}
        yield Views.single(
            whole["image"],
            whole["text"],
            parts.get("part_image"),
            parts.get("part_text"),
            owner[part] - start,
            short_text=whole.get("short_text"),
        )


def _pull(value: Tensor, log_c: Tensor) -> Tensor:
    """``d value / d log c``; zero where the value does not depend on it."""
    if not value.requires_grad:
        return torch.zeros_like(log_c)
    (gradient,) = torch.autograd.grad(value, log_c, retain_graph=True, allow_unused=True)
    return torch.zeros_like(log_c) if gradient is None else gradient
