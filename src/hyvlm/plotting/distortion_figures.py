"""Figures of how far the exponential map is from the identity ("How hyperbolic ...", Figs. 3, 4, 6 and 7).

White is a ratio of 1, where distances and angles are those of flat space; blue is below it and red above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import CenteredNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from hyvlm.diagnostics.distortion import ApertureCurve, RelationRatios, Surface
from hyvlm.plotting.figures import COLOURS, INK, NAMES, PALE, style

QUANTITIES = {"distance": "distance", "exterior_angle": "exterior angle", "aperture": "half-aperture"}
#: The two geometries of one aperture; vermilion and blue of Okabe and Ito.
HYPERBOLIC, FLAT = "#0072B2", "#D55E00"
#: What multiples of a sixteenth of π are called.
SIXTEENTHS = ("0", "π/16", "π/8", "3π/16", "π/4", "5π/16", "3π/8", "7π/16", "π/2")
#: Without the darkest ends, on which the box would not be seen.
DIVERGING = LinearSegmentedColormap.from_list("ratios", colormaps["RdBu_r"](np.linspace(0.12, 0.88, 255)))
MISSING = "#DDDDDD"
#: Relations side by side, of a model alone.
ABREAST = 4
STEPS = (1, 2, 2.5, 5, 10)


def relation_label(relation: str) -> str:
    """A relation as people read it: "part_image -> text" is "part image → text"."""
    return relation.replace("_", " ").replace("->", "→")


@dataclass(frozen=True)
class _Row:
    """A row of heat maps: its quantity, what stands before it, and its panels with what stands above each."""

    quantity: str
    label: str
    panels: list[tuple[str, Surface | None]]


def heat_maps(models: Mapping[str, Sequence[Surface]]) -> Figure:
    """Ratios over the enclosed angle and the second radius, a column a model and a row a relation (Figs. 3, 6, 7).

    One model alone has its relations side by side. The first radius stays at its mode; the dashed box holds the angles
    and radii of the model's own pairs. All panels of a quantity share one scale of colours.

    Args:
        models: Name to surfaces, of distances, of exterior angles, or of both.
    Raises:
        ValueError: If there is no surface, or none of a quantity's ratios is finite.
    """
    rows = _rows(models)
    if not rows:
        raise ValueError("there is no distortion surface to draw")
    columns = max(len(row.panels) for row in rows)
    with style():
        figure = Figure(figsize=(1.85 * columns + 1.4, 1.75 * len(rows) + 0.7), layout="constrained")
        grid = figure.subplots(len(rows), columns, sharex=True, squeeze=False)
        if len(models) == 1:
            figure.suptitle(next(iter(models)), x=0.01, ha="left", fontsize=10, weight="bold", parse_math=False)
        for quantity in dict.fromkeys(row.quantity for row in rows):
            mine = [i for i, row in enumerate(rows) if row.quantity == quantity]
            scale = _scale([s for i in mine for _, s in rows[i].panels if s is not None])
            for i in mine:
                _row(grid[i], rows[i], scale)
            _colour_bar(figure, grid[mine].ravel().tolist(), scale, f"ratio of {QUANTITIES[quantity]}s", len(mine))
        for column in grid.T:
            last = [ax for ax in column if ax.get_visible()][-1]
            last.set(xticks=(0, math.pi / 2, math.pi), xticklabels=("0", "π/2", "π"), xlabel="θ, enclosed angle")
            last.tick_params(labelbottom=True)
        figure.align_ylabels(grid[:, 0])
    return figure


def _rows(models: Mapping[str, Sequence[Surface]]) -> list[_Row]:
    found = [s for surfaces in models.values() for s in surfaces]
    rows: list[_Row] = []
    for quantity in (q for q in QUANTITIES if any(s.quantity == q for s in found)):
        mine = [s for s in found if s.quantity == quantity]
        if len(models) == 1:
            panels: list[tuple[str, Surface | None]] = [(relation_label(s.relation), s) for s in mine]
            rows += [_Row(quantity, "", panels[i : i + ABREAST]) for i in range(0, len(panels), ABREAST)]
            continue
        for relation in dict.fromkeys(s.relation for s in mine):
            line = [next((s for s in of if s in mine and s.relation == relation), None) for of in models.values()]
            headings = ["" for _ in models] if rows else list(models)
            rows.append(_Row(quantity, relation_label(relation), list(zip(headings, line, strict=True))))
    return rows


def _row(axes: Sequence[Axes], row: _Row, scale: tuple[float, float]) -> None:
    for ax, (heading, surface) in zip(axes, row.panels, strict=False):
        _absent(ax) if surface is None else _surface(ax, surface, scale)
        ax.annotate(heading, (0, 1.17), xycoords="axes fraction", weight="bold", parse_math=False)
    for ax in axes[len(row.panels) :]:
        ax.set_visible(False)
    axes[0].set_ylabel(f"{row.label}\n\nr₂" if row.label else "r₂")


def _scale(surfaces: Sequence[Surface]) -> tuple[float, float]:
    """The least and the largest ratio, 1 included, apart by 1e-6 or more."""
    values = np.concatenate([np.ravel(surface.values) for surface in surfaces]).astype(float)
    values = values[np.isfinite(values)]
    if not len(values):
        raise ValueError(f"no ratio of {QUANTITIES[surfaces[0].quantity]}s is a finite number")
    return min(1.0, float(values.min())), max(1.0 + 1e-6, float(values.max()))


def _norm(scale: tuple[float, float]) -> CenteredNorm:
    return CenteredNorm(1.0, max(scale[1] - 1, 1 - scale[0]))


def _surface(ax: Axes, surface: Surface, scale: tuple[float, float]) -> None:
    values = np.asarray(surface.values, float)
    ax.grid(visible=False)
    ax.set_facecolor(MISSING)
    ax.pcolormesh(surface.theta, surface.r2, values, norm=_norm(scale), cmap=DIVERGING, shading="nearest")
    box = surface.box
    width, height = box.theta_high - box.theta_low, box.r2_high - box.r2_low
    corner = (box.theta_low, box.r2_low)
    ax.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=INK, linestyle=(0, (4, 3))))
    ax.set_title(f"c = {curvature(surface.c)}, r₁ = {surface.r1:.2f}", fontsize=8)
    ax.set(xlim=(0, math.pi), ylim=(min(surface.r2), max(surface.r2)))
    ax.yaxis.set_major_locator(MaxNLocator(4, steps=STEPS))


def curvature(c: float) -> str:
    """Two decimals, or two digits of what is smaller."""
    return f"{c:.2f}" if c >= 0.095 else f"{c:.2g}"


def _absent(ax: Axes) -> None:
    ax.grid(visible=False)
    ax.set(yticks=[], xlim=(0, math.pi))
    ax.text(0.5, 0.5, "not in the loss", transform=ax.transAxes, ha="center", va="center", color="#767676")


def _colour_bar(figure: Figure, axes: list[Axes], scale: tuple[float, float], label: str, rows: int) -> None:
    low, high = scale
    bar = figure.colorbar(ScalarMappable(_norm(scale), DIVERGING), ax=axes, aspect=14 * rows, pad=0.02)
    bar.ax.set_ylim(low, high)
    digits = max(2, 1 - math.floor(math.log10(high - low)))
    ticks = np.linspace(low, high, 5)
    bar.set_ticks(ticks.tolist(), labels=[f"{tick:.{digits}f}" for tick in ticks])
    bar.minorticks_off()
    bar.set_label(label, fontsize=8)


def aperture_figure(models: Mapping[str, Sequence[ApertureCurve]]) -> Figure:
    """Left the ratio of the half-apertures, right both of them, over one view's radii; a row a model and view (Fig. 4).

    Shaded: the flat half-aperture is still clamped at a right angle while the hyperbolic one is not.

    Raises:
        ValueError: If there is no curve.
    """
    rows = [(name, curve) for name, curves in models.items() for curve in curves]
    if not rows:
        raise ValueError("there is no aperture curve to draw")
    with style():
        figure = Figure(figsize=(7.0, 1.6 * len(rows) + 0.5), layout="constrained")
        grid = figure.subplots(len(rows), 2, squeeze=False)
        for (left, right), (name, curve) in zip(grid, rows, strict=True):
            r1, flat, hyperbolic = (np.asarray(v, float) for v in (curve.r1, curve.flat, curve.hyperbolic))
            view = NAMES.get(curve.view, curve.view)
            left.set_title(f"{name}: {view}, c = {curvature(curve.c)}", parse_math=False)
            _ratio(left, r1, np.asarray(curve.ratio, float))
            right.plot(r1, hyperbolic, color=HYPERBOLIC, linewidth=1.5, label="hyperbolic")
            right.plot(r1, flat, color=FLAT, linewidth=1.5, linestyle=(0, (4, 2)), label="Euclidean")
            _right_angle_ticks(right, min(hyperbolic.min(), flat.min()))
            clamped = (flat >= math.pi / 2 - 1e-9) & (hyperbolic < math.pi / 2 - 1e-9)
            for ax in (left, right):
                _shade(ax, r1, clamped)
        grid[0, 1].legend(loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.1, ncols=2)
        for ax in grid[-1]:
            ax.set_xlabel("r₁, distance from the origin")
        figure.align_ylabels()
    return figure


def _ratio(ax: Axes, r1: np.ndarray, ratio: np.ndarray) -> None:
    """The curve with its least value marked, if it is not 1."""
    low = int(np.nanargmin(ratio))
    ax.axhline(1, color=PALE, linewidth=0.8)
    ax.plot(r1, ratio, color=INK, linewidth=1.5)
    if ratio[low] < 0.9995:
        side, aside = ("left", 6) if 2 * low < len(r1) else ("right", -6)
        ax.plot(r1[low], ratio[low], "o", color=INK, markersize=4)
        place: dict[str, Any] = {"xytext": (aside, -2), "textcoords": "offset points", "ha": side, "va": "top"}
        ax.annotate(f"{ratio[low]:.2f}", (r1[low], ratio[low]), **place)
    depth = max(0.02, 1 - ratio[low])
    ax.set_ylim(1 - 1.3 * depth, max(1 + 0.15 * depth, np.nanmax(ratio) + 0.15 * depth))
    ax.yaxis.set_major_locator(MaxNLocator(4, steps=STEPS))
    ax.set_ylabel("ratio")


def _right_angle_ticks(ax: Axes, lowest: float) -> None:
    """Ticks at sixteenths of π from a right angle down to ``lowest``, but two at the least; eighths below π/4."""
    step = 1 if lowest > math.pi / 4 else 2
    shown = [k for k in range(8, -1, -step) if k >= 7 or (k + step) * math.pi / 16 > lowest]
    ax.set_yticks([k * math.pi / 16 for k in shown], labels=[SIXTEENTHS[k] for k in shown])
    ax.set_ylabel("half-aperture")


def _shade(ax: Axes, r1: np.ndarray, where: np.ndarray) -> None:
    """Where ``where`` holds, out to the next radii, so that a single one is seen too."""
    held = np.flatnonzero(where)
    if len(held):
        ends = r1[max(held[0] - 1, 0)], r1[min(held[-1] + 1, len(r1) - 1)]
        ax.axvspan(*ends, color=COLOURS["part_text"], alpha=0.4, linewidth=0)


def ratio_ranges(relations: Sequence[RelationRatios], *, tolerance: float = 0.05) -> Figure:
    """The ratios of a model's own pairs, 5 to 95 % of them as a bar and the median as a tick; grey: 1 +- ``tolerance``.

    Raises:
        ValueError: If there is no relation, or all ratios of one are undefined.
    """
    drawn = [r for quantity in QUANTITIES for r in relations if r.quantity == quantity and math.isfinite(r.median)]
    if not drawn:
        raise ValueError("there is no relation with a ratio to draw")
    with style():
        figure = Figure(figsize=(7.0, 0.27 * len(drawn) + 0.9), layout="constrained")
        ax = figure.subplots()
        ax.axvspan(1 - tolerance, 1 + tolerance, color="#EEEEEE", linewidth=0, zorder=0)
        ax.axvline(1, color=PALE, linewidth=0.8)
        for row, ratio in enumerate(drawn):
            ax.plot((ratio.low, ratio.high), (row, row), color=COLOURS["image"], linewidth=6, solid_capstyle="butt")
            ax.plot(ratio.median, row, "|", color=INK, markersize=11, markeredgewidth=1.4)
        labels = [f"{QUANTITIES[r.quantity]}: {relation_label(r.relation)}" for r in drawn]
        ax.set_yticks(range(len(drawn)), labels=labels)
        ax.set_ylim(len(drawn) - 0.4, -0.6)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(f"hyperbolic over flat, 5 to 95 % of the pairs; grey is 1 ± {tolerance:g}")
    return figure
