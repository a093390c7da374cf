"""Where perturbed captions stand among all of a set, by score and by entailment (HyFL-CLIP, Table S4 and Fig. S3).

The paper says of the entailment both that captions are ranked for the image and that the relation is the one "between
the original caption and its perturbed captions". The latter is the default reading here; the former is reported, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.data.sentences import PERTURBATIONS
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.metrics import ScoreFunction, ranks_among
from hyvlm.evaluation.task import TASKS, Outcome, size_notes
from hyvlm.evaluation.tasks.perturbed_retrieval import (
    PAPER_SETTINGS,
    PerturbedTask,
    count_unchanged,
    draws,
    one_sentence_note,
    perturb_all,
)
from hyvlm.evaluation.tasks.retrieval import captioned_images
from hyvlm.losses.entailment import HasCones


@runtime_checkable
class HasPairwiseCones(HasCones, Protocol):
    """A manifold with entailment cones and the angles of all pairs."""

    def pairwise_exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Exterior angle at every ``x`` ``(N, D)`` toward every ``y`` ``(M, D)``, ``(N, M)`` or ``(N, M, F)``."""


def entailment_margin(manifold: HasPairwiseCones) -> ScoreFunction:
    """The score by which captions are ranked for what they may entail: how far inside of a caption's cone it lies.

    Returns:
        A function of specific points ``(n, D)`` and general ones ``(m, D)``: the half-aperture at the general point
        minus the exterior angle there toward the specific one, in radians, ``(n, m)``; in a product of manifolds its
        mean over the factors. Positive inside the cone.
    """

    def margin(specific: Tensor, general: Tensor) -> Tensor:
        angle, aperture = manifold.pairwise_exterior_angle(general, specific), manifold.half_aperture(general)
        inside = aperture.unsqueeze(1) - angle
        return (inside if inside.ndim == 2 else inside.mean(-1)).T

    return margin


@dataclass(frozen=True)
class PerturbedRanks:
    """Ranks of perturbed captions, 1 is the best.

    Attributes:
        ranks: By reading and perturbation, ``(seeds, captions)`` int64. The readings are "score" (the model's score to
            the caption's image), "entailment" (the margin of the perturbed caption's cone around the original caption)
            and "entailment_image" (its margin around the image); only the first on a manifold without cones.
        owner: ``(captions,)`` int64, the image of each caption.
        unchanged: By perturbation, how many of the ``seeds * captions`` texts are as before.
        outcome: What was read and left out; without scores.
    """

    ranks: dict[str, dict[str, Tensor]]
    owner: Tensor
    unchanged: dict[str, int]
    outcome: Outcome


def perturbed_ranks(
    embedder: Embedder,
    samples: SampleSet,
    *,
    captions: str = "all",
    seeds: int = 5,
    perturbations: Sequence[str] = tuple(PERTURBATIONS),
    resize: str = "squash",
    image_size: int | None = None,
) -> PerturbedRanks:
    """Rank every perturbed caption among all captions of the set, its original and those of its image included.

    A caption that scores the same stands before it, so an unchanged one has rank 2 at best.

    Raises:
        ValueError: If the set has no captions, or a score is NaN.
    """
    found = captioned_images(embedder, samples, captions=captions, resize=resize, image_size=image_size)
    model, images = embedder.model, found.images
    texts, wholes = embedder.texts(found.captions), images.points[found.owner.to(images.points.device)]
    readings: dict[str, tuple[ScoreFunction, Tensor]] = {"score": (model.score, wholes)}
    if isinstance(model.manifold, HasPairwiseCones):
        margin = entailment_margin(model.manifold)
        readings |= {"entailment": (margin, texts), "entailment_image": (margin, wholes)}
    ranks: dict[str, dict[str, Tensor]] = {reading: {} for reading in readings}
    unchanged, drawn = dict.fromkeys(perturbations, 0), list[Tensor]()
    for how, seed in embedder.progress(draws(perturbations, seeds), "perturbed captions", "draw"):
        perturbed = perturb_all(found.captions, how, seed)
        unchanged[how] += count_unchanged(found.captions, perturbed)
        drawn.append(embedder.texts(perturbed))
        if len(drawn) < seeds:
            continue
        with evaluation_mode(model):
            for reading, (score, queries) in embedder.progress(readings.items(), f"ranks, {how}", "reading"):
                ranks[reading][how] = ranks_among(score, queries, texts, torch.stack(drawn))
        drawn.clear()
    details = found.details()
    if isinstance(model.manifold, HasPairwiseCones):
        details["saturated_cones_of_captions"] = model.manifold.saturated(texts).double().mean().item()
    outcome = Outcome(
        scores={},
        units={},
        n=len(images.points),
        total=images.total,
        skipped=images.skipped,
        skipped_examples=images.examples,
        details=details,
        notes=[*size_notes(samples, len(images.points)), *one_sentence_note(found.captions)],
    )
    return PerturbedRanks(ranks, found.owner, unchanged, outcome)


@TASKS.register("perturbed-ranks")
@dataclass(frozen=True, kw_only=True)
class PerturbedRankStatistics(PerturbedTask):
    """Mean and variance of the ranks of perturbed captions among all captions, over the paper's five perturbations."""

    version: ClassVar[int] = 1

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        result = perturbed_ranks(
            embedder,
            samples,
            captions=self.captions,
            seeds=self.seeds,
            resize=self.resize,
            image_size=self.image_size,
        )
        outcome = result.outcome
        for reading, by_perturbation in result.ranks.items():
            every = torch.cat([by_perturbation[how] for how in PAPER_SETTINGS]).double()
            outcome.scores[f"mean_rank_{reading}"] = every.mean().item()
            outcome.scores[f"rank_variance_{reading}"] = every.var(correction=0).item()
        outcome.details["ranks"] = {
            reading: {
                how: {"mean": ranks.double().mean().item(), "variance": ranks.double().var(correction=0).item()}
                for how, ranks in by_perturbation.items()
            }
            for reading, by_perturbation in result.ranks.items()
        }
        outcome.details["unchanged_texts"] = result.unchanged
        outcome.details["texts_per_perturbation"] = self.seeds * len(result.owner)
        if "entailment" not in result.ranks:
            name = type(embedder.model.manifold).__name__
            outcome.notes.append(f"a {name} has no entailment cones: captions are ranked by score alone")
        return outcome
