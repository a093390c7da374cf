"""Every ``x`` against every ``y`` by a matrix product, with the pairs that it cannot resolve computed one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: A pairwise result is recomputed where cancellation has left less than this share of the summed terms.
CANCELLED = {torch.float32: 2e-2, torch.float64: 1e-4}

#: Numbers gathered per operand and step when pairs are recomputed; keeps memory linear if a whole batch has collapsed.
_CHUNK_ELEMENTS = 2**23

PairedFormula = Callable[[Tensor, Tensor, Tensor], Tensor]


def replace_pairs(values: Tensor, where: Tensor, formula: PairedFormula, x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """``values`` with the marked entries replaced by ``formula`` of their two points.

    Args:
        values: Shape ``(..., N, M)``.
        where: Entries to replace, bool ``(..., N, M)``.
        formula: Takes rows of ``x``, rows of ``y`` and their ``c``, ``(P, D)``, ``(P, D)`` and ``(P,)`` or scalar.
        x, y: Points, shapes ``(..., N, D)`` and ``(..., M, D)``.
        c: Scalar, or of a shape that broadcasts to ``(..., N, M)``.
    """
    index = where.nonzero(as_tuple=True)
    count = len(index[0])
    if count == 0:
        return values
    batch = values.shape[:-2]
    x = x.expand(*batch, *x.shape[-2:])
    y = y.expand(*batch, *y.shape[-2:])
    c = c.expand(values.shape) if c.dim() else c

    def recompute(x: Tensor, y: Tensor, c: Tensor, *at: Tensor) -> Tensor:
        return formula(x[(*at[:-2], at[-2])], y[(*at[:-2], at[-1])], c[at] if c.dim() else c)

    rows = max(1, _CHUNK_ELEMENTS // x.shape[-1])
    found = []
    for start in range(0, count, rows):
        at = [i[start : start + rows] for i in index]
        if torch.is_grad_enabled():
            found.append(checkpoint(recompute, x, y, c, *at, use_reentrant=False, preserve_rng_state=False))
        else:
            found.append(recompute(x, y, c, *at))
    return values.index_put(index, torch.cat(found))
