"""Image-text retrieval in both directions, with any number of captions per image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.both_ways import ranks_both_ways
from hyvlm.evaluation.embed import Embedder, ImageEmbeddings, evaluation_mode
from hyvlm.evaluation.metrics import Ranks, ScoreFunction, retrieval_ranks
from hyvlm.evaluation.prompts import hash_lines
from hyvlm.evaluation.task import TASKS, Outcome, Task, choice_of_captions, percent, size_notes
from hyvlm.models import DualEncoder


@dataclass(frozen=True)
class CaptionedImages:
    """The images of a set that have captions, and those of their captions that count.

    Attributes:
        images: n images.
        captions: m captions.
        owner: ``(m,)`` int64, the image of each caption.
    """

    images: ImageEmbeddings
    captions: list[str]
    owner: Tensor

    def details(self) -> dict[str, Any]:
        """Facts that a number of retrieval depends on."""
        return {
            "captions": len(self.captions),
            "distinct_captions": len(set(self.captions)),
            "captions_hash": hash_lines(self.captions),
        }


def captioned_images(
    embedder: Embedder, samples: SampleSet, *, captions: str, resize: str, image_size: int | None
) -> CaptionedImages:
    """Points of the images with captions, and the choice ``captions`` of these. Raises ValueError if there is none."""
    choose = choice_of_captions(captions)
    images = embedder.images(samples, resize=resize, image_size=image_size)
    images = images.select([i for i, a in enumerate(images.annotations) if a.texts], "no caption")
    used = [choose(annotation.texts) for annotation in images.annotations]
    if not used:
        raise ValueError(f"{samples.name} has no captions to retrieve by")
    owner = torch.tensor([i for i, texts in enumerate(used) for _ in texts])
    return CaptionedImages(images, [text for texts in used for text in texts], owner)


def rank_both_ways(model: DualEncoder, images: Tensor, texts: Tensor, owner: Tensor) -> dict[str, Ranks]:
    """Ranks of images by text ("t2i") and of texts by image ("i2t").

    Args:
        images, texts: Points ``(n, D)`` and ``(m, D)``.
        owner: ``(m,)`` int64, the image of each text.
    """
    each = torch.arange(len(images))
    with evaluation_mode(model):
        if not model.by_angle:  # one score for both directions
            t2i, i2t = ranks_both_ways(model.score, images, texts, owner)
            return {"t2i": t2i, "i2t": i2t}
        return {
            "t2i": retrieval_ranks(images_by_text(model), texts, images, owner, each),
            "i2t": retrieval_ranks(model.score, images, texts, each, owner),
        }


def images_by_text(model: DualEncoder) -> ScoreFunction:
    """The model's score as texts ask it: ``(texts, images) -> (T, N)``."""
    return lambda texts, images: model.score(images, texts, by="text").T


@dataclass(frozen=True, kw_only=True)
class CaptionTask(Task):
    """A task on images and captions.

    Attributes:
        captions: "all" of an image's captions, or only the "first" or the "last" (the built-in scenes list theirs from
            short to long, and only the last one tells a scene from the others), or all "joined" into one.
    """

    content: ClassVar[str] = "pairs"

    captions: str = "all"

    def __post_init__(self) -> None:
        choice_of_captions(self.captions)

    def read(self, embedder: Embedder, samples: SampleSet) -> CaptionedImages:
        """The images and captions that count. Raises ValueError if there is none."""
        return captioned_images(
            embedder, samples, captions=self.captions, resize=self.resize, image_size=self.image_size
        )


@TASKS.register("retrieval")
@dataclass(frozen=True, kw_only=True)
class Retrieval(CaptionTask):
    """Recall@k of images by text (``t2i``) and of texts by image (``i2t``: any of the image's captions is a hit)."""

    version: ClassVar[int] = 1

    ks: tuple[int, ...] = (1, 5, 10)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        found = self.read(embedder, samples)
        images = found.images
        ranks = rank_both_ways(embedder.model, images.points, embedder.texts(found.captions), found.owner)
        scores = percent({f"{way}_recall@{k}": r.recall_at(k) for way, r in ranks.items() for k in self.ks})
        return Outcome(
            scores=scores,
            units=dict.fromkeys(scores, "%"),
            n=len(images.points),
            total=images.total,
            skipped=images.skipped,
            skipped_examples=images.examples,
            ties={way: r.tied for way, r in ranks.items()},
            details=found.details(),
            notes=size_notes(samples, len(images.points), len(found.captions) if self.captions == "all" else None),
        )
