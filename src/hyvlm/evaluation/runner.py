"""Run tasks on data sets, with one pass over the images of each, and keep what came out."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hyvlm.evaluation.tasks  # noqa: F401  (they register)
from hyvlm.config import EvalConfig
from hyvlm.data.catalog import SampleSet, open_data
from hyvlm.evaluation.cache import EmbeddingCache
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.report import Result, read_results, write_results
from hyvlm.evaluation.task import TASKS, Task
from hyvlm.files import check_folder
from hyvlm.models import DualEncoder, Tokenizer


@dataclass
class EvalSpec(EvalConfig):
    """One evaluation, as a recipe lists it, that can be run."""

    def build(self, model: DualEncoder | None = None) -> Task:
        """The task with its settings.

        Args:
            model: Brings images to size in its own way, if the spec says nothing of it.

        Raises:
            ValueError: Unknown task, or a setting that the task does not have.
        """
        kind = TASKS[self.task]
        known = setting_names(kind)
        given = {k: v for k, v in vars(self).items() if k not in ("task", "data", "split") and v is not None}
        if model is not None and model.resize and "resize" in known:
            given.setdefault("resize", model.resize)
        for name in given:
            if name not in known:
                raise ValueError(f"the task {self.task!r} has no setting {name!r}; it has: {', '.join(sorted(known))}")
        return kind(**given)


def setting_names(task: type[Task]) -> set[str]:
    """The settings that a task has."""
    return {field.name for field in dataclasses.fields(task)}


def choose_device(name: str | None = None) -> torch.device:
    """The device of that name; None is the accelerator, if there is one, else the CPU.

    Raises:
        ValueError: There is no such device.
    """
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name is None:
        return found or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"no device {name!r} here; there is {found or 'only cpu'}") from error
    return device


def specs_for(
    tasks: Sequence[str], data: str, *, split: str | None = None, **settings: str | int | None
) -> list[EvalSpec]:
    """Several tasks on one data set; each setting goes to the tasks that have it.

    Raises:
        ValueError: Unknown task, or a setting that none of the tasks has.
    """
    known = {name: setting_names(TASKS[name]) for name in tasks}
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        if not any(key in names for names in known.values()):
            fitting = [name for name, kind in TASKS.items() if key in setting_names(kind)]
            raise ValueError(
                f"none of the tasks {', '.join(tasks)} has a setting {key!r}; the tasks with it: {', '.join(fitting)}"
            )
    return [
        EvalSpec(name, data, split, **{key: value for key, value in given.items() if key in known[name]})  # type: ignore[arg-type]
        for name in tasks
    ]


def check_specs(model: DualEncoder, specs: Sequence[EvalSpec]) -> list[tuple[Task, SampleSet]]:
    """Check everything that can be known to be wrong before an image is read: names, settings, files and splits.

    Returns:
        The task and the open sample set of each spec; specs that name the same data share one set.
    Raises:
        ValueError, FileNotFoundError: One sentence on what is wrong with a spec or its data.
    """
    tasks = [spec.build(model) for spec in specs]
    opened: dict[tuple[str, str | None, str], SampleSet] = {}
    checked = [(task, open_once(spec, task, opened)) for spec, task in zip(specs, tasks, strict=True)]
    for task, samples in checked:
        task.check(model, samples)
    return checked


def evaluate(
    model: DualEncoder,
    tokenizer: Tokenizer,
    specs: Sequence[EvalSpec],
    *,
    out: str | Path | None = None,
    cache: EmbeddingCache | None = None,
    batch_size: int = 64,
    workers: int = 0,
    show_progress: bool = True,
) -> list[Result]:
    """Evaluate ``model``, whatever mode it is in; it is left in that mode, and no gradient is kept.

    Every name, file and split is checked before the first image is read, as :func:`check_specs` does.

    Args:
        specs: What to evaluate; evaluations of the same images share one pass over them.
        out: Folder for ``results.json`` and ``results.csv``; if a task fails, those of the tasks before it are
            there, and results of other evaluations that are there already stay.
        cache: Where embeddings are kept; None keeps them for this call only.
        batch_size: Images, or texts, at a time.
        workers: Processes that read images; 0 reads in this one.
        show_progress: Report on stderr how far a long pass is; off where another progress bar is on the screen.
    Returns:
        One result per spec, in their order.
    Raises:
        ValueError, FileNotFoundError: One sentence on what is wrong with a spec, its data, ``out`` or the points.
    """
    checked = check_specs(model, specs)
    if out is not None:
        check_folder(out, "the results folder")
        read_results(out)
    embedder = Embedder(
        model,
        tokenizer,
        cache or EmbeddingCache(),
        batch_size=batch_size,
        workers=workers,
        show_progress=show_progress,
    )
    results: dict[int, Result] = {}
    try:
        for i in sorted(range(len(specs)), key=lambda i: not checked[i][0].parts):
            results[i] = run_task(specs[i].task, *checked[i], embedder)
    finally:  # what was measured before a task failed, or was interrupted, is kept
        if out is not None and results:
            write_results([results[i] for i in sorted(results)], out)
    return [results[i] for i in range(len(specs))]


def open_once(spec: EvalSpec, task: Task, opened: dict[tuple[str, str | None, str], SampleSet]) -> SampleSet:
    """The samples of a spec, from ``opened`` if another spec has already opened them for the same content."""
    if not isinstance(spec.data, str):
        return spec.data
    key = (spec.data, spec.split, task.opens)
    if key not in opened:
        opened[key] = open_data(spec.data, split=spec.split, content=task.opens)
    return opened[key]


def run_task(name: str, task: Task, samples: SampleSet, embedder: Embedder) -> Result:
    """Run one task that was checked, registered as ``name``."""
    cut_before, start = embedder.tokenizer.truncated, time.perf_counter()
    outcome = task.run(embedder, samples)
    return Result(
        task=name,
        version=task.version,
        data=samples.name,
        split=samples.split,
        outcome=outcome,
        settings=settings_of(task, embedder),
        score=_score_name(embedder.model),
        model=embedder.model_fingerprint,
        library=importlib.metadata.version("hyvlm"),
        data_fingerprint=samples.fingerprint,
        texts_cut=embedder.tokenizer.truncated - cut_before,
        seconds=time.perf_counter() - start,
        expected=samples.expected,
    )


def settings_of(task: Task, embedder: Embedder) -> dict[str, Any]:
    """The task's settings as a result lists them: what they leave to the model filled in."""
    settings = dataclasses.asdict(task)
    settings["image_size"] = task.side(embedder.image_size)
    return settings


def _score_name(model: DualEncoder) -> str:
    """What ranked the pairs: the manifold, the angle on it if that is the score, and the read-out if not as trained."""
    angle = " exterior angle" if model.by_angle else ""
    return type(model.manifold).__name__.lower() + angle + ("" if model.as_trained else ", published")
