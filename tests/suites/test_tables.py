"""Tables from results made by hand: means, the best of a column, what is not comparable, and how it is printed."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from hyvlm.suites.catalog import Column, DataFolder, Evaluation, Measure, Suite, SuiteTable
from hyvlm.suites.formats import column_names, latex, long_csv, markdown, remarks, screen, write_tables
from hyvlm.suites.runner import Reading, SuiteRun
from hyvlm.suites.tables import Head, table_grid

ONE, TWO = Evaluation("task", "one"), Evaluation("task", "two")


def entry(score: float | None, *, n: int = 4, expected: int | None = None, notes: list[str] | None = None) -> dict:
    scores = {"m": score}
    return {"scores": scores, "n": n, "total": 5, "expected": expected, "notes": notes or [], "data": "set:here"}


def column(*evaluations: Evaluation, head: str = "h", group: str = "", lower: bool = False) -> Column:
    return Column(head, group, tuple(Measure(e, "m") for e in evaluations), lower)


def table(*columns: Column, **more) -> SuiteTable:
    return SuiteTable("Table 1", "A title", columns, **more)


def run_of(scores: dict, *tables: SuiteTable) -> SuiteRun:
    """A run of models by name; ``scores`` by (model, evaluation) or (model, evaluation, False) without the map."""
    data = {name: DataFolder(name, name, name) for name in ("one", "two")}
    run = SuiteRun([Suite("own", "Own suite", tables, data)])
    for (name, evaluation, *flat), value in scores.items():
        run.models[name] = f"{name}-fingerprint"
        run.entries[Reading(name, not flat), evaluation] = value if isinstance(value, dict) else entry(value)
    return run


def texts(run: SuiteRun, one: SuiteTable) -> list[list[str]]:
    rows = table_grid(run, one).rows
    return [
        [*labels, *(f"{'*' * c.best}{c.text}{'' if c.comparable else '+'}" for c in cells)] for labels, cells in rows
    ]


def test_the_best_of_a_column_is_marked_as_printed_with_ties() -> None:
    run = run_of({("a", ONE): 50.001, ("b", ONE): 50.004, ("c", ONE): 49.0, ("a", TWO): 3.0, ("b", TWO): 2.0})
    both = table(column(ONE), column(TWO, lower=True))
    assert texts(run, both) == [["a", "*50.00", "3.00"], ["b", "*50.00", "*2.00"], ["c", "49.00", "-"]]
    assert texts(run_of({("a", ONE): 50.0}), table(column(ONE), digits=1)) == [["a", "50.0"]]
    assert texts(run_of({("a", ONE): 1.0, ("b", ONE): 1.0}), table(column(ONE))) == [["a", "1.00"], ["b", "1.00"]]


def test_a_mean_is_over_what_all_models_have_and_says_so() -> None:
    run = run_of({("a", ONE): 10.0, ("a", TWO): 90.0, ("b", ONE): 30.0})
    both = table(column(ONE, TWO, head="Avg."))
    assert texts(run, both) == [["a", "10.00+"], ["b", "*30.00+"]]
    assert "the mean of 1 of 2 numbers under Avg." in table_grid(run, both).notes[-1]
    full = run_of({("a", ONE): 10.0, ("a", TWO): 90.0})
    assert texts(full, both) == [["a", "50.00"]]


@pytest.mark.parametrize(
    ("made", "note"),
    [
        (entry(1.0, expected=9), "task on one (4 of the 9 published samples)"),
        (
            entry(1.0, notes=["3 of the 9 published captions of set:here: not comparable"]),
            "3 of the 9 published captions)",
        ),
        (
            entry(1.0, notes=["another graph than the published one: not comparable"]),
            "(another graph than the published",
        ),
        (entry(1.0, expected=4, notes=["2 classes have no image"]), None),
    ],
)
def test_what_cannot_be_held_against_published_numbers_is_marked(made: dict, note: str | None) -> None:
    run = run_of({("a", ONE): made})
    grid = table_grid(run, table(column(ONE), notes=("A remark.",)))
    assert grid.rows[0][1][0].comparable == (note is None)
    assert grid.notes[:2] == ["A remark.", "Scored: task on one 4 of 5."]
    assert (note is None and len(grid.notes) == 2) or note in grid.notes[2]


def test_readings_stand_below_each_other_and_the_better_one_is_marked() -> None:
    run = run_of({("a", ONE): 1.0, ("a", ONE, False): 2.0, ("b", ONE): 9.0, ("b", ONE, False): 9.0, ("s", ONE): 5.0})
    run.unread.append("s")
    both = table(column(ONE), kind="readings")
    assert texts(run, both) == [
        ["a", "with", "1.00"],
        ["a", "without", "*2.00"],
        ["b", "with", "9.00"],
        ["b", "without", "9.00"],
        ["s", "with", "5.00"],
    ]
    assert "Without an exponential map, and so read in one way: s." in table_grid(run, both).notes
    assert texts(run, table(column(ONE))) == [["a", "1.00"], ["b", "*9.00"], ["s", "5.00"]]


def test_changes_are_means_of_both_readings_and_the_largest_single_one() -> None:
    scores = {("a", ONE): 10.0, ("a", ONE, False): 10.5, ("a", TWO): 20.0, ("a", TWO, False): 18.0, ("s", ONE): 1.0}
    grid = table_grid(run_of(scores), table(column(ONE, TWO, head="Both"), kind="changes"))
    assert [cell.text for cell in grid.rows[0][1]] == ["15.00", "14.25", "-0.75", "2.00"]
    assert [cell.text for cell in grid.rows[1][1]] == ["-"] * 4
    assert [(head.group, head.name) for head in grid.heads][2:] == [("Both", "Δ"), ("Both", "max |Δ|")]


def test_heads_have_their_group_only_where_they_need_it() -> None:
    heads = [Head("COCO", "R@1"), Head("Flickr", "R@1"), Head("Tree", "TIE", -1), Head("VOC", "")]
    assert column_names(heads) == ["COCO R@1", "Flickr R@1", "TIE ↓", "VOC"]


def test_markdown_latex_and_csv() -> None:
    one = table(
        column(ONE, head="P_H", group="Tree & leaf"), column(TWO, head="|x|", group="Tree & leaf", lower=True), digits=1
    )
    made = {("a_b", ONE): entry(1.25, expected=9), ("a_b", TWO): 3.0, ("c", ONE): 2.0, ("c", TWO): 4.0}
    run = run_of(made, one)
    (suite,), grid = run.suites, table_grid(run, one)
    lines = markdown(suite, run, [grid]).splitlines()
    assert "| model | P_H | \\|x\\| ↓ |" in lines
    assert "| a_b | 1.2† | **3.0** |" in lines
    assert "| c | **2.0** | 4.0 |" in lines
    assert lines[-1] == "- c: `c-fingerprint`"
    tex = latex(suite, [grid])
    assert r" & \multicolumn{2}{c}{Tree \& leaf} \\" in tex
    assert r"\cmidrule(lr){2-3}" in tex
    assert r"model & P\_H & \textbar{}x\textbar{} $\downarrow$ \\" in tex
    assert r"a\_b & 1.2$^\dagger$ & \textbf{3.0} \\" in tex
    assert tex.count(r"\begin{table*}") == tex.count(r"\end{table*}") == 1
    rows = list(csv.DictReader(io.StringIO(long_csv([grid]))))
    assert [(r["model"], r["column"], r["value"], r["best"], r["comparable"]) for r in rows] == [
        ("a_b", "P_H", "1.25", "False", "False"),
        ("a_b", "|x|", "3.0", "True", "True"),
        ("c", "P_H", "2.0", "True", "True"),
        ("c", "|x|", "4.0", "False", "True"),
    ]


def test_tables_without_a_number_are_left_out(tmp_path) -> None:
    full, empty = table(column(ONE)), SuiteTable("Table 2", "Nothing", (column(TWO),))
    run = run_of({("a", ONE): 1.0}, full, empty)
    paths = write_tables(run, tmp_path)
    assert [path.name for path in paths] == ["own.md", "own.tex", "own.csv"]
    assert "Table 2" not in paths[0].read_text()
    assert write_tables(run_of({}, full, empty), tmp_path) == []
    console = Console(width=80, file=io.StringIO())
    console.print(screen(run))
    shown = console.file.getvalue()
    assert "own, Table 1: A title" in shown
    assert "Table 2" not in shown


def test_what_was_not_measured_is_said_with_the_reason() -> None:
    run = run_of({("a", ONE): 1.0}, table(column(ONE), column(TWO)))
    run.skip("no folder of that name in the data root", TWO)
    run.skip("a: the sphere\nhas no radius", ONE)
    run.skip("a: the sphere has no radius", ONE)
    run.failed.append(("a", ONE, "a score is NaN"))
    run.reused = 1
    assert remarks(run) == [
        "1 of 2 evaluations measured, 1 of their results in an earlier call",
        "skipped 1: no folder of that name in the data root: two",
        "skipped task on one: a: the sphere has no radius",
        "failed a: task on one: a score is NaN",
    ]
