"""Attention of the towers, on queries, keys and values that linear layers have made."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def self_attention(qkv: Tensor, heads: int, *, causal: bool = False) -> Tensor:
    """Queries, keys and values ``(B, L, 3 W)`` to ``(B, L, W)``; ``causal`` never looks ahead."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, heads, L, W / heads)
    return _attend(q, k, v, causal=causal).transpose(1, 2).flatten(2)


def attention_of_one(q: Tensor, kv: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """What one position a row makes of all of its row: ``(B, W)`` and keys and values ``(B, L, 2 W)`` to ``(B, W)``.

    Args:
        mask: ``(B, L)``, true where a row's keys count; all do without it.
    """
    k, v = kv.unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
    return _attend(q.unflatten(-1, (heads, 1, -1)), k, v, mask=None if mask is None else mask[:, None, None]).flatten(1)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Scaled dot-product attention; on the CPU in float32, since torch's backward pass is slower there in bfloat16."""
    if q.device.type != "cpu" or q.dtype != torch.bfloat16:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    with torch.autocast("cpu", enabled=False):
        return scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask, is_causal=causal)
