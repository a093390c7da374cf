"""Similarities of many rows and many columns, one panel of the matrix at a time, and the way back for gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hyvlm.geometry import (
    Euclidean,
    HasAngles,
    Lorentz,
    Manifold,
    Modality,
    ProductEuclidean,
    ProductLorentz,
    Sphere,
    angle_similarity,
    hyperboloid,
)
from hyvlm.geometry.numerics import dot, norm
from hyvlm.geometry.pairs import CANCELLED
from hyvlm.losses.tiled_kernels import kernels_for

#: Numbers gathered per operand and step when close pairs are recomputed.
_CHUNK = 2**18

#: Points count as one cluster, and are measured from within it, above this share of their mean square in their mean.
_CLUSTERED = 0.5


@dataclass
class Panel:
    """A block of rows against a block of columns.

    Attributes:
        s: Similarities, ``(n, m)``; later, in their place, the gradient with respect to them.
        q: What the matrix product gave.
        close: Rows and columns, within the panel, of pairs that were computed one by one.
        state: What else a kind of scores keeps.
    """

    rows: slice
    columns: slice
    s: Tensor
    q: Tensor
    close: tuple[Tensor, Tensor] | None = None
    state: Any = None


@dataclass
class Scratch:
    """Buffers that panels are computed in, one after the other."""

    like: Tensor
    held: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, name: str, n: int, m: int) -> Tensor:
        if name not in self.held or self.held[name].numel() < n * m:
            self.held[name] = self.like.new_empty(n * m)
        return self.held[name][: n * m].view(n, m)


class Gradients:
    """Sums of the gradients of ``tensors``; those that nothing is added to stay None."""

    def __init__(self, tensors: Sequence[Tensor], needed: Sequence[bool]) -> None:
        self.tensors, self.needed = tensors, needed
        self.found: list[Tensor | None] = [None] * len(tensors)

    def __getitem__(self, number: int) -> Tensor:
        found = self.found[number]
        if found is None:
            found = self.found[number] = torch.zeros_like(self.tensors[number])
        return found


class Scores(Protocol):
    """Rows against columns, by panels. ``tensors`` are what gradients flow to; they are handed back detached."""

    tensors: tuple[Tensor, ...]
    shape: tuple[int, int]

    def forward(self, tensors: Sequence[Tensor], rows: slice, columns: slice, scratch: Scratch) -> Panel:
        """Similarities of a panel, in ``scratch``."""

    def backward(self, tensors: Sequence[Tensor], panel: Panel, gradients: Gradients, scratch: Scratch) -> None:
        """Add what the gradient in ``panel.s`` means for the tensors; it and ``panel.q`` may be overwritten."""


class InnerScores:
    """Inner products of rows of ``x`` and ``y``, ``(N, D)`` and ``(M, D)``: the cosine on the sphere."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.tensors: tuple[Tensor, ...] = (x, y)
        self.shape = (len(x), len(y))

    def forward(self, tensors: Sequence[Tensor], rows: slice, columns: slice, scratch: Scratch) -> Panel:
        x, y = tensors[0][rows], tensors[1][columns]
        s = torch.mm(x, y.T, out=scratch("s", len(x), len(y)))
        return Panel(rows, columns, s, s)

    def backward(self, tensors: Sequence[Tensor], panel: Panel, gradients: Gradients, scratch: Scratch) -> None:
        _add_products(tensors[0], tensors[1], panel, gradients, 0, 1)


class DistanceScores:
    """Minus distances: ``-asinh(sqrt(q))`` or ``-sqrt(q)`` of ``q``, a squared chord that is one matrix product.

    One factor gives it bare, in units of ``2 / sqrt(c)`` where there is a curvature. ``weights`` sum the factors of a
    product: ``-sum_f w_f psi_f`` (l1), or ``-sqrt(sum_f w_f psi_f^2)`` (l2). Pairs that cancel in the matrix product
    are computed one by one, with a zero gradient where points coincide.

    Args:
        x, y: Points ``(F, N, D)`` and ``(F, M, D)``.
        c: Curvature magnitudes ``(F,)``; None is flat.
        weights: ``(F,)``, or None for a single factor.
        metric: "l1" or "l2".
    """

    def __init__(
        self, x: Tensor, y: Tensor, c: Tensor | None, weights: Tensor | None = None, metric: str = "l1"
    ) -> None:
        self.hyperbolic = c is not None
        self.metric = metric if weights is not None else "single"
        self.shape = (x.shape[1], y.shape[1])
        self.factors = len(x)
        base = _base(x, y)
        operands = _flat_operands(x, y, base) if c is None else _hyperbolic_operands(x, y, base, c.view(-1, 1, 1))
        left, right, self.size_left, self.size_right = operands
        nothing = x.new_ones(self.factors)
        self.tensors: tuple[Tensor, ...] = (
            left,
            right,
            x,
            y,
            nothing if c is None else c,
            nothing if weights is None else weights,
        )

    def forward(self, tensors: Sequence[Tensor], rows: slice, columns: slice, scratch: Scratch) -> Panel:
        if self.metric == "single":
            return self._factor(0, tensors, rows, columns, scratch, "s")
        total = scratch("total", len(tensors[0][0, rows]), len(tensors[1][0, columns])).zero_()
        for f, weight in enumerate(tensors[5].tolist()):
            s = self._factor(f, tensors, rows, columns, scratch, "s").s
            total.add_(s, alpha=weight) if self.metric == "l1" else total.addcmul_(s, s, value=weight)
        kept = None
        if self.metric == "l2":
            total.sqrt_().neg_()
            kept = scratch("kept", *total.shape).copy_(total)
        return Panel(rows, columns, total, total, state=kept)

    def _factor(
        self, f: int, tensors: Sequence[Tensor], rows: slice, columns: slice, scratch: Scratch, name: str
    ) -> Panel:
        left, right = tensors[0][f, rows], tensors[1][f, columns]
        shape = len(left), len(right)
        q = torch.mm(left, right.T, out=scratch("q", *shape))
        s = scratch(name, *shape)
        lowest = kernels_for(q).similarity(q, s, hyperbolic=self.hyperbolic)
        panel = Panel(rows, columns, s, q)
        size_left, size_right = self.size_left[f, rows], self.size_right[f, columns]
        share = CANCELLED[q.dtype]
        suspects = (lowest < share * (size_left @ size_right.amax(0))).nonzero().squeeze(1)
        if len(suspects):
            found, column = (q[suspects] < share * (size_left[suspects] @ size_right.T)).nonzero(as_tuple=True)
            if len(found):
                panel.close = suspects[found], column
                s[panel.close] = self._one_by_one(f, tensors, panel)
                q[panel.close] = 0.0  # takes them out of the products of the way back
        return panel

    def backward(self, tensors: Sequence[Tensor], panel: Panel, gradients: Gradients, scratch: Scratch) -> None:
        if self.metric == "single":
            self._pull(0, tensors, panel, gradients)
            return
        h, kept = panel.s, panel.state
        if kept is not None:
            h = h.div_(kept.masked_fill_(kept == 0, -torch.inf))
        for f, weight in enumerate(tensors[5].tolist()):
            part = self._factor(f, tensors, panel.rows, panel.columns, scratch, "s")
            if kept is None:
                slope = torch.mul(h, weight, out=scratch("slope", *h.shape))
                by_weight = torch.linalg.vecdot(h, part.s)
            else:
                slope = torch.mul(h, part.s, out=scratch("slope", *h.shape))
                by_weight = torch.linalg.vecdot(slope, part.s) / 2
                slope.mul_(weight)
            if gradients.needed[5]:
                gradients[5][f] += by_weight.sum(dtype=torch.float64)
            part.s = slope
            self._pull(f, tensors, part, gradients)

    def _pull(self, f: int, tensors: Sequence[Tensor], panel: Panel, gradients: Gradients) -> None:
        if panel.close is not None:
            self._pull_one_by_one(f, tensors, panel, gradients)
        kernels_for(panel.q).pull(panel.q, panel.s, hyperbolic=self.hyperbolic)
        _add_products(tensors[0][f], tensors[1][f], panel, gradients, 0, 1, f)

    def _paired(self, x: Tensor, y: Tensor, c: Tensor) -> Tensor:
        return -hyperboloid.distance(x, y, c) * c.sqrt() / 2 if self.hyperbolic else -norm(x - y)

    def _steps(self, f: int, tensors: Sequence[Tensor], panel: Panel) -> Any:
        assert panel.close is not None
        step = max(1, _CHUNK // tensors[2].shape[-1])
        for i, j in zip(panel.close[0].split(step), panel.close[1].split(step), strict=True):
            row, column = i + (panel.rows.start or 0), j + (panel.columns.start or 0)
            yield row, column, tensors[2][f, row], tensors[3][f, column], panel.s[i, j]

    def _one_by_one(self, f: int, tensors: Sequence[Tensor], panel: Panel) -> Tensor:
        return torch.cat([self._paired(x, y, tensors[4][f]) for _, _, x, y, _ in self._steps(f, tensors, panel)])

    def _pull_one_by_one(self, f: int, tensors: Sequence[Tensor], panel: Panel, gradients: Gradients) -> None:
        for row, column, x, y, h in self._steps(f, tensors, panel):
            with torch.enable_grad():
                leaves = [leaf.detach().requires_grad_() for leaf in (x, y, tensors[4][f])]
                value = self._paired(*leaves)
            by_x, by_y, by_c = torch.autograd.grad(value, leaves, h.clone(), allow_unused=True)
            gradients[2][f].index_add_(0, row, by_x)
            gradients[3][f].index_add_(0, column, by_y)
            if by_c is not None:
                gradients[4][f] += by_c


class FormulaScores:
    """Any pairwise formula: each panel is differentiated by autograd, which computes it again.

    Args:
        formula: Rows ``(n, D)`` and columns ``(m, D)`` to similarities ``(n, m)``.
        parameters: Leaves that the formula depends on.
    """

    def __init__(
        self, formula: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, parameters: Sequence[Tensor] = ()
    ) -> None:
        self.formula = formula
        self.tensors: tuple[Tensor, ...] = (x, y, *parameters)
        self.shape = (len(x), len(y))
        self.parameters = tuple(parameters)

    def forward(self, tensors: Sequence[Tensor], rows: slice, columns: slice, scratch: Scratch) -> Panel:
        s = self.formula(tensors[0][rows], tensors[1][columns])
        s = scratch("s", *s.shape).copy_(s)
        return Panel(rows, columns, s, s)

    def backward(self, tensors: Sequence[Tensor], panel: Panel, gradients: Gradients, scratch: Scratch) -> None:
        with torch.enable_grad():
            x, y = (points.detach().requires_grad_() for points in (tensors[0][panel.rows], tensors[1][panel.columns]))
            value = self.formula(x, y)
        found = torch.autograd.grad(value, [x, y, *self.parameters], panel.s, allow_unused=True)
        gradients[0][panel.rows] += found[0]
        gradients[1][panel.columns] += found[1]
        for number, by_parameter in enumerate(found[2:], 2):
            if by_parameter is not None:
                gradients[number].add_(by_parameter)


def scores_of(manifold: Manifold, x: Tensor, y: Tensor) -> tuple[Scores, Tensor]:
    """The manifold's similarity of every ``x`` ``(N, D)`` and ``y`` ``(M, D)``, and a factor to multiply it by.

    A manifold without a panel form of its own is computed by its ``similarity``.
    """
    one = x.new_ones(())
    match manifold:
        case Sphere():
            return InnerScores(x, y), one
        case Lorentz() if manifold.log_c.dim() == 0:
            c = manifold.log_c.to(x.dtype).exp()
            return DistanceScores(x.unsqueeze(0), y.unsqueeze(0), c.view(1)), 2 * c.rsqrt()
        case Euclidean() if isinstance(manifold.aperture_radius, int | float):
            return DistanceScores(x.unsqueeze(0), y.unsqueeze(0), None), one
        case ProductLorentz() | ProductEuclidean():
            x, y = (manifold.split(points).movedim(-2, 0).contiguous() for points in (x, y))
            c_of = manifold.factor.log_c.to(x.dtype).exp() if isinstance(manifold, ProductLorentz) else None
            unit = x.new_ones(manifold.factors) if c_of is None else 2 * c_of.rsqrt()
            weights = (unit if manifold.metric == "l1" else unit.square()) / manifold.factors
            return DistanceScores(x, y, c_of, weights, manifold.metric), one
    return FormulaScores(manifold.similarity, x, y, leaves_of(manifold)), one


def angle_scores_of(manifold: HasAngles, anchors: Tensor, candidates: Tensor, *, at: Modality) -> Scores:
    """:func:`~hyvlm.geometry.angle_similarity` of every anchor and candidate."""

    def formula(x: Tensor, y: Tensor) -> Tensor:
        return angle_similarity(manifold, x, y, at=at)

    assert isinstance(manifold, nn.Module)
    return FormulaScores(formula, anchors, candidates, leaves_of(manifold))


def leaves_of(module: nn.Module) -> list[Tensor]:
    """What gradients flow to of a module: parameters, and buffers that ask for them."""
    return [t for t in (*module.parameters(), *module.buffers()) if t.requires_grad]


def _add_products(
    left: Tensor, right: Tensor, panel: Panel, gradients: Gradients, of_left: int, of_right: int, f: int | None = None
) -> None:
    """What the gradient ``panel.s`` of a product ``left @ right.T`` means for its operands."""
    rows, columns = panel.rows, panel.columns
    if gradients.needed[of_left]:
        into = gradients[of_left] if f is None else gradients[of_left][f]
        into[rows].addmm_(panel.s, right[columns])
    if gradients.needed[of_right]:
        into = gradients[of_right] if f is None else gradients[of_right][f]
        into[columns].addmm_(panel.s.T, left[rows])


@torch.no_grad()
def _base(x: Tensor, y: Tensor) -> Tensor | None:
    """A point ``(F, 1, D)`` to measure from, so that clustered points do not cancel; None is the origin.

    It is one of the points: where all are equal, their differences from it are exactly zero.
    """
    count = max(x.shape[1] + y.shape[1], 1)
    mean = (x.sum(1) + y.sum(1)) / count
    clustered = dot(mean, mean) > _CLUSTERED * (x.square().sum((1, 2)) + y.square().sum((1, 2))) / count
    if not len(y[0]) or not bool(clustered.any()):
        return None
    nearest = (dot(y, y) - 2 * (y @ mean.unsqueeze(-1)).squeeze(-1)).argmin(1)
    return torch.where(clustered.view(-1, 1, 1), y.take_along_dim(nearest.view(-1, 1, 1), 1), 0.0)


def _hyperbolic_operands(x: Tensor, y: Tensor, base: Tensor | None, c: Tensor) -> tuple[Tensor, ...]:
    """Operands of ``c/4 chord_sq`` as in :func:`hyvlm.geometry.hyperboloid.pairwise_distance`, and the terms' sizes."""
    c = c.squeeze(-1)
    if base is None:
        later_x, later_y = (hyperboloid.time_above_origin(points, c) for points in (x, y))
        to_x, to_y = (2 * later * c.rsqrt() for later in (later_x, later_y))
        a, b = x, y
    else:
        a, b = x - base, y - base
        time = hyperboloid.time(base, c)
        later_x, later_y = (
            dot(shifted, points + base) / (hyperboloid.time(points, c) + time) for shifted, points in ((a, x), (b, y))
        )
        to_x, to_y = (hyperboloid.chord_sq(points, base, c) for points in (x, y))
    quarter = c.unsqueeze(-1) / 4
    one_x, one_y = torch.ones_like(to_x), torch.ones_like(to_y)
    left = quarter * torch.cat([a, torch.stack([later_x, to_x, one_x], -1)], -1)
    right = torch.cat([-2 * b, torch.stack([2 * later_y, one_y, to_y], -1)], -1)
    with torch.no_grad():
        size_left = quarter * torch.stack([norm(a), later_x.abs(), to_x, one_x], -1)
        size_right = torch.stack([2 * norm(b), 2 * later_y.abs(), one_y, to_y], -1)
    return left, right, size_left, size_right


def _flat_operands(x: Tensor, y: Tensor, base: Tensor | None) -> tuple[Tensor, ...]:
    """Operands of ``|x - y|^2``, and the terms' sizes."""
    a, b = (x, y) if base is None else (x - base, y - base)
    square_x, square_y = dot(a, a), dot(b, b)
    one_x, one_y = torch.ones_like(square_x), torch.ones_like(square_y)
    size_left, size_right = torch.stack([square_x, one_x], -1), torch.stack([one_y, square_y], -1)
    left, right = torch.cat([a, size_left], -1), torch.cat([-2 * b, size_right], -1)
    return left, right, size_left.detach(), size_right.detach()
