"""Figures of dense features: classes laid over an image, and how close its places are to a text (UNCHA, S.11, S.12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import distance_transform_edt

from hyvlm.data.sets.masks import IGNORED
from hyvlm.plotting.figures import INK, style

#: Inches: width of a panel.
PANEL = 3.0
#: Regions of a class below this share of the image are named in the legend alone.
NAMED = 0.01
#: Colour map of similarities, from far to close.
HEAT = matplotlib.colormaps["inferno"]


def voc_colour(label: int) -> tuple[float, float, float]:
    """The colour, 0 to 1, that PASCAL VOC's palette gives a class: bits of the label, spread over the channels."""
    channels = [0, 0, 0]
    for place in range(8):
        for channel in range(3):
            channels[channel] |= (label >> channel & 1) << 7 - place
        label >>= 3
    return channels[0] / 255, channels[1] / 255, channels[2] / 255


def segmentation_figure(image: Image.Image, classes: Sequence[str], maps: Mapping[str, NDArray[np.integer]]) -> Figure:
    """The image, and beside it every map of labels ``(H, W)`` laid over it; class 0 stays clear, ignored pixels white.

    Args:
        image: Of the maps' size.
        classes: Names of the labels.
        maps: Title to labels.
    Raises:
        ValueError: There is no map, or one is not of the image's size.
    """
    _check_sizes(image, maps)
    shown = sorted({int(label) for labels in maps.values() for label in np.unique(labels)} - {0, IGNORED})
    rows_of_legend = -(-max(1, len(shown)) // max(1, 2 * (len(maps) + 1)))
    height = PANEL * image.height / image.width
    with style():
        figure, panels = _panels(1, len(maps) + 1, height, below=0.15 + 0.2 * rows_of_legend)
        _show(panels[0][0], np.asarray(image.convert("RGB")), "image")
        for ax, (title, labels) in zip(panels[0][1:], maps.items(), strict=True):
            _show(ax, _overlay(image, labels), title)
            for label in shown:
                _name_region(ax, labels == label, classes[label])
        handles = [Patch(facecolor=voc_colour(label), label=classes[label]) for label in shown]
        if handles:
            figure.legend(handles=handles, loc="lower left", ncols=2 * (len(maps) + 1), handlelength=1, fontsize=8)
    return figure


def similarity_figure(image: Image.Image, maps: Mapping[str, Mapping[str, NDArray[np.floating]]]) -> Figure:
    """How close every place of the image is to texts: a row for each text, a column for each model.

    Args:
        image: Of the maps' size.
        maps: Text to name of a model to scores ``(H, W)``; each panel has its own scale, lowest to highest.
    Raises:
        ValueError: There is no map, one is not of the image's size, or a score is not finite.
    """
    by_place = {f"{name}: {text}": scores for text, row in maps.items() for name, scores in row.items()}
    _check_sizes(image, by_place)
    for title, scores in by_place.items():
        if not np.isfinite(scores).all():
            raise ValueError(f"{title}: every score must be a finite number")
    columns = 1 + max(len(row) for row in maps.values())
    height = PANEL * image.height / image.width
    with style():
        figure, panels = _panels(len(maps), columns, height, below=0.5)
        for axes, (text, row) in zip(panels, maps.items(), strict=True):
            _show(axes[0], np.asarray(image.convert("RGB")), f'"{text}"')
            for ax, (name, scores) in zip(axes[1:], row.items(), strict=True):
                _show(ax, _heat(image, scores), f"{name}   ({scores.min():.3g} to {scores.max():.3g})")
        across, down = figure.get_size_inches()
        bar = figure.add_axes((1 - 2.1 / across, 0.3 / down, 2.0 / across, 0.1 / down))
        colours = figure.colorbar(ScalarMappable(Normalize(0, 1), HEAT), cax=bar, orientation="horizontal")
        colours.set_ticks([0, 1], labels=["farthest", "closest"], fontsize=8)
        ends = colours.ax.get_xticklabels()
        ends[0].set_horizontalalignment("left")
        ends[1].set_horizontalalignment("right")
        figure.text(0.1 / across, 0.25 / down, "score of each place, scaled in every panel by itself", fontsize=8)
    return figure


def _check_sizes(image: Image.Image, maps: Mapping[str, NDArray[np.generic]]) -> None:
    if not maps:
        raise ValueError("there is no map to draw")
    for title, values in maps.items():
        if values.shape != (image.height, image.width):
            raise ValueError(
                f"{title}: a map of {values.shape}, but the image has {(image.height, image.width)} pixels"
            )


def _panels(rows: int, columns: int, height: float, *, below: float) -> tuple[Figure, list[list[Axes]]]:
    """A figure with panels of one size, ``below`` inches of room at its foot, and room for titles."""
    gap, title = 0.1, 0.3
    across, down = columns * (PANEL + gap) + gap, rows * (height + title) + below
    figure = Figure(figsize=(across, down))
    panels = []
    for row in range(rows):
        bottom = down - (row + 1) * (height + title)
        lefts = [gap + column * (PANEL + gap) for column in range(columns)]
        panels.append(
            [figure.add_axes((x / across, bottom / down, PANEL / across, height / down)) for x in lefts]
        )  # fmt: skip
    return figure, panels


def _show(ax: Axes, pixels: NDArray[np.generic], title: str) -> None:
    ax.imshow(pixels, interpolation="nearest")
    ax.set_axis_off()
    ax.set_title(title if len(title) <= 48 else title[:46] + " ...", parse_math=False, fontsize=8, pad=3)


def _overlay(image: Image.Image, labels: NDArray[np.integer]) -> NDArray[np.floating]:
    """The image in grey with the classes' colours on it."""
    grey = np.asarray(image.convert("L"))[..., None].repeat(3, -1) / 255
    table = np.ones((256, 3))
    for label in np.unique(labels):
        if label != IGNORED:
            table[label] = voc_colour(int(label))
    share = np.where(labels == 0, 0.0, np.where(labels == IGNORED, 0.85, 0.6))[..., None]
    return (1 - share) * grey + share * table[labels]


def _heat(image: Image.Image, scores: NDArray[np.floating]) -> NDArray[np.floating]:
    """The image in grey under the colours of the scores."""
    grey = np.asarray(image.convert("L"))[..., None] / 255
    span = scores.max() - scores.min()
    scaled = (scores - scores.min()) / span if span > 0 else np.full_like(scores, 0.5)
    return 0.35 * grey + 0.65 * HEAT(scaled)[..., :3]


def _name_region(ax: Axes, region: NDArray[np.bool_], name: str) -> None:
    """Write a class at the place that lies deepest inside its pixels, aligned so that the image's edge cuts nothing."""
    if region.mean() < NAMED:
        return
    depth = distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
    y, x = np.unravel_index(int(depth.argmax()), depth.shape)
    outline = [withStroke(linewidth=2, foreground="white")]
    across = x / region.shape[1]
    side = "left" if across < 0.2 else "right" if across > 0.8 else "center"
    at = {"left": max(0.02, across), "right": min(0.98, across), "center": across}[side] * region.shape[1]
    ax.text(float(at), float(y), name, ha=side, va="center", fontsize=7, color=INK, path_effects=outline, clip_on=True)
