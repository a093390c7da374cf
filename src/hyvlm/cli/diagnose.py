"""What ``hyvlm diagnose`` prints and writes."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from hyvlm.diagnostics.diagnosis import Diagnosis, ModelDiagnosis
from hyvlm.errors import MissingExtra


def write(diagnosis: Diagnosis, out: Path) -> None:
    """Write ``diagnosis.json`` and, where matplotlib is there, the report; say on stdout where they are."""
    print(f"diagnosis: {diagnosis.write(out)}")
    try:
        from hyvlm.plotting.diagnosis_page import write_report
    except MissingExtra as error:
        earlier = "; diagnosis.html there is of an earlier diagnosis" * (out / "diagnosis.html").exists()
        print(f"hyvlm: no report is drawn: {error}{earlier}", file=sys.stderr)
        return
    print(f"report: {write_report(diagnosis, out)[0]}")


def summary(diagnosis: Diagnosis) -> RenderableType:
    """The numbers that matter, to print with rich, with the verdict below them."""
    where = f"{diagnosis.data} ({diagnosis.split})" if diagnosis.split else diagnosis.data
    shown: list[RenderableType] = []
    for model in filter(None, (diagnosis.model, diagnosis.control)):
        shown += [_title(model, where, diagnosis), *_of_points(model), Text()]
    if diagnosis.readout.rows:
        shown += [_scores(diagnosis), Text()]
    left_out = diagnosis.readout.not_run.items()
    shown += [Text(f"not measured: {task}: {reason}", style="dim") for task, reason in left_out]
    for model in filter(None, (diagnosis.model, diagnosis.control)):
        shown += [Text(f"{model.name}: {note}", style="dim") for note in model.notes]
    return Group(*shown, Text(diagnosis.verdict.sentence, style="bold"))


def _title(model: ModelDiagnosis, where: str, diagnosis: Diagnosis) -> Text:
    c = model.curvature
    curvature = f", c = {_range(c)}" if c else ""
    counted = f"{diagnosis.samples} of {diagnosis.total} samples"
    bad = ", ".join(f"{count} points of {view} are not finite" for view, count in model.not_finite.items())
    return Text.assemble(
        (model.name, "bold"), f" ({model.manifold}{curvature}) on {where}, {counted}", f"; {bad}" * bool(bad)
    )


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if math.isclose(low, high) else f"{low:.3g} to {high:.3g}"


def _of_points(model: ModelDiagnosis) -> list[RenderableType]:
    views = Table("view", box=None, pad_edge=False)
    for head in ("mean radius", "sqrt(c)|x|, 5% to 95%", "saturated", "effective rank"):
        views.add_column(head, justify="right")
    radius = {radii.view: radii.mean for radii in model.radii}
    for point in model.operating_points:
        views.add_row(
            point.view,
            f"{radius[point.view]:.3f}" if point.view in radius else "-",
            "{5%:.3f} to {95%:.3f}".format_map(point.extent) if point.extent else "-",
            "-" if point.saturated is None else f"{100 * point.saturated:.1f}%",
            f"{point.effective_rank:.1f}",
        )
    if not model.ratios:
        return [views]
    ratios = Table("relation", "ratio of", box=None, pad_edge=False)
    for head in ("5%", "median", "95%"):
        ratios.add_column(head, justify="right")
    for ratio in model.ratios:
        quantiles = (f"{value:.4f}" for value in (ratio.low, ratio.median, ratio.high))
        ratios.add_row(ratio.relation, ratio.quantity.replace("_", " "), *quantiles)
    return [views, Text(), ratios]


def _scores(diagnosis: Diagnosis) -> Table:
    table = Table("task", Column("metric", overflow="fold"), "", box=None, pad_edge=False)
    for head in ("with map", "without", "difference", "control"):
        table.add_column(head, justify="right")
    for row in diagnosis.readout.rows:
        cells = (row.with_map, row.without_map, row.difference, row.control)
        table.add_row(row.task, row.metric, row.unit, *(_number(value, row.unit) for value in cells))
    return table


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.2f}" if unit == "%" else f"{value:.4f}"
