"""Contrast: a row finds its own column among all columns."""

from __future__ import annotations

import torch
from torch import Tensor


def contrast_rows(
    similarity: Tensor, target: Tensor, *, log_count: Tensor | None = None, exclude_positive: bool = False
) -> Tensor:
    """InfoNCE per row: ``logsumexp`` over the columns minus the similarity to the target column.

    Args:
        similarity: ``(n, m)``, already divided by the temperature.
        target: ``(n,)`` int64, the column each row should find.
        log_count: ``(m,)``, the log of how often each column counts among the candidates, as if it were repeated;
            ``-inf`` leaves a column out. A target column must count at least once.
        exclude_positive: Leave the positive (one copy of the target column) out of the denominator. A row without any
            negative is then 0.
    Returns:
        Shape ``(n,)``.
    Source: van den Oord et al. 2018; without the positive UNCHA, Eq. 8.
    """
    index = target.unsqueeze(1)
    positive = similarity.gather(1, index).squeeze(1)
    logits = similarity if log_count is None else similarity + log_count
    if not exclude_positive:
        return logits.logsumexp(1) - positive
    copies = torch.ones_like(positive) if log_count is None else log_count.exp()[target].round()
    logits = logits.scatter(
        1, index, (positive + (copies - 1).log()).unsqueeze(1)
    )  # log 0 = -inf: the column drops out
    alone = logits.isneginf().all(1)
    rows = logits.masked_fill(alone.unsqueeze(1), 0.0).logsumexp(1) - positive
    return rows.masked_fill(alone, 0.0)
