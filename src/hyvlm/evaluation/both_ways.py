"""Retrieval in both directions from one score product: every score serves its image and its text.

For a score that is the same whoever asks. Ranks are those of :func:`hyvlm.evaluation.metrics.retrieval_ranks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

import torch
from torch import Tensor

from hyvlm.evaluation.metrics import BLOCK, MIN_ROWS, Ranks, ScoreFunction, count_level, distinct_rows, scored


@torch.no_grad()
def ranks_both_ways(
    score: ScoreFunction, images: Tensor, texts: Tensor, owner: Tensor, *, block: int = BLOCK
) -> tuple[Ranks, Ranks]:
    """Ranks of images by text, and of texts by image; any text of an image is a match.

    First the scores of the matches, then a sweep over tiles of all scores, each of which is counted along its rows and
    its columns. A tile takes its matches from the first step: two products may round one score differently.

    Args:
        score: ``(n, D), (m, D) -> (n, m)`` of images and texts, higher is better.
        images, texts: Points ``(N, D)`` and ``(M, D)``.
        owner: ``(M,)`` int64, the image of each text.
        block: About how many scores are held at once.
    Raises:
        ValueError: If an image has no text, a text no image, or a score is NaN.
    """
    owner = owner.to(images.device)
    _check(len(images), owner)
    left, right = _Rows(images), _Rows(texts)
    own = _scores_of_matches(score, left, right, owner)
    best = own.new_full((len(images),), -torch.inf).scatter_reduce(0, owner, own, "amax")
    of_texts, of_images = _Counts(own), _Counts(best)
    rows = min(len(left.points), max(1, isqrt(block)))
    by_image = left.place[owner].argsort(stable=True)
    for part in _slices(len(left.points), rows):
        text = by_image[_range(left.place[owner][by_image], part)]  # those of the images in this part
        for across in _slices(len(right.points), max(1, block // rows)):
            tile = scored(score, left.points[part], right.points[across], left.first[part].tolist())
            inside = text[(right.place[text] >= across.start) & (right.place[text] < across.stop)]
            tile[left.place[owner[inside]] - part.start, right.place[inside] - across.start] = own[inside]
            image_rows, text_rows = left.members(part), right.members(across)
            if len(image_rows) > len(tile):
                tile = tile[left.place[image_rows] - part.start]
            if len(text_rows) > tile.shape[1]:
                tile = tile[:, right.place[text_rows] - across.start]
            of_images.add(tile, image_rows, dim=1)
            of_texts.add(tile, text_rows, dim=0)
    at_best = torch.zeros_like(of_images.level).index_add(0, owner, (own == best[owner]).long())
    return of_texts.ranks(torch.ones_like(owner)), of_images.ranks(at_best)


def _check(images: int, owner: Tensor) -> None:
    if not images or not len(owner):
        raise ValueError(f"ranking both ways needs images and texts, got {images} and {len(owner)}")
    outside = (owner < 0) | (owner >= images)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise ValueError(f"text {row} has no match among the {images} images: its owner is {int(owner[row])}")
    lonely = (torch.bincount(owner, minlength=images) == 0).nonzero()
    if len(lonely):
        raise ValueError(f"image {int(lonely[0])} has no match among the {len(owner)} texts")


class _Rows:
    """The distinct points among rows ``(N, D)``; those that stand for several rows come last.

    Attributes:
        points: Distinct points ``(n, D)``.
        place: ``(N,)``, which of them each row is.
        first: ``(n,)``, the first row that each stands for.
    """

    def __init__(self, rows: Tensor) -> None:
        self.points, position = distinct_rows(rows)
        every = torch.arange(len(rows), device=rows.device)
        if position is None:
            self.place = self.first = self._by_place = every
            return
        order = torch.bincount(position).argsort(stable=True)
        self.points = self.points[order]
        self.place = order.argsort()[position]
        self._by_place = self.place.argsort(stable=True)
        self.first = self._by_place[torch.searchsorted(self.place[self._by_place], every[: len(self.points)])]

    def members(self, part: slice) -> Tensor:
        """The rows that the distinct points ``part`` stand for, in their order."""
        return self._by_place[_range(self.place[self._by_place], part)]


def _range(rising: Tensor, part: slice) -> slice:
    """Where values from ``part.start`` up to ``part.stop`` stand among ``rising`` ones."""
    start, stop = torch.searchsorted(rising, rising.new_tensor([part.start, part.stop])).tolist()
    return slice(start, stop)


def _slices(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _scores_of_matches(score: ScoreFunction, left: _Rows, right: _Rows, owner: Tensor) -> Tensor:
    """The score of every text with its own image, ``(M,)``; equal pairs of points get one score."""
    image = left.place[owner]
    by_image = image.argsort(stable=True)
    own: Tensor | None = None
    for part in _slices(len(left.points), MIN_ROWS):
        text = by_image[_range(image[by_image], part)]
        columns, column = right.place[text].unique(return_inverse=True)
        tile = scored(score, left.points[part], right.points[columns], left.first[part].tolist())
        own = tile.new_empty(len(owner)) if own is None else own
        own[text] = tile[image[text] - part.start, column]
    assert own is not None  # there is an image
    return own


class _Counts:
    """How many candidates stand at or above a level, and above it, for every query; built up tile by tile."""

    def __init__(self, best: Tensor) -> None:
        self.best = best
        self.level = torch.zeros(len(best), dtype=torch.long, device=best.device)
        self.above = torch.zeros_like(self.level)

    def add(self, tile: Tensor, queries: Tensor, *, dim: int) -> None:
        """Count along ``dim`` of the scores of some ``queries``, which are the other axis."""
        best = self.best[queries].unsqueeze(dim)
        at_or_above, above = count_level(tile, best, dim)
        self.level[queries] += at_or_above
        self.above[queries] += above

    def ranks(self, matches: Tensor) -> Ranks:
        """Ranks of the best match, ``matches`` of which stand at its score."""
        before = self.level - matches  # no match lies above the best one
        return Ranks(before.cpu(), int((before > self.above).sum()))
