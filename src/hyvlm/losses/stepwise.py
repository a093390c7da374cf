"""A loss of many matched pairs in steps that take no more memory than one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

#: Numbers an operand in one step; it stays in a processor's cache.
STEP = 2**19

#: Two operands ``(n, D)`` to rows ``(n,)``, each of which depends on its own pair alone.
PairLoss = Callable[[Tensor, Tensor], Tensor]

#: Points ``(N, D)`` and which of them the pairs take, ``(n,)``; None takes each once.
Matched = tuple[Tensor, Tensor | None]


def matched_rows(loss: PairLoss, first: Matched, second: Matched, parameters: Sequence[Tensor] = ()) -> Tensor:
    """``loss`` of every pair, ``(n,)``; beyond one step, what a step gathers is gathered again for the gradient.

    Args:
        loss: The formula.
        first, second: Both sides of the pairs.
        parameters: Leaves that ``loss`` depends on.
    Returns:
        Rows ``(n,)``; of many pairs, differentiable once.
    """
    points, at = first
    n = len(points if at is None else at)
    step = max(1, STEP // max(points.shape[-1], 1))
    if n <= step:
        return loss(_take(first, slice(None)), _take(second, slice(None)))
    rows: Tensor = _InSteps.apply(loss, n, step, first[1], second[1], first[0], second[0], *parameters)
    return rows


def _take(side: Matched, rows: slice) -> Tensor:
    points, at = side
    if at is not None:
        return points.index_select(0, at[rows])
    return points if rows == slice(None) else points[rows]


class _InSteps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        loss: PairLoss,
        n: int,
        step: int,
        at_first: Tensor | None,
        at_second: Tensor | None,
        first: Tensor,
        second: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.loss, ctx.n, ctx.step = loss, n, step
        ctx.save_for_backward(at_first, at_second, first, second, *parameters)
        sides = (first, at_first), (second, at_second)
        return torch.cat([loss(*(_take(side, rows) for side in sides)) for rows in _steps(n, step)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a loss of matched pairs in steps has no second derivative: raise hyvlm.losses.stepwise.STEP above "
                "the batch's size to compute all pairs at once"
            )
        at_first, at_second, first, second, *parameters = ctx.saved_tensors
        sides = (first, at_first), (second, at_second)
        needed = ctx.needs_input_grad[5:]
        found = [
            torch.zeros_like(t) if need else None for t, need in zip((first, second, *parameters), needed, strict=True)
        ]
        for rows in _steps(ctx.n, ctx.step):
            operands = [
                _take(side, rows).detach().requires_grad_(need) for side, need in zip(sides, needed, strict=False)
            ]
            with torch.enable_grad():
                value = ctx.loss(*operands)
            leaves = [t for t, need in zip((*operands, *parameters), needed, strict=True) if need]
            slopes = iter(torch.autograd.grad(value, leaves, grad[rows], allow_unused=True))
            for number, into in enumerate(found):
                slope = None if into is None else next(slopes)
                if into is None or slope is None:
                    continue
                at = sides[number][1] if number < 2 else None
                if at is not None:
                    into.index_add_(0, at[rows], slope)
                else:
                    (into[rows] if number < 2 else into).add_(slope)
        return None, None, None, None, None, *found


def _steps(n: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, n)) for first in range(0, n, step))
