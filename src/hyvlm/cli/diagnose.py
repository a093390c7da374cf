"""``hyvlm diagnose``: how hyperbolic a model is."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from hyvlm.cli.options import BatchSize, Cache, Device, Out, PartSize, Readout, Resize, Split, Workers
from hyvlm.errors import MissingExtra

if TYPE_CHECKING:
    from hyvlm.diagnostics.diagnosis import Diagnosis, ModelDiagnosis


def diagnose(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a checkpoint or a saved model")],
    data: Annotated[str, typer.Option("--data", "--dataset", help="NAME or NAME:LOCATION, with captions")],
    split: Split = None,
    control: Annotated[
        str | None, typer.Option("--control", help="Model to hold it against, such as MODEL's twin")
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", help="Whose relations to measure; default: that of the run")
    ] = None,
    captions: Annotated[str | None, typer.Option("--captions", help="Text of an image: first, last or joined")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=2, help="Samples of a set, at the most")] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", help="TASK or TASK=DATA, read with and without the map; repeatable; default: a suite"),
    ] = None,
    readout: Readout = None,
    tolerance: Annotated[float, typer.Option("--tolerance", help="How far from 1 a weak ratio may be")] = 0.05,
    max_change: Annotated[
        float, typer.Option("--max-change", help="Points that a score may move without the map")
    ] = 1.0,
    resize: Resize = None,
    part_size: PartSize = None,
    device: Device = None,
    cache: Cache = None,
    out: Out = None,
    batch_size: BatchSize = 64,
    num_workers: Workers = 2,
) -> None:
    """Say how hyperbolic a model is: what its curvature changes in distances, angles and scores. Writes a report."""
    from hyvlm.diagnostics.diagnose import diagnose as run
    from hyvlm.diagnostics.verdict import Thresholds
    from hyvlm.files import check_folder

    folder = out or Path("diagnosis")
    check_folder(folder, "the folder for the diagnosis", ["diagnosis.json", "diagnosis.html"])
    found = run(
        model,
        data,
        split=split,
        control=control,
        objective=objective,
        captions=captions,
        limit=limit,
        tasks=task or None,
        readout=readout,
        thresholds=Thresholds(tolerance=tolerance, max_change=max_change),
        resize=resize,
        part_size=part_size,
        device=device,
        cache=cache,
        batch_size=batch_size,
        workers=num_workers,
    )
    Console().print(summary(found))
    write(found, folder)


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
