"""Texts of different lengths side by side without padding: linear layers see real tokens only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from hyvlm.models.attention import attention_of_one, self_attention
from hyvlm.models.lengths import group_by_length


@dataclass(frozen=True)
class Group:
    """Texts of like length, which attend in one call, padded to the longest of them.

    Attributes:
        texts, length: How many, and tokens of the longest.
        tokens: How many they have together.
        at: ``(tokens,)``, place of each token among ``texts * length`` padded ones; None if they are all equally long.
        inside: ``(texts, length)``, true for tokens, false for padding; None as well.
    """

    texts: int
    length: int
    tokens: int
    at: Tensor | None
    inside: Tensor | None

    def padded(self, rows: Tensor) -> Tensor:
        """``(tokens, W)`` to ``(texts, length, W)``, zero where no token is."""
        if self.at is not None:
            rows = rows.new_zeros(self.texts * self.length, rows.shape[1]).index_copy(0, self.at, rows)
        return rows.view(self.texts, self.length, -1)

    def packed(self, rows: Tensor) -> Tensor:
        """The reverse of :meth:`padded`."""
        rows = rows.flatten(0, 1)
        return rows if self.at is None else rows.index_select(0, self.at)


@dataclass(frozen=True)
class Packing:
    """Where the tokens of a batch of texts lie when they are packed: group after group, text after text.

    Attributes:
        ids, places: ``(N,)``, id and position in its text of every token up to the texts' ends.
        ends: ``(B,)``, which of the N is the last of each text, texts in their packed order.
        order: ``(B,)``, where each text of the batch lies in the packed order.
        groups: As :func:`hyvlm.models.lengths.group_by_length` makes them.
    """

    ids: Tensor
    places: Tensor
    ends: Tensor
    order: Tensor
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, tokens: Tensor, end: Tensor) -> Packing:
        """Pack ids ``(B, L)`` of texts that end at ``end`` ``(B,)``, B at least 1."""
        lengths = end.cpu().numpy() + 1
        members = group_by_length(lengths)
        texts = np.concatenate(members)
        stops = lengths[texts].cumsum()
        rows = np.repeat(texts, lengths[texts])
        places = np.arange(stops[-1]) - np.repeat(stops - lengths[texts], lengths[texts])

        def tensor(of: np.ndarray) -> Tensor:
            return torch.from_numpy(of).to(tokens.device)

        groups = []
        for member in members:
            longest = lengths[member].max()
            inside = np.arange(longest) < lengths[member][:, None]
            at, mask = (None, None) if inside.all() else (tensor(np.flatnonzero(inside)), tensor(inside))
            groups.append(Group(len(member), int(longest), int(inside.sum()), at, mask))
        at = tensor(places)
        return cls(tokens[tensor(rows), at], at, tensor(stops - 1), tensor(texts.argsort()), tuple(groups))

    @torch.compiler.disable
    def attention(self, qkv: Tensor, heads: int) -> Tensor:
        """Causal self-attention inside every text: ``(N, 3 W)`` to ``(N, W)``."""
        parts = qkv.split([group.tokens for group in self.groups])
        pairs = zip(self.groups, parts, strict=True)
        return torch.cat(
            [group.packed(self_attention(group.padded(part), heads, causal=True)) for group, part in pairs]
        )

    def at_ends(self, rows: Tensor) -> Tensor:
        """The rows of the texts' last tokens, ``(N, W)`` to ``(B, W)``, in the packed order of texts."""
        return rows.index_select(0, self.ends)

    @torch.compiler.disable
    def attention_of_ends(self, q: Tensor, kv: Tensor, heads: int) -> Tensor:
        """The same at the end of every text alone: ``(B, W)`` and ``(N, 2 W)`` to ``(B, W)``, in the packed order."""
        queries = q.split([group.texts for group in self.groups])
        parts = kv.split([group.tokens for group in self.groups])
        return torch.cat(
            [
                attention_of_one(query, group.padded(part), heads, group.inside)
                for group, query, part in zip(self.groups, queries, parts, strict=True)
            ]
        )

    def unpacked(self, rows: Tensor) -> Tensor:
        """``(N, W)`` to ``(B, T, W)`` in the order of the batch, T the longest text's tokens; zero behind its end."""
        longest = max(group.length for group in self.groups)
        parts = zip(self.groups, rows.split([group.tokens for group in self.groups]), strict=True)
        texts = [pad(group.padded(part), (0, 0, 0, longest - group.length)) for group, part in parts]
        return torch.cat(texts).index_select(0, self.order)
