"""Attention against softmax(q k' / sqrt(d)) v, written out; and in which precision it runs."""

import pytest
import torch
from torch import Tensor

from hyvlm.models.attention import attention_of_one, self_attention

HEADS, WIDTH = 2, 8


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def by_hand(qkv: Tensor, seen: Tensor) -> Tensor:
    """Head by head; ``seen`` ``(B, L, L)`` says which keys a query may look at."""
    heads = []
    for at in range(HEADS):
        q, k, v = (part[..., at * WIDTH // HEADS : (at + 1) * WIDTH // HEADS] for part in qkv.split(WIDTH, dim=-1))
        logits = q @ k.mT / (WIDTH // HEADS) ** 0.5
        heads.append(logits.masked_fill(~seen, -torch.inf).softmax(-1) @ v)
    return torch.cat(heads, -1)


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_the_formula(causal: bool) -> None:
    qkv = draw(3, 5, 3 * WIDTH)
    seen = torch.ones(3, 5, 5, dtype=torch.bool)
    torch.testing.assert_close(self_attention(qkv, HEADS, causal=causal), by_hand(qkv, seen.tril() if causal else seen))


@pytest.mark.parametrize("lengths", [None, [5, 1, 3]])
def test_one_query_is_a_row_of_it(lengths: list[int] | None) -> None:
    qkv = draw(3, 5, 3 * WIDTH)
    mask = None if lengths is None else torch.arange(5) < torch.tensor(lengths)[:, None]
    seen = torch.ones(3, 5, 5, dtype=torch.bool) if mask is None else mask[:, None].expand(3, 5, 5)
    found = attention_of_one(qkv[:, 2, :WIDTH], qkv[..., WIDTH:], HEADS, mask)
    torch.testing.assert_close(found, by_hand(qkv, seen)[:, 2])


def test_bfloat16_is_computed_in_float32_on_the_cpu() -> None:
    qkv = draw(2, 6, 3 * WIDTH).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = self_attention(qkv, HEADS)
    assert found.dtype == torch.float32
    expected = by_hand(qkv.double(), torch.ones(2, 6, 6, dtype=torch.bool))
    assert (found - expected).abs().max() < 1e-6
    found.sum().backward()
    assert qkv.grad is not None
    assert qkv.grad.dtype == torch.bfloat16
