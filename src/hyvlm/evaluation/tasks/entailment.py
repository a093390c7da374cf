"""How well entailment tells the captions of an image from those of others (Hyper3-CLIP, Sec. 4.1 and Table 5).

Captions go from coarse to fine. The image is the specific point of every pair, the caption the general one, at which
the cone stands. All pairs of all images are ranked together. Paper and released code differ in the score that ranks and
in the negatives; :class:`Entailment` has both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torch.nn.functional import cosine_similarity

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Annotation, Embedder, evaluation_mode
from hyvlm.evaluation.metrics import BLOCK
from hyvlm.evaluation.prompts import hash_lines
from hyvlm.evaluation.task import TASKS, Outcome, Task, size_notes
from hyvlm.evaluation.tasks.retrieval import captioned_images
from hyvlm.geometry import Manifold, Product
from hyvlm.losses.entailment import HasCones, mean_over_factors
from hyvlm.registry import unknown

#: Where the negatives come from, and what a sample set must hold for it.
SOURCES = {"sampled": "pairs", "first_100": "pairs", "given": "negatives"}
PUBLISHED_NEGATIVES = 100

#: Scores of paired images and captions on a manifold, ``(N, D), (N, D) -> (N,)``, higher is more likely a true pair.
PairScore = Callable[[Any, Tensor, Tensor], Tensor]


@runtime_checkable
class HasConesAndInner(HasCones, Protocol):
    """A manifold with an origin: entailment cones, and an inner product of paired points."""

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner product of paired points ``(N, D)``, ``(N,)``; on the hyperboloid the Lorentz one."""


def cone_angle(manifold: HasCones, image: Tensor, caption: Tensor) -> Tensor:
    """``max(1 - 2 phi / pi, 0)`` with phi the exterior angle at the caption toward the image (Hyper3-CLIP, Sec. 4.1).

    1 on the axis of the caption's cone, and 0 from a right angle on. In a product, the mean over the factors.
    """
    return mean_over_factors((1 - manifold.exterior_angle(caption, image) * (2 / math.pi)).clamp(min=0))


def cone_margin(manifold: HasCones, image: Tensor, caption: Tensor) -> Tensor:
    """How far, in radians, the image lies inside the caption's cone: half-aperture minus exterior angle, not clamped.

    In a product, the mean over the factors.
    """
    return mean_over_factors(manifold.half_aperture(caption) - manifold.exterior_angle(caption, image))


def _norm_difference(manifold: Manifold, image: Tensor, caption: Tensor) -> Tensor:
    return (_factors(manifold, image).norm(dim=-1) - _factors(manifold, caption).norm(dim=-1)).mean(-1)


def _cosine(manifold: Manifold, image: Tensor, caption: Tensor) -> Tensor:
    return cosine_similarity(_factors(manifold, image), _factors(manifold, caption), dim=-1).mean(-1)


def _factors(manifold: Manifold, points: Tensor) -> Tensor:
    return manifold.split(points) if isinstance(manifold, Product) else points.unsqueeze(-2)


#: How a pair is scored by the cone at its caption.
CONES: dict[str, PairScore] = {"angle": cone_angle, "margin": cone_margin}


def pair_scores(manifold: Manifold, cone: str) -> dict[str, PairScore]:
    """The cone score and the baselines beside it that exist on ``manifold``: without an origin, distance and cosine."""
    everywhere: dict[str, PairScore] = {"distance": lambda m, i, c: -m.distance(i, c), "cosine": _cosine}
    if not isinstance(manifold, HasConesAndInner):
        return everywhere
    with_origin: dict[str, PairScore] = {
        "inner": lambda m, i, c: m.inner(i, c),
        "norm_difference": _norm_difference,
    }
    return {"cone": CONES[cone], **everywhere, **with_origin}


def negatives_of_others(captions: Sequence[Sequence[str]], limit: int, seed: int | None = None) -> list[list[str]]:
    """The finest (last) captions of other images, for every image: up to ``limit`` that are no caption of its own.

    Args:
        captions: Of every image, coarse to fine; at least one each.
        seed: Draws uniformly, without drawing an image twice; None takes the first in the order of the images.
    """
    finest = [own[-1] for own in captions]
    places: dict[str, list[int]] = {}
    for place, text in enumerate(finest):
        places.setdefault(text, []).append(place)
    chosen = []
    for image, own in enumerate(captions):
        same = [place for text in set(own) for place in places.get(text, ())]
        others = np.delete(np.arange(len(finest)), same)  # the image itself is among those of the same text
        if seed is not None and len(others) > limit:
            others = np.random.default_rng((seed, image)).choice(others, limit, replace=False)
        chosen.append([finest[place] for place in others[:limit]])
    return chosen


def given_negatives(annotations: Sequence[Annotation], limit: int) -> list[list[str]]:
    """The first ``limit`` negatives that come with each image, without those that are also a caption of it."""
    return [[text for text in a.negatives if text not in a.texts][:limit] for a in annotations]


@dataclass(frozen=True)
class Pairs:
    """Pairs of images and captions.

    Attributes:
        texts: The distinct captions.
        image, caption: ``(N,)`` int64, the image of each pair, and its caption's place in ``texts``.
        positive: ``(N,)`` bool.
    """

    texts: list[str]
    image: Tensor
    caption: Tensor
    positive: NDArray[np.bool_]

    @staticmethod
    def of(captions: Sequence[Sequence[str]], negatives: Sequence[Sequence[str]]) -> Pairs:
        """Every image with its captions, then every image with its negatives."""
        sides = (captions, negatives)
        every = [(i, text) for side in sides for i, texts in enumerate(side) for text in texts]
        places = {text: place for place, text in enumerate(dict.fromkeys(text for _, text in every))}
        return Pairs(
            texts=list(places),
            image=torch.tensor([i for i, _ in every], dtype=torch.long),
            caption=torch.tensor([places[text] for _, text in every], dtype=torch.long),
            positive=np.repeat([True, False], [sum(map(len, side)) for side in sides]),
        )

    def score(self, how: PairScore, manifold: Manifold, images: Tensor, texts: Tensor) -> NDArray[np.float64]:
        """Scores ``(N,)`` by points of the images and of ``texts``, in bounded memory."""
        rows = max(1, BLOCK // images.shape[1])
        blocks = zip(self.image.to(images.device).split(rows), self.caption.to(texts.device).split(rows), strict=True)
        return torch.cat([how(manifold, images[i], texts[t]).cpu() for i, t in blocks]).double().numpy()


@dataclass(frozen=True)
class Separation:
    """How scores tell positives from negatives, and how far ties blur it.

    Attributes:
        average_precision: Equal scores are one step of the curve; a random ranking has the share of positives.
        auroc: Equal scores count half; a random ranking has 0.5.
        distinct_scores: How many different scores there are.
        most_common_score, most_common_share, zero_share: The score that most pairs have, the share of pairs that have
            it, and the share of pairs with exactly 0.
        mean_positive, mean_negative: Mean scores.
    """

    average_precision: float
    auroc: float
    distinct_scores: int
    most_common_score: float
    most_common_share: float
    zero_share: float
    mean_positive: float
    mean_negative: float


def separation(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> Separation:
    """Average precision and area under the ROC curve of scores ``(N,)``, with tie diagnostics.

    Raises:
        ValueError: If a score is NaN, or there is no positive or no negative.
    """
    if np.isnan(scores).any():
        raise ValueError("a score is not a number: check the model's embeddings for NaN")
    if positive.all() or not positive.any():
        raise ValueError(f"there must be positives and negatives, got {positive.sum()} and {(~positive).sum()}")
    values, counts = np.unique(scores, return_counts=True)
    return Separation(
        average_precision=float(average_precision_score(positive, scores)),
        auroc=float(roc_auc_score(positive, scores)),
        distinct_scores=len(values),
        most_common_score=float(values[counts.argmax()]),
        most_common_share=float(counts.max() / len(scores)),
        zero_share=float((scores == 0).mean()),
        mean_positive=float(scores[positive].mean()),
        mean_negative=float(scores[~positive].mean()),
    )


@TASKS.register("entailment")
@dataclass(frozen=True, kw_only=True)
class Entailment(Task):
    """Average precision and AUROC of (image, caption) pairs, by the cone at the caption and by simpler scores.

    Attributes:
        cone: "angle" ranks by :func:`cone_angle`, the paper's formula; "margin" by :func:`cone_margin`, which does not
            level off and is what the published numbers were ranked by.
        negatives: "sampled" draws finest captions of other images, as the paper words it; "first_100" takes the first
            100 in the order of the set, nearly the same for all images, as the released code does; "given" are those
            that come with the data set.
        negatives_per_image: At the most; all there are, if there are fewer.
        seed: Of the draws.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "pairs"

    resize: str = "crop"
    cone: str = "angle"
    negatives: str = "sampled"
    negatives_per_image: int = PUBLISHED_NEGATIVES
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cone not in CONES:
            raise ValueError(unknown("cone score", self.cone, CONES))
        if self.negatives not in SOURCES:
            raise ValueError(unknown("source of negatives", self.negatives, SOURCES))
        if self.negatives_per_image < 1:
            raise ValueError(f"negatives_per_image must be at least 1, got {self.negatives_per_image}")
        if self.negatives == "first_100" and self.negatives_per_image != PUBLISHED_NEGATIVES:
            raise ValueError(f"first_100 takes 100 negatives an image, not {self.negatives_per_image}")
        if self.seed < 0 or (self.seed and self.negatives != "sampled"):
            raise ValueError(f"seed belongs to negatives=sampled and is not negative, got {self.seed}")

    @property
    def opens(self) -> str:
        return SOURCES[self.negatives]

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        found = captioned_images(embedder, samples, captions="all", resize=self.resize, image_size=self.image_size)
        images, manifold = found.images, embedder.model.manifold
        captions = [annotation.texts for annotation in images.annotations]
        negatives = self._negatives(images.annotations)
        if not any(negatives):
            raise ValueError(f"no negative for any of the {len(captions)} images of {samples.name}: {self._lacking()}")
        pairs = Pairs.of(captions, negatives)
        texts = embedder.texts(pairs.texts)
        with evaluation_mode(embedder.model):
            results = {
                name: separation(pairs.score(how, manifold, images.points, texts), pairs.positive)
                for name, how in pair_scores(manifold, self.cone).items()
            }
        scores: dict[str, float] = {}
        for name, result in results.items():
            scores |= {f"average_precision_{name}": 100 * result.average_precision, f"auroc_{name}": 100 * result.auroc}
        return Outcome(
            scores=scores,
            units=dict.fromkeys(scores, "%"),
            n=len(captions),
            total=images.total,
            skipped=images.skipped,
            skipped_examples=images.examples,
            details={
                **found.details(),
                "positives": int(pairs.positive.sum()),
                "negatives": int((~pairs.positive).sum()),
                "positive_share": float(pairs.positive.mean()),
                "negatives_hash": hash_lines([text for texts in negatives for text in texts]),
                "separation": {name: asdict(result) for name, result in results.items()},
            },
            notes=[*size_notes(samples, len(captions)), *self._notes(manifold, captions, negatives, results)],
        )

    def _negatives(self, annotations: Sequence[Annotation]) -> list[list[str]]:
        if self.negatives == "given":
            return given_negatives(annotations, self.negatives_per_image)
        seed = self.seed if self.negatives == "sampled" else None
        return negatives_of_others([a.texts for a in annotations], self.negatives_per_image, seed)

    def _lacking(self) -> str:
        if self.negatives == "given":
            return "none comes with the set that is not a caption as well"
        return "other images must have a finest caption that is not also one of its own"

    def _notes(
        self,
        manifold: Manifold,
        captions: Sequence[Sequence[str]],
        negatives: Sequence[Sequence[str]],
        results: dict[str, Separation],
    ) -> list[str]:
        counts, own = [len(texts) for texts in negatives], [len(texts) for texts in captions]
        notes = [f"a random ranking has an average precision of {100 * sum(own) / (sum(own) + sum(counts)):.2f}%"]
        if "cone" not in results:
            notes.append(
                f"a {type(manifold).__name__} has no entailment cones: pairs are ranked by the baselines alone"
            )
        elif (cone := results["cone"]).most_common_share >= 0.5:
            told = f"{100 * cone.most_common_share:.0f}% of the pairs tie at a cone score of {cone.most_common_score:g}"
            notes.append(told + ("; the cone score 'margin' does not level off" if self.cone == "angle" else ""))
        fewer = sum(count < self.negatives_per_image for count in counts)
        if fewer and self.negatives != "given":
            notes.append(
                f"{fewer:,} images have fewer than {self.negatives_per_image} negatives, down to {min(counts)}"
            )
        if max(own) == 1:
            notes.append("no image has more than one caption: there is no hierarchy in this set")
        return notes
