"""Whether an image scores its caption above one that differs in a detail (HyFL-CLIP, Table S7; SugarCrepe)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import ClassVar

import torch

from hyvlm.data.catalog import SampleSet
from hyvlm.data.negatives import hard_negatives
from hyvlm.evaluation.embed import Annotation, Embedder, ImageEmbeddings, evaluation_mode
from hyvlm.evaluation.metrics import choose_between, wilson_interval
from hyvlm.evaluation.prompts import hash_lines
from hyvlm.evaluation.task import TASKS, Outcome, Task, choice_of_captions, percent_interval, size_notes
from hyvlm.registry import unknown

#: Where the negatives come from, and what a sample set must hold for it.
SOURCES = {"given": "negatives", "generate": "pairs"}
NEGATIVES_PER_CAPTION = 5


@dataclass(frozen=True)
class Pair:
    """A caption and one that is false of the image."""

    image: int
    caption: str
    negative: str


def given_pairs(annotations: list[Annotation]) -> list[Pair]:
    """The first caption of every image with each of its negatives."""
    return [
        Pair(i, annotation.texts[0], negative)
        for i, annotation in enumerate(annotations)
        for negative in (annotation.negatives if annotation.texts else ())
    ]


def generated_pairs(annotations: list[Annotation], captions: str) -> tuple[list[Pair], list[int]]:
    """Up to five negatives of each of the chosen captions, and how many each caption has."""
    choose = choice_of_captions(captions)
    pairs, counts = list[Pair](), list[int]()
    for i, annotation in enumerate(annotations):
        for caption in choose(annotation.texts):
            negatives = hard_negatives(caption, seed=(0, len(counts)), limit=NEGATIVES_PER_CAPTION)
            counts.append(len(negatives))
            pairs += [Pair(i, caption, negative) for negative in negatives]
    return pairs, counts


@TASKS.register("hard-negatives")
@dataclass(frozen=True, kw_only=True)
class HardNegatives(Task):
    """Share of (caption, negative) pairs whose caption scores higher to the image; a tie counts as wrong.

    Attributes:
        negatives: "given" with the data set, or "generate": one word of a caption is swapped for a sibling, up to five
            times a caption (:func:`hyvlm.data.negatives.hard_negatives`), for any set of images with captions.
        captions: Of which captions of an image negatives are generated; given ones belong to the first caption.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "negatives"

    negatives: str = "given"
    captions: str = "first"

    def __post_init__(self) -> None:
        if self.negatives not in SOURCES:
            raise ValueError(unknown("source of negatives", self.negatives, SOURCES))
        choice_of_captions(self.captions)
        if self.negatives == "given" and self.captions != "first":
            raise ValueError("given negatives belong to an image's first caption: captions needs negatives=generate")

    @property
    def opens(self) -> str:
        return SOURCES[self.negatives]

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        images = embedder.images(samples, resize=self.resize, image_size=self.image_size)
        details, notes = dict[str, int](), list[str]()
        if self.negatives == "given":
            pairs, lacking = given_pairs(images.annotations), "no caption with a negative"
        else:
            (pairs, counts), lacking = generated_pairs(images.annotations, self.captions), "no word to swap"
            unable = counts.count(0)
            details = {"captions": len(counts), "captions_without_a_word_to_swap": unable}
            if unable:
                notes = [f"{unable:,} of {len(counts):,} captions have no word that could be swapped"]
        if not pairs:
            raise ValueError(f"none of the {len(images.points)} images of {samples.name} can be scored: {lacking}")
        used = sorted({pair.image for pair in pairs})
        types = samples.classes if self.negatives == "given" else ()  # classes of a set of pairs are its objects
        scores, ties, right = self._score(embedder, images, pairs, types)
        left = images.select(used, lacking)
        return Outcome(
            scores=scores,
            units=dict.fromkeys(scores, "%"),
            n=len(used),
            total=images.total,
            skipped=left.skipped,
            skipped_examples=images.examples,
            ties={"pairs": ties},
            intervals={"accuracy": percent_interval(wilson_interval(right, len(pairs)))},
            details={
                "pairs": len(pairs),
                "negatives_hash": hash_lines([pair.negative for pair in pairs]),
                **details,
            },
            notes=[*size_notes(samples, len(used)), *notes],
        )

    def _score(
        self, embedder: Embedder, images: ImageEmbeddings, pairs: list[Pair], types: tuple[str, ...]
    ) -> tuple[dict[str, float], int, int]:
        """Accuracies in percent, over all pairs and by type of negative; how many pairs tie; how many are right."""
        rows = torch.tensor([pair.image for pair in pairs], device=images.points.device)
        right = embedder.texts([pair.caption for pair in pairs])
        wrong = embedder.texts([pair.negative for pair in pairs])
        with evaluation_mode(embedder.model):
            found = choose_between(embedder.model.score, images.points[rows], right, wrong)
        scores = {"accuracy": 100 * found.right.double().mean().item()}
        by_type: dict[str, list[bool]] = {}
        for label, name in enumerate(types):
            of_type = [label in images.annotations[pair.image].labels for pair in pairs]
            if any(of_type):
                by_type[name] = found.right[torch.tensor(of_type)].tolist()
        if by_type:
            shares = {name: 100 * mean(hits) for name, hits in by_type.items()}
            scores |= {"accuracy_mean_over_types": mean(shares.values())}
            scores |= {f"accuracy_{name}": share for name, share in shares.items()}
        return scores, found.tied, int(found.right.sum())
