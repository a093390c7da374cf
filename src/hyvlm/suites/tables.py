"""From the results of a suite to its tables: one row a model (and reading), one column as the paper has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from hyvlm.suites.catalog import Column, Evaluation, Measure, SuiteTable
from hyvlm.suites.runner import Reading, SuiteRun

NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        value: The number; None where there is none.
        text: As it is printed.
        best: Whether it is the best of its column, or of its model's two readings.
        comparable: Whether nothing is known that forbids to hold it against the published number.
        used, total: How many numbers it is the mean of, and of how many it should be.
    """

    value: float | None
    text: str
    best: bool = False
    comparable: bool = True
    used: int = 1
    total: int = 1


@dataclass(frozen=True)
class Head:
    """What stands above a column of numbers; ``sign`` is 1 where higher is better, -1 for lower, 0 for neither."""

    group: str
    name: str
    sign: int = 1


@dataclass(frozen=True)
class Grid:
    """A table to print: ``labels`` head the first columns of the rows, ``heads`` those of the numbers."""

    name: str
    title: str
    labels: list[str]
    heads: list[Head]
    rows: list[tuple[list[str], list[Cell]]]
    notes: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is no number in it."""
        return all(cell.value is None for _, cells in self.rows for cell in cells)


def table_grid(run: SuiteRun, table: SuiteTable) -> Grid:
    """The table filled in with what was measured."""
    if table.kind == "changes":
        grid = _changes(run, table)
    else:
        both = table.kind == "readings"
        readings = [r for r in _readings(run) if r.with_map or both]
        columns = [_column(run, column, readings, table.digits) for column in table.columns]
        rows = [(_labels(reading, both), [column[row] for column in columns]) for row, reading in enumerate(readings)]
        labels = ["model", "map"] if both else ["model"]
        signs = [-1 if column.lower else 1 for column in table.columns]
        heads = [Head(c.group, c.head, sign) for c, sign in zip(table.columns, signs, strict=True)]
        grid = Grid(table.name, table.title, labels, heads, _with_best(rows, heads, by_model=both))
    return replace(grid, notes=list(_notes(run, table, grid)))


def _readings(run: SuiteRun) -> list[Reading]:
    """Every model as it is and, where it was read so, without the map."""
    measured = {reading for reading, _ in run.entries}
    both = [Reading(name, with_map) for name in run.models for with_map in (True, False)]
    return [reading for reading in both if reading.with_map or reading in measured]


def _labels(reading: Reading, both: bool) -> list[str]:
    return [reading.model, "with" if reading.with_map else "without"] if both else [reading.model]


def _score(run: SuiteRun, reading: Reading, measure: Measure) -> float | None:
    entry = run.entries.get((reading, measure.evaluation))
    return None if entry is None else entry["scores"].get(measure.metric)


def _column(run: SuiteRun, column: Column, readings: Sequence[Reading], digits: int) -> list[Cell]:
    """A cell for each reading; a mean is over the numbers that all models have, or it would compare unlike things."""
    known = [m for m in column.measures if any(_score(run, r, m) is not None for r in readings)]
    shared = [m for m in known if all(_score(run, r, m) is not None for r in readings)]
    used = shared if len(column.measures) > 1 else known
    return [_cell(run, reading, used, len(column.measures), digits) for reading in readings]


def _cell(run: SuiteRun, reading: Reading, measures: Sequence[Measure], total: int, digits: int) -> Cell:
    scores = [score for m in measures if (score := _score(run, reading, m)) is not None]
    if not scores:
        return Cell(None, "-", total=total, used=0)
    comparable = len(scores) == total and not any(
        _faults(run.entries[reading, m.evaluation]) for m in measures if (reading, m.evaluation) in run.entries
    )
    return Cell(mean(scores), f"{mean(scores):.{digits}f}", comparable=comparable, used=len(scores), total=total)


def _faults(entry: dict[str, Any]) -> list[str]:
    """Why the numbers of an entry cannot be held against published ones."""
    faults = [str(note) for note in entry["notes"] if NOT_COMPARABLE in note]
    if not faults and entry["expected"] not in (None, entry["n"]):
        faults.append(f"{entry['n']:,} of the {entry['expected']:,} published samples")
    return [fault.replace(f" of {entry['data']}", "").removesuffix(f": {NOT_COMPARABLE}") for fault in faults]


def _with_best(
    rows: list[tuple[list[str], list[Cell]]], heads: Sequence[Head], *, by_model: bool
) -> list[tuple[list[str], list[Cell]]]:
    """Mark the best of each column as printed, ties included; of a model's readings the better one, and no ties."""
    marked = [(labels, list(cells)) for labels, cells in rows]
    for place, head in enumerate(heads):
        groups: dict[str, list[int]] = {}
        for number, (labels, _) in enumerate(rows):
            groups.setdefault(labels[0] if by_model else "", []).append(number)
        for numbers in groups.values():
            printed = {n: float(rows[n][1][place].text) for n in numbers if rows[n][1][place].value is not None}
            if len(set(printed.values())) > 1:
                best = max(head.sign * value for value in printed.values())
                for number, value in printed.items():
                    cells = marked[number][1]
                    cells[place] = replace(cells[place], best=head.sign * value == best)
    return marked


def _changes(run: SuiteRun, table: SuiteTable) -> Grid:
    """Means with and without the map, their difference and the largest change of a single number."""
    heads = [Head(c.head, name, 0) for c in table.columns for name in ("with map", "without", "Δ", "max |Δ|")]
    rows = []
    for name in run.models:
        cells: list[Cell] = []
        for column in table.columns:
            own, bare = (Reading(name, with_map) for with_map in (True, False))
            pairs = [
                (m, with_map, without)
                for m in column.measures
                if (with_map := _score(run, own, m)) is not None and (without := _score(run, bare, m)) is not None
            ]
            used, total = [m for m, _, _ in pairs], len(column.measures)
            means = [_cell(run, reading, used, total, table.digits) for reading in (own, bare)]
            if not pairs:
                cells += [*means, *means]
                continue
            moves = [without - with_map for _, with_map, without in pairs]
            largest = max(map(abs, moves))
            cells += [
                *means,
                replace(means[0], value=mean(moves), text=f"{mean(moves):+.{table.digits}f}"),
                replace(means[0], value=largest, text=f"{largest:.{table.digits}f}"),
            ]
        rows.append(([name], cells))
    return Grid(table.name, table.title, ["model"], heads, rows)


def _notes(run: SuiteRun, table: SuiteTable, grid: Grid) -> Iterator[str]:
    """What a reader of the table must know."""
    yield from table.notes
    if table.kind != "values" and run.unread:
        yield f"Without an exponential map, and so read in one way: {', '.join(run.unread)}."
    entries = [(e, run.entries[r, e]) for e in table.evaluations for r in _readings(run) if (r, e) in run.entries]
    if entries:
        yield "Scored: " + ", ".join(dict.fromkeys(f"{_of(e)} {x['n']:,} of {x['total']:,}" for e, x in entries)) + "."
    means = {
        f"the mean of {cell.used} of {cell.total} numbers under "
        + " ".join(filter(None, (head.group, head.name if head.sign else "")))
        for _, cells in grid.rows
        for head, cell in zip(grid.heads, cells, strict=True)
        if 0 < cell.used < cell.total
    }
    faults = dict.fromkeys(f"{_of(e)} ({'; '.join(found)})" for e, entry in entries if (found := _faults(entry)))
    if means or faults:
        yield "† Not comparable with published numbers: " + ", ".join([*sorted(means), *faults]) + "."


def _of(evaluation: Evaluation) -> str:
    settings = ", ".join(str(value) for _, value in evaluation.settings)
    return f"{evaluation.task} on {evaluation.data}" + (f" ({settings})" if settings else "")
