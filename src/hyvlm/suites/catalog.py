"""What a suite is: tables whose columns say which task on which data set gives their number. A suite is a YAML file.

``_shared.yaml`` holds what suites share: where a data set is looked for, and lists of columns that several tables have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hyvlm.registry import unknown

#: A row a model; a row a model and reading, with and without the map; means of groups of columns under both readings.
KINDS = ("values", "readings", "changes")
#: Why a data set is left out whose folder is not there.
NO_FOLDER = "no folder of that name in the data root"
_TABLE = ("name", "title", "kind", "digits", "notes", "columns", "task", "data", "metric", "settings", "lower")
_COLUMN = ("head", "group", "data", "task", "metric", "settings", "lower", "of", "mean")
_DATA = ("folder", "open", "split", "files", "expected")


@dataclass(frozen=True)
class Evaluation:
    """One task on one data set of :attr:`Suite.data`, with the settings that the table fixes."""

    task: str
    data: str
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Measure:
    """One metric of an evaluation."""

    evaluation: Evaluation
    metric: str


@dataclass(frozen=True)
class Column:
    """A column of a table: the mean of its measures, of which there is mostly one.

    Attributes:
        head, group: What is above the numbers; columns of one group stand together.
        lower: Whether a lower number is better.
    """

    head: str
    group: str
    measures: tuple[Measure, ...]
    lower: bool = False


@dataclass(frozen=True)
class SuiteTable:
    """A table of a paper. ``digits`` are those after the point; ``notes`` stand below it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    kind: str = "values"
    digits: int = 2
    notes: tuple[str, ...] = ()

    @property
    def evaluations(self) -> list[Evaluation]:
        """What has to be measured, each once."""
        return list(dict.fromkeys(m.evaluation for column in self.columns for m in column.measures))


@dataclass(frozen=True)
class DataFolder:
    """Where a data set is looked for.

    Attributes:
        folder: Name of the folder in the data root; None for a set that is built in.
        open: Name in ``hyvlm list datasets``.
        split: Which split; None is the set's default.
        files: If the set is opened by a file: its names in ``folder``, patterns allowed, of which the first counts.
        expected: How many samples the published numbers rest on, where the set itself does not say.
    """

    name: str
    folder: str | None
    open: str
    split: str | None = None
    files: tuple[str, ...] = ()
    expected: int | None = None

    def locate(self, root: Path) -> str:
        """What :func:`hyvlm.data.open_data` takes. Raises FileNotFoundError if the folder or file is not there."""
        if self.folder is None:
            return self.open
        folder = root / self.folder
        if not folder.is_dir():
            raise FileNotFoundError(NO_FOLDER)
        if not self.files:
            return f"{self.open}:{folder}"
        found = next((path for pattern in self.files for path in sorted(folder.glob(pattern))), None)
        if found is None:
            raise FileNotFoundError(f"no file {' or '.join(self.files)} in the folder {self.folder}")
        return f"{self.open}:{found}"


@dataclass(frozen=True)
class Suite:
    """Tables, and where the data sets of their columns are."""

    name: str
    title: str
    tables: tuple[SuiteTable, ...]
    data: Mapping[str, DataFolder]

    @property
    def evaluations(self) -> list[Evaluation]:
        """What has to be measured for all tables, each once."""
        return list(dict.fromkeys(e for table in self.tables for e in table.evaluations))

    @property
    def folders(self) -> list[str]:
        """Names of the folders that are looked for in a data root."""
        used = [self.data[e.data].folder for e in self.evaluations]
        return sorted({folder for folder in used if folder is not None})


def suite_names() -> list[str]:
    """Names of the suites that ship with the library."""
    files = (path.name for path in resources.files("hyvlm.suites").iterdir())
    return sorted(f.removesuffix(".yaml") for f in files if f.endswith(".yaml") and not f.startswith("_"))


def read_suites(name: str) -> list[Suite]:
    """The suite of that name, or every shipped one for "all"; also a YAML file of one's own."""
    return [read_suite(each) for each in (suite_names() if name == "all" else [name])]


def read_suite(name: str) -> Suite:
    """A shipped suite, or that in a ``.yaml`` file.

    Raises:
        ValueError: No such suite, or a file that does not describe one; says where and what would be right.
        FileNotFoundError: A file that is not there.
    """
    shared = _mapping(_text("_shared"), "_shared.yaml")
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"no suite file {name}")
        text = path.read_text(encoding="utf-8")
    elif name in suite_names():
        text = _text(name)
    else:
        raise ValueError(unknown("suite", name, [*suite_names(), "all"], "List them: hyvlm list suites"))
    document = _mapping(text, name)
    _check(document, ("title", "tables", "data"), f"suite {name}")
    own = document.get("data") or {}
    data = {key: _data(key, entry or {}) for key, entry in {**shared["data"], **own}.items()}
    tables = tuple(_table(entry, shared["columns"], f"suite {name}") for entry in document.get("tables") or [])
    suite = Suite(path.stem, str(document.get("title", path.stem)), tables, data)
    if not suite.evaluations:
        raise ValueError(f"suite {name} has no table with a column")
    for evaluation in suite.evaluations:
        if evaluation.data not in data:
            raise ValueError(f"suite {name}: {unknown('data set', evaluation.data, list(data))}")
    return suite


def _text(name: str) -> str:
    return (resources.files("hyvlm.suites") / f"{name}.yaml").read_text(encoding="utf-8")


def _mapping(text: str, where: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{where} must be a mapping with a title and tables")
    return document


def _check(entry: object, known: Sequence[str], where: str) -> None:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where}: a mapping of {', '.join(known)} was due, got {entry!r}")
    for key in entry:
        if key not in known:
            raise ValueError(f"{where}: {unknown('key', str(key), list(known))}")


def _data(name: str, entry: Mapping[str, Any]) -> DataFolder:
    _check(entry, _DATA, f"data set {name}")
    return DataFolder(
        name=name,
        folder=entry.get("folder", name),
        open=entry.get("open", name),
        split=entry.get("split"),
        files=tuple(entry.get("files", ())),
        expected=entry.get("expected"),
    )


def _table(entry: Mapping[str, Any], shared: Mapping[str, Any], where: str) -> SuiteTable:
    _check(entry, _TABLE, where)
    where = f"{where}, table {entry.get('name')}"
    kind = entry.get("kind", "values")
    if kind not in KINDS:
        raise ValueError(f"{where}: {unknown('kind', str(kind), list(KINDS))}")
    columns: list[Column] = []
    for raw in _expanded(entry.get("columns") or [], shared, where):
        _check(raw, _COLUMN, where)
        if raw.get("mean"):  # of the columns before it
            measures = tuple(itertools.chain.from_iterable(column.measures for column in columns))
        else:
            measures = tuple(_measures(raw, entry, where))
        columns.append(
            Column(
                str(raw.get("head", "")),
                str(raw.get("group", "")),
                measures,
                bool(raw.get("lower", entry.get("lower", False))),
            )
        )
    return SuiteTable(
        name=str(entry.get("name", "table")),
        title=str(entry.get("title", "")),
        columns=tuple(columns),
        kind=kind,
        digits=int(entry.get("digits", 2)),
        notes=tuple(entry.get("notes", ())),
    )


def _expanded(columns: Iterable[Any], shared: Mapping[str, Any], where: str) -> Iterator[Mapping[str, Any]]:
    """The columns, with a name of a shared list replaced by its columns."""
    for column in columns:
        if not isinstance(column, str):
            yield column
        elif column in shared:
            yield from shared[column]
        else:
            raise ValueError(f"{where}: {unknown('list of columns', column, list(shared))}")


def _measures(column: Mapping[str, Any], table: Mapping[str, Any], where: str) -> Iterator[Measure]:
    """A measure for every data set and metric of a column; what it leaves out is as its table says."""
    for part in column.get("of") or [{}]:
        _check(part, _COLUMN, where)
        full = {**table, **column, **part}
        for key in ("task", "data", "metric"):
            if not full.get(key):
                raise ValueError(f"{where}, column {column.get('head')!r}: it says no {key}")
        settings = {**table.get("settings", {}), **column.get("settings", {}), **part.get("settings", {})}
        for data, metric in itertools.product(_listed(full["data"]), _listed(full["metric"])):
            yield Measure(Evaluation(str(full["task"]), data, tuple(sorted(settings.items()))), metric)


def _listed(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]
