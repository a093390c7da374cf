"""What models retrieve for a caption and its perturbed versions, with thumbnails (HyFL-CLIP, Figs. 1 and S4)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from PIL import Image

from hyvlm.plotting.figures import INK, style

#: Bluish green and vermilion of Okabe and Ito: told apart with any colour vision; the words say it as well.
RIGHT, WRONG = "#009E73", "#D55E00"
#: Inches: width of the text column, side of a thumbnail, margin, height of a line of text.
TEXT, THUMB, MARGIN, LINE = 5.2, 1.45, 0.18, 0.155
NAME, WORDS = (
    FontProperties(family="sans-serif", size=8.5, weight="bold"),
    FontProperties(family="sans-serif", size=7.5),
)


@dataclass(frozen=True)
class Found:
    """What one model returned for one query: its first image, and where the right one stands (1: first) of how many."""

    image: Image.Image
    rank: int
    of: int


@dataclass(frozen=True)
class Query:
    """A version of the caption with what each model, by name, found for it."""

    name: str
    text: str
    found: Mapping[str, Found]


def retrieval_figure(truth: Image.Image, queries: Sequence[Query]) -> Figure:
    """A row for each version of the caption: the text, and each model's first image in a frame, right or wrong.

    Args:
        truth: The image that the caption belongs to; shown before the first row's text.
        queries: Versions of the caption, the original first; all for the same models.
    Raises:
        ValueError: If there is no query.
    """
    if not queries:
        raise ValueError("there is no query to show")
    names = list(queries[0].found)
    indents = [THUMB + MARGIN if row == 0 else 0.0 for row in range(len(queries))]  # the truth stands before the first
    columns = [TEXT - indent - MARGIN for indent in indents]
    labels = [wrapped(query.name, column, NAME) for query, column in zip(queries, columns, strict=True)]
    texts = [wrapped(query.text, column, WORDS) for query, column in zip(queries, columns, strict=True)]
    heights = []
    for row, query in enumerate(queries):
        shown = [found.image for found in query.found.values()] + ([truth] if row == 0 else [])
        written = (1 + len(labels[row]) + len(texts[row])) * LINE
        heights.append(max(*[_height(image) + 0.3 for image in shown], written) + MARGIN)
    titles = [f"{textwrap.fill(name, 22)}\nfirst of {queries[0].found[name].of:,}" for name in names]
    above = 0.22 + 0.14 * max(title.count("\n") + 1 for title in ["", *titles])
    with style():
        figure = Figure(figsize=(TEXT + 2 * MARGIN + len(names) * (THUMB + MARGIN), above + sum(heights)))
        _heading(figure, MARGIN, above, "ground truth")
        for column, title in enumerate(titles):
            _heading(figure, _left(column), above, title)
        for row, (query, tall) in enumerate(zip(queries, heights, strict=True)):
            if row == 0:
                _thumbnail(figure, MARGIN, above, truth, INK, "")
            _text(figure, MARGIN + indents[row], above, labels[row], texts[row])
            for column, name in enumerate(names):
                found = query.found[name]
                verdict = "right" if found.rank == 1 else f"wrong, truth at rank {found.rank:,}"
                colour = RIGHT if found.rank == 1 else WRONG
                _thumbnail(figure, _left(column), above, found.image, colour, verdict)
            above += tall
    return figure


def _height(image: Image.Image) -> float:
    """Of a thumbnail, which fits into a square of side ``THUMB``, in inches."""
    return THUMB * min(1.0, image.height / image.width)


def wrapped(text: str, inches: float, font: FontProperties) -> list[str]:
    """The text in lines of at most ``inches``; what has no space to be parted at is cut."""
    renderer = FigureCanvasAgg(Figure(dpi=150)).get_renderer()  # hinted letters are as wide as pixels let them

    def wide(piece: str) -> float:
        return float(renderer.get_text_width_height_descent(piece, font, ismath=False)[0]) / 150

    lines, line = list[str](), ""
    for word in text.split():
        if wide(f"{line} {word}".strip()) <= inches:
            line = f"{line} {word}".strip()
            continue
        lines += [line] if line else []
        while wide(word) > inches:
            fits = max(1, int(len(word) * inches / wide(word)))
            while fits > 1 and wide(word[:fits]) > inches:
                fits -= 1
            lines, word = [*lines, word[:fits]], word[fits:]
        line = word
    return [*lines, line] if line or not lines else lines


def _left(column: int) -> float:
    return TEXT + 2 * MARGIN + column * (THUMB + MARGIN)


def _heading(figure: Figure, left: float, above: float, text: str) -> None:
    width, height = figure.get_size_inches()
    place = (left / width, 1 - (above - 0.06) / height)
    figure.text(*place, text, va="bottom", fontsize=8.5, weight="bold", parse_math=False)


def _text(figure: Figure, left: float, above: float, name: Sequence[str], lines: Sequence[str]) -> None:
    width, height = figure.get_size_inches()
    for font, part, down in ((NAME, name, 0.0), (WORDS, lines, (0.15 + 1.1 * len(name)) * LINE)):
        place = (left / width, 1 - (above + down) / height)
        figure.text(*place, "\n".join(part), va="top", fontproperties=font, linespacing=1.4, parse_math=False)


def _thumbnail(figure: Figure, left: float, above: float, image: Image.Image, colour: str, verdict: str) -> None:
    """The image, not stretched, at the top left of a square cell; the frame follows the image."""
    width, height = figure.get_size_inches()
    ax = figure.add_axes((left / width, 1 - (above + THUMB) / height, THUMB / width, THUMB / height))
    ax.imshow(np.asarray(image.convert("RGB")))
    ax.set_anchor("NW")
    ax.set(xticks=[], yticks=[])
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set(visible=True, color=colour, linewidth=2.5)
    ax.set_xlabel(verdict, fontsize=7, color=colour, labelpad=3)
