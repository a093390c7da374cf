"""Image-text retrieval by perturbed captions, and how much of the recall they cost (HyFL-CLIP, Tables 2, S5 and S9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, ClassVar

from hyvlm.data.catalog import SampleSet
from hyvlm.data.sentences import PERTURBATIONS, perturb
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.task import TASKS, Outcome, size_notes
from hyvlm.evaluation.tasks.retrieval import CaptionedImages, CaptionTask, rank_both_ways

#: The perturbations over which the paper takes the mean drop, in the order of its Table 2.
PAPER_SETTINGS = ("word_dropout_0.5", "first_removed", "shuffled", "random_2", "random_3")


def drop(original: float, perturbed: float) -> float:
    """The share of a score, in percent, that a perturbation costs; negative where it helps, NaN if nothing was there.

    Source: HyFL-CLIP, Table S5: ``100 * (original - perturbed) / original``. Table 2's percentages follow another rule.
    """
    return 100 * (original - perturbed) / original if original else float("nan")


def mean_drop(original: float, perturbed: Sequence[float]) -> float:
    """Mean of :func:`drop` over several perturbations; Table S5 takes those of :data:`PAPER_SETTINGS`.

    Raises:
        ValueError: If there is none.
    """
    if not perturbed:
        raise ValueError("a mean drop needs at least one perturbed score")
    return mean(drop(original, score) for score in perturbed)


def perturb_all(captions: Sequence[str], how: str, seed: int) -> list[str]:
    """Every caption perturbed, each by a draw of its own; the ``seed`` tells repetitions apart."""
    return [perturb(caption, how, seed=(seed, i)) for i, caption in enumerate(captions)]


def count_unchanged(captions: Sequence[str], perturbed: Sequence[str]) -> int:
    """How many captions a perturbation left as they were."""
    return sum(before == after for before, after in zip(captions, perturbed, strict=True))


def draws(perturbations: Iterable[str], seeds: int) -> list[tuple[str, int]]:
    """Every perturbation with every seed, in the order in which tasks draw them."""
    return [(how, seed) for how in perturbations for seed in range(seeds)]


def one_sentence_note(captions: Sequence[str]) -> list[str]:
    """A remark on captions of one sentence, if there are any."""
    count = count_unchanged(captions, perturb_all(captions, "first_removed", 0))
    if not count:
        return []
    joined = "; --captions joined makes one of all captions of an image" if count == len(captions) else ""
    return [f"{count:,} of {len(captions):,} captions have one sentence: perturbed by sentences they stay{joined}"]


@dataclass(frozen=True, kw_only=True)
class PerturbedTask(CaptionTask):
    """A task on perturbed captions.

    Attributes:
        seeds: How often each perturbation is repeated; scores are means over them.
    """

    seeds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds < 1:
            raise ValueError(f"seeds is how often a perturbation is repeated, at least 1, got {self.seeds}")


@TASKS.register("perturbed-retrieval")
@dataclass(frozen=True, kw_only=True)
class PerturbedRetrieval(PerturbedTask):
    """Recall@1 on perturbed captions, the mean of both directions, and its drop from that on the original captions."""

    version: ClassVar[int] = 1

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        found = self.read(embedder, samples)
        images, ties = found.images, dict[str, int]()
        original = self._recalls(embedder, found, found.captions, "original", ties)
        scores = {f"{way}_recall@1": share for way, share in original.items()}
        scores["recall@1"] = before = mean(original.values())
        perturbed = self._perturbed(embedder, found, ties)
        scores |= {f"recall@1_{how}": result["recall@1"] for how, result in perturbed.items()}
        scores |= {f"drop_{how}": drop(before, result["recall@1"]) for how, result in perturbed.items()}
        scores["mean_drop"] = mean_drop(before, [perturbed[how]["recall@1"] for how in PAPER_SETTINGS])
        no_drop = "recall on the original captions is 0"
        return Outcome(
            scores=scores,
            units=dict.fromkeys(scores, "%"),
            n=len(images.points),
            total=images.total,
            skipped=images.skipped,
            skipped_examples=images.examples,
            ties=ties,
            undefined={} if before else {name: no_drop for name in scores if name.startswith(("drop_", "mean_drop"))},
            details={**found.details(), "perturbations": perturbed},
            notes=[*size_notes(samples, len(images.points)), *one_sentence_note(found.captions)],
        )

    def _perturbed(self, embedder: Embedder, found: CaptionedImages, ties: dict[str, int]) -> dict[str, dict[str, Any]]:
        """By perturbation :func:`_over_seeds`."""
        recalls: dict[str, list[dict[str, float]]] = {how: [] for how in PERTURBATIONS}
        unchanged: dict[str, list[int]] = {how: [] for how in PERTURBATIONS}
        for how, seed in embedder.progress(draws(PERTURBATIONS, self.seeds), "perturbed captions", "draw"):
            texts = perturb_all(found.captions, how, seed)
            recalls[how].append(self._recalls(embedder, found, texts, how, ties))
            unchanged[how].append(count_unchanged(found.captions, texts))
        return {how: _over_seeds(recalls[how], unchanged[how]) for how in PERTURBATIONS}

    def _recalls(
        self, embedder: Embedder, found: CaptionedImages, texts: list[str], how: str, ties: dict[str, int]
    ) -> dict[str, float]:
        """Recall@1 in percent by direction; what ties is added to ``ties``."""
        ranks = rank_both_ways(embedder.model, found.images.points, embedder.texts(texts), found.owner)
        for way, result in ranks.items():
            name = f"{way} {how}"
            ties[name] = ties.get(name, 0) + result.tied
        return {way: 100 * result.recall_at(1) for way, result in ranks.items()}


def _over_seeds(recalls: Sequence[dict[str, float]], unchanged: Sequence[int]) -> dict[str, Any]:
    """Means over the seeds: recall@1 of both ways and of each, its standard deviation, captions that stayed."""
    both = [mean(recall.values()) for recall in recalls]
    return {
        "recall@1": mean(both),
        "standard_deviation": stdev(both) if len(both) > 1 else None,
        **{f"{way}_recall@1": mean(recall[way] for recall in recalls) for way in recalls[0]},
        "unchanged_captions": mean(unchanged),
    }
