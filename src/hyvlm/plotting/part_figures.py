"""Figures of parts and wholes: uncertainty, ordered crops, distances over training, gradients of terms (UNCHA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from PIL import Image

from hyvlm.diagnostics.gradients import GradientCosines
from hyvlm.diagnostics.radii import RadialDistribution
from hyvlm.diagnostics.separation import Separation
from hyvlm.evaluation.tasks.part_uncertainty import Correlation, PartUncertainty
from hyvlm.plotting.figures import COLOURS, INK, PALE, style

#: Crops of a row of a sheet, and inches a crop.
ACROSS, INCHES = 6, 0.78
#: Checkpoints whose densities are drawn, at the most.
DENSITIES = 4
#: What each distance is called, and its colour; those of Okabe and Ito.
DISTANCES = {
    "mmd": ("MMD", "#CC79A7"),
    "w1": ("W1, units of length", "#0072B2"),
    "w2": ("W2, units of length", "#D55E00"),
}


@dataclass(frozen=True)
class Scatter:
    """Parts of a set under a model, with the correlations of uncertainty with similarity and with the cosine."""

    found: PartUncertainty
    by_distance: Correlation
    by_cosine: Correlation


def uncertainty_scatter(models: Mapping[str, Scatter], *, what: str = "parts") -> Figure:
    """Uncertainty of parts over their closeness to the whole, a column a model (Fig. 4b).

    Above closeness is minus the geodesic distance, which depends on the distance from the origin as the uncertainty
    does; below it is the cosine of tangent vectors, which does not.

    Args:
        what: How the parts are called.
    """
    if not models:
        raise ValueError("there is no model to draw the uncertainty of parts for")
    with style():
        figure = Figure(figsize=(max(3.4 * len(models), 4.2), 5.4), layout="constrained")
        grid = figure.subplots(2, len(models), squeeze=False)
        for (upper, lower), (name, one) in zip(grid.T, models.items(), strict=True):
            _scatter(upper, one.found.similarity, one.found.uncertainty, one.by_distance)
            _scatter(lower, one.found.cosine, one.found.uncertainty, one.by_cosine)
            upper.set_title(f"{name}\n{upper.get_title(loc='left')}", parse_math=False)
            upper.set_xlabel("minus distance of part and whole, units of length")
            lower.set_xlabel("cosine of part and whole at the origin")
        for ax in grid[:, 0]:
            ax.set_ylabel(f"uncertainty of {what}")
    return figure


def _scatter(ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64], found: Correlation) -> None:
    size = float(np.clip(4000 / max(len(x), 1), 1.5, 14))
    ax.scatter(x, y, s=size, color=COLOURS["part_image"], alpha=0.5, linewidths=0, rasterized=True)
    low, high = found.interval
    ax.set_title(f"r = {found.value:.3f}, 95 % interval {low:.3f} to {high:.3f}, n = {len(x):,}")
    ax.locator_params(nbins=5)


@dataclass(frozen=True)
class Crop:
    """A crop with its uncertainty and its norm."""

    image: Image.Image
    uncertainty: float
    norm: float


def crop_sheet(whole: Image.Image, models: Mapping[str, Sequence[Crop]]) -> Figure:
    """Crops of an image from the lowest to the highest uncertainty, line by line, a block a model (Figs. 4a, S.13).

    Args:
        whole: What they were cut from.
        models: Model name to its crops, in any order.
    Raises:
        ValueError: If there is no crop.
    """
    most = max((len(crops) for crops in models.values()), default=0)
    if not most:
        raise ValueError("there is no crop to draw")
    lines = -(-most // ACROSS)
    block = ACROSS * INCHES
    with style():
        figure = Figure(figsize=(2.1 + (block + 0.25) * len(models), 0.98 * lines + 0.5), layout="constrained")
        first, *blocks = figure.subfigures(
            1, 1 + len(models), squeeze=False, wspace=0.05, width_ratios=[2.1, *[block] * len(models)]
        )[0]
        ax = first.subplots()
        _bare(ax, whole)
        ax.set_title("whole", fontsize=8)
        for sub, (name, crops) in zip(blocks, models.items(), strict=True):
            sub.suptitle(f"{name}: crops by uncertainty, lowest first", fontsize=8.5, x=0.01, ha="left")
            axes = sub.subplots(lines, ACROSS, squeeze=False).ravel()
            for ax in axes:
                ax.set_axis_off()
            for ax, crop in zip(axes, sorted(crops, key=lambda crop: crop.uncertainty), strict=False):
                _bare(ax, crop.image)
                ax.set_title(f"u {crop.uncertainty:.4f}\nnorm {crop.norm:.3f}", fontsize=5.8, loc="center", pad=2)
    return figure


def _bare(ax: Axes, image: Image.Image) -> None:
    ax.imshow(np.asarray(image.convert("RGB")))
    ax.set_axis_off()


@dataclass(frozen=True)
class Moment:
    """Radii of wholes and parts at one checkpoint.

    Attributes:
        name: Of the checkpoint; its step, if it is one of a run.
        wholes, parts: Their distributions.
        distance: Between the two.
    """

    name: str
    wholes: RadialDistribution
    parts: RadialDistribution
    distance: Separation


def distances_figure(moments: Sequence[Moment], *, what: str = "part images") -> Figure:
    """Densities of the radii of whole and part images at some checkpoints, and MMD, W1 and W2 at all (Fig. S.10).

    Args:
        moments: In the order of training; of more than four the first, the last and two between them have a density.
        what: How the parts are called.
    Raises:
        ValueError: If there is none.
    """
    if not moments:
        raise ValueError("there is no checkpoint to draw distances of")
    shown = [moments[i] for i in np.unique(np.linspace(0, len(moments) - 1, DENSITIES).round().astype(int))]
    numbers = [int(one.name) if one.name.isdecimal() else None for one in moments]
    places = list(range(len(moments))) if None in numbers else numbers
    with style():
        figure = Figure(figsize=(max(2.0 * len(shown), 6.6), 4.4), layout="constrained")
        above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[1, 1.05])[:, 0]
        axes = above.subplots(1, len(shown), sharex=True, squeeze=False)[0]
        for ax, one in zip(axes, shown, strict=True):
            for view, found in (("image", one.wholes), ("part_image", one.parts)):
                _density(ax, found, COLOURS[view])
            ax.set_title(f"step {int(one.name):,}" if one.name.isdecimal() else one.name, parse_math=False)
            ax.set(yticks=[])
            ax.set_ylim(bottom=0)
        above.supxlabel("distance from the origin, units of length", fontsize=9)
        axes[0].set_ylabel("density")
        handles = [
            Line2D([], [], color=COLOURS[view], linewidth=1.8, label=label)
            for view, label in (("image", "whole images"), ("part_image", what))
        ]
        above.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=8)
        for ax, (name, (label, colour)) in zip(below.subplots(1, 3), DISTANCES.items(), strict=True):
            values = [getattr(one.distance, name) for one in moments]
            ax.plot(places, values, "o-", color=colour, markersize=3)
            ax.set_title(label + (f", bandwidth {moments[-1].distance.bandwidth:.3g}" if name == "mmd" else ""))
            ax.set_ylim(0, 1.12 * max(values) or 1)
            _steps(ax, moments, None in numbers)
    return figure


def _density(ax: Axes, found: RadialDistribution, colour: str) -> None:
    if found.density:
        ax.fill_between(found.grid, found.density, color=colour, alpha=0.25, linewidth=0)
        ax.plot(found.grid, found.density, color=colour, linewidth=1.3)
    else:
        ax.axvline(found.mode, color=colour, linewidth=1.5)


def _steps(ax: Axes, moments: Sequence[Moment], named: bool) -> None:
    if named:
        ax.set_xticks(range(len(moments)), [one.name for one in moments], rotation=30, ha="right", parse_math=False)
    else:
        ax.set_xlabel("iteration")
        ax.locator_params(axis="x", nbins=4, integer=True)


def cosine_figure(models: Mapping[str, GradientCosines]) -> Figure:
    """Cosines between the gradients of an objective's parts, a matrix a model (Fig. S.8a).

    Raises:
        ValueError: If there is no model.
    """
    if not models:
        raise ValueError("there is no model to draw cosines of gradients for")
    most = max(len(found.names) for found in models.values())
    side = max(0.46 * most + 1.5, 2.6)
    with style():
        figure = Figure(figsize=((side + 0.9) * len(models) + 0.4, side), layout="constrained")
        axes = figure.subplots(1, len(models), squeeze=False)[0]
        for ax, (name, found) in zip(axes, models.items(), strict=True):
            values = np.array(found.cosines, dtype=float)  # None becomes NaN
            drawn = ax.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1)
            labels = [term.replace("_", " ").replace("->", "→") for term in found.names]
            ax.set_xticks(range(len(labels)), labels, rotation=40, ha="right", parse_math=False)
            ax.set_yticks(range(len(labels)), labels, parse_math=False)
            ax.grid(visible=False)
            ax.spines[:].set_visible(False)
            ax.set_title(name, weight="bold", parse_math=False)
            for (row, column), value in np.ndenumerate(values):
                colour = "white" if abs(value) > 0.6 else INK if np.isfinite(value) else PALE
                text = f"{value:+.2f}" if np.isfinite(value) else "none"
                ax.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
        figure.colorbar(drawn, ax=axes, shrink=0.8, label="cosine of gradients")
    return figure
