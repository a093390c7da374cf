"""Figures of where the points of a model lie and how it got there ("How hyperbolic ...", Figs. 1, 2, 5, 8 and 9).

A model is drawn solid and its Euclidean control dashed, in one panel; a view has the colour it has everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hyvlm.diagnostics.gradients import TermGradient
from hyvlm.diagnostics.operating_point import OperatingPoint
from hyvlm.diagnostics.radii import RadialDistribution
from hyvlm.diagnostics.trajectories import Trajectory
from hyvlm.plotting.figures import COLOURS, INK, NAMES, PALE, style

Line: TypeAlias = str | tuple[int, tuple[int, int]]
#: Of every view that a method knows; a short text is drawn as on maps of embeddings.
VIEW_COLOURS = COLOURS | {"short_text": COLOURS["part_text"], "query_image": "#009E73", "query_text": "#CC79A7"}
VIEW_NAMES = NAMES | {"short_text": "short texts", "query_image": "query images", "query_text": "query texts"}
#: Panels side by side, of a model alone.
ABREAST = 3
SOLID: Line = "solid"
DASHED: Line = (0, (4, 2))
#: Blue and vermilion of Okabe and Ito.
UP, DOWN = "#0072B2", "#D55E00"
FLOOR = "#D55E00"
STEPS = (1, 2, 2.5, 5, 10)
#: Temperatures have no colour of their own: bluish green, reddish purple and yellowish grey of Okabe and Ito.
TEMPERATURES = ("#009E73", "#CC79A7", INK)
#: What the rows of :func:`trajectory_figure` show.
ROWS = {
    "curvature": "curvature c",
    "radius": "mean radius, units of length",
    "contrast": "contrastive loss",
    "entailment": "entailment loss",
    "temperature": "temperature τ",
}
#: Which terms are of which kind, by their names: of any form between two views, not what is weighed by them.
KINDS = {
    "contrast": re.compile(r"term/\w+ -> (parent )?\w+"),
    "entailment": re.compile(r"term/(tokens of )?\w+ ⊒ (parent )?\w+"),
}


def radial_figure(
    models: Mapping[str, Sequence[RadialDistribution]],
    controls: Mapping[str, Sequence[RadialDistribution]] | None = None,
    *,
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """Densities of the distance from the origin, a panel a model and a colour a view (Figs. 2 and 8 in one).

    A view whose points all lie equally far has no density and is a vertical line.

    Args:
        models: Name to distributions, one a view.
        controls: The same of the controls, by the names of their models.
        labels: What lies along the axis of a model's panel, where it is not the distance from the origin.
    Raises:
        ValueError: If there is no distribution, or a control is of no model.
    """
    others = _controls(models, controls)
    shown = [name for name in models if models[name] or others[name]]
    if not shown:
        raise ValueError("there is no radial distribution to draw")
    columns = min(2, len(shown))
    lines = -(-len(shown) // columns)
    with style():
        figure = Figure(figsize=(7.0, 2.2 * lines + 0.6), layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False).ravel()
        for ax, name in zip(grid, shown, strict=False):
            ax.set_title(name, weight="bold", parse_math=False)
            ax.set(xlabel=(labels or {}).get(name, "distance from the origin, units of length"), yticks=[])
            for found, line in ((models[name], SOLID), (others[name], DASHED)):
                for distribution in found:
                    _density(ax, distribution, line)
            ax.set_ylim(bottom=0)
        grid[0].set_ylabel("density")
        for ax in grid[len(shown) :]:
            ax.set_visible(False)
        views = [found.view for name in shown for found in (*models[name], *others[name])]
        _key(figure, views, any(others[name] for name in shown))
    return figure


def _controls(models: Mapping[str, Any], controls: Mapping[str, Any] | None) -> dict[str, Any]:
    """The control of each model, or nothing."""
    if unmatched := [name for name in controls or {} if name not in models]:
        raise ValueError(f"the control {unmatched[0]!r} is of no model here: they are {', '.join(models)}")
    return {name: (controls or {}).get(name, ()) for name in models}


def _density(ax: Axes, found: RadialDistribution, line: Line) -> None:
    colour = VIEW_COLOURS.get(found.view, INK)
    if not found.density:
        ax.axvline(found.mode, color=colour, linestyle=line, linewidth=1.5)
        return
    ax.plot(found.grid, found.density, color=colour, linestyle=line, linewidth=1.5)
    if line == SOLID:
        ax.fill_between(found.grid, found.density, color=colour, alpha=0.2, linewidth=0)


def _key(figure: Figure, views: Sequence[str], control: bool) -> None:
    """Below all panels: a colour a view, and the two kinds of line where there is a control."""
    known = sorted(dict.fromkeys(views), key=lambda view: (*VIEW_COLOURS, view).index(view))
    handles = [Line2D([], [], color=VIEW_COLOURS.get(v, INK), linewidth=1.8, label=VIEW_NAMES.get(v, v)) for v in known]
    if control:
        handles += [
            Line2D([], [], color=INK, linestyle=SOLID, label="model"),
            Line2D([], [], color=INK, linestyle=DASHED, label="control"),
        ]
    if handles:
        lines = -(-len(handles) // max(2, int(figure.get_figwidth() / 1.35)))
        columns = -(-len(handles) // lines)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=1.9, columnspacing=1.2)


def trajectory_figure(
    models: Mapping[str, Mapping[str, Trajectory]],
    controls: Mapping[str, Mapping[str, Trajectory]] | None = None,
    *,
    rows: Sequence[str] = tuple(ROWS),
    floors: Mapping[str, float] | None = None,
) -> Figure:
    """Curvature, mean radii, losses and temperatures over training, a column a model (Figs. 1, 5 and 9).

    Iterations are logarithmic, as is the entailment loss. Losses are means over the terms of a kind; the curvature of a
    product is the mean of its factors', in a band from the least to the largest. Rows that nothing was logged of are
    left out.

    Args:
        models: Name to what its run logged, by its name in ``metrics.jsonl``.
        controls: The same of the controls, by the names of their models.
        rows: Which of :data:`ROWS`, from top to bottom.
        floors: The least curvature that a model may take, by its name.
    Raises:
        ValueError: If a row is unknown, a control is of no model, or nothing of ``rows`` was logged.
    """
    if unknown := [row for row in rows if row not in ROWS]:
        raise ValueError(f"there is no row {unknown[0]!r}: choose from {', '.join(ROWS)}")
    others = {name: dict(found) for name, found in _controls(models, controls).items()}
    courses = [*models.values(), *others.values()]
    logged = logged_rows(courses, rows)
    if not logged:
        raise ValueError(f"no course to draw: none of {', '.join(rows)} was logged")
    alone = len(models) == 1
    columns = min(ABREAST, len(logged)) if alone else len(models)
    lines = -(-len(logged) // columns) if alone else len(logged)
    with style():
        figure = Figure(figsize=(max(5.2, 2.3 * columns + 0.9), 1.5 * lines + 0.9), layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False)
        cells = [(row, name) for row in logged for name in models]
        for ax, (row, name) in zip(grid.ravel(), cells, strict=False):
            _course(ax, models[name], row, SOLID)
            _course(ax, others[name], row, DASHED)
            _scales(ax, row, (floors or {}).get(name))
        for ax in grid.ravel()[len(cells) :]:
            ax.set_visible(False)
        _headings(figure, grid, logged, list(models))
        views = [name.removeprefix("radius/") for course in courses for name in course if name.startswith("radius/")]
        _key(figure, views if "radius" in logged else [], any(others.values()))
    return figure


def logged_rows(courses: Iterable[Mapping[str, Trajectory]], rows: Sequence[str] = tuple(ROWS)) -> list[str]:
    """Those of ``rows`` that any of the runs logged something of."""
    known = list(courses)
    return [row for row in rows if any(_lines(course, row) for course in known)]


def _headings(figure: Figure, grid: np.ndarray, rows: Sequence[str], names: Sequence[str]) -> None:
    """What the panels show stands before the rows; above each panel where one model has them side by side."""
    if len(names) == 1:
        figure.suptitle(names[0], x=0.01, ha="left", fontsize=10, weight="bold", parse_math=False)
        for ax, row in zip(grid.ravel(), rows, strict=False):
            ax.set_title(ROWS[row])
    else:
        for ax, name in zip(grid[0], names, strict=True):
            ax.set_title(name, weight="bold", parse_math=False)
        for line, row in zip(grid, rows, strict=True):
            line[0].set_ylabel(ROWS[row].replace(", ", ",\n"))
        figure.align_ylabels(grid[:, 0])
    for column in grid.T:
        last = [ax for ax in column if ax.get_visible()][-1]
        last.set_xlabel("iteration")


def _lines(course: Mapping[str, Trajectory], row: str) -> list[tuple[str, Trajectory]]:
    """What a row draws of a course: colours and lines."""
    if row == "curvature":
        return [(INK, course[name]) for name in ("c", "c/mean") if name in course]
    if row == "radius":
        found = {name.removeprefix("radius/"): course[name] for name in course if name.startswith("radius/")}
        return [(VIEW_COLOURS.get(view, INK), trajectory) for view, trajectory in found.items()]
    if row == "temperature":
        found = {name: course[name] for name in sorted(course) if name.startswith("temperature/")}
        return [(TEMPERATURES[i % len(TEMPERATURES)], trajectory) for i, trajectory in enumerate(found.values())]
    mean = _mean([trajectory for name, trajectory in course.items() if KINDS[row].fullmatch(name)], row)
    return [(INK, mean)] if mean.steps else []


def _mean(terms: Sequence[Trajectory], name: str) -> Trajectory:
    """The mean of the terms at the steps at which any of them was logged."""
    values: dict[int, list[float]] = {}
    for term in terms:
        for step, value in zip(term.steps, term.values, strict=True):
            values.setdefault(step, []).append(value)
    steps = sorted(values)
    return Trajectory(name, steps, [fmean(values[step]) for step in steps])


def _course(ax: Axes, course: Mapping[str, Trajectory], row: str, line: Line) -> None:
    for colour, trajectory in _lines(course, row):
        values = np.asarray(trajectory.values, float)
        if row == "entailment":  # a loss of exactly 0, all pairs inside their cones, has no place on its axis
            values = np.where(values > 0, values, np.nan)
        look: dict[str, Any] = {
            "linestyle": line,
            "linewidth": 1.4,
            "marker": "o" if len(values) == 1 else "",
            "markersize": 3,
        }
        label = trajectory.name.removeprefix("temperature/") if row == "temperature" and line == SOLID else None
        ax.plot(trajectory.steps, values, color=colour, label=label, **look)
    if row == "curvature" and {"c/min", "c/max"} <= course.keys():
        low, high = course["c/min"], course["c/max"]
        ax.fill_between(low.steps, low.values, high.values, color=PALE, alpha=0.3, linewidth=0)


def _scales(ax: Axes, row: str, floor: float | None) -> None:
    ax.set_xscale("log")
    ax.xaxis.set_minor_formatter(NullFormatter())
    if not ax.lines:
        ax.set(yticks=[])
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", va="center", color="#767676")
        return
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
    if row == "entailment" and np.isfinite(drawn).any():
        decades = math.log10(np.nanmax(drawn) / np.nanmin(drawn))
        ax.set_yscale("log")
        ticks = LogLocator(subs=(1,) if decades > 2 else (1, 3)) if decades > 1 else MaxNLocator(4, steps=STEPS)
        ax.yaxis.set_major_locator(ticks)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(0, 1.05 * np.nanmax(drawn, initial=0.0) or 1)  # room for a line at the top
        ax.yaxis.set_major_locator(MaxNLocator(4, steps=STEPS))
    if row == "curvature" and floor is not None:
        ax.axhline(floor, color=FLOOR, linewidth=1, linestyle=(0, (1, 1.5)))
        place: dict[str, Any] = {
            "xycoords": ("axes fraction", "data"),
            "xytext": (-2, 2),
            "textcoords": "offset points",
        }
        ax.annotate("floor", (1, floor), ha="right", fontsize=7.5, color=FLOOR, **place)
    if row == "temperature" and any(not str(line.get_label()).startswith("_") for line in ax.lines[1:]):
        ax.legend(fontsize=7, handlelength=1.2, borderaxespad=0.2)


def operating_point_figure(models: Mapping[str, Sequence[OperatingPoint]]) -> Figure:
    """How far the points lie in units of the radius of curvature: 5 to 95 % as a bar, the median as a dot.

    Below 1 the space looks nearly flat from the origin; the axis is logarithmic.

    Raises:
        ValueError: If no model has a curvature.
    """
    drawn = [(name, point) for name, points in models.items() for point in points if point.extent is not None]
    if not drawn:
        raise ValueError("there is no operating point to draw: no model has a curvature")
    with style():
        figure = Figure(figsize=(7.0, 0.3 * len(drawn) + 0.9), layout="constrained")
        ax = figure.subplots()
        for row, (_, point) in enumerate(drawn):
            extent = point.extent or {}
            colour = VIEW_COLOURS.get(point.view, INK)
            ax.plot((extent["5%"], extent["95%"]), (row, row), color=colour, linewidth=6, solid_capstyle="butt")
            ax.plot(extent["50%"], row, "o", color="white", markeredgecolor=INK, markersize=5)
        several = len({name for name, _ in drawn}) > 1
        labels = [f"{name}: " * several + VIEW_NAMES.get(point.view, point.view) for name, point in drawn]
        ax.set_yticks(range(len(drawn)), labels=labels, parse_math=False)
        ax.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        ax.set(xlim=(min(low, 0.1), max(high, 3.0)), ylim=(len(drawn) - 0.4, -0.6))
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("√c |x|, space norm in units of the radius of curvature (dashed: 1)")
    return figure


def gradient_figure(terms: Sequence[TermGradient], *, signed: bool = True) -> Figure:
    """How much of the pull on the curvature comes from each term of the objective.

    Args:
        terms: Of one model.
        signed: Colour a term by whether a step along it raises or lowers the curvature; of a product, whose gradients
            are norms over the factors, that is not known.
    Raises:
        ValueError: If no term has a share.
    """
    drawn = [term for term in terms if term.share is not None]
    if not drawn:
        raise ValueError("there is no share of the curvature's gradient to draw")
    with style():
        figure = Figure(figsize=(7.0, 0.27 * len(drawn) + 0.9), layout="constrained")
        ax = figure.subplots()
        shares = [100 * (term.share or 0.0) for term in drawn]
        pull = [-term.weight * term.gradient for term in drawn]  # a step goes against the gradient
        colours = [UP if p > 0 else DOWN for p in pull] if signed else [PALE] * len(drawn)
        bars = ax.barh(range(len(drawn)), shares, height=0.65, color=colours)
        ax.bar_label(bars, [f"{share:.1f} %" for share in shares], padding=3, fontsize=8)
        labels = [term.term.replace("_", " ").replace("->", "→") for term in drawn]
        ax.set_yticks(range(len(drawn)), labels=labels, parse_math=False)
        ax.set(xlim=(0, 1.14 * max(*shares, 1.0)), ylim=(len(drawn) - 0.4, -0.6))
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("share of |weight × gradient| of the curvature, %")
        if signed:
            handles = [Patch(color=UP, label="raises c"), Patch(color=DOWN, label="lowers c")]
            figure.legend(handles=handles, loc="outside upper right", ncols=2)
    return figure
