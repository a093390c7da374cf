"""Exterior angles of paired points from three numbers a pair: two norms and a dot product.

In float32, the precision of training, that takes a fraction of the passes over the points that the exact form takes.
Pairs whose numbers cancel are left to the exact form, and so are float64 and second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hyvlm.geometry.numerics import dot, nonzero, norm

#: A pair is left to the exact form where its square off the axis is below this share of the square of ``y``.
_COLLINEAR = 0.1

#: ``x``, ``y`` and their curvature magnitude (None: flat), to the angle at ``x``.
PairedAngle = Callable[[Tensor, Tensor, Any], Tensor]


def exterior_angle(exact: PairedAngle, x: Tensor, y: Tensor, c: Tensor | None) -> Tensor:
    """``exact(x, y, c)`` to the precision of float32, in fewer passes over the points.

    Args:
        exact: The formula, of which this is the cheap form.
        x, y: Points ``(..., D)``; leading axes broadcast.
        c: Curvature magnitude, broadcasting to ``(...)``; None is flat.
    Returns:
        Radians, ``(...)``.
    """
    if x.dtype != torch.float32 or y.dtype != torch.float32:
        return exact(x, y, c)
    x, y = torch.broadcast_tensors(x, y)
    angle: Tensor
    angle, collinear = _FromNorms.apply(exact, x, y, c)
    count = int(collinear.count_nonzero())
    if count == collinear.numel():
        return exact(x, y, c)
    if count:
        rows = c if c is None or c.dim() == 0 else c.expand(collinear.shape)[collinear]
        angle = angle.masked_scatter(collinear, exact(x[collinear], y[collinear], rows))
    return angle


class _FromNorms(torch.autograd.Function):
    """The angle as ``atan2(A, R)``, ``A`` the length of ``y`` off the axis of ``x``, and the pairs where ``A`` cancels.

    ``R`` is how far ``y`` lies outward of ``x``: ``sqrt(c) (time(x) height - |x| time(y))``, flat ``height - |x|``.
    """

    @staticmethod
    def forward(ctx: Any, exact: PairedAngle, x: Tensor, y: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:
        n, length = norm(x), norm(y)
        height = dot(x, y) / nonzero(n)
        across_sq = (length - height) * (length + height)
        collinear = (across_sq <= _COLLINEAR * length.square()) | (n == 0)
        across = across_sq.masked_fill_(collinear, 1.0).sqrt_()
        if c is None:
            outward = height - n
        else:
            tx, ty = (1 / c + n.square()).sqrt_(), (1 / c + length.square()).sqrt_()
            # the difference expanded by the sum where its terms have one sign, as in hyperboloid.exterior_angle
            total = tx * height.abs() + n * ty
            expanded = (height - n) * ((height + n) / total) / c - n * across * (n * across / total)
            outward = c.sqrt() * torch.where(height > 0, expanded, tx * height - n * ty)
        ctx.exact = exact
        ctx.save_for_backward(x, y, c, n, length, height, across, outward, collinear)
        ctx.mark_non_differentiable(collinear)
        return torch.atan2(across, outward), collinear

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, y, c, n, length, height, across, outward, collinear = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs = [t for t, needed in zip((x, y, c), ctx.needs_input_grad[1:], strict=True) if needed]
            value = ctx.exact(x, y, c)
            found = iter(torch.autograd.grad(value, inputs, grad.masked_fill(collinear, 0.0), create_graph=True))
            return None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:])
        # divided by the hypotenuse at once: its square overflows for far points
        hypotenuse = torch.hypot(across, outward)
        sine, cosine = across / hypotenuse, outward / hypotenuse
        grad = (grad / hypotenuse).masked_fill_(collinear, 0.0)
        by_across, by_outward = grad * cosine / across, -grad * sine
        by_c = None
        if c is None:
            by_n, by_height, by_length = -by_outward, by_outward, 0.0
        else:
            root = c.sqrt()
            to_x, to_y = n / (1 / c + n.square()).sqrt_(), length / (1 / c + length.square()).sqrt_()
            by_outward = by_outward * root
            by_n = by_outward * (height * to_x - (1 / c + length.square()).sqrt_())
            by_height = by_outward * (1 / c + n.square()).sqrt_()
            by_length = -by_outward * n * to_y
            if ctx.needs_input_grad[3]:
                by_c = (by_outward * n * (height * to_x - length * to_y) / (2 * c)).sum_to_size(c.shape)
        by_height = by_height - by_across * height
        by_length = by_length + by_across * length
        n, length = nonzero(n), nonzero(length)
        across_both = (by_height / n).unsqueeze(-1)
        by_x = by_y = None
        if ctx.needs_input_grad[1]:
            by_x = ((by_n - by_height * height / n) / n).unsqueeze(-1) * x
            by_x.addcmul_(across_both, y)
        if ctx.needs_input_grad[2]:
            by_y = (by_length / length).unsqueeze(-1) * y
            by_y.addcmul_(across_both, x)
        return None, by_x, by_y, by_c
