"""An objective is a list of relations; a method is a builder of one, registered under the paper's name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from hyvlm.geometry import Manifold
from hyvlm.losses import HasCones, HasRadius
from hyvlm.methods.aligned import REDUCTIONS, AlignedViews
from hyvlm.methods.relations import Term, check_manifold
from hyvlm.registry import Registry, unknown
from hyvlm.types import GROUP_OF_VIEW, LossOutput, Views

OBJECTIVES: Registry[Callable[..., Objective]] = Registry("objective")

#: ln 100 as every released model of the MERU lineage rounds it, so that the inverse temperature ends at 100.003.
MAX_LOG_SCALE = 4.6052


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """An inverse temperature, kept as its logarithm; learnable, or fixed."""

    init_temperature: float = 0.07
    max_log_scale: float = MAX_LOG_SCALE
    learn: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.init_temperature < math.inf:
            raise ValueError(f"a temperature must be positive and finite, got {self.init_temperature}")


class Objective(nn.Module):
    """The weighted sum of a method's relations.

    Args:
        terms: What :func:`contrast`, :func:`entail`, :func:`calibrate` and :func:`entropy_of` return, or lists of
            other :class:`~hyvlm.methods.relations.Term`.
        scales: Name to :class:`Scale`; each becomes ``log_scale[name]``, which learns if the scale does.
        reduction: "global": means and entropies run over the global batch, so the loss does not depend on the number
            of processes. "per_rank": over each process's rows, averaged over the processes, with candidates from all
            of them, as the released codes do.
    Attributes:
        views: The views that the relations name, in the order of ``GROUP_OF_VIEW``.
        token_views: Views whose single tokens a relation needs; it has ``midpoints(manifold, views)``, see
            :meth:`condense`.
        teacher_views: Views that a frozen teacher must embed; none if no relation needs a teacher.
        log_scale: Logarithms of the inverse temperatures.
        query_pooling: What makes ``query_image`` of the patches of an image and the features of a query; None if no
            relation needs it, or before :meth:`prepare`.
    Raises:
        ValueError: Unknown reduction or scale, no term, a negative weight, or two terms of one name.
    """

    def __init__(
        self,
        *terms: Sequence[Term],
        scales: Mapping[str, Scale] | None = None,
        reduction: str = "global",
    ) -> None:
        super().__init__()
        self.terms: list[Term] = [term for group in terms for term in group]
        self.scales = dict(scales) if scales is not None else {"global": Scale()}
        self.reduction = reduction
        self._check()
        used = {view for term in self.terms for view in term.views}
        self.views: tuple[str, ...] = tuple(view for view in GROUP_OF_VIEW if view in used)
        self.token_views = self._named_by("token_views")
        self.teacher_views = self._named_by("teacher_views")
        modules = [value for term in self.terms for value in vars(term).values() if isinstance(value, nn.Module)]
        self.term_modules = nn.ModuleList(dict.fromkeys(modules))  # a loss with parameters moves, learns and is saved
        self.log_scale = nn.ParameterDict(
            {
                name: nn.Parameter(torch.tensor(-math.log(s.init_temperature)), requires_grad=s.learn)
                for name, s in self.scales.items()
            }
        )
        self.query_pooling: nn.Module | None = None
        self.constrain_()

    def prepare(self, image_width: int, text_width: int) -> None:
        """Build what only training needs, for towers of these widths; call before the optimizer is made. Here nothing.

        Such modules belong to the objective and not to the model, so they are no part of what is exported.
        """

    def _named_by(self, attribute: str) -> tuple[str, ...]:
        named = {view for term in self.terms for view in getattr(term, attribute, ())}
        return tuple(view for view in GROUP_OF_VIEW if view in named)

    def _check(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ValueError(unknown("reduction", self.reduction, list(REDUCTIONS)))
        if not self.terms:
            raise ValueError("an objective needs at least one relation")
        names = [term.name for term in self.terms]
        for term in self.terms:
            if not 0 <= term.weight < math.inf:
                raise ValueError(f"the weight of {term.name!r} must be finite and not negative, got {term.weight}")
            if names.count(term.name) > 1:
                raise ValueError(f"the objective names {term.name!r} twice")
            scale = getattr(term, "scale", None)
            if scale is not None and scale not in self.scales:
                raise ValueError(f"scale of {term.name!r}: " + unknown("scale", scale, list(self.scales)))

    def check_manifold(self, manifold: Manifold) -> None:
        """Raise ValueError if the manifold lacks what a relation needs."""
        for term in self.terms:
            check_manifold(manifold, term)

    @torch.no_grad()
    def constrain_(self) -> None:
        """Bring every scale back below its bound, in place; call after an optimizer step."""
        for name, parameter in self.log_scale.items():
            parameter.clamp_(max=self.scales[name].max_log_scale)

    def condense(self, manifold: Manifold, views: Views) -> Views:
        """The views with, instead of tokens, the one point that each relation makes of a row's tokens.

        It depends on its own sample alone, so this can be done piece by piece, and before points are gathered. Runs in
        the precision of the points, at least float32, whatever the autocast.
        """
        views = self._at_least_float32(views)
        with torch.autocast(views.points[self.views[0]].device.type, enabled=False):
            of = {term.name: term.midpoints(manifold, views) for term in self.terms if hasattr(term, "midpoints")}
        return dataclasses.replace(views, tokens={}, midpoints=of)

    def _at_least_float32(self, views: Views) -> Views:
        """What the relations look at of ``views``, in float32 or more."""
        return dataclasses.replace(
            views,
            points={view: _at_least_float32(views.points[view]) for view in self.views},
            tokens={
                view: dataclasses.replace(tokens, values=_at_least_float32(tokens.values))
                for view, tokens in views.tokens.items()
                if view in self.token_views
            },
            midpoints={name: _at_least_float32(points) for name, points in views.midpoints.items()},
            teacher={view: _at_least_float32(f) for view, f in views.teacher.items() if view in self.teacher_views},
        )

    def forward(self, manifold: Manifold, views: Views) -> LossOutput:
        """This process's share of the loss; the sum over processes is the loss of the global batch.

        Runs in the precision of the points, at least float32, whatever the autocast.

        Args:
            manifold: Where the points live.
            views: Points of the global batch (:func:`hyvlm.training.distributed.gather_views`).
        Raises:
            ValueError: A view that a relation names is missing, or the manifold lacks what a relation needs.
        """
        condensed = all(term.name in views.midpoints for term in self.terms if hasattr(term, "midpoints"))
        needed: dict[str, tuple[tuple[str, ...], Mapping[str, object]]] = {
            "view": (self.views, views.points),
            "tokens of": (() if condensed else self.token_views, views.tokens),
            "a teacher's features of": (self.teacher_views, views.teacher),
        }
        for what, (names, given) in needed.items():
            for view in names:
                if view not in given:
                    raise ValueError(f"the objective needs {what} {view!r}, the batch has {', '.join(given) or 'none'}")
        self.check_manifold(manifold)
        views = self._at_least_float32(views) if condensed else self.condense(manifold, views)
        with torch.autocast(views.points[self.views[0]].device.type, enabled=False):
            scales = {name: parameter.exp() for name, parameter in self.log_scale.items()}
            batch = AlignedViews(manifold, views, scales, self.reduction)
            shares = {term.name: term.share(batch) for term in self.terms}
            total = torch.stack([term.weight * shares[term.name] for term in self.terms]).sum()
            stats = self.stats(manifold, views)
            stat_shares: dict[str, Tensor] = {}
            for term in self.terms:
                if hasattr(term, "stat_shares"):
                    stat_shares |= term.stat_shares(batch)
        return LossOutput(total, {name: share.detach() for name, share in shares.items()}, stats, stat_shares)

    @torch.no_grad()
    def stats(self, manifold: Manifold, views: Views) -> dict[str, Tensor]:
        """Scalars of the global batch: mean radius per view, saturated share per general view, temperatures, curvature.

        A view without points has no mean and no share. A list (one curvature per factor) is given by its mean, least
        and largest value.
        """
        stats: dict[str, Tensor] = {}
        general = {getattr(term, "general", None) for term in self.terms}
        for view in self.views:
            points = views.points[view]
            if len(points) and isinstance(manifold, HasRadius):
                stats[f"radius/{view}"] = manifold.radius(points).mean()
            if len(points) and view in general and isinstance(manifold, HasCones):
                stats[f"saturated/{view}"] = manifold.saturated(points).to(points.dtype).mean()
        for name, parameter in self.log_scale.items():
            stats[f"temperature/{name}"] = torch.exp(-parameter.detach())
        for name, value in manifold.describe().items():
            values = torch.tensor(value, dtype=torch.float64)
            if values.dim() == 0:
                stats[name] = values
            else:
                stats |= {f"{name}/mean": values.mean(), f"{name}/min": values.min(), f"{name}/max": values.max()}
        return stats


def _at_least_float32(points: Tensor) -> Tensor:
    return points.float() if points.dtype in (torch.float16, torch.bfloat16) else points
