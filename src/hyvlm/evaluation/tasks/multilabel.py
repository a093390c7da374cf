"""Zero-shot multi-label classification: for every class, how well its score ranks the images that show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from scipy.special import log_softmax

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Annotation, Embedder, evaluation_mode
from hyvlm.evaluation.metrics import average_precision, score_blocks
from hyvlm.evaluation.task import TASKS, Outcome, Task, percent
from hyvlm.evaluation.tasks.classification import check_classes, prompt_points
from hyvlm.models import DualEncoder
from hyvlm.registry import unknown

Scores = np.ndarray


def normalised(scores: Scores, how: str) -> Scores:
    """Scores ``(N, C)`` of images and classes, float64, brought to a common range before they are ranked.

    Args:
        how: ``"none"``; of every image over the classes: ``"softmax"`` (its logarithm, which ranks alike and does not
            underflow), ``"min_max"`` (to 0 to 1) or ``"z_score"`` (mean 0, deviation 1); of every class over the
            images: ``"z_score_class"``. What does not vary becomes 0.
    """
    return NORMALIZATIONS[how](scores.astype(np.float64))


def _divide(scores: Scores, by: Scores) -> Scores:
    return np.divide(scores, by, out=np.zeros_like(scores), where=by > 0)


def _min_max(scores: Scores) -> Scores:
    low = scores.min(axis=1, keepdims=True)
    return _divide(scores - low, scores.max(axis=1, keepdims=True) - low)


def _z_score(scores: Scores, axis: int) -> Scores:
    spread = scores.std(axis=axis, keepdims=True)
    flat = np.ptp(scores, axis=axis, keepdims=True) == 0  # where rounding may leave the deviation above 0
    return _divide(scores - scores.mean(axis=axis, keepdims=True), np.where(flat, 0.0, spread))


NORMALIZATIONS: Mapping[str, Callable[[Scores], Scores]] = MappingProxyType(
    {
        "none": lambda scores: scores,
        "softmax": lambda scores: log_softmax(scores, axis=1),
        "min_max": _min_max,
        "z_score": lambda scores: _z_score(scores, axis=1),
        "z_score_class": lambda scores: _z_score(scores, axis=0),
    }
)


def label_table(annotations: Sequence[Annotation], samples: SampleSet) -> tuple[np.ndarray, np.ndarray]:
    """Which classes each image shows, and which of the entries count (not those that are ignored): ``(N, C)`` bool.

    Raises:
        ValueError: If a label is no index into the classes.
    """
    positive = np.zeros((len(annotations), len(samples.classes)), dtype=bool)
    valid = np.ones(positive.shape, dtype=bool)
    for row, annotation in enumerate(annotations):
        for label in {*annotation.labels, *annotation.ignored}:
            if not 0 <= label < len(samples.classes):
                raise ValueError(
                    f"image {row} of {samples.name} has label {label}, but the {len(samples.classes)} classes are "
                    f"0 to {len(samples.classes) - 1}"
                )
        positive[row, annotation.labels] = True
        valid[row, annotation.ignored] = False
    return positive, valid | positive


@TASKS.register("multilabel")
@dataclass(frozen=True, kw_only=True)
class MultiLabel(Task):
    """Mean average precision (area and 11-point) over classes, and the average precision of all pairs together.

    Images are ranked by the model's score after ``normalize``, see :func:`normalised`. Hyper3-CLIP's evaluation ranks
    by the raw score; UNCHA's (Sec. S.2.2.4) normalises first and does not say how.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "labels"

    templates: str = "photo"
    normalize: str = "none"

    def __post_init__(self) -> None:
        if self.normalize not in NORMALIZATIONS:
            raise ValueError(unknown("normalisation of scores", self.normalize, list(NORMALIZATIONS)))

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        check_classes(samples, self.templates)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        points, details, notes = prompt_points(embedder, samples, self.templates)
        images = embedder.images(samples, resize=self.resize, image_size=self.image_size)
        with evaluation_mode(embedder.model):
            blocks = [scores.cpu() for _, scores in score_blocks(embedder.model.class_score, images.points, points)]
        scores = normalised(torch.cat(blocks).numpy(), self.normalize)
        positive, valid = label_table(images.annotations, samples)
        area = average_precision(scores, positive, valid=valid)
        voc = average_precision(scores, positive, valid=valid, interpolation="11-point")
        pairs = [array.reshape(-1, 1) for array in (scores, positive, valid)]
        known = ~np.isnan(area)
        if not known.any():
            raise ValueError(f"no image of {samples.name} shows any of its {len(samples.classes)} classes")
        absent = [name for name, is_known in zip(samples.classes, known, strict=True) if not is_known]
        if absent:
            notes.append(
                f"{len(absent)} of {len(samples.classes)} classes have no positive image and are left out of the mean"
            )
        shares = {
            "mean_average_precision": float(area[known].mean()),
            "mean_average_precision_11_point": float(voc[known].mean()),
            "average_precision_micro": float(average_precision(pairs[0], pairs[1], valid=pairs[2])[0]),
        }
        return Outcome(
            scores=percent(shares),
            units=dict.fromkeys(shares, "%"),
            n=len(scores),
            total=images.total,
            skipped=images.skipped,
            skipped_examples=images.examples,
            details={
                **details,
                "average_precision_percent": {
                    f"{i} {name}": 100 * float(area[i]) for i, name in enumerate(samples.classes) if known[i]
                },
                "classes_without_positives": absent,
                "ignored_entries": int((~valid).sum()),
            },
            notes=notes,
        )
