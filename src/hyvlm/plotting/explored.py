"""What a report shows of a data set: points of all views with their pictures and texts, from one pass over it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hyvlm.data.catalog import SampleSet
from hyvlm.data.transforms import Transform
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.plotting.gather import choose_caption
from hyvlm.types import BadSample, reasons

#: Pictures of images and parts in one page, at the most; how many parts an image may show follows from it.
PICTURES_MAX = 20_000
#: Side in pixels within which pictures are kept.
THUMBNAIL = 64


@dataclass(frozen=True)
class Explored:
    """Images with their captions, and parts with their phrases. Points are on the CPU, without gradients.

    Attributes:
        samples: Where they are from.
        index: ``n`` places in ``samples``.
        keys: How the images are called.
        captions: One text an image.
        pictures: Small copies of the images.
        owner: Of each of ``m`` parts the row of its image.
        number: And its place among the parts of that image.
        phrases: What names each part.
        part_pictures: Small copies of the parts.
        points: "image" and "text" ``(n, D)``; "part_image" and "part_text" ``(m, D)``.
        skipped: Samples left out, by reason; parts are counted under "part: REASON".
        texts_cut: How many texts were longer than the model's context and lost their end.
    """

    samples: SampleSet
    index: list[int]
    keys: list[str]
    captions: list[str]
    pictures: list[Image.Image]
    owner: list[int]
    number: list[int]
    phrases: list[str]
    part_pictures: list[Image.Image]
    points: dict[str, Tensor]
    skipped: Counter[str]
    texts_cut: int

    def select(self, wholes: Tensor, parts: Tensor) -> Explored:
        """Only the images, and the parts, where the masks ``(n,)`` and ``(m,)`` are true; no part without its image."""
        parts = parts & wholes[self.owner] if self.owner else parts
        whole_rows, part_rows = wholes.nonzero().flatten().tolist(), parts.nonzero().flatten().tolist()
        place = {row: i for i, row in enumerate(whole_rows)}
        masks = {"image": wholes, "text": wholes, "part_image": parts, "part_text": parts}
        return Explored(
            samples=self.samples,
            index=[self.index[i] for i in whole_rows],
            keys=[self.keys[i] for i in whole_rows],
            captions=[self.captions[i] for i in whole_rows],
            pictures=[self.pictures[i] for i in whole_rows],
            owner=[place[self.owner[i]] for i in part_rows],
            number=[self.number[i] for i in part_rows],
            phrases=[self.phrases[i] for i in part_rows],
            part_pictures=[self.part_pictures[i] for i in part_rows],
            points={view: rows[masks[view]] for view, rows in self.points.items()},
            skipped=self.skipped,
            texts_cut=self.texts_cut,
        )

    def views(self) -> dict[str, Tensor]:
        """Points of the views that have any."""
        return {view: rows for view, rows in self.points.items() if len(rows)}

    def whole(self, row: int, side: int) -> Image.Image:
        """The image of a row once more, within ``side`` pixels."""
        return within(self.samples[self.index[row]].picture, side)

    def part(self, row: int, side: int) -> Image.Image:
        """The part of a row once more."""
        return within(self.samples[self.index[self.owner[row]]].parts[self.number[row]].image, side)


def within(image: Image.Image, side: int) -> Image.Image:
    """A copy of the picture that fits into a square."""
    copy = image.convert("RGB")
    copy.thumbnail((side, side), Image.Resampling.LANCZOS)
    return copy


def explore(embedder: Embedder, samples: SampleSet, *, captions: str = "first", resize: str | None = None) -> Explored:
    """Read every sample once: points, captions and small pictures of its image and of its parts.

    Args:
        samples: Opened for content "pairs".
        captions: The text of an image: its "first" or "last" caption, or all "joined".
        resize: "squash" or "crop"; None is the model's own way, squashed if it has none.
    Raises:
        ValueError: Fewer than two samples have an image and a caption with finite points.
    """
    most = max(1, PICTURES_MAX // max(1, len(samples)) - 1)
    found = _Found()
    cut_before = embedder.tokenizer.truncated
    reader = _Reader(samples, embedder.transform(resize), captions, most)
    loader = DataLoader(
        reader,
        batch_size=embedder.batch_size,
        num_workers=embedder.workers,
        collate_fn=list,
        generator=torch.Generator(),  # the default would draw from the global one
    )
    with evaluation_mode(embedder.model):
        for batch in embedder.progress(loader, f"images of {samples.name}"):
            found.add(batch, embedder)
    rows = found.explored(embedder, samples)
    cut = embedder.tokenizer.truncated - cut_before
    return _usable(rows, cut)


def _usable(rows: Explored, cut: int) -> Explored:
    finite = {view: points.isfinite().all(-1) for view, points in rows.points.items()}
    wholes, parts = finite["image"] & finite["text"], finite["part_image"] & finite["part_text"]
    kept = rows.select(wholes, parts)
    lost = Counter({"points that are not finite": int((~wholes).sum())})
    lost["part: points that are not finite"] = len(rows.owner) - len(kept.owner)
    skipped = +(rows.skipped + lost)
    if len(kept.index) < 2:
        why = reasons(skipped) or "it has no more"
        raise ValueError(
            f"a report needs at least 2 images with captions, {rows.samples.name} gives {len(kept.index)}: {why}"
        )
    return Explored(**{**vars(kept), "skipped": skipped, "texts_cut": cut})


@dataclass
class _Read:
    """One sample as a loader's process hands it over, or why it was left out."""

    index: int
    reasons: list[str]
    key: str = ""
    caption: str = ""
    pixels: Tensor | None = None
    picture: Image.Image | None = None
    parts: list[tuple[int, str, Tensor, Image.Image]] = field(default_factory=list)


class _Reader(Dataset[_Read]):
    def __init__(self, samples: SampleSet, transform: Transform, captions: str, parts: int) -> None:
        choose_caption([""], captions)  # says at once if there is no such choice
        self.samples, self.transform, self.captions, self.parts = samples, transform, captions, parts

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> _Read:
        try:
            sample = self.samples[index]
            image = sample.picture
        except BadSample as bad:
            return _Read(index, [bad.reason])
        texts = [text for text in sample.texts if text.strip()]
        if not texts:
            return _Read(index, ["no caption"])
        read = _Read(index, [f"part: {bad.reason}" for bad in sample.dropped], sample.key)
        read.caption = choose_caption(texts, self.captions)
        read.pixels, read.picture = self.transform(image), within(image, THUMBNAIL)
        named = [(i, part) for i, part in enumerate(sample.parts) if part.text.strip()]
        read.reasons += ["part: no phrase"] * (len(sample.parts) - len(named))
        read.reasons += [f"part: the page shows {self.parts} an image"] * max(0, len(named) - self.parts)
        read.parts = [
            (i, part.text, self.transform(part.image), within(part.image, THUMBNAIL)) for i, part in named[: self.parts]
        ]
        return read


class _Found:
    """What was read so far."""

    def __init__(self) -> None:
        self.reads: list[_Read] = []
        self.points: list[Tensor] = []
        self.part_points: list[Tensor] = []
        self.skipped: Counter[str] = Counter()

    def add(self, batch: list[_Read], embedder: Embedder) -> None:
        for read in batch:
            self.skipped.update(read.reasons)
        usable = [read for read in batch if read.pixels is not None]
        self.points += _encode([read.pixels for read in usable if read.pixels is not None], embedder)
        self.part_points += _encode([part[2] for read in usable for part in read.parts], embedder)
        for read in usable:  # pixels are not needed any more, and would fill the memory
            read.pixels = None
            read.parts = [(i, text, torch.empty(0), picture) for i, text, _, picture in read.parts]
        self.reads += usable

    def explored(self, embedder: Embedder, samples: SampleSet) -> Explored:
        parts = [(row, part) for row, read in enumerate(self.reads) for part in read.parts]
        captions, phrases = [read.caption for read in self.reads], [part[1] for _, part in parts]
        empty = torch.empty(0, embedder.model.dim)
        return Explored(
            samples=samples,
            index=[read.index for read in self.reads],
            keys=[read.key for read in self.reads],
            captions=captions,
            pictures=[read.picture for read in self.reads if read.picture is not None],
            owner=[row for row, _ in parts],
            number=[part[0] for _, part in parts],
            phrases=phrases,
            part_pictures=[part[3] for _, part in parts],
            points={
                "image": torch.cat([empty, *self.points]),
                "text": embedder.texts(captions).cpu(),
                "part_image": torch.cat([empty, *self.part_points]),
                "part_text": embedder.texts(phrases).cpu(),
            },
            skipped=self.skipped + Counter(samples.dropped),
            texts_cut=0,
        )


def _encode(pixels: list[Tensor], embedder: Embedder) -> list[Tensor]:
    size = embedder.batch_size
    batches = [torch.stack(pixels[start : start + size]) for start in range(0, len(pixels), size)]
    return [embedder.model.encode_image(batch.to(embedder.device)).cpu() for batch in batches]
