"""Zero-shot segmentation: every pixel goes to the class whose text is closest to the dense features there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.data.sets.masks import BACKGROUND, IGNORED
from hyvlm.data.transforms import eval_transform
from hyvlm.evaluation.dense import HasOrigin, Queries, class_queries, dense_points, extrapolate, read_background
from hyvlm.evaluation.embed import MAX_EXAMPLES, Embedder, evaluation_mode
from hyvlm.evaluation.prompts import hash_lines, read_templates
from hyvlm.evaluation.task import TASKS, Outcome, Task, percent, size_notes
from hyvlm.evaluation.tasks.classification import duplicate_notes
from hyvlm.models import DualEncoder
from hyvlm.models.dense import GAUSSIAN_STD
from hyvlm.types import BadSample, reasons

#: Extrapolations that "auto" chooses from; the smallest of equally good ones.
FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
#: Why images are not scored that the extrapolation was chosen on.
HELD_OUT = "held out to choose the extrapolation"


def confusion(scores: Tensor, target: Tensor) -> tuple[Tensor, int]:
    """How many pixels of each class were taken for each class.

    Args:
        scores: ``(C, H, W)``; the highest wins, a tie goes to a wrong class.
        target: ``(H, W)`` int64, 0 to C - 1, or :data:`IGNORED`, which is not counted.
    Returns:
        ``(C, C)`` int64, a row for each true class and a column for each predicted one; how many pixels a tie decided.
    """
    classes, counted = len(scores), target != IGNORED
    truth, scores = target[counted], scores[:, counted]
    own = scores.gather(0, truth[None])[0]
    rival_score, rival = scores.scatter(0, truth[None], -torch.inf).max(0)
    predicted = torch.where(own > rival_score, truth, rival)
    matrix = (truth * classes + predicted).bincount(minlength=classes**2).unflatten(0, (classes, classes))
    return matrix, int((own == rival_score).sum())


def intersection_over_union(matrix: Tensor) -> Tensor:
    """IoU of each class ``(C,)`` from a confusion matrix ``(C, C)``; NaN for a class that is neither there nor seen."""
    right, either = matrix.diag().double(), matrix.sum(0) + matrix.sum(1) - matrix.diag()
    return torch.where(either > 0, right / either.clamp(min=1), torch.nan)


def halves(count: int, seed: int) -> tuple[list[int], list[int]]:
    """Two random halves of ``range(count)``, each in order; the first has the odd one."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    middle = (count + 1) // 2
    return sorted(shuffled[:middle]), sorted(shuffled[middle:])


@dataclass
class _Tally:
    """Confusion matrices over some images, one for each extrapolation, and what was passed over."""

    matrices: Tensor
    n: int = 0
    tied: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def mean_iou(self) -> list[float]:
        """Mean over the classes, for each extrapolation."""
        return [float(intersection_over_union(matrix).nanmean()) for matrix in self.matrices]


@TASKS.register("segmentation")
@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """Zero-shot semantic segmentation: mean intersection over union, by dense features as of NACLIP.

    Attributes:
        resize: "crop" scales the short side and slides windows over the image; "squash" makes it square first.
        image_size: What sides are scaled to; None is 1.5 times the model's own size (336 for 224, as in NACLIP).
        background: What stands for the background: "scenery", "name", or a file of one name a line.
        extrapolation: Factor of the texts' distance from the origin; "auto" chooses it on a random half of the images,
            and scores the others. On the sphere it is 1.
        seed: Of the draw of that half.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "masks"

    resize: str = "crop"
    templates: str = "photo"
    background: str = "scenery"
    extrapolation: str = "auto"
    seed: int = 0

    def side(self, own: int) -> int:
        """What sides are scaled to, in pixels."""
        return self.image_size or 3 * own // 2

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        own = int(model.config["model"]["image"]["image_size"])
        if self.image_size is not None and (self.image_size < own or self.image_size < 1):
            self.check_size("image_size", self.image_size, model)  # larger images are cut into windows of that size
        eval_transform(own, resize=self.resize)
        if len(samples.classes) < 2:
            raise ValueError(f"{samples.name} has fewer than two classes, so every pixel would be right")
        read_templates(self.templates)
        read_background(self.background)
        factor = self._factor()
        if factor is not None:
            extrapolate(model, torch.zeros(1, model.dim, device=model.pixel_mean.device), factor)
        elif isinstance(model.manifold, HasOrigin) and len(samples) < 2:
            raise ValueError(f"{samples.name} has one image: to choose the extrapolation on a half needs two or more")

    def _factor(self) -> float | None:
        """The extrapolation; None if it is to be chosen."""
        if self.extrapolation == "auto":
            return None
        try:
            return float(self.extrapolation)
        except ValueError:
            raise ValueError(f"extrapolation is 'auto' or a positive number, got {self.extrapolation!r}") from None

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        queries = class_queries(embedder, samples.classes, templates=self.templates, background=self.background)
        factor, scored_on = self._factor(), list(range(len(samples)))
        held_out = None
        if factor is None and isinstance(embedder.model.manifold, HasOrigin):
            half, scored_on = halves(len(samples), self.seed)
            held_out = self._pass(embedder, samples, half, queries, FACTORS)
            found = held_out.mean_iou()
            factor = FACTORS[found.index(max(found))]
        chosen = 1.0 if factor is None else factor
        scored = self._pass(embedder, samples, scored_on, queries, [chosen])
        return self._outcome(embedder, samples, queries, chosen, scored, held_out)

    def _pass(
        self,
        embedder: Embedder,
        samples: SampleSet,
        indices: Sequence[int],
        queries: Queries,
        factors: Sequence[float],
    ) -> _Tally:
        """Segment the images once, with each of the extrapolations."""
        model, classes = embedder.model, len(samples.classes)
        points = [extrapolate(model, queries.points, factor) for factor in factors]
        tally = _Tally(torch.zeros(len(factors), classes, classes, dtype=torch.long, device=embedder.device))
        with evaluation_mode(model):
            for index in embedder.progress(indices, f"images of {samples.name}", "image"):
                try:
                    image, mask = read_masked(samples, index)
                except BadSample as bad:
                    tally.skipped[bad.reason] += 1
                    tally.examples.append(str(bad))
                    continue
                target = torch.from_numpy(mask).long().to(embedder.device)
                side = self.side(embedder.image_size)
                dense = dense_points(embedder, image, side=side, resize_by=self.resize)
                for matrix, moved in zip(tally.matrices, points, strict=True):
                    found, tied = confusion(queries.by_class(dense.scores(model, moved, mask.shape)), target)
                    matrix += found
                    tally.tied += tied
                tally.n += 1
        if not tally.n:
            why = reasons(tally.skipped)
            raise ValueError(f"none of {len(indices)} images of {samples.name} could be segmented: {why}")
        return tally

    def _outcome(
        self,
        embedder: Embedder,
        samples: SampleSet,
        queries: Queries,
        factor: float,
        scored: _Tally,
        held_out: _Tally | None,
    ) -> Outcome:
        matrix = scored.matrices[0].cpu()
        iou = intersection_over_union(matrix)
        shares = {"mean_iou": float(iou.nanmean()), "pixel_accuracy": float(matrix.diag().sum() / matrix.sum())}
        skipped, examples = Counter(samples.dropped) + scored.skipped, [*samples.dropped_examples, *scored.examples]
        if held_out:
            skipped += held_out.skipped + Counter({HELD_OUT: held_out.n})
            examples += held_out.examples
        return Outcome(
            scores=percent(shares),
            units=dict.fromkeys(shares, "%"),
            n=scored.n,
            total=len(samples) + sum(samples.dropped.values()),
            skipped=skipped,
            skipped_examples=examples[:MAX_EXAMPLES],
            ties={"pixels": scored.tied},
            details={
                **self._facts(embedder, samples, queries),
                "extrapolation": factor,
                "mean_iou_held_out_percent": {}
                if held_out is None
                else {f"{f:g}": 100 * value for f, value in zip(FACTORS, held_out.mean_iou(), strict=True)},
                "iou_percent": {
                    f"{i} {name}": 100 * float(iou[i]) for i, name in enumerate(samples.classes) if not iou[i].isnan()
                },
                "pixels": int(matrix.sum()),
                "pixels_percent": {
                    f"{i} {name}": 100 * float(matrix[i].sum() / matrix.sum()) for i, name in enumerate(samples.classes)
                },
            },
            notes=[
                *duplicate_notes(samples.classes),
                *_factor_notes(factor, held_out),
                *_class_notes(matrix, iou),
                *size_notes(samples, scored.n),
            ],
        )

    def _facts(self, embedder: Embedder, samples: SampleSet, queries: Queries) -> dict[str, Any]:
        prompts = read_templates(self.templates)
        side = self.side(embedder.image_size)
        window = min(side, embedder.image_size)
        return {
            "classes": len(samples.classes),
            "classes_hash": hash_lines(samples.classes),
            "names": len(queries.names),
            "names_hash": hash_lines(queries.names),
            "background_names": queries.names[: int((queries.owner == 0).sum())]
            if samples.classes[0] == BACKGROUND
            else [],
            "templates": self.templates,
            "templates_count": len(prompts),
            "templates_hash": hash_lines(prompts),
            "side": side,
            "window": window,
            "stride": max(1, window // 2),
            "gaussian_std": GAUSSIAN_STD,
        }


def read_masked(samples: SampleSet, index: int) -> tuple[Any, np.ndarray]:
    """Image and mask ``(H, W)`` of a sample.

    Raises:
        BadSample: It cannot be read, or has no pixel to score.
        ValueError: A label that is no index into the class names.
    """
    sample = samples[index]
    if sample.mask is None:
        raise BadSample("no mask", f"sample {sample.key!r}")
    mask = np.array(sample.mask)
    labels = mask[mask != IGNORED]
    if not labels.size:
        raise BadSample("empty mask: every pixel is ignored", f"sample {sample.key!r}")
    if labels.max() >= len(samples.classes):
        raise ValueError(
            f"the mask of sample {sample.key!r} of {samples.name} has label {labels.max()}, but the "
            f"{len(samples.classes)} classes are 0 to {len(samples.classes) - 1}"
        )
    return sample.picture, mask


def _factor_notes(factor: float, held_out: _Tally | None) -> list[str]:
    if held_out is None:
        return []
    found = dict(zip(FACTORS, held_out.mean_iou(), strict=True))
    return [
        f"extrapolation {factor:g}, chosen on {held_out.n} other images: mean IoU {100 * found[factor]:.2f}% there, "
        f"{100 * found[1.0]:.2f}% without"
    ]


def _class_notes(matrix: Tensor, iou: Tensor) -> list[str]:
    """What a reader must know of classes without a pixel, and what one answer for everything would score."""
    absent, seen = matrix.sum(1) == 0, matrix.sum(0) > 0
    notes = []
    if (absent & seen).any():
        notes.append(f"{int((absent & seen).sum())} classes are in no mask but were predicted: they count with IoU 0")
    if iou.isnan().any():
        notes.append(f"{int(iou.isnan().sum())} classes are in no mask and were never predicted: they are left out")
    largest = float(matrix.sum(1).max() / matrix.sum())
    present = int((~absent).sum())
    notes.append(
        f"the most frequent class everywhere would score {100 * largest / present:.2f}% over {present} classes"
    )
    return notes
