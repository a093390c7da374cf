"""A world small enough to work out by hand: one-colour images, texts whose points are given, a model that maps both."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from hyvlm.data.catalog import SampleSet
from hyvlm.geometry import Lorentz, Manifold
from hyvlm.types import BadSample, Part, Sample

Colour = tuple[int, int, int]


class ByteTokenizer:
    """Texts to their UTF-8 bytes, 0-padded."""

    def __init__(self, context_length: int = 40) -> None:
        self.context_length, self.truncated = context_length, 0

    def __call__(self, texts: Sequence[str]) -> Tensor:
        rows = torch.zeros(len(texts), self.context_length, dtype=torch.long)
        for i, text in enumerate(texts):
            ids = list(text.encode())
            self.truncated += len(ids) > self.context_length
            ids = ids[: self.context_length]
            rows[i, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        return rows


class StubModel(nn.Module):
    """An image is the point of its mean colour in [0, 1]; a text is the point that ``points`` holds for it.

    The score is the dot product. ``images_seen`` and ``texts_seen`` count what passed through.
    """

    def __init__(self, points: Mapping[str, Sequence[float]], manifold: Manifold | None = None) -> None:
        super().__init__()
        self.points = {text: torch.tensor(point, dtype=torch.float32) for text, point in points.items()}
        self.manifold = manifold or Lorentz()
        self.weight = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(0.9)
        self.register_buffer("pixel_mean", torch.zeros(3, 1, 1))
        self.config = {
            "model": {"image": {"image_size": 8, "patch": 2}},
            "points": {k: list(v) for k, v in points.items()},
        }
        self.dim = 3
        self.resize: str | None = None  # left to the task
        self.images_seen = self.texts_seen = 0

    def encode_image(self, pixels: Tensor) -> Tensor:
        self.images_seen += len(pixels)
        return self.dropout(pixels.float().mean((2, 3)) / 255 * self.weight)

    def encode_text(self, tokens: Tensor) -> Tensor:
        self.texts_seen += len(tokens)
        texts = [bytes(i for i in row.tolist() if i).decode() for row in tokens]
        return torch.stack([self.points[text] for text in texts]) * self.weight

    def class_points(self, tokens: Tensor) -> Tensor:
        return torch.stack([self.encode_text(prompts).mean(0) for prompts in tokens])

    by_angle, as_trained = False, True  # a score without a direction, as trained

    def score(self, images: Tensor, texts: Tensor, *, by: str = "image") -> Tensor:
        return images @ texts.T

    def class_score(self, images: Tensor, classes: Tensor) -> Tensor:
        return self.score(images, classes)


class WordModel(StubModel):
    """As :class:`StubModel`, but a text is the mean of the points of its words; a word without one does not count."""

    def encode_text(self, tokens: Tensor) -> Tensor:
        self.texts_seen += len(tokens)
        texts = [bytes(i for i in row.tolist() if i).decode() for row in tokens]
        words = [[self.points[word] for word in re.findall(r"\w+", text) if word in self.points] for text in texts]
        return torch.stack([torch.stack(found).mean(0) if found else torch.zeros(self.dim) for found in words])


class ListedSamples(SampleSet):
    """Samples from a list; an entry that is a :class:`BadSample` is raised. ``reads`` counts what was asked for."""

    def __init__(
        self,
        items: Sequence[Sample | BadSample],
        *,
        classes: Sequence[str] = (),
        parents: Mapping[str, str] | None = None,
        fingerprint: str = "listed",
        image_fingerprint: str | None = None,
    ) -> None:
        self.items, self.classes, self.parents = items, tuple(classes), parents
        self.name, self.split, self.fingerprint = "listed", "test", fingerprint
        self.image_fingerprint = image_fingerprint or fingerprint
        self.reads = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Sample:
        self.reads += 1
        item = self.items[index]
        if isinstance(item, BadSample):
            raise item
        return item


def coloured(
    colour: Colour,
    *,
    texts: Sequence[str] = (),
    labels: Sequence[int] = (),
    ignored: Sequence[int] = (),
    parts: Sequence[tuple[Colour, str]] = (),
) -> Sample:
    """A sample whose image has one colour; parts are given by colour and phrase."""
    return Sample(
        key=str(colour),
        image=Image.new("RGB", (12, 10), colour),
        texts=list(texts),
        labels=list(labels),
        ignored=list(ignored),
        parts=[Part(Image.new("RGB", (5, 7), part), phrase) for part, phrase in parts],
    )


@pytest.fixture
def stub() -> type[StubModel]:
    return StubModel


@pytest.fixture
def by_words() -> type[WordModel]:
    return WordModel


@pytest.fixture
def listed() -> type[ListedSamples]:
    return ListedSamples


@pytest.fixture
def image_of() -> Callable[..., Sample]:
    return coloured


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()
