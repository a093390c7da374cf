"""Training views of a sample: which caption, which parts, augmented pixels and tokens, all a function of the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hyvlm.config import CAPTION_CHOICES, SHORT_TEXT_CHOICES
from hyvlm.data.catalog import SampleSet
from hyvlm.data.images import decode_on_demand
from hyvlm.data.queries import Query, build_queries
from hyvlm.data.sentences import split_sentences
from hyvlm.data.transforms import Begun, train_transform
from hyvlm.registry import unknown
from hyvlm.types import BadSample, Part, Sample

#: Texts to token ids ``(N, L)``, int64, padded with 0 after the end token.
Tokenize = Callable[[list[str]], Tensor]


@dataclass
class Item:
    """The training views of one sample; P parts, 0 included.

    Attributes:
        key: The sample's name.
        image: ``(3, H, W)`` uint8.
        text: ``(L,)`` int64.
        part_image: ``(P, 3, h, w)`` uint8.
        part_text: ``(P, L)`` int64.
        short_text: ``(L,)`` int64, if short texts are wanted.
        query_text: ``(Q, L)`` int64, if queries are wanted.
        queries: The Q queries; parents are places in this list.
        dropped: Parts that could not be used.
        truncated: How many of the texts lost their end to the tokenizer's context.
    """

    key: str
    image: Tensor
    text: Tensor
    part_image: Tensor
    part_text: Tensor
    short_text: Tensor | None = None
    query_text: Tensor | None = None
    queries: list[Query] = field(default_factory=list)
    dropped: list[BadSample] = field(default_factory=list)
    truncated: int = 0


class TrainViews(Dataset[Item | BadSample]):
    """Training views over a :class:`SampleSet`, indexed by ``(epoch, index)``.

    Every random choice is a function of ``(seed, epoch, index)``, whatever process draws it.

    Args:
        samples: A set opened with content "pairs".
        tokenizer: Texts to token ids.
        views: The views that the objective names; parts are decoded only if a part view is among them.
        image_size: Side of the wholes in pixels.
        part_size: Side of the parts, by default that of the wholes.
        augment: The recipe's augmentation, see :func:`hyvlm.data.transforms.train_transform`; parts draw their own.
        parts: ``max`` parts a sample and the ``choice`` among them: "first" takes them in the set's order, "random"
            anew at each visit. A part that cannot be used is replaced by the next, and counted.
        caption: "random" draws one of the captions at each visit; "first" and "last" always take that one; "joined"
            is all of them, one after the other.
        short_text: Where the short text of "short_text" comes from: the "first_sentence" or a "random_sentence" of the
            caption that the visit uses, or the "first_caption" or a "random_caption" of the sample.
        queries: ``rules`` and ``cap`` of the queries that are cut from that caption and the phrases of the parts in
            use, see :func:`hyvlm.data.queries.build_queries`; only if a query view is among ``views``.
        decode: "scaled" or "full", see :func:`hyvlm.data.transforms.train_transform`.
        seed: Seed of all of it.
        strict: Raise :class:`BadSample` instead of returning it.
    """

    def __init__(
        self,
        samples: SampleSet,
        tokenizer: Tokenize,
        *,
        image_size: int,
        augment: Mapping[str, Any],
        views: Sequence[str] = ("image", "text", "part_image", "part_text"),
        part_size: int | None = None,
        parts: Mapping[str, Any] | None = None,
        caption: str = "random",
        short_text: str = "first_sentence",
        queries: Mapping[str, Any] | None = None,
        decode: str = "scaled",
        seed: int = 0,
        strict: bool = False,
    ) -> None:
        self.max_parts, self.choice = _part_settings({} if parts is None else parts)
        if caption not in CAPTION_CHOICES:
            raise ValueError(unknown("choice of caption", caption, list(CAPTION_CHOICES)))
        if short_text not in SHORT_TEXT_CHOICES:
            raise ValueError(unknown("choice of short text", short_text, list(SHORT_TEXT_CHOICES)))
        if not any(view.startswith("part_") for view in views):
            self.max_parts = 0
        self.samples, self.tokenizer, self.caption, self.seed, self.strict = samples, tokenizer, caption, seed, strict
        self.short_text = short_text if "short_text" in views else None
        self.queries = dict(queries or {}) if any(view.startswith("query_") for view in views) else None
        self.image_size, self.part_size = image_size, part_size or image_size
        self.transform = train_transform(augment, self.image_size, decode=decode)
        self.part_transform = train_transform(augment, self.part_size, decode=decode)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, item: tuple[int, int]) -> Item | BadSample:
        """The views of sample ``index`` in ``epoch``, or why it has none (a value, for a batch goes on without it)."""
        epoch, index = item
        with torch.random.fork_rng(devices=[]):
            (state,) = np.random.SeedSequence((self.seed, epoch, index)).generate_state(1, np.uint64)
            torch.default_generator.manual_seed(int(state) >> 1)
            try:
                with decode_on_demand():
                    return self._views(self.samples[index])
            except BadSample as bad:
                if self.strict:
                    raise
                return bad

    def _views(self, sample: Sample) -> Item:
        if not sample.texts:
            raise BadSample("no caption", f"sample {sample.key!r}")
        text = self._caption(sample.texts)
        dropped = list(sample.dropped) if self.max_parts else []
        image, parts = self._pixels(sample, dropped)
        crops = [pixels for _, pixels in parts]
        texts = [text, *(part.text for part, _ in parts)]
        queries = [] if self.queries is None else build_queries(text, texts[1:], **self.queries)
        texts += [query.text for query in queries]
        if self.short_text is not None:
            texts.append(self._short_text(text, sample.texts))
        before = getattr(self.tokenizer, "truncated", 0)
        tokens = self.tokenizer(texts)
        truncated = getattr(self.tokenizer, "truncated", 0) - before
        empty = torch.empty(0, 3, self.part_size, self.part_size, dtype=torch.uint8)
        part_image = torch.stack(crops) if crops else empty
        short_text = None if self.short_text is None else tokens[-1]
        part_text, query_text = tokens[1 : 1 + len(crops) + len(queries)].tensor_split([len(crops)])
        asked = None if self.queries is None else query_text
        return Item(sample.key, image, tokens[0], part_image, part_text, short_text, asked, queries, dropped, truncated)

    def _pixels(self, sample: Sample, dropped: list[BadSample]) -> tuple[Tensor, list[tuple[Part, Tensor]]]:
        """The whole, and the parts in use with their pixels; a part that cannot be used is told, and the next steps in.

        All crops are drawn before the first pixel is asked for, so that a file they share is decoded once.
        """
        whole = self.transform.begin(sample.picture)
        parts = (sample.parts[number] for number in self._order(sample.parts))
        begun = self._begin(parts, self.max_parts, dropped)
        image = self.transform.finish(whole)
        used: list[tuple[Part, Tensor]] = []
        while begun:
            for part, cut in begun:
                with self._dropping(dropped):
                    used.append((part, self.part_transform.finish(cut)))
            begun = self._begin(parts, self.max_parts - len(used), dropped)
        return image, used

    def _begin(self, parts: Iterator[Part], count: int, dropped: list[BadSample]) -> list[tuple[Part, Begun]]:
        """Draw the crops of the next ``count`` parts that can be opened."""
        begun: list[tuple[Part, Begun]] = []
        while len(begun) < count and (part := next(parts, None)) is not None:
            with self._dropping(dropped):
                begun.append((part, self.part_transform.begin(part.image)))
        return begun

    @contextmanager
    def _dropping(self, dropped: list[BadSample]) -> Iterator[None]:
        try:
            yield
        except BadSample as bad:
            if self.strict:
                raise
            dropped.append(bad)

    def _caption(self, captions: list[str]) -> str:
        drawn = _draw(len(captions))  # whatever the choice, so that the choice does not move what is drawn after it
        if self.caption == "joined":
            return " ".join(captions)
        return captions[{"first": 0, "last": -1}.get(self.caption, drawn)]

    def _short_text(self, caption: str, captions: list[str]) -> str:
        choice, _, kind = str(self.short_text).partition("_")
        texts = captions if kind == "caption" else split_sentences(caption)
        return texts[0] if choice == "first" else texts[_draw(len(texts))]

    def _order(self, parts: list[Part]) -> list[int]:
        if not self.max_parts:
            return []
        return torch.randperm(len(parts)).tolist() if self.choice == "random" else list(range(len(parts)))


def _draw(n: int) -> int:
    return int(torch.randint(n, ()))


def _part_settings(parts: Mapping[str, Any]) -> tuple[int, str]:
    surplus = set(parts) - {"max", "choice"}
    if surplus:
        raise ValueError(f"parts takes max and choice, got {', '.join(sorted(map(str, surplus)))}")
    most, choice = parts.get("max", 1), parts.get("choice", "random")
    if not isinstance(most, int) or most < 0:
        raise ValueError(f"parts.max is a number of parts, 0 or more, got {most!r}")
    if choice not in ("random", "first"):
        raise ValueError(f"parts.choice is 'random' or 'first', got {choice!r}")
    return most, choice
