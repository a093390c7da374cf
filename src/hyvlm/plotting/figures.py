"""Figures of what was measured: functions take arrays (or the file that holds them) and return a matplotlib figure.

Colours are those of Okabe and Ito, told apart with any colour vision: images are blue, texts orange, parts the lighter
shade of their modality. Figures are made without pyplot, so they need no display and leave no global state.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from PIL import Image

from hyvlm.files import write_text

#: A picture's files, by suffix.
Files = dict[str, Figure | str]

COLOURS = {"image": "#0072B2", "part_image": "#56B4E9", "text": "#D55E00", "part_text": "#E69F00"}
NAMES = {"image": "whole images", "part_image": "part images", "text": "whole texts", "part_text": "part texts"}
INK, PALE = "#333333", "#999999"

STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": PALE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "xtick.color": PALE,
    "ytick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@contextmanager
def style() -> Iterator[None]:
    """The settings of every figure of the library, inside the block alone."""
    with rc_context(STYLE):
        yield


def save(files: Files, out: Path, stem: str) -> list[Path]:
    """Write each file under a temporary name and rename it; the folder is made if need be."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, content in files.items():
        path = out / f"{stem}.{suffix}"
        if isinstance(content, str):
            write_text(path, content)
        else:
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            content.savefig(draft, dpi=150, format=suffix)
            os.replace(draft, path)
        written.append(path)
    return written


@contextmanager
def missing_letters() -> Iterator[None]:
    """Inside, characters that no font has are not warned of one by one, but named together on stderr at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", r"Glyph \d+ ")
        yield
    missing = dict[str, None]()
    for warning in caught:
        if glyph := re.match(r"Glyph (\d+) ", str(warning.message)):
            missing[chr(int(glyph[1]))] = None
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        some = " ".join(list(missing)[:5])
        print(
            f"hyvlm: no font here has {len(missing)} of the characters, such as {some}: the PNG shows boxes",
            file=sys.stderr,
        )


def radius_distribution(
    radius: Mapping[str, ArrayLike], *, before: Mapping[str, ArrayLike] | None = None, bins: int = 60
) -> Figure:
    """How far from the origin each view lies; images above, texts below, on one axis.

    Args:
        radius: View name ("image", "part_image", "text", "part_text"; any of them) to radii, in units of length.
        before: The same of the untrained weights; their medians are drawn.
        bins: Bins over the common range.
    Raises:
        ValueError: If no view has a finite radius.
    """
    now, then = _finite(radius), _finite(before or {})
    panels = [views for views in (("image", "part_image"), ("text", "part_text")) if any(v in now for v in views)]
    if not panels:
        raise ValueError(f"no view with a finite radius to draw; views are {', '.join(COLOURS)}")
    edges = np.histogram_bin_edges(np.concatenate(list(now.values())), bins=bins)
    with style():
        figure = Figure(figsize=(6.4, 1.9 * len(panels) + 0.5), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for ax, views in zip(axes, panels, strict=True):
            for view in (v for v in views if v in now):
                _histogram(ax, now[view], edges, COLOURS[view], f"{NAMES[view]}, median {np.median(now[view]):.2f}")
                if view in then:
                    median = float(np.median(then[view]))
                    label = f"before training, median {median:.2f}"
                    ax.axvline(median, color=COLOURS[view], linewidth=1.2, linestyle=(0, (4, 3)), label=label)
            ax.set_ylabel("share per bin, %")
            ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.4)
        axes[-1].set_xlabel("hyperbolic radius, units of length  (left: general, right: specific)")
    return figure


def pair_distances(matched: ArrayLike, unmatched: ArrayLike, *, bins: int = 60) -> Figure:
    """Distances of images to their own text and to another image's text.

    Args:
        matched, unmatched: Geodesic distances, in units of length; any numbers of them.
        bins: Bins over the common range.
    """
    groups = _finite({"own text": matched, "another image's text": unmatched})
    if len(groups) < 2:
        raise ValueError("both matched and unmatched pairs need at least one finite distance")
    edges = np.histogram_bin_edges(np.concatenate(list(groups.values())), bins=bins)
    with style():
        figure = Figure(figsize=(6.4, 2.4), layout="constrained")
        ax = figure.subplots()
        for (name, values), colour in zip(groups.items(), (COLOURS["image"], COLOURS["part_text"]), strict=True):
            median = float(np.median(values))
            _histogram(ax, values, edges, colour, f"{name}, median {median:.2f}")
            ax.axvline(median, color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
        ax.set_xlabel("geodesic distance from image to text, units of length")
        ax.set_ylabel("share per bin, %")
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.4)
    return figure


def _finite(groups: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(values, dtype=float).ravel() for name, values in groups.items()}
    kept = {name: values[np.isfinite(values)] for name, values in arrays.items()}
    return {name: values for name, values in kept.items() if len(values)}


def _histogram(ax: Axes, values: np.ndarray, edges: np.ndarray, colour: str, label: str) -> None:
    share = 100 * np.histogram(values, edges)[0] / len(values)
    ax.stairs(share, edges, fill=True, color=colour, alpha=0.45, label=label)
    ax.stairs(share, edges, color=colour, linewidth=1.2)


def loss_curves(metrics: str | Path | Sequence[Mapping[str, Any]], *, smooth: float = 0.8) -> Figure:
    """The loss and each of its terms over training steps, a panel each; their scales differ.

    Args:
        metrics: A run's ``metrics.jsonl``, or its rows; rows without ``loss`` (evaluations) are left out.
        smooth: Weight of the past in the dark line, an exponential mean (0: none); the pale line is what was logged.
    Raises:
        ValueError: If no row has a loss.
        FileNotFoundError: If the file does not exist.
    """
    rows: Sequence[Mapping[str, Any]]
    if isinstance(metrics, str | Path):
        rows = [json.loads(line) for line in Path(metrics).read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        rows = metrics
    rows = [row for row in rows if row.get("loss") is not None]
    if not rows:
        raise ValueError("there is no logged loss to draw")
    names = ["loss", *dict.fromkeys(key for row in rows for key in row if key.startswith("term/"))]
    columns = min(4, len(names))
    lines = math.ceil(len(names) / columns)
    with style():
        figure = Figure(figsize=(2.2 * columns + 0.4, 1.5 * lines + 0.5), layout="constrained")
        axes = figure.subplots(lines, columns, sharex=True, squeeze=False).ravel()
        for ax, name in zip(axes, names, strict=False):
            steps, values = np.array([(row["step"], row[name]) for row in rows if row.get(name) is not None], float).T
            colour = INK if name == "loss" else COLOURS["image"]
            ax.plot(steps, values, color=colour, linewidth=0.8, alpha=0.3)
            ax.plot(steps, _exponential_mean(values, smooth), color=colour, linewidth=1.4)
            ax.set_title("total loss" if name == "loss" else name.removeprefix("term/"))
            ax.locator_params(nbins=4)
        for ax in axes[len(names) :]:
            ax.set_visible(False)
        for lowest in axes[max(0, len(names) - columns) : len(names)]:  # of each column
            lowest.set_xlabel("step")
            lowest.tick_params(labelbottom=True)
    return figure


def _exponential_mean(values: np.ndarray, weight: float) -> np.ndarray:
    """Exponential mean with bias correction, so that the first value is kept."""
    mean, seen = 0.0, 0.0
    smoothed = np.empty_like(values)
    for i, value in enumerate(values):
        mean, seen = weight * mean + (1 - weight) * value, weight * seen + (1 - weight)
        smoothed[i] = mean / seen
    return smoothed


@dataclass(frozen=True)
class Placed:
    """A picture with its radius and what to write below it."""

    image: Image.Image
    radius: float
    caption: str = ""


def part_gallery(scenes: Sequence[tuple[Placed, Sequence[Placed]]]) -> Figure:
    """Each row a whole image, and its parts from the smallest to the largest radius: the general ones come first.

    Args:
        scenes: Whole and parts, a row each.
    """
    if not scenes:
        raise ValueError("a gallery needs at least one image")
    widest = max(len(parts) for _, parts in scenes)
    with style():
        figure = Figure(figsize=(1.45 * (widest + 1.25), 1.85 * len(scenes)), layout="constrained")
        grid = figure.subplots(
            len(scenes), widest + 1, squeeze=False, gridspec_kw={"width_ratios": [1.25, *[1] * widest]}
        )
        for line, (whole, parts) in zip(grid, scenes, strict=True):
            ordered = sorted(parts, key=lambda part: part.radius)
            for ax in line:
                ax.set_axis_off()
            for ax, placed, colour in zip(line, [whole, *ordered], [COLOURS["image"], *[PALE] * widest], strict=False):
                _thumbnail(ax, placed, colour)
        grid[0, 0].set_title("whole")
        if widest:
            grid[0, 1].set_title("parts, nearest to the origin first")
    return figure


def _thumbnail(ax: Axes, placed: Placed, colour: str) -> None:
    ax.set_axis_on()
    ax.imshow(np.asarray(placed.image.convert("RGB")))
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color(colour)
        spine.set_linewidth(1.5)
    ax.set_xlabel(f"{placed.caption}\nradius {placed.radius:.2f}".strip(), fontsize=7, labelpad=3)
