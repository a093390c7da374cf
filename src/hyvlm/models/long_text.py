"""Learned text positions for longer contexts than they were trained for."""

from __future__ import annotations

import torch
from torch import Tensor

#: Positions that are kept as they are: nearly all texts that CLIP was trained on reach these.
KEEP = 20


def stretch_positions(table: Tensor, length: int, *, keep: int = KEEP) -> Tensor:
    """A table of learned positions for ``length`` tokens.

    The first ``keep`` rows stay. The other ``P - keep`` are stretched by ``r = (length - keep) / (P - keep)``: the new
    position ``p >= keep`` reads the old coordinate ``keep + (p - keep) / r`` by linear interpolation, and what lies
    beyond the last row continues the line through the last two. So 77 positions give 20 + 57 * 4 = 248 at r = 4, and
    every r-th row from ``keep`` on is an old row where r is whole. A shorter table is the old one, cut.

    Args:
        table: ``(P, D)``.
        length: Rows of the result.
        keep: Rows that stay, 0 to P - 2.
    Returns:
        ``(length, D)``, a new tensor.
    Raises:
        ValueError: If the table is no matrix, or ``length`` or ``keep`` is out of range.
    Source: HyFL-CLIP, supplement, Eq. 24, after Long-CLIP. As printed it reads the old coordinate ``p / r``, from zero:
    row 5 would follow row 20, no row past 62 be read, and r = 4 would make 308 positions of 77, not 248.
    """
    if table.ndim != 2:
        raise ValueError(f"a table of positions is (P, D), got {tuple(table.shape)}")
    old = len(table)
    if length < 1:
        raise ValueError(f"a table of positions needs at least one row, got length {length}")
    if not 0 <= keep <= old - 2:
        raise ValueError(f"of {old} positions, 0 to {old - 2} can be kept, got keep={keep}: two or more are stretched")
    if length <= old:
        return table[:length].clone()
    place = torch.arange(keep, length, dtype=torch.float64, device=table.device) - keep
    coordinate = keep + place * (old - keep) / (length - keep)
    below = coordinate.floor().clamp(max=old - 2)
    share = (coordinate - below).to(table.dtype).unsqueeze(1)  # above 1 beyond the last row
    below = below.long()
    return torch.cat([table[:keep], torch.lerp(table[below], table[below + 1], share)])
