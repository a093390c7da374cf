"""What pictures of models on a data set are drawn from: one pass over its images, shared by all models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from PIL import Image
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Embedder, evaluation_mode, progress
from hyvlm.evaluation.task import choice_of_captions
from hyvlm.types import BadSample, reasons

#: Side in pixels within which images are kept to be shown.
SHOWN = 384


@dataclass(frozen=True)
class Entry:
    """One image as a picture shows it: its place in the data set, a small copy, and the caption that was chosen."""

    index: int
    image: Image.Image
    caption: str


@dataclass(frozen=True)
class Gathered:
    """Images with captions, and their points under each model.

    Attributes:
        entries: The n images, the chosen sample first.
        points: Model name to ``(n, D)`` points of the images.
        skipped: Samples that were passed over, by reason.
    """

    entries: list[Entry]
    points: dict[str, Tensor]
    skipped: Counter[str]

    @property
    def captions(self) -> list[str]:
        """The caption of each image."""
        return [entry.caption for entry in self.entries]


def choose_caption(texts: list[str], captions: str) -> str:
    """The "first" or the "last" of an image's captions, or all of them "joined" by spaces.

    Raises:
        ValueError: For another choice.
    """
    if captions == "all":
        raise ValueError("a picture shows one caption an image: choose the first, the last, or all joined")
    return choice_of_captions(captions)(texts)[0]


def read_entry(samples: SampleSet, index: int, captions: str) -> tuple[Entry, Image.Image]:
    """The sample at ``index``, and its image in full size.

    Raises:
        BadSample: It cannot be read, or has no caption.
    """
    sample = samples[index]
    image = sample.picture
    texts = [text for text in sample.texts if text.strip()]
    if not texts:
        raise BadSample("no caption", f"sample {sample.key!r}")
    small = image.copy()
    small.thumbnail((SHOWN, SHOWN))
    return Entry(index, small, choose_caption(texts, captions)), image


def read_sample(samples: SampleSet, index: int, captions: str) -> tuple[Entry, Image.Image]:
    """:func:`read_entry` of the one sample that the reader asked for.

    Raises:
        ValueError: There is no such sample, or it cannot be drawn.
    """
    if not 0 <= index < len(samples):
        raise ValueError(f"{samples.name} has samples 0 to {len(samples) - 1} in split {samples.split!r}, got {index}")
    try:
        return read_entry(samples, index, captions)
    except BadSample as bad:
        raise ValueError(f"sample {index} of {samples.name} cannot be drawn: {bad}") from bad


def gather(
    embedders: Mapping[str, Embedder],
    samples: SampleSet,
    *,
    sample: int,
    captions: str,
    limit: int,
    resize: str | None = None,
) -> Gathered:
    """Read ``sample`` and the first ``limit - 1`` other usable samples, and embed their images with every model.

    Raises:
        ValueError: The chosen sample cannot be drawn, or there is no other.
    """
    if limit < 2:
        raise ValueError(f"a picture of a data set needs at least 2 images, got a limit of {limit}")
    transforms = {name: embedder.transform(resize) for name, embedder in embedders.items()}
    size = min(embedder.batch_size for embedder in embedders.values())
    skipped: Counter[str] = Counter()
    entries: list[Entry] = []
    points: dict[str, list[Tensor]] = {name: [] for name in embedders}
    for batch in progress(_batches(_usable(samples, sample, captions, skipped), limit, size), "images"):
        entries += [entry for entry, _ in batch]
        for name, embedder in embedders.items():
            pixels = torch.stack([transforms[name](image) for _, image in batch])
            with evaluation_mode(embedder.model):
                points[name].append(embedder.model.encode_image(pixels.to(embedder.device)))
    if len(entries) < 2:
        why = reasons(skipped) or "it has no other"
        raise ValueError(f"only sample {sample} of {samples.name} can be drawn: {why}")
    return Gathered(entries, {name: torch.cat(batches) for name, batches in points.items()}, skipped)


def _usable(
    samples: SampleSet, sample: int, captions: str, skipped: Counter[str]
) -> Iterator[tuple[Entry, Image.Image]]:
    yield read_sample(samples, sample, captions)
    for index in range(len(samples)):
        if index != sample:
            try:
                yield read_entry(samples, index, captions)
            except BadSample as bad:
                skipped[bad.reason] += 1


def _batches(
    found: Iterator[tuple[Entry, Image.Image]], limit: int, size: int
) -> Iterator[list[tuple[Entry, Image.Image]]]:
    while limit > 0 and (batch := list(islice(found, min(limit, size)))):
        limit -= len(batch)
        yield batch
