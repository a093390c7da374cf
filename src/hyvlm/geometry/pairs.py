"""Every ``x`` against every ``y`` by a matrix product, with the pairs that it cannot resolve computed one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: A pairwise result is recomputed where cancellation has left less than this share of the summed terms.
CANCELLED = {torch.float32: 2e-2, torch.float64: 1e-4}

#: Numbers gathered per operand and step when pairs are recomputed; keeps memory linear if a whole batch has collapsed.
#: A CPU is fastest while a step stays in its cache, other devices want long steps.
_CHUNK_ON_CPU, _CHUNK_ELSEWHERE = 2**18, 2**23

PairedFormula = Callable[[Tensor, Tensor, Tensor], Tensor]


def replace_pairs(values: Tensor, where: Tensor, formula: PairedFormula, x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """``values`` with the marked entries replaced by ``formula`` of their two points.

    Args:
        values: Shape ``(..., N, M)``.
        where: Entries to replace, bool ``(..., N, M)``.
        formula: Takes rows of ``x``, rows of ``y`` and their ``c``, ``(P, D)``, ``(P, D)`` and ``(P,)`` or scalar.
        x, y: Points, shapes ``(..., N, D)`` and ``(..., M, D)``.
        c: Scalar, or of shape ``(..., 1, 1)``.
    """
    found_at = where.flatten().nonzero().squeeze(-1)
    if len(found_at) == 0:
        return values
    batch, (n, m) = values.shape[:-2], values.shape[-2:]
    x = x.expand(*batch, *x.shape[-2:]).reshape(-1, x.shape[-1])
    y = y.expand(*batch, *y.shape[-2:]).reshape(-1, y.shape[-1])
    c = c.expand(*batch, 1, 1).flatten() if c.dim() else c

    def recompute(x: Tensor, y: Tensor, c: Tensor, at: Tensor) -> Tensor:
        row = at // m
        block = row // n
        column = at % m + block * m
        return formula(x.index_select(0, row), y.index_select(0, column), c.index_select(0, block) if c.dim() else c)

    found = []
    elements = _CHUNK_ON_CPU if x.device.type == "cpu" else _CHUNK_ELSEWHERE
    for at in found_at.split(max(1, elements // x.shape[-1])):
        if torch.is_grad_enabled():
            found.append(checkpoint(recompute, x, y, c, at, use_reentrant=False, preserve_rng_state=False))
        else:
            found.append(recompute(x, y, c, at))
    return values.masked_scatter(where, torch.cat(found))
