"""Run suites: find the data, measure what is not measured yet, model by model, and keep every result as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hyvlm
from hyvlm.data import DATASETS
from hyvlm.data.catalog import SampleSet
from hyvlm.diagnostics.readout import UNFIT, has_map, without_map
from hyvlm.evaluation.cache import EmbeddingCache
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.report import evaluation_key, read_results, settings_hash, write_results
from hyvlm.evaluation.runner import EvalSpec, choose_device, open_once, run_task, setting_names, settings_of
from hyvlm.evaluation.task import TASKS, Task
from hyvlm.files import check_folder
from hyvlm.models.pretrained import own_folder
from hyvlm.suites.catalog import Evaluation, Suite

#: Folders of a data root with files DATASET.txt for a setting, and the table's value whose place such a file takes:
#: the prompts and the hierarchy of published evaluations, as far as they are not to be had from a library.
SETTING_FILES = {"templates": ("templates", "openai"), "hierarchy": ("hierarchies", None)}


@dataclass(frozen=True)
class Reading:
    """A model as a row of a table: as it is, or read without the exponential map."""

    model: str
    with_map: bool = True


@dataclass
class SuiteRun:
    """Suites, and what :func:`run_suites` has measured and left out so far.

    Attributes:
        models: Name to fingerprint, in the order of the tables' rows.
        entries: Entries of ``results.json``, by reading and evaluation.
        skipped: Evaluations that cannot be run, by the reason; "MODEL: ..." where only one model cannot.
        failed: Evaluations that failed while they ran: (model, evaluation, reason).
        unread: Models without an exponential map, where tables ask for both readings.
        reused: How many entries had been measured before.
    """

    suites: Sequence[Suite]
    models: dict[str, str] = field(default_factory=dict)
    entries: dict[tuple[Reading, Evaluation], dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, list[Evaluation]] = field(default_factory=dict)
    failed: list[tuple[str, Evaluation, str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    reused: int = 0

    def skip(self, reason: str, evaluation: Evaluation) -> None:
        """Count an evaluation as skipped, once for each reason."""
        told = self.skipped.setdefault(" ".join(reason.split()), [])
        if evaluation not in told:
            told.append(evaluation)


@dataclass(frozen=True)
class _Job:
    evaluation: Evaluation
    spec: EvalSpec
    task: Task
    samples: SampleSet


def run_suites(
    models: Sequence[str | Path],
    run: SuiteRun,
    root: str | Path,
    *,
    out: str | Path,
    settings: Mapping[str, str | int | None] | None = None,
    readout: str | None = None,
    device: str | None = None,
    cache: str | Path | None = None,
    batch_size: int = 64,
    workers: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> SuiteRun:
    """Measure every evaluation of the suites of ``run`` that ``root`` has the data for, for every model.

    An entry of ``out/results.json`` of the same model, task, settings and data is not measured again, so a run that was
    interrupted goes on where it stopped. The evaluations of one data set share one pass over its images.

    Args:
        models: What :func:`hyvlm.load` takes, each once.
        run: The suites; results are added to it, so that what was measured before an error or interruption is there.
        root: Folder with one folder for each data set, named as :attr:`Suite.folders` says.
        out: Folder for ``results.json`` and ``results.csv``, which are complete after every single evaluation.
        settings: Settings of tasks that count instead of those of the suites, wherever a task has them.
        readout: "trained" or "published", what ranks pairs; None leaves it as saved.
        cache: Folder that keeps embeddings between calls.
        say: Called with a line about every step.
    Returns:
        ``run``.
    Raises:
        ValueError: Models given twice, a data root without any folder that is looked for, a file that is no results.
        FileNotFoundError: No such model or data root.
    """
    names = model_names(models)
    chosen = choose_device(device)
    check_folder(out, "the results folder")
    before = {evaluation_key(entry): entry for entry in read_results(out)}
    specs = _specs(run, Path(root), {k: v for k, v in (settings or {}).items() if v is not None})
    twice = {e for suite in run.suites for t in suite.tables if t.kind != "values" for e in t.evaluations}
    opened: dict[tuple[str, str | None, str], SampleSet] = {}
    for path, name in zip(models, names, strict=True):
        model, _, tokenizer = hyvlm.load(path, device=chosen, readout=readout)
        embedder = Embedder(model, tokenizer, EmbeddingCache(cache), batch_size=batch_size, workers=workers)
        same = next((other for other, mark in run.models.items() if mark == embedder.model_fingerprint), None)
        if same is not None:
            raise ValueError(f"{name} and {same} are the same model: give each model once")
        run.models[name] = embedder.model_fingerprint
        jobs = _plan(run, specs, name, embedder, opened)
        readings = {Reading(name): embedder}
        if twice and has_map(model):
            readings[Reading(name, with_map=False)] = without_map(embedder)
        elif twice:
            run.unread.append(name)
        for number, job in enumerate(jobs, start=1):
            where = f"[{number}/{len(jobs)}] {name}: {job.spec.task} on {job.samples.name}"
            for reading, reader in readings.items():
                if reading.with_map or job.evaluation in twice:
                    _measure(run, job, reading, reader, before, Path(out), where, say)
    return run


def model_names(models: Sequence[str | Path]) -> list[str]:
    """What rows are called: the last part of each path, or the whole paths where two would be called the same.

    Raises:
        ValueError: A model that is given twice, or none.
        FileNotFoundError: No model there.
    """
    if not models:
        raise ValueError("no model to evaluate")
    places: dict[str, str] = {}
    for path in map(str, models):
        place = str(own_folder(path) or path)
        if place in places:
            raise ValueError(f"{path} and {places[place]} are the same model: give each model once")
        places[place] = path
    short = [path.rstrip("/").rsplit("/", 1)[-1] or path for path in map(str, models)]
    return short if len(set(short)) == len(short) else [str(path) for path in models]


def _specs(run: SuiteRun, root: Path, settings: Mapping[str, str | int]) -> dict[Evaluation, EvalSpec]:
    """How each evaluation is run; those whose task, data set or folder is not there are skipped, with the reason."""
    if not root.is_dir():
        raise FileNotFoundError(f"no data root {root}")
    looked_for = sorted({folder for suite in run.suites for folder in suite.folders})
    built_in = any(suite.data[e.data].folder is None for suite in run.suites for e in suite.evaluations)
    if not built_in and not any((root / folder).is_dir() for folder in looked_for):
        raise ValueError(f"the data root {root} has none of the folders looked for: {', '.join(looked_for)}")
    tasks = {e.task for suite in run.suites for e in suite.evaluations if e.task in TASKS}
    for setting in settings:
        if not any(setting in setting_names(TASKS[task]) for task in tasks):
            raise ValueError(f"no task of the suite has a setting {setting!r}")
    specs: dict[Evaluation, EvalSpec] = {}
    for suite in run.suites:
        for evaluation in suite.evaluations:
            source = suite.data[evaluation.data]
            kind = source.open.partition(":")[0]
            names = (("task", evaluation.task, TASKS), ("data set", kind, DATASETS))
            missing = [f"the {what} {name!r}" for what, name, registry in names if name not in registry]
            if missing:
                run.skip(f"{missing[0]} is not available in this version", evaluation)
                continue
            try:
                where = source.locate(root)
            except FileNotFoundError as error:
                run.skip(str(error), evaluation)
                continue
            known = setting_names(TASKS[evaluation.task])
            given = {**dict(evaluation.settings), **_files_of(root, evaluation), **settings}
            own = {key: value for key, value in given.items() if key in known}
            specs[evaluation] = EvalSpec(evaluation.task, where, source.split, **own)
    return specs


def _files_of(root: Path, evaluation: Evaluation) -> dict[str, str]:
    """Settings that files of the data root give, see :data:`SETTING_FILES`."""
    fixed = dict(evaluation.settings)
    return {
        setting: str(path)
        for setting, (folder, replaced) in SETTING_FILES.items()
        if fixed.get(setting) == replaced and (path := root / folder / f"{evaluation.data}.txt").is_file()
    }


def _plan(
    run: SuiteRun,
    specs: Mapping[Evaluation, EvalSpec],
    name: str,
    embedder: Embedder,
    opened: dict[tuple[str, str | None, str], SampleSet],
) -> list[_Job]:
    """What this model is measured on, the evaluations of a data set together, those that look at parts first."""
    jobs: list[_Job] = []
    for evaluation, spec in specs.items():
        task = spec.build(embedder.model)
        try:
            samples = open_once(spec, task, opened)
        except UNFIT as error:
            run.skip(str(error), evaluation)
            continue
        if samples.expected is None:
            samples.expected = _expected(run, evaluation)
        try:
            task.check(embedder.model, samples)
        except UNFIT as error:
            run.skip(f"{name}: {error}", evaluation)
            continue
        jobs.append(_Job(evaluation, spec, task, samples))
    order = {spec.data: place for place, spec in reversed(list(enumerate(specs.values())))}
    return sorted(jobs, key=lambda job: (order[job.spec.data], not job.task.parts))


def _expected(run: SuiteRun, evaluation: Evaluation) -> int | None:
    return next((s.data[evaluation.data].expected for s in run.suites if evaluation.data in s.data), None)


def _measure(
    run: SuiteRun,
    job: _Job,
    reading: Reading,
    embedder: Embedder,
    before: dict[tuple[Any, ...], dict[str, Any]],
    out: Path,
    where: str,
    say: Callable[[str], None],
) -> None:
    key = (
        embedder.model_fingerprint,
        job.spec.task,
        job.task.version,
        settings_hash(settings_of(job.task, embedder)),
        job.samples.fingerprint,
    )
    where += "" if reading.with_map else ", without the map"
    if key in before:
        say(f"{where}: measured before")
        run.reused += 1
    else:
        say(where)
        try:
            result = run_task(job.spec.task, job.task, job.samples, embedder)
        except (*UNFIT, ConnectionError) as error:  # the latter from weights on a hub
            say(f"{where}: failed: {' '.join(str(error).split())}")
            run.failed.append((reading.model, job.evaluation, str(error)))
            return
        write_results([result], out)
        before[key] = result.to_dict()
    run.entries[reading, job.evaluation] = {**before[key], "expected": job.samples.expected}
