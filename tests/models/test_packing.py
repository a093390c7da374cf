"""Texts side by side: where their tokens lie, and attention that stays inside each of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hyvlm.models.attention import self_attention
from hyvlm.models.packing import Packing

HEADS, WIDTH = 2, 8


def packed(lengths: list[int], columns: int = 12) -> tuple[Tensor, Packing]:
    """Ids that say where they stand, 1000 * row + column + 1, and their packing."""
    ids = torch.arange(len(lengths))[:, None] * 1000 + torch.arange(columns) + 1
    ends = torch.tensor(lengths) - 1
    return ids, Packing.of(ids.masked_fill(torch.arange(columns) > ends[:, None], 0), ends)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_every_token_lies_in_one_place_and_comes_back(lengths: list[int]) -> None:
    ids, packing = packed(lengths)
    inside = torch.arange(12) < torch.tensor(lengths)[:, None]
    assert sorted(packing.ids.tolist()) == sorted(ids[inside].tolist())
    assert torch.equal(packing.places, (packing.ids - 1) % 1000)
    assert torch.equal(
        packing.ids[packing.ends][packing.order], ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1]
    )
    longest = max(lengths)
    found = packing.unpacked(packing.ids[:, None].float())[..., 0]
    assert torch.equal(found, ids.masked_fill(~inside, 0)[:, :longest].float())


@pytest.mark.parametrize("lengths", [[3, 3, 3], [12, 1, 4, 5], [5], [2, 12, 2, 11, 3, 7]])
def test_attention_stays_inside_each_text(lengths: list[int]) -> None:
    _, packing = packed(lengths)
    qkv = torch.randn(sum(lengths), 3 * WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = packing.attention(qkv, HEADS)
    at_ends = packing.attention_of_ends(qkv[packing.ends, :WIDTH], qkv[:, WIDTH:], HEADS)
    start = 0
    for text, end in enumerate(packing.ends.tolist()):
        alone = self_attention(qkv[None, start : end + 1], HEADS, causal=True)[0]
        torch.testing.assert_close(found[start : end + 1], alone)
        torch.testing.assert_close(at_ends[text], alone[-1])
        start = end + 1
    assert start == len(qkv)
