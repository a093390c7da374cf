"""Read-out ablation: every evaluation task with and without the exponential map, and beside it a control's scores.

*How Hyperbolic Are Hyperbolic Vision-Language Models?*, Section 4.2 and Tables 1 and 3-6: the same checkpoint is read
twice, once on the hyperboloid and once by Euclidean distances of tangent vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.diagnostics.subset import spread
from hyvlm.errors import MissingExtra
from hyvlm.evaluation.embed import Annotated, Embedder, ImageEmbeddings
from hyvlm.evaluation.runner import EvalSpec, open_once
from hyvlm.evaluation.task import TASKS, Outcome, Task
from hyvlm.geometry import Euclidean, Lorentz, Product, ProductLorentz
from hyvlm.models import DualEncoder

#: What a task raises where the data or the model cannot serve it.
UNFIT = (ValueError, FileNotFoundError, MissingExtra)
#: Metrics in percent of another score: where that one is small they jump, whatever moved.
RELATIVE = ("drop_", "mean_drop")
#: Metrics of the baseline ``inner`` of ``entailment``: in flat space another function, and no score of the model.
OTHER_FUNCTION = ("average_precision_inner", "auroc_inner")


@dataclass(frozen=True)
class ReadoutRow:
    """One metric of one task.

    Attributes:
        unit: "%", "edges", ...; empty for a plain number.
        n: Samples scored.
        with_map: The model as it is; None where the metric is not defined.
        without_map: The same points without the exponential map; None if the model has none.
        difference: ``without_map - with_map``.
        control: The control's score; None without a control, or where it cannot be measured.
    """

    task: str
    data: str
    split: str
    metric: str
    unit: str
    n: int
    with_map: float | None
    without_map: float | None
    difference: float | None
    control: float | None

    @property
    def points(self) -> float | None:
        """The difference in points of a hundred; None for what is no share (edges, ranks, lengths, relative drops)."""
        if self.difference is None or self.unit not in ("%", "points", ""):
            return None
        if self.metric.startswith(RELATIVE) or self.metric in OTHER_FUNCTION:
            return None
        if self.unit:
            return self.difference
        shares = all(value is not None and 0 <= value <= 1 for value in (self.with_map, self.without_map))
        return 100 * self.difference if shares else None


@dataclass(frozen=True)
class ReadoutAblation:
    """Rows of all tasks that the data can serve.

    Attributes:
        not_run: Task to the reason why it is missing; "TASK (control)" where only the control's scores are.
    """

    rows: list[ReadoutRow]
    not_run: dict[str, str]

    @property
    def largest_change(self) -> ReadoutRow | None:
        """The row that moved most in points (``max |delta|`` of Table 1); None if none can be compared."""
        return max((row for row in self.rows if row.points is not None), key=lambda r: abs(r.points or 0), default=None)


class WithoutMap(Embedder):
    """See :func:`without_map`."""

    def __init__(self, source: Embedder) -> None:
        super().__init__(
            source.model.flat(), source.tokenizer, source.cache, source.batch_size, source.workers, source.show_progress
        )
        self.source = source
        self.curved = source.model.manifold

    def images(self, samples: SampleSet, **settings: Any) -> ImageEmbeddings:
        found = self.source.images(samples, **settings)
        return replace(found, points=self._unmapped(found.points), part_points=self._unmapped(found.part_points))

    def annotations(self, samples: SampleSet) -> Annotated:
        return self.source.annotations(samples)

    def texts(self, texts: Sequence[str]) -> Tensor:
        return self._unmapped(self.source.texts(texts))

    def class_points(self, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
        return self._unmapped(self.source.class_points(classes, templates))

    @torch.no_grad()
    def _unmapped(self, points: Tensor) -> Tensor:
        assert isinstance(self.curved, Product | Lorentz | Euclidean)  # others have no flat()
        return self.curved.logmap0(points)


def has_map(model: DualEncoder) -> bool:
    """Whether an exponential map takes the model's features onto curved space, so that it could be left out."""
    return isinstance(model.manifold, Lorentz | ProductLorentz)


def without_map(embedder: Embedder) -> Embedder:
    """The same model read without the exponential map.

    Its model is ``embedder.model.flat()`` and its points are the tangent vectors at the origin of the points that
    ``embedder`` gives (and caches), so that images and texts pass the towers once for both.

    Raises:
        ValueError: The model's manifold has no exponential map (a sphere).
    """
    return WithoutMap(embedder)


@dataclass(frozen=True)
class Job:
    """One task that the data can serve."""

    spec: EvalSpec
    task: Task
    samples: SampleSet

    @property
    def name(self) -> str:
        return f"{self.spec.task} on {self.samples.name}"


@dataclass(frozen=True)
class Plan:
    """Tasks that the data can serve, and for the others ("TASK on DATA") the reason."""

    jobs: list[Job]
    not_run: dict[str, str]


def plan_readout(
    specs: Sequence[EvalSpec], model: DualEncoder, *, limit: int | None = None, must_run: bool = True
) -> Plan:
    """Open and check every task; no image is read.

    Args:
        limit: At most so many samples of each set, see :func:`spread`.
        must_run: A task that settings, data or model do not fit is an error; otherwise it is listed with the reason.
    Raises:
        ValueError, FileNotFoundError: An unknown task; with ``must_run`` also what a check of the task says.
    """
    plan, opened = Plan([], {}), dict[tuple[str, str | None, str], SampleSet]()
    for spec in specs:
        TASKS[spec.task]  # an unknown task is an error in any case
        try:
            task = spec.build(model)
            samples = spread(open_once(spec, task, opened), limit)
            task.check(model, samples)
        except UNFIT as error:
            if must_run:
                raise
            plan.not_run[f"{spec.task} on {spec.data if isinstance(spec.data, str) else spec.data.name}"] = str(error)
            continue
        plan.jobs.append(Job(spec, task, samples))
    return plan


def readout_ablation(embedder: Embedder, plan: Plan, *, control: Embedder | None = None) -> ReadoutAblation:
    """Run every task with the model as it is, without its exponential map, and with the control as it is.

    Tasks of one plan share one pass over the images for each model.

    Args:
        plan: What :func:`plan_readout` says of the embedder's model.
    Returns:
        The rows in the order of the plan. A task that fails while it runs is listed with the reason.
    """
    not_run = dict(plan.not_run)
    flat = without_map(embedder) if has_map(embedder.model) else None
    rows: dict[int, list[ReadoutRow]] = {}
    for i in sorted(range(len(plan.jobs)), key=lambda i: not plan.jobs[i].task.parts):
        job = plan.jobs[i]
        try:
            own = job.task.run(embedder, job.samples)
            bare = job.task.run(flat, job.samples) if flat else None
        except UNFIT as error:
            not_run[job.name] = str(error)
            continue
        rows[i] = _rows(job, own, bare, _of_control(job, control, not_run) if control else None)
    return ReadoutAblation([row for i in sorted(rows) for row in rows[i]], not_run)


def _of_control(job: Job, control: Embedder, not_run: dict[str, str]) -> Outcome | None:
    try:
        task = job.spec.build(control.model)
        task.check(control.model, job.samples)
        return task.run(control, job.samples)
    except UNFIT as error:
        not_run[f"{job.name} (control)"] = str(error)
        return None


def _rows(job: Job, own: Outcome, bare: Outcome | None, control: Outcome | None) -> list[ReadoutRow]:
    rows = []
    for metric in own.scores:
        with_map, without, of_control = (_finite(outcome, metric) for outcome in (own, bare, control))
        rows.append(
            ReadoutRow(
                task=job.spec.task,
                data=job.samples.name,
                split=job.samples.split,
                metric=metric,
                unit=own.units.get(metric, ""),
                n=own.n,
                with_map=with_map,
                without_map=without,
                difference=None if with_map is None or without is None else without - with_map,
                control=of_control,
            )
        )
    return rows


def _finite(outcome: Outcome | None, metric: str) -> float | None:
    value = outcome.scores.get(metric, math.nan) if outcome else math.nan
    return value if math.isfinite(value) else None
