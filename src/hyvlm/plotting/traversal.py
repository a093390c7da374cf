"""Traversals as strips: what was met on the way from a picture or a text to the root or to another one."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import MaxNLocator
from PIL import Image

from hyvlm.plotting.figures import COLOURS, INK, PALE, style
from hyvlm.retrieval.traverse import ROOT, Traversal

#: Inches: a strip's width, where its rail, its radii and its entries stand, a line of text, a picture's side, gaps.
WIDTH, RAIL, RADIUS, ENTRY = 3.7, 0.55, 1.12, 1.22
LINE, PICTURE, GAP, MARGIN, TITLE = 0.145, 0.62, 0.1, 0.12, 0.4
#: The picture of the start or of the end.
LARGE = 0.95
SHORTEST = 3.2
#: Columns of a line and lines of an entry; beside a picture there is less room.
COLUMNS, LINES, BESIDE = 38, 4, 25


@dataclass(frozen=True)
class Strip:
    """One traversal with what is to be seen of it.

    Attributes:
        traversal: What was found.
        start, end: The picture or the text; no end for the root.
        title: Above the strip, such as the model's name.
        pictures: Of the candidates by row, for those that are images; an image without one is listed by its name.
    """

    traversal: Traversal
    start: Image.Image | str
    end: Image.Image | str | None = None
    title: str = ""
    pictures: Mapping[int, Image.Image] = field(default_factory=dict)


@dataclass(frozen=True)
class _Entry:
    t: float
    radius: float | None
    text: str
    picture: Image.Image | None = None
    colour: str = INK
    is_end: bool = False

    @property
    def side(self) -> float:
        return 0.0 if self.picture is None else LARGE if self.is_end else PICTURE

    @property
    def lines(self) -> list[str]:
        return wrap(self.text, COLUMNS if self.picture is None else BESIDE - (4 if self.is_end else 0), LINES)

    @property
    def height(self) -> float:
        return max(self.side, LINE * len(self.lines)) + GAP


def traversal_strips(strips: Sequence[Strip]) -> Figure:
    """Strips side by side: the start on top, what was met on the way below it, the root or the end at the bottom.

    The rail on the left is the way, in equal steps; toward the root that is the radius. A dot, blue for an image and
    orange for a text, stands where an entry was first met, with the radius there beside the entry.

    Raises:
        ValueError: If there is no strip.
    """
    if not strips:
        raise ValueError("there is no traversal to draw")
    columns = [list(_entries(strip)) for strip in strips]
    length = max(SHORTEST, *(sum(entry.height for entry in entries) for entries in columns))
    above = TITLE if any(strip.title for strip in strips) else 0.0
    height = length + above + 2 * MARGIN
    with style():
        figure = Figure(figsize=(WIDTH * len(strips), height))
        for number, (strip, entries) in enumerate(zip(strips, columns, strict=True)):
            ax = figure.add_axes((number / len(strips), 0, 1 / len(strips), 1))
            ax.set(xlim=(0, WIDTH), ylim=(length + MARGIN, -above - MARGIN))  # inches, downward
            ax.set_axis_off()
            for i, line in enumerate(wrap(strip.title, 52, 2)):
                ax.text(MARGIN, LINE * i - above, line, va="top", fontsize=9, weight="bold", parse_math=False)
            _draw(ax, strip, entries, length)
    return figure


def _entries(strip: Strip) -> Iterator[_Entry]:
    way = strip.traversal
    yield _end(strip.start, "start", 0.0, way.start_radius)
    for step in way.steps:
        if step.row is not None:
            picture = strip.pictures.get(step.row) if step.kind == "image" else None
            yield _Entry(step.t, step.radius, step.name, picture, COLOURS[step.kind])
    if strip.end is not None:
        yield _end(strip.end, "end", 1.0, way.end_radius)
    elif way.steps:
        yield _Entry(way.steps[-1].t, way.steps[-1].radius, ROOT, is_end=True)


def _end(shown: Image.Image | str, name: str, t: float, radius: float | None) -> _Entry:
    text, picture = (shown, None) if isinstance(shown, str) else (name, shown)
    return _Entry(t, radius, text, picture, is_end=True)


def _draw(ax: Axes, strip: Strip, entries: Sequence[_Entry], length: float) -> None:
    """The rail with its dots, and every entry near its dot."""
    ax.plot([RAIL, RAIL], [0, length], color=PALE, linewidth=1.2, zorder=1)
    _scale(ax, strip, length)
    for entry, top in zip(entries, places(entries, length), strict=True):
        middle = top + entry.height / 2
        ax.plot([RAIL, RADIUS - 0.32], [entry.t * length, middle], color="#D0D0D0", linewidth=0.7, zorder=1)
        ax.plot(RAIL, entry.t * length, "o", color=entry.colour, markersize=4.5, zorder=3 if entry.is_end else 2)
        at = f"{entry.t:.2f}" if entry.radius is None else f"{entry.radius:.2f}"
        ax.text(RADIUS, middle, at, ha="right", va="center", fontsize=7, color="#666666")
        left = ENTRY
        if entry.picture is not None:
            _picture(ax, entry, middle)
            left += entry.side + 0.08
        ax.text(
            left,
            middle,
            "\n".join(entry.lines),
            va="center",
            fontsize=8,
            linespacing=1.15,
            color=INK,
            weight="bold" if entry.is_end else "normal",
            parse_math=False,
            clip_on=True,
        )


def _picture(ax: Axes, entry: _Entry, middle: float) -> None:
    """The whole picture, in a square, with a border of its colour."""
    assert entry.picture is not None
    shown = entry.picture.convert("RGB")
    shown.thumbnail((300, 300))
    scale = entry.side / max(shown.size)
    width, height = shown.width * scale, shown.height * scale
    box = (ENTRY, ENTRY + width, middle + height / 2, middle - height / 2)
    ax.imshow(np.asarray(shown), extent=box, aspect="auto", interpolation="antialiased", zorder=2)
    ax.plot([box[0], box[1], box[1], box[0], box[0]], [box[2], box[2], box[3], box[3], box[2]], color=entry.colour)


def _scale(ax: Axes, strip: Strip, length: float) -> None:
    """Marks on the rail: radii toward the root, else shares of the way."""
    way = strip.traversal
    by_radius = strip.end is None and way.start_radius
    marks = np.asarray(MaxNLocator(5).tick_values(0, by_radius)) if by_radius else np.linspace(0, 1, 5)
    whole = by_radius or 1.0
    for mark in marks[(marks >= 0) & (marks <= whole)]:
        y = (1 - mark / whole if by_radius else mark) * length
        ax.plot([RAIL - 0.05, RAIL], [y, y], color=PALE, linewidth=0.8)
        ax.text(RAIL - 0.08, y, f"{mark:g}", ha="right", va="center", fontsize=7, color="#666666")
    name = "radius" if by_radius else "share of the way"
    ax.text(0.12, length / 2, name, rotation=90, ha="center", va="center", fontsize=7.5, color="#666666")


def places(entries: Sequence[_Entry], length: float) -> list[float]:
    """Tops of the entries, in their order and apart from each other, each as near its dot as the others allow."""
    tops: list[float] = []
    free = 0.0
    for entry in entries:
        tops.append(max(free, entry.t * length - entry.height / 2))
        free = tops[-1] + entry.height
    bottom = length
    for i in reversed(range(len(entries))):
        tops[i] = min(tops[i], bottom - entries[i].height)
        bottom = tops[i]
    return tops


def wrap(text: str, columns: int, lines: int) -> list[str]:
    """Text in lines of so many columns, an ellipsis for what does not fit; a wide letter takes two.

    Words are kept whole where they fit; scripts without spaces break at any letter.
    """
    found, line = list[str](), ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if _columns(joined) <= columns:
            line = joined
            continue
        if line and (_columns(word) <= columns):
            found.append(line)
            line = word
            continue
        line = f"{line} " if line else ""
        for letter in word:
            if _columns(line + letter) > columns:
                found.append(line.rstrip())
                line = ""
            line += letter
    found += [line] if line else []
    if len(found) > lines:
        kept = found[lines - 1]
        while _columns(kept) > columns - 2:
            kept = kept.rpartition(" ")[0] or kept[:-1]
        found = [*found[: lines - 1], f"{kept} …"]
    return found


def _columns(text: str) -> int:
    return sum(_width(letter) for letter in text)


@cache
def _width(letter: str) -> int:
    """Columns of a letter; what the font lacks is drawn as a box of two."""
    if unicodedata.east_asian_width(letter) in "WF" or not _font().get_char_index(ord(letter)):
        return 2
    return 0 if unicodedata.combining(letter) else 1


@cache
def _font() -> FT2Font:
    with style():
        return get_font(findfont(FontProperties(family=["sans-serif"])))
