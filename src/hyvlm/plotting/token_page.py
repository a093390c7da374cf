"""Token contributions as a page (HTML) and as a figure (HyFL-CLIP, Figs. 4, S5-S7 and S12-S14): darker red is more."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from PIL import Image

from hyvlm.plotting.contributions import Contributions, Word, heat, largest
from hyvlm.plotting.figures import INK, style
from hyvlm.plotting.page import jpeg_url, page

REDS = colormaps["Reds"]
#: Inches: width of a column of words, space between columns, height of a line, side of a picture.
COLUMN, GAP, LINE, PICTURE = 4.6, 0.35, 0.235, 1.9
FONT = FontProperties(family="sans-serif", size=10)

STYLESHEET = """
.models { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 2rem; }
img { width: 20rem; border: 1px solid #ccc; display: block; margin-bottom: 1rem; }
.words { line-height: 1.9; } .words span { padding: .1em .12em; border-radius: .2em; }
.words span:hover { outline: 2px solid #333; } .cut { color: #767676; font-style: italic; }
.scale { display: inline-block; width: 10rem; height: .8rem; vertical-align: middle; border: 1px solid #ccc; }
figcaption { margin: -.7rem 0 1rem; }
"""


def token_page(image: Image.Image, found: Mapping[str, Contributions], *, title: str = "Token contributions") -> str:
    """A page that needs no network: the image, and the caption under each model, side by side.

    Args:
        image: The image, as it is to be shown.
        found: Model name to its contributions; all on one colour scale. A word's exact weight shows under the pointer.
    Returns:
        HTML; captions and names are escaped.
    """
    top = largest(list(found.values()))
    stops = ", ".join(to_hex(REDS(_shade(top * i / 8, top))) for i in range(9))
    panels = "".join(_panel(name, one, top) for name, one in found.items())
    body = (
        f'<figure><img alt="the captioned image" src="{jpeg_url(image)}"></figure>\n'
        f'<p>Share of a word in its caption: 0 <span class="scale" style="background: linear-gradient(to right, '
        f'{stops})"></span> {100 * top:.1f} %. Point at a word for its exact weight.</p>\n'
        f'<div class="models">\n{panels}</div>\n'
    )
    return page(title, body, stylesheet=STYLESHEET)


def _panel(name: str, found: Contributions, top: float) -> str:
    words = "".join(("" if word.glued else " ") + _span(word, top) for word in found.words)
    cut = f'\n<span class="cut">[not read, beyond the context: {html.escape(found.cut)}]</span>' if found.cut else ""
    return (
        f"<section><h2>{html.escape(name)}</h2>\n"
        f'<figure><img alt="weights of the patches" src="{jpeg_url(_overlay(found))}">'
        "<figcaption>patches of the image, by closeness to the caption</figcaption></figure>\n"
        f'<p class="words" dir="auto">{words.strip()}{cut}</p></section>\n'
    )


def _span(word: Word, top: float) -> str:
    background, ink = _colours(word.weight, top)
    exact = f"{word.weight:.6g}"
    if len(word.pieces) > 1:
        exact += " = " + " + ".join(f"{piece} {weight:.6g}" for piece, weight in word.pieces)
    return (
        f'<span style="background:{background};color:{ink}" title="{html.escape(exact)}" '
        f'data-weight="{word.weight:.9g}">{html.escape(word.text)}</span>'
    )


def _shade(weight: float, top: float) -> float:
    """Place on the colour map: its darkest end would hide the letters' shape."""
    return 0.9 * weight / top


def _colours(weight: float, top: float) -> tuple[str, str]:
    """Background and ink of a word."""
    shade = _shade(weight, top)
    return to_hex(REDS(shade)) if shade > 0.02 else "#ffffff", "#ffffff" if shade > 0.55 else INK


def _overlay(found: Contributions) -> Image.Image:
    """The image as the model saw it, grey and faint where patches weigh little, reddened where they weigh much."""
    strength = heat(found).numpy()[..., None]
    pixels = found.seen.permute(1, 2, 0).numpy() / 255
    grey = 0.55 + 0.45 * pixels.mean(-1, keepdims=True)
    red = REDS(0.15 + 0.7 * strength[..., 0])[..., :3] * (0.45 + 0.55 * pixels.mean(-1, keepdims=True))
    mixed = Image.fromarray((255 * ((1 - strength) * grey + strength * red)).round().astype(np.uint8))
    side = max(mixed.size)
    return mixed.resize((mixed.width * 320 // side, mixed.height * 320 // side), Image.Resampling.BICUBIC)


def token_figure(image: Image.Image, found: Mapping[str, Contributions]) -> Figure:
    """The same as :func:`token_page` on one sheet."""
    names, many = list(found), len(found)
    top = largest(list(found.values()))
    width = max(many * COLUMN + (many - 1) * GAP, (many + 1) * (PICTURE + GAP)) + 0.5
    lines = {name: _lines(_labels(one), COLUMN) for name, one in found.items()}
    tallest = max(len(rows) for rows in lines.values()) * LINE
    height = PICTURE + 1.25 + tallest + 0.2
    with style():
        figure = Figure(figsize=(width, height))
        pictures = [image, *[_overlay(one) for one in found.values()]]
        titles = ["image", *[textwrap.shorten(f"patches, {name}", 30, placeholder=" ...") for name in names]]
        for i, (picture, title) in enumerate(zip(pictures, titles, strict=True)):
            ax = _axes(figure, 0.25 + i * (PICTURE + GAP), 0.3, PICTURE, PICTURE)
            ax.imshow(np.asarray(picture.convert("RGB")))
            ax.set_anchor("NW")
            ax.set_title(title, parse_math=False)
        for i, name in enumerate(names):
            ax = _axes(figure, 0.25 + i * (COLUMN + GAP), PICTURE + 1.15, COLUMN, tallest)
            ax.set(xlim=(0, COLUMN), ylim=(tallest, 0))
            ax.set_title(name, weight="bold", pad=6, parse_math=False)
            _write(ax, lines[name], top)
        bar = figure.add_axes((0.25 / width, 1 - (PICTURE + 0.58) / height, 1.6 / width, 0.1 / height))
        scale = ScalarMappable(Normalize(0, 100 * top), REDS.resampled(256))
        scale.set_clim(0, 100 * top / 0.9)
        colours = figure.colorbar(scale, cax=bar, orientation="horizontal", ticks=[0, 100 * top])
        colours.ax.set_xlim(0, 100 * top)
        colours.ax.set_xticklabels(["0", f"{100 * top:.1f} %"])
        figure.text(1.98 / width, 1 - (PICTURE + 0.57) / height, "share of a word in its caption", fontsize=8)
    return figure


def _axes(figure: Figure, left: float, above: float, width: float, height: float) -> Axes:
    """Axes of a size in inches, at distances in inches from the left and the top edge of the figure."""
    across, down = figure.get_size_inches()
    ax = figure.add_axes((left / across, 1 - (above + height) / down, width / across, height / down))
    ax.set_axis_off()
    return ax


def _labels(found: Contributions) -> list[tuple[str, float | None, bool]]:
    """Text, weight and whether it sticks to the one before; a weight of None is for what the model did not read."""
    labels: list[tuple[str, float | None, bool]] = [(word.text, word.weight, word.glued) for word in found.words]
    if found.cut:
        note = f"[not read, beyond the context: {found.cut}]".split()
        labels += [(part, None, False) for part in note]
    return labels


def _lines(
    labels: Sequence[tuple[str, float | None, bool]], width: float
) -> list[list[tuple[str, float | None, float, float]]]:
    """Labels set in lines of ``width`` inches: text, weight, left edge and width of each."""
    renderer = FigureCanvasAgg(Figure(dpi=100)).get_renderer()
    space = 0.045
    lines: list[list[tuple[str, float | None, float, float]]] = [[]]
    right = 0.0
    for text, weight, glued in labels:
        wide = renderer.get_text_width_height_descent(text, FONT, ismath=False)[0] / 100 + 0.04
        left = right + (0.0 if glued or not lines[-1] else space)
        if left + wide > width and lines[-1]:
            lines.append([])
            left = 0.0
        lines[-1].append((text, weight, left, wide))
        right = left + wide
    return lines


def _write(ax: Axes, lines: Sequence[Sequence[tuple[str, float | None, float, float]]], top: float) -> None:
    for row, line in enumerate(lines):
        for text, weight, left, wide in line:
            background, ink = ("none", "#767676") if weight is None else _colours(weight, top)
            box = Rectangle((left, row * LINE + 0.01), wide, LINE - 0.025, facecolor=background, linewidth=0)
            ax.add_patch(box)
            place = (left + 0.02, (row + 0.5) * LINE)
            ax.text(*place, text, color=ink, fontproperties=FONT, va="center_baseline", parse_math=False)
