"""Zero-shot multi-label classification: for every class, how well its score ranks the images that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.classification import check_classes, prompt_points
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.metrics import average_precision, score_blocks
from hyvlm.evaluation.task import TASKS, Outcome, Task, percent
from hyvlm.models import DualEncoder


@TASKS.register("multilabel")
@dataclass(frozen=True, kw_only=True)
class MultiLabel(Task):
    """Mean average precision (area and 11-point) over classes; images are ranked by the model's raw score."""

    version: ClassVar[int] = 1
    content: ClassVar[str] = "labels"

    templates: str = "photo"

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        check_classes(samples, self.templates)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        points, details, notes = prompt_points(embedder, samples, self.templates)
        images = embedder.images(samples, resize=self.resize, image_size=self.image_size)
        with evaluation_mode(embedder.model):
            blocks = [scores.cpu() for _, scores in score_blocks(embedder.model.class_score, images.points, points)]
        scores = torch.cat(blocks).numpy()
        positive = np.zeros(scores.shape, dtype=bool)
        valid = np.ones(scores.shape, dtype=bool)
        for row, annotation in enumerate(images.annotations):
            for label in {*annotation.labels, *annotation.ignored}:
                if not 0 <= label < len(samples.classes):
                    raise ValueError(
                        f"image {row} of {samples.name} has label {label}, but the {len(samples.classes)} classes are "
                        f"0 to {len(samples.classes) - 1}"
                    )
            positive[row, annotation.labels] = True
            valid[row, annotation.ignored] = False
        valid |= positive
        area = average_precision(scores, positive, valid=valid)
        voc = average_precision(scores, positive, valid=valid, interpolation="11-point")
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
