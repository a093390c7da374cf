"""How hard each term of the objective pulls at the curvature."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hyvlm.diagnostics.relations import why_left_out
from hyvlm.geometry import Lorentz, Manifold, ProductLorentz
from hyvlm.methods import AlignedViews, Objective, Term
from hyvlm.methods.relations import check_manifold
from hyvlm.types import Views


@dataclass(frozen=True)
class TermGradient:
    """Of one term of the objective.

    Attributes:
        weight: Of the term in the objective.
        value: Of the term without its weight, mean over the batches.
        gradient: ``d value / d log c``; of a product the norm over the factors.
        share: ``|weight * gradient|`` over the sum of those of all terms; None if none pulls.
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
                share=abs(term.weight * pull[term.name]) / total if total else None,
            )
            for term in terms
        ],
        learned=any(True for _ in manifold.parameters()),
        batch_size=len(batches[0].points["image"]),
        batches=len(batches),
        left_out=tuple(f"{name}: {reason}" for name, reason in reasons.items() if reason is not None),
        reason=None if terms else "no term of the objective can be computed from these views",
    )


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
