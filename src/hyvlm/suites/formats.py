"""Tables of a suite as Markdown, LaTeX (booktabs), CSV with one line a number, and on the screen."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hyvlm.files import write_text
from hyvlm.suites.catalog import NO_FOLDER, Suite
from hyvlm.suites.runner import SuiteRun
from hyvlm.suites.tables import Cell, Grid, Head, table_grid

ARROWS = {1: "", -1: " ↓", 0: ""}
MARK = "†"
CSV_COLUMNS = ("table", "group", "column", "model", "map", "value", "best", "comparable", "used", "of")
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "†": r"$^\dagger$",
    "↓": r"$\downarrow$",
    "Δ": r"$\Delta$",
}


def write_tables(run: SuiteRun, out: str | Path) -> list[Path]:
    """Write ``SUITE.md``, ``SUITE.tex`` and ``SUITE.csv`` into ``out`` for every suite of which something was measured.

    Tables without a number are left out. Returns the paths.
    """
    written = []
    for suite in run.suites:
        grids = [grid for grid in (table_grid(run, table) for table in suite.tables) if not grid.empty]
        if not grids:
            continue
        texts = {"md": markdown(suite, run, grids), "tex": latex(suite, grids), "csv": long_csv(grids)}
        for suffix, text in texts.items():
            path = Path(out) / f"{suite.name}.{suffix}"
            write_text(path, text)
            written.append(path)
    return written


def column_names(heads: Sequence[Head]) -> list[str]:
    """One line for each head, with its group where the name alone would not tell it from another."""
    names = [head.name for head in heads]
    full = [" ".join(filter(None, (head.group, head.name))) for head in heads]
    return [
        (name if name and names.count(name) == 1 else whole) + ARROWS[head.sign]
        for name, whole, head in zip(names, full, heads, strict=True)
    ]


def markdown(suite: Suite, run: SuiteRun, grids: Sequence[Grid]) -> str:
    """All tables of a suite; the best of a column is bold."""
    lines = [f"# {suite.title}", ""]
    for grid in grids:
        heads = [*grid.labels, *column_names(grid.heads)]
        marks = ["---"] * len(grid.labels) + ["---:"] * len(grid.heads)
        rows = [[*labels, *map(_markdown_cell, cells)] for labels, cells in grid.rows]
        lines += [f"## {grid.name}: {grid.title}", ""]
        lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in (heads, marks, *rows)]
        lines += ["", *(f"{note}  " for note in grid.notes), ""]
    lines += ["## Models", "", *(f"- {name}: `{mark}`" for name, mark in run.models.items())]
    return "\n".join(lines) + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.best else cell.text
    return text if cell.comparable or cell.value is None else text + MARK


def latex(suite: Suite, grids: Sequence[Grid]) -> str:
    """All tables of a suite, each a ``table*``; they need the package booktabs."""
    return "\n".join([f"% {suite.title}. Needs \\usepackage{{booktabs}}.", *map(_latex_table, grids)])


def _latex_table(grid: Grid) -> str:
    first = len(grid.labels)
    rules, groups, place = [], [], first + 1
    for name, heads in itertools.groupby(grid.heads, key=lambda head: head.group):
        width = len(list(heads))
        groups.append(rf"\multicolumn{{{width}}}{{c}}{{{_tex(name)}}}")
        rules += [rf"\cmidrule(lr){{{place}-{place + width - 1}}}"] if name else []
        place += width
    names = [*map(_tex, grid.labels), *(_tex(head.name + ARROWS[head.sign]) for head in grid.heads)]
    lines = [
        r"\begin{table*}",
        r"\centering",
        rf"\caption{{{_tex(grid.name)}: {_tex(grid.title)}}}",
        rf"\begin{{tabular}}{{{'l' * first}{'r' * len(grid.heads)}}}",
        r"\toprule",
    ]
    if rules:
        lines += [" & ".join([*[""] * first, *groups]) + r" \\", " ".join(rules)]
    lines += [" & ".join(names) + r" \\", r"\midrule"]
    lines += [" & ".join([*map(_tex, labels), *map(_latex_cell, cells)]) + r" \\" for labels, cells in grid.rows]
    lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par\footnotesize {_tex(note)}" for note in grid.notes)]
    return "\n".join([*lines, r"\end{table*}", ""])


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_cell(cell: Cell) -> str:
    text = rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text)
    return text if cell.comparable or cell.value is None else text + _tex(MARK)


def long_csv(grids: Sequence[Grid]) -> str:
    """One line a number, as it was measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for grid in grids for row in _csv_rows(grid))
    return text.getvalue()


def _csv_rows(grid: Grid) -> Iterator[dict[str, object]]:
    for labels, cells in grid.rows:
        named = dict(zip(grid.labels, labels, strict=True))
        for head, cell in zip(grid.heads, cells, strict=True):
            if cell.value is not None:
                numbers = {"value": cell.value, "best": cell.best, "comparable": cell.comparable}
                count = {"used": cell.used, "of": cell.total}
                yield {"table": grid.name, "group": head.group, "column": head.name, **named, **numbers, **count}


def screen(run: SuiteRun) -> RenderableType:
    """All tables to print with rich, a line a column of the paper, and what was not measured with the reasons."""
    shown: list[RenderableType] = []
    for suite in run.suites:
        for grid in (table_grid(run, table) for table in suite.tables):
            if not grid.empty:
                title = Text.assemble((f"{suite.name}, {grid.name}", "bold"), f": {grid.title}")
                shown += [title, _screen_table(grid), *(Text(f"  {note}", style="dim") for note in grid.notes), Text()]
    return Group(*shown, *map(Text, remarks(run)))


def _screen_table(grid: Grid) -> Table:
    table = Table("", box=None, pad_edge=False)
    for labels, _ in grid.rows:
        table.add_column(" ".join(labels), justify="right", overflow="fold")
    for place, name in enumerate(column_names(grid.heads)):
        cells = [cells[place] for _, cells in grid.rows]
        if any(cell.value is not None for cell in cells):
            marks = [MARK if not cell.comparable and cell.value is not None else " " for cell in cells]
            bold = ["bold" if cell.best else "" for cell in cells]
            table.add_row(name, *(Text(c.text + m, b) for c, m, b in zip(cells, marks, bold, strict=True)))
    return table


def remarks(run: SuiteRun) -> list[str]:
    """How much was measured, and a line for every reason why something was not."""
    wanted = {evaluation for suite in run.suites for evaluation in suite.evaluations}
    done = {evaluation for _, evaluation in run.entries}
    before = f", {run.reused} of their results in an earlier call" if run.reused else ""
    lines = [f"{len(done)} of {len(wanted)} evaluations measured{before}"]
    for reason, evaluations in run.skipped.items():
        if reason == NO_FOLDER:
            folders = {s.data[e.data].folder for s in run.suites for e in evaluations if e.data in s.data}
            lines.append(f"skipped {len(evaluations)}: {reason}: {', '.join(sorted(filter(None, folders)))}")
        else:
            what = dict.fromkeys(f"{e.task} on {e.data}" for e in evaluations)
            lines.append(f"skipped {', '.join(what)}: {reason}")
    lines += [f"failed {model}: {e.task} on {e.data}: {reason}" for model, e, reason in run.failed]
    return lines
