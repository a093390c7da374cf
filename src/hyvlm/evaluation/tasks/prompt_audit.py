"""Zero-shot classification under several prompt sets side by side (Hyper3-CLIP, Sec. 4.2 and Table 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, ClassVar

from rich.table import Table

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.metrics import mean_per_class
from hyvlm.evaluation.task import TASKS, Outcome, Task, percent
from hyvlm.evaluation.tasks.classification import check_classes, zero_shot
from hyvlm.models import DualEncoder


@TASKS.register("prompt-audit")
@dataclass(frozen=True, kw_only=True)
class PromptAudit(Task):
    """Mean-per-class accuracy under every prompt set, and its difference from that under the first.

    Attributes:
        templates: Two or more prompt sets (or files of templates), separated by commas.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "classes"

    resize: str = "crop"
    templates: str = "name,photo"

    def __post_init__(self) -> None:
        if len(self.regimes) < 2 or len(set(self.regimes)) < len(self.regimes) or not all(self.regimes):
            raise ValueError(
                "a prompt audit compares two or more prompt sets, such as templates=official:cub,photo, "
                f"got {self.templates!r}"
            )

    @property
    def regimes(self) -> list[str]:
        """The prompt sets by name."""
        return [name.strip() for name in self.templates.split(",")]

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        for regime in self.regimes:
            check_classes(samples, regime)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        regimes, ties, count = dict[str, dict[str, Any]](), dict[str, int](), len(samples.classes)
        for regime in self.regimes:  # the embedder keeps the images' points after the first
            result = zero_shot(embedder, samples, templates=regime, resize=self.resize, image_size=self.image_size)
            predicted, target = result.predictions.predicted, result.target
            shares = {
                "acc1": result.predictions.accuracy(1),
                "mean_per_class_recall": mean_per_class(predicted, target, count),
                "mean_per_class_released": mean_per_class(predicted, target, count, over="target_or_predicted"),
            }
            regimes[regime] = {**result.details, **percent(shares)}
            ties[f"images, {regime}"] = result.predictions.tied
        recall = {regime: facts["mean_per_class_recall"] for regime, facts in regimes.items()}
        first, *others = recall
        scores = {f"mean_per_class_recall_{regime}": value for regime, value in recall.items()}
        units = dict.fromkeys(scores, "%")
        for regime in others:
            name = f"difference_{regime}"
            scores[name], units[name] = recall[regime] - recall[first], "points"
        return Outcome(
            scores=scores,
            units=units,
            n=len(result.target),
            total=result.images.total,
            skipped=result.images.skipped,
            skipped_examples=result.images.examples,
            ties=ties,
            details={"regimes": regimes},
            notes=result.notes,
        )


def prompt_audit_table(entries: Sequence[Mapping[str, Any]], names: Mapping[str, str] | None = None) -> Table:
    """Mean-per-class accuracy by prompt regime, with differences from the first, as Hyper3-CLIP's Table 6 prints them.

    A regime is a prompt set's name up to a colon: "official:cub" and "official:food101" are one. One line a model
    and data set, and one with the means over the data sets if a model has several under the same regimes.

    Args:
        entries: Entries of ``results.json`` (:func:`hyvlm.evaluation.report.read_results`); other tasks than
            "prompt-audit" are passed over.
        names: What to call the models, by fingerprint; one without a name is called by its fingerprint.
    Raises:
        ValueError: If no entry is of that task, or not all compare the same regimes.
    """
    audits = [entry for entry in entries if entry["task"] == "prompt-audit"]
    rows = [(entry, _by_regime(entry)) for entry in audits]
    if not rows:
        raise ValueError("no result of the task 'prompt-audit' to print")
    first, *others = rows[0][1]
    for entry, values in rows:
        if list(values) != [first, *others]:
            raise ValueError(f"{entry['data']} compares {', '.join(values)}, not {', '.join([first, *others])}")
    table = Table("model", "data", first, *(column for other in others for column in (other, "difference")))
    for model in dict.fromkeys(str(entry["model"]) for entry in audits):
        name = (names or {}).get(model, model)
        of_model = [(entry, values) for entry, values in rows if str(entry["model"]) == model]
        for entry, values in of_model:
            table.add_row(name, _where(entry), *_cells(values))
        if len(of_model) > 1:
            means = {regime: mean(values[regime] for _, values in of_model) for regime in (first, *others)}
            table.add_row(name, "average", *_cells(means))
    return table


def _by_regime(entry: Mapping[str, Any]) -> dict[str, float]:
    regimes = {name: facts["mean_per_class_recall"] for name, facts in entry["details"]["regimes"].items()}
    short = {name.partition(":")[0]: value for name, value in regimes.items()}
    return short if len(short) == len(regimes) else regimes


def _where(entry: Mapping[str, Any]) -> str:
    return f"{entry['data']} ({entry['split']})" if entry["split"] else str(entry["data"])


def _cells(values: Mapping[str, float]) -> Iterator[str]:
    first, *others = values.values()
    yield f"{first:.2f}"
    for value in others:
        yield f"{value:.2f}"
        yield f"{value - first:+.2f}"
