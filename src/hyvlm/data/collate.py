"""From the views of single samples to the tensors of a batch, ragged in the parts, with the skipped samples counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hyvlm.data.queries import Query
from hyvlm.data.views import Item
from hyvlm.types import BadSample, Batch

#: A batch names this many of the samples that it had to skip.
MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Collate:
    """Joins items to a :class:`hyvlm.types.Batch`; called by the DataLoader, also with no item at all.

    Args:
        image_size, part_size: Sides in pixels, for batches that hold no sample or no part.
    """

    image_size: int
    part_size: int

    def __call__(self, items: Sequence[Item | BadSample]) -> Batch:
        good = [item for item in items if isinstance(item, Item)]
        bad = [item for item in items if isinstance(item, BadSample)]
        dropped = [part for item in good for part in item.dropped]
        short = [item.short_text for item in good if item.short_text is not None]
        asked = [item.query_text for item in good if item.query_text is not None]
        queries = torch.tensor([len(item.queries) for item in good], dtype=torch.long)
        sizes = torch.tensor([len(item.part_text) for item in good], dtype=torch.long)
        return Batch(
            image=torch.stack([i.image for i in good]) if good else _no_pixels(self.image_size),
            text=trim(torch.stack([i.text for i in good])) if good else _no_tokens(),
            part_image=_join([i.part_image for i in good], _no_pixels(self.part_size)),
            part_text=trim(_join([i.part_text for i in good], _no_tokens())),
            owner=torch.repeat_interleave(torch.arange(len(good)), sizes),
            keys=[item.key for item in good],
            short_text=trim(torch.stack(short)) if short else _no_tokens(),
            query_text=trim(_join(asked, _no_tokens())),
            query_owner=torch.repeat_interleave(torch.arange(len(good)), queries),
            query_parent=_parents([item.queries for item in good]),
            query_weight=torch.tensor([query.weight for item in good for query in item.queries]),
            skipped=Counter(b.reason for b in bad) + Counter(f"part: {b.reason}" for b in dropped),
            skipped_examples=[str(b) for b in [*bad, *dropped][:MAX_EXAMPLES]],
            truncated=sum(item.truncated for item in good),
        )


def trim(tokens: Tensor) -> Tensor:
    """``(N, L)`` without the columns that pad every row; at least one column stays.

    Zero is also the id of a character ("!"), so only columns after the last token of the longest row go.
    """
    used = (tokens != 0).any(0).nonzero()
    return tokens[:, : int(used.max()) + 1 if len(used) else 1]


def undivided(batch: Batch) -> int:
    """How many samples have a short text that is the text itself, as captions of one sentence do."""
    if not len(batch.short_text):
        return 0
    width = max(batch.text.shape[1], batch.short_text.shape[1])
    text, short = (F.pad(rows, (0, width - rows.shape[1])) for rows in (batch.text, batch.short_text))
    return int((text == short).all(1).sum())


def _parents(of_samples: Sequence[Sequence[Query]]) -> Tensor:
    """The row of each query's parent among the queries of all samples, -1 for a root."""
    rows: list[int] = []
    for queries in of_samples:
        start = len(rows)
        rows += [-1 if query.parent is None else start + query.parent for query in queries]
    return torch.tensor(rows, dtype=torch.long)


def _no_pixels(size: int) -> Tensor:
    return torch.empty(0, 3, size, size, dtype=torch.uint8)


def _no_tokens() -> Tensor:
    return torch.empty(0, 1, dtype=torch.long)


def _join(rows: list[Tensor], empty: Tensor) -> Tensor:
    rows = [r for r in rows if len(r)]
    return torch.cat(rows) if rows else empty
