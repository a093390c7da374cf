"""Part above whole: how often a part lies nearer the origin than its whole, as an entailment order asks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.metrics import wilson_interval
from hyvlm.evaluation.task import TASKS, Outcome, Task, choice_of_captions, percent_interval
from hyvlm.losses.uncertainty import HasRadius
from hyvlm.models import DualEncoder


@dataclass(frozen=True)
class Share:
    """A share of n trials with its 95% Wilson interval, which takes the trials as independent."""

    successes: int
    n: int

    @property
    def value(self) -> float:
        """The share, 0 to 1; NaN of no trial."""
        return self.successes / self.n if self.n else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end."""
        return wilson_interval(self.successes, self.n)


def part_above_whole(part_radius: Tensor, whole_radius: Tensor) -> Share:
    """Share of pairs with radius(part) < radius(whole); equal radii do not count. Both ``(N,)``."""
    if part_radius.shape != whole_radius.shape:
        raise ValueError(
            f"parts and wholes come in pairs, got {tuple(part_radius.shape)} and {tuple(whole_radius.shape)} radii"
        )
    for name, radius in (("part", part_radius), ("whole", whole_radius)):
        if radius.isnan().any():
            raise ValueError(f"the radius of a {name} is not a number: check the model's embeddings for NaN")
    return Share(int((part_radius < whole_radius).sum()), len(part_radius))


@dataclass(frozen=True)
class ViewRadii:
    """Hyperbolic radii of every view, and the (part, whole) pairs among them.

    Attributes:
        radius: View name to ``(N_view,)``, in units of length.
        pairs: Modality to ``(part rows, whole rows)`` of its two views.
    """

    radius: dict[str, Tensor]
    pairs: dict[str, tuple[Tensor, Tensor]]

    def share(self, modality: str) -> Share:
        """:func:`part_above_whole` of "image" or "text"."""
        part, whole = self.pairs[modality]
        return part_above_whole(self.radius[f"part_{modality}"][part], self.radius[modality][whole])


def with_radius(model: DualEncoder) -> HasRadius:
    """The model's manifold. Raises ValueError if its points have no radius (a sphere)."""
    if not isinstance(model.manifold, HasRadius):
        name = type(model.manifold).__name__
        raise ValueError(f"points of a {name} have no radius, so nothing lies above anything else")
    return model.manifold


def view_radii(
    embedder: Embedder,
    samples: SampleSet,
    *,
    resize: str = "squash",
    image_size: int | None = None,
    part_size: int | None = None,
    captions: str = "all",
) -> tuple[ViewRadii, Outcome]:
    """Radii of images, texts, part images and part texts. A part phrase pairs with each of its image's ``captions``.

    Returns:
        The radii, and an outcome without scores that counts the samples.
    Raises:
        ValueError: If the model's manifold has no radius (a sphere), or no sample has a part.
    """
    manifold = with_radius(embedder.model)
    images = embedder.images(samples, resize=resize, image_size=image_size, parts=True, part_size=part_size)
    if not len(images.part_points):
        raise ValueError(f"no sample of {samples.name} has a part")
    texts: list[str] = []
    text_rows: list[range] = []
    for annotation in images.annotations:
        used = choice_of_captions(captions)(annotation.texts)
        text_rows.append(range(len(texts), len(texts) + len(used)))
        texts += used
    part_texts = [text for annotation in images.annotations for text in annotation.part_texts]
    pairs = [(p, t) for p, whole in enumerate(images.part_owner.tolist()) for t in text_rows[whole]]
    points = {
        "image": images.points,
        "text": embedder.texts(texts),
        "part_image": images.part_points,
        "part_text": embedder.texts(part_texts),
    }
    with evaluation_mode(embedder.model):
        radius = {view: manifold.radius(p).cpu() for view, p in points.items()}
    part_rows, whole_rows = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    radii = ViewRadii(
        radius,
        {"image": (torch.arange(len(images.part_owner)), images.part_owner.cpu()), "text": (part_rows, whole_rows)},
    )
    with_parts = len(images.part_owner.unique())
    outcome = Outcome(
        scores={},
        units={},
        n=with_parts,
        total=images.total,
        skipped=images.skipped + Counter({"no part": len(images.points) - with_parts}),
        skipped_examples=images.examples,
        details={"parts": len(images.part_points), "pairs": {m: len(p) for m, (p, _) in radii.pairs.items()}},
    )
    return radii, outcome


@TASKS.register("order")
@dataclass(frozen=True, kw_only=True)
class Order(Task):
    """Share of (part, whole) pairs with radius(part) < radius(whole), per modality, and the mean radius of each view.

    Attributes:
        part_size: Side of part crops in pixels; None is that of the images.
        captions: "all" captions of an image count as wholes, only the "first" or the "last", or all "joined" into one.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "pairs"
    parts: ClassVar[bool] = True

    part_size: int | None = None
    captions: str = "all"

    def __post_init__(self) -> None:
        choice_of_captions(self.captions)

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        self.check_size("part_size", self.part_size, model)
        with_radius(model)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        radii, outcome = view_radii(
            embedder,
            samples,
            resize=self.resize,
            image_size=self.image_size,
            part_size=self.part_size,
            captions=self.captions,
        )
        for modality in radii.pairs:
            name, share = f"part_above_whole_{modality}", radii.share(modality)
            outcome.scores[name], outcome.units[name] = 100 * share.value, "%"
            if share.n:
                outcome.intervals[name] = percent_interval(share.interval)
            else:
                outcome.undefined[name] = f"there is no (part, whole) pair of {modality}s"
        for view, radius in radii.radius.items():
            name = f"mean_radius_{view}"
            outcome.scores[name], outcome.units[name] = radius.double().mean().item(), "length"
            if not len(radius):
                outcome.undefined[name] = f"there is no {view}"
        return outcome
