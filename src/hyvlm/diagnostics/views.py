"""Points of every view of a data set, from one pass over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.task import choice_of_captions
from hyvlm.types import Views, reasons


@dataclass(frozen=True)
class Collected:
    """Points of a data set.

    Attributes:
        views: Points of "image" and "text", one row a sample, and of "part_image" and "part_text" with their owners
            if there are any parts.
        samples: How many samples have points.
        total: Of how many samples.
        not_finite: View to how many of its points hold NaN or infinity. Such points are left out, with the sample (or
            the part) that they belong to.
        skipped: Samples and parts left out, by reason; parts are counted under "part: REASON".
        examples: Where the first few of them are.
        texts_cut: How many texts were longer than the tokenizer's context and lost their end.
    """

    views: Views
    samples: int
    total: int
    not_finite: dict[str, int]
    skipped: dict[str, int]
    examples: list[str]
    texts_cut: int


def collect_views(
    embedder: Embedder,
    samples: SampleSet,
    *,
    captions: str = "first",
    parts: bool = True,
    resize: str | None = None,
    part_size: int | None = None,
) -> Collected:
    """Embed the images of a set, one caption of each and, if ``parts``, the part crops with their phrases.

    Args:
        samples: Opened for content "pairs".
        captions: Which caption: the "first", the "last", or all "joined" into one.
        resize: "squash" or "crop"; None is the model's own way, squashed if it has none.
        part_size: Side of part crops in pixels; None is that of the images.
    Raises:
        ValueError: Fewer than two samples have an image and a caption whose points are finite; another choice of
            captions.
    """
    if captions == "all":
        raise ValueError("a diagnosis pairs each image with one caption: choose the first, the last, or all joined")
    choose = choice_of_captions(captions)
    cut_before = embedder.tokenizer.truncated
    images = embedder.images(
        samples,
        resize=resize or embedder.model.resize or "squash",
        parts=parts,
        part_size=part_size,
    )
    given = [[text for text in annotation.texts if text.strip()] for annotation in images.annotations]
    images = images.select([i for i, texts in enumerate(given) if texts], "no caption")
    text = embedder.texts([choose(texts)[0] for texts in given if texts])
    points = {"image": images.points, "text": text}
    owner = images.part_owner if parts else images.part_owner[:0]
    if len(owner):
        phrases = [phrase for annotation in images.annotations for phrase in annotation.part_texts]
        points |= {"part_image": images.part_points, "part_text": embedder.texts(phrases)}
    views, not_finite, lost = finite_views(points, owner)
    found = len(views.points["image"])
    skipped = +(images.skipped + lost)
    if found < 2:
        why = reasons(skipped) or "it has no more"
        raise ValueError(f"a diagnosis needs at least 2 usable samples, {samples.name} gives {found}: {why}")
    return Collected(
        views=views,
        samples=found,
        total=images.total,
        not_finite=not_finite,
        skipped=dict(skipped),
        examples=list(images.examples),
        texts_cut=embedder.tokenizer.truncated - cut_before,
    )


def finite_views(points: Mapping[str, Tensor], owner: Tensor) -> tuple[Views, dict[str, int], Counter[str]]:
    """Points of every view without the samples, and the parts, of which one point is not finite.

    Part views with fewer than two points that are left have no distribution: they are left out, too.

    Args:
        points: "image" and "text" ``(N, D)``; "part_image" and "part_text" ``(M, D)``, both or neither.
        owner: ``(M,)`` int64, the row of ``image`` that each part belongs to.
    Returns:
        The views; how many points of a view are not finite, for views that have such; what was left out, by reason.
    """
    finite = {view: rows.isfinite().all(-1) for view, rows in points.items()}
    not_finite = {view: int((~rows).sum()) for view, rows in finite.items() if not rows.all()}
    whole = finite["image"] & finite["text"]
    lost = Counter({"points that are not finite": int((~whole).sum())})
    image, text = points["image"][whole], points["text"][whole]
    if "part_image" not in points:
        return Views.single(image, text), not_finite, lost
    part = finite["part_image"] & finite["part_text"]
    lost["part: points that are not finite"] = int((~part).sum())
    lost["part: its sample is left out"] = int((part & ~whole[owner]).sum())
    part = part & whole[owner]
    if int(part.sum()) < 2:
        lost["part: the only one left"] = int(part.sum())
        return Views.single(image, text), not_finite, lost
    place = torch.cumsum(whole, 0) - 1
    views = Views.single(image, text, points["part_image"][part], points["part_text"][part], place[owner[part]])
    return views, not_finite, lost
