"""Zero-shot classification: a class is the point of its prompts, an image goes to the class of the highest score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.data.sets.zoo import ZOO
from hyvlm.evaluation.embed import Embedder, ImageEmbeddings, evaluation_mode
from hyvlm.evaluation.metrics import Predictions, classify, mean_per_class, wilson_interval
from hyvlm.evaluation.prompts import TEMPLATES, hash_lines, prompts_for, read_templates
from hyvlm.evaluation.task import TASKS, Outcome, Task, percent, percent_interval, size_notes
from hyvlm.models import DualEncoder

__all__ = ["TEMPLATES", "Classification", "ZeroShot", "zero_shot"]


@dataclass
class ZeroShot:
    """Predictions for the images of a labelled set, and what they depend on."""

    images: ImageEmbeddings
    target: Tensor
    predictions: Predictions
    details: dict[str, Any]
    notes: list[str]


def zero_shot(
    embedder: Embedder, samples: SampleSet, *, templates: str, resize: str, image_size: int | None
) -> ZeroShot:
    """Classify every image that has exactly one label.

    Raises:
        ValueError: If there is none, or a label that is no index into the class names.
    """
    points, details, notes = prompt_points(embedder, samples, templates)
    images = embedder.images(samples, resize=resize, image_size=image_size)
    single = [i for i, annotation in enumerate(images.annotations) if len(annotation.labels) == 1]
    images = images.select(single, "not exactly one label")
    if not single:
        raise ValueError(f"no image of {samples.name} has exactly one label; for label sets use the task 'multilabel'")
    target = torch.tensor([annotation.labels[0] for annotation in images.annotations])
    with evaluation_mode(embedder.model):
        predictions = classify(embedder.model.class_score, images.points, points, target)
    absent = len(samples.classes) - len(target.unique())
    if absent:
        notes.append(f"{absent} of {len(samples.classes)} classes have no image and do not enter the mean per class")
    notes += [*samples.remarks, *size_notes(samples, len(target))]
    return ZeroShot(images, target, predictions, details, notes)


def prompt_points(embedder: Embedder, samples: SampleSet, templates: str) -> tuple[Tensor, dict[str, Any], list[str]]:
    """What stands for each class (``model.class_score``), the facts it depends on, what is odd about the names."""
    own = prompts_for(templates, samples)
    prompts = read_templates(own)
    details = {
        "classes": len(samples.classes),
        "classes_hash": hash_lines(samples.classes),
        "templates": own,
        "templates_count": len(prompts),
        "templates_hash": hash_lines(prompts),
    }
    notes = duplicate_notes(samples.classes)
    kind = ZOO.get(samples.name.partition(":")[0])
    if templates == own == "openai" and kind is not None and kind.prompts is None:
        notes.append(f"CLIP has no prompts for {kind.title}: these are its 80 for ImageNet")
    return embedder.class_points(samples.classes, prompts), details, notes


def check_classes(samples: SampleSet, templates: str) -> None:
    """Raise ValueError if the set has no class names or ``templates`` is no prompt set."""
    if not samples.classes:
        raise ValueError(f"{samples.name} has no class names, so there is nothing to classify into")
    read_templates(prompts_for(templates, samples))


def duplicate_notes(classes: Sequence[str]) -> list[str]:
    """A note for every name that several classes share: their images always count as errors."""
    places = defaultdict(list)
    for index, name in enumerate(classes):
        places[name].append(index)
    return [
        f"classes {', '.join(map(str, indices))} share the name {name!r}: their ties count as errors"
        for name, indices in places.items()
        if len(indices) > 1
    ]


@TASKS.register("classification")
@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Zero-shot classification: top-1, top-5 and mean-per-class accuracy."""

    version: ClassVar[int] = 1
    content: ClassVar[str] = "classes"

    resize: str = "crop"
    templates: str = "photo"

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        check_classes(samples, self.templates)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        result = zero_shot(embedder, samples, templates=self.templates, resize=self.resize, image_size=self.image_size)
        predictions, target, count = result.predictions, result.target, len(samples.classes)
        shares = {"acc1": predictions.accuracy(1)}
        if count > 5:
            shares["acc5"] = predictions.accuracy(5)
        shares["mean_per_class_recall"] = mean_per_class(predictions.predicted, target, count)
        shares["mean_per_class_released"] = mean_per_class(
            predictions.predicted, target, count, over="target_or_predicted"
        )
        right = int((predictions.before == 0).sum())
        interval = wilson_interval(right, len(target))
        if interval[1] < 1 / count:
            result.notes.append("accuracy below chance: are the class names in the order of the labels?")
        return Outcome(
            scores=percent(shares),
            units=dict.fromkeys(shares, "%"),
            n=len(target),
            total=result.images.total,
            skipped=result.images.skipped,
            skipped_examples=result.images.examples,
            ties={"images": predictions.tied},
            intervals={"acc1": percent_interval(interval)},
            details=result.details,
            notes=result.notes,
        )
