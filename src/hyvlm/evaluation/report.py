"""Results as a value, as a table on the screen, and as ``results.json`` and ``results.csv`` in a folder."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hyvlm.data.sentences import PERTURBATIONS
from hyvlm.evaluation.task import Outcome
from hyvlm.files import write_text

#: Of ``results.json``: goes up when a reader of the old one would misread the new one.
FORMAT = 1
COLUMNS = (
    "task",
    "data",
    "split",
    "metric",
    "value",
    "unit",
    "low",
    "high",
    "n",
    "total",
    "templates",
    "score",
    "model",
)


@dataclass(frozen=True)
class Result:
    """What one task measured on one data set, with everything that the numbers depend on.

    Attributes:
        task, version: Name and version of the task.
        data, split, data_fingerprint: Which samples.
        outcome: The numbers, how many samples they rest on, and what was left out.
        settings: The task's settings, defaults filled in.
        score: What ranked the pairs: the manifold, and how if not by its own score as trained.
        model: Fingerprint of the model.
        library: Version of hyvlm.
        texts_cut: Distinct texts longer than the model's context, which lost their end.
        seconds: Time it took, without what came from the cache.
        expected: How many samples the published set has, where that is known.
    """

    task: str
    version: int
    data: str
    split: str
    outcome: Outcome
    settings: dict[str, Any]
    score: str
    model: str
    library: str
    data_fingerprint: str
    texts_cut: int
    seconds: float
    expected: int | None = None

    @property
    def scores(self) -> dict[str, float]:
        """Metrics that are defined, by name."""
        return {name: value for name, value in self.outcome.scores.items() if math.isfinite(value)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a metric that is not defined is null, with its reason under ``undefined``."""
        outcome = self.outcome
        missing = {name for name, value in outcome.scores.items() if not math.isfinite(value)}
        return {
            "task": self.task,
            "task_version": self.version,
            "data": self.data,
            "split": self.split,
            "scores": {name: None if name in missing else value for name, value in outcome.scores.items()},
            "undefined": {name: outcome.undefined.get(name, "not a finite number") for name in sorted(missing)},
            "units": outcome.units,
            "intervals_95": {name: list(ends) for name, ends in outcome.intervals.items()},
            "n": outcome.n,
            "total": outcome.total,
            "expected": self.expected,
            "skipped": dict(outcome.skipped),
            "skipped_examples": outcome.skipped_examples,
            "ties": outcome.ties,
            "texts_cut": self.texts_cut,
            "settings": self.settings,
            "settings_hash": settings_hash(self.settings),
            "details": outcome.details,
            "notes": outcome.notes,
            "score": self.score,
            "model": self.model,
            "data_fingerprint": self.data_fingerprint,
            "library_version": self.library,
            "seconds": round(self.seconds, 3),
        }


def settings_hash(settings: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that change with any setting, and with the content of a file that a setting names."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for key, value in sorted(settings.items()):
        if isinstance(value, str):
            for path in (Path(name.strip()) for name in (value, *value.split(","))):
                if path.suffix and path.is_file():
                    digest.update(key.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def evaluation_key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for two entries that must hold the same numbers: same model, task and version, settings and samples."""
    return tuple(entry.get(key) for key in ("model", "task", "task_version", "settings_hash", "data_fingerprint"))


def _identity(entry: dict[str, Any]) -> str:
    """Equal for two entries of which the later one replaces the earlier one."""
    keys = ("task", "data", "split", "settings", "model")
    return json.dumps([entry.get(key) for key in keys], sort_keys=True)


def write_results(results: Sequence[Result], out: str | Path) -> Path:
    """Write ``results.json`` and ``results.csv`` into ``out``; returns the path of the former.

    Entries already there stay, unless one of ``results`` repeats the same evaluation of the same model. Each file
    appears complete or not at all.

    Raises:
        ValueError: If ``out`` holds a ``results.json`` that this function did not write.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    entries = {_identity(entry): entry for entry in [*read_results(out), *(result.to_dict() for result in results)]}
    rows = list(entries.values())
    content = {"format": FORMAT, "results": rows}
    write_text(path, json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for entry in rows for row in _csv_rows(entry))
    write_text(out / "results.csv", table.getvalue())
    return path


def read_results(out: str | Path) -> list[dict[str, Any]]:
    """The entries of ``results.json`` in folder ``out``, none if there is no such file.

    Raises:
        ValueError: If the file is something else.
    """
    path = Path(out) / "results.json"
    return read_results_file(path) if path.exists() else []


def read_results_file(path: str | Path) -> list[dict[str, Any]]:
    """The entries of a results file, whatever it is called.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is something else.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no results at {path}: give a results.json that hyvlm eval wrote")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found, entries = document.get("format", FORMAT), [dict(entry) for entry in document["results"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not a results file of hyvlm: move it away or choose another folder") from None
    if found != FORMAT:
        raise ValueError(
            f"{path} has format {found!r} of another version of hyvlm, this one reads {FORMAT}: move it away or choose "
            "another folder"
        )
    return entries


def _csv_rows(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    shared = {key: entry[key] for key in ("task", "data", "split", "n", "total", "score", "model")}
    shared["templates"] = entry["settings"].get("templates", "")
    for name, value in entry["scores"].items():
        low, high = entry["intervals_95"].get(name, ("", ""))
        unit = entry["units"].get(name, "")
        yield {**shared, "metric": name, "value": value, "unit": unit, "low": low, "high": high}


def results_table(results: Sequence[Result]) -> RenderableType:
    """Tables to print with rich: every metric, what it rests on, and what a reader of it must know."""
    shown: list[RenderableType] = []
    width = max((len(name) for result in results for name in result.outcome.scores), default=0)
    for result in results:
        outcome = result.outcome
        where = f"{result.data} ({result.split})" if result.split else result.data
        title = Text.assemble((result.task, "bold"), f" on {where}, {outcome.n} of {outcome.total} scored")
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
        table.add_column(min_width=width)
        table.add_column(justify="right", min_width=10)
        table.add_column(style="dim")
        for name, value in outcome.scores.items():
            ends = outcome.intervals.get(name)
            unit = outcome.units.get(name, "")
            interval = f"95% interval {_number(ends[0], unit)} to {_number(ends[1], unit)}" if ends else ""
            table.add_row(name, _number(value, unit) if math.isfinite(value) else "not defined", interval)
        shown += [title, table, *(Text(f"  {line}", style="dim") for line in _remarks(result)), Text()]
    return Group(*shown[:-1])


def perturbation_table(entries: Sequence[Mapping[str, Any]], names: Mapping[str, str] | None = None) -> Table:
    """Recall@1 under perturbation with the drop beside it, as HyFL-CLIP's Tables 2 and S9 print them.

    One line a model and data set, and one with the means over the data sets if a model has several; the mean drop is
    the one of Table S5.

    Args:
        entries: Entries of ``results.json`` (:func:`read_results`); other tasks than "perturbed-retrieval" are passed
            over.
        names: What to call the models, by fingerprint; one without a name is called by its fingerprint.
    Raises:
        ValueError: If no entry is of that task.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["task"] == "perturbed-retrieval":
            settings = json.dumps(entry["settings"], sort_keys=True)
            groups.setdefault((str(entry["model"]), settings), []).append(entry)
    if not groups:
        raise ValueError("no result of the task 'perturbed-retrieval' to print")
    table = Table("model", "data", "original", *PERTURBATIONS, "mean drop")
    for (model, _), of_model in groups.items():
        name = (names or {}).get(model, model)
        for entry in of_model:
            where = f"{entry['data']} ({entry['split']})" if entry["split"] else str(entry["data"])
            table.add_row(name, where, *_perturbation_cells(entry["scores"]))
        if len(of_model) > 1:
            scores = [entry["scores"] for entry in of_model]
            known = {key: [s[key] for s in scores] for key in scores[0]}
            means = {key: None if None in values else mean(values) for key, values in known.items()}
            table.add_row(name, "average", *_perturbation_cells(means))
    return table


def _perturbation_cells(scores: Mapping[str, float | None]) -> Iterator[str]:
    yield f"{scores['recall@1']:.2f}"
    for how in PERTURBATIONS:
        drop = scores[f"drop_{how}"]
        arrow = "" if drop is None else f" {'↓' if drop >= 0 else '↑'}{abs(drop):.2f}"
        yield f"{scores[f'recall@1_{how}']:.2f}{arrow}"
    yield "not defined" if scores["mean_drop"] is None else f"{scores['mean_drop']:.2f}"


def _number(value: float, unit: str) -> str:
    return f"{value:.2f}%" if unit == "%" else f"{value:.3f} {unit}".rstrip()


def _remarks(result: Result) -> Iterator[str]:
    outcome = result.outcome
    if outcome.skipped:
        yield "skipped " + ", ".join(f"{count} ({reason})" for reason, count in outcome.skipped.items())
    tied = {kind: count for kind, count in outcome.ties.items() if count}
    if tied:
        yield "ties, counted against the model: " + ", ".join(f"{count} {kind}" for kind, count in tied.items())
    if result.texts_cut:
        yield f"{result.texts_cut} texts were longer than the model's context and lost their end"
    yield from (f"{name} is not defined: {reason}" for name, reason in outcome.undefined.items())
    yield from outcome.notes
