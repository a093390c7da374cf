"""The element-wise work on one panel of scores, in plain torch, for every dtype and device.

A panel is a block of rows against a block of columns. ``q`` are what the matrix product gave, ``s`` similarities, and a
softmax is streamed over panels with three numbers a row: ``top``, a bound of its logits so far, ``mass``, the sum of
``exp(logit - top)``, and ``moment``, the same sum weighted by the similarities. All functions work in place.
:mod:`hyvlm.losses.tiled_numba` has the same ones, compiled.
"""

from __future__ import annotations

import torch
from torch import Tensor


def similarity(q: Tensor, s: Tensor, *, hyperbolic: bool) -> Tensor:
    """``s`` becomes ``-asinh(sqrt(q))`` (hyperbolic) or ``-sqrt(q)``, 0 where ``q`` is not positive; ``(n, m)``.

    Returns:
        The least ``q`` of each row, ``(n,)``.
    """
    lowest = q.amin(1)
    if bool((lowest < 0).any()):
        q.clamp_(min=0)
    torch.sqrt(q, out=s)
    if hyperbolic:
        # asinh(sqrt(q)) = log(1 + w), with what rounding takes from 1 + w added back: torch's asinh is not vectorised
        work = q + 1
        s += torch.div(q, work.sqrt_().add_(1), out=work)
        u = torch.add(s, 1, out=work)
        rest = s.sub_(u - 1).div_(u)
        s = rest.add_(u.log_())
    s.neg_()
    return lowest


def pull(q: Tensor, h: Tensor, *, hyperbolic: bool) -> None:
    """``h``, a gradient with respect to ``s``, becomes that with respect to ``q``; 0 where ``q`` is not positive."""
    slope = torch.addcmul(q, q, q) if hyperbolic else q.clone()
    slope.rsqrt_()
    if bool((q.amin(1) <= 0).any()):
        slope.masked_fill_(q <= 0, 0.0)
    h.mul_(slope).mul_(-0.5)


def rows(s: Tensor, scale: Tensor, offset: Tensor, top: Tensor, mass: Tensor, moment: Tensor) -> None:
    """Take the logits ``scale * s + offset`` of this panel into the sums of each row.

    Args:
        s: ``(n, m)``.
        scale: ``(n,)``.
        offset: ``(m,)``.
        top, mass, moment: ``(n,)``, updated.
    """
    _stream(torch.addcmul(offset, s, scale.unsqueeze(1)), s, 1, top, mass, moment)


def columns(s: Tensor, scale: Tensor, top: Tensor, mass: Tensor, moment: Tensor) -> None:
    """The same for each column, with ``scale`` ``(m,)`` and no offset."""
    _stream(s * scale, s, 0, top, mass, moment)


def _stream(logits: Tensor, s: Tensor, dim: int, top: Tensor, mass: Tensor, moment: Tensor) -> None:
    now = torch.maximum(top, logits.amax(dim))
    shrink = (top - now).exp_()
    e = logits.sub_(now.unsqueeze(dim)).exp_()
    mass.mul_(shrink).add_(e.sum(dim))
    moment.mul_(shrink).add_(e.mul_(s).sum(dim))
    top.copy_(now)


def gradient(s: Tensor, by_row: tuple[Tensor, ...], by_column: tuple[Tensor, ...] | None) -> None:
    """``s`` becomes the gradient with respect to itself: ``factor * exp(scale * s + offset - log_sum)``.

    Args:
        s: ``(n, m)``.
        by_row: ``scale (n,)``, ``offset (m,)``, ``log_sum (n,)``, ``factor (n,)``.
        by_column: None, or ``scale``, ``log_sum``, ``factor``, each ``(m,)``, of the softmax down the columns: added.
    """
    scale, offset, log_sum, factor = by_row
    e = torch.addcmul(offset, s, scale.unsqueeze(1)).sub_(log_sum.unsqueeze(1)).exp_().mul_(factor.unsqueeze(1))
    if by_column is None:
        s.copy_(e)
        return
    scale, log_sum, factor = by_column
    s.mul_(scale).sub_(log_sum).exp_().mul_(factor).add_(e)
