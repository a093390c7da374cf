"""Texts to token ids: CLIP's byte-pair encoding as open_clip ships it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor

#: A tokenizer remembers this many texts: repairing and splitting one costs more than all the rest of reading it.
KEPT_TEXTS = 100_000


class Tokenizer:
    """Callable: one text or several to ids ``(N, context_length)``, int64, 0-padded.

    A row is the start token (49406), the text and the end token (49407). Text is repaired by ftfy, HTML-unescaped
    twice, stripped, lowercased, and its white space collapsed; an empty text is start and end alone. A text that is too
    long loses its tail, keeps the end token in the last place, and is counted.

    A text that spells out ``<start_of_text>`` or ``<end_of_text>``, in any case, gets the special token (and its
    feature is then taken at the first end token); the spellings ``<|startoftext|>`` and ``<|endoftext|>``, special to
    MERU's tokenizer, are ordinary text here. On all other texts the two tokenizers agree.

    Args:
        context_length: Row length; the model's ``text.context_length``.
    Attributes:
        truncated: How many texts have been cut so far (in this process).
    """

    def __init__(self, context_length: int = 77) -> None:
        if context_length < 2:
            raise ValueError(f"context_length must leave room for a start and an end token, got {context_length}")
        self._bpe = SimpleTokenizer(context_length=context_length)
        self.context_length = context_length
        self.start_id: int = self._bpe.sot_token_id
        self.end_id: int = self._bpe.eot_token_id
        self.truncated = 0
        self._known: dict[str, tuple[int, ...]] = {}

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of one text, start and end included, not cut. Phrases recur: the first 100,000 texts are kept."""
        if text in self._known:
            return self._known[text]
        ids = (self.start_id, *self._bpe.encode(text), self.end_id)
        if len(self._known) < KEPT_TEXTS:
            self._known[text] = ids
        return ids

    def __call__(self, texts: str | Sequence[str]) -> Tensor:
        """Raises ValueError if anything but texts is given."""
        texts = [texts] if isinstance(texts, str) else texts
        rows = torch.zeros(len(texts), self.context_length, dtype=torch.long)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"the tokenizer takes texts, got {type(text).__name__} in place {i}")
            ids = self.ids(text)
            if len(ids) > self.context_length:
                self.truncated += 1
                ids = (*ids[: self.context_length - 1], self.end_id)
            rows[i, : len(ids)] = torch.tensor(ids)
        return rows
