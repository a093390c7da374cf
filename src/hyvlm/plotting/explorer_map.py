"""A map to look around in, as a piece of a page: thousands of points, each with its picture or text at hand.

A canvas and a little JavaScript of our own (``explorer.js``), for a plotting library inlined would weigh megabytes and
show no pictures. Thumbnails travel as JPEG sheets of many, of which the browser decodes those that it needs.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hyvlm.plotting.figures import INK
from hyvlm.types import encodable

#: Characters that all sheets together may take; what is asked of them is lowered until they do.
BUDGET = 20_000_000
#: Side of a thumbnail in pixels (whole blocks of JPEG, so that neighbours do not bleed) and quality, best first.
RUNGS = ((64, 84), (48, 78), (48, 60), (32, 70), (32, 45))
#: Thumbnails beside and below each other in a sheet.
COLUMNS = 32
#: Of a text, what is shown.
LONGEST = 300
#: Shapes that tell groups apart without colours.
SHAPES = ("circle", "square", "triangle", "diamond")
#: Drawn in a box from -5 to 5; ``explorer.js`` draws the same.
MARKS = {
    "circle": '<circle r="4"/>',
    "square": '<path d="M-3.6 -3.6h7.2v7.2h-7.2z"/>',
    "triangle": '<path d="M0 -4.6L4.6 3.6H-4.6z"/>',
    "diamond": '<path d="M0 -4.8L4.8 0L0 4.8L-4.8 0z"/>',
}


@dataclass(frozen=True)
class Group:
    """Points of one kind.

    Attributes:
        kind: What one of them is, such as "image".
        label: And many, such as "images".
        colour: CSS colour.
        shape: One of :data:`SHAPES`.
        places: ``(n, 2)``.
        texts: What each is called.
        radii: ``(n,)``, in units of length; None where there is no origin.
        pictures: One each, or none.
    """

    kind: str
    label: str
    colour: str
    shape: str
    places: NDArray[np.floating]
    texts: Sequence[str]
    radii: NDArray[np.floating] | None = None
    pictures: Sequence[Image.Image] = ()


@dataclass(frozen=True)
class Link:
    """Which points of two groups, by their places in the list of groups, belong together, row by row."""

    first: int
    second: int
    pairs: Sequence[tuple[int, int]]


def explorer(
    groups: Sequence[Group],
    links: Sequence[Link] = (),
    *,
    disk: bool,
    root: Sequence[float] | None = None,
    title: str = "Map of the points",
) -> tuple[str, str, str]:
    """The map.

    Args:
        disk: The places lie in the unit Poincare disk, whose rim is drawn.
        root: Where the model's origin lies.
        title: What the map is called to those who do not see it.
    Returns:
        HTML, its style, and its script; the data are in the HTML and are nowhere read as code.
    """
    sheets, sizes = _sheets([picture for group in groups for picture in group.pictures])
    data = {
        "disk": disk,
        "root": None if root is None else [round(float(v), 5) for v in root],
        "groups": [_group(group) for group in groups],
        "links": [[link.first, link.second, [row for pair in link.pairs for row in pair]] for link in links],
        "sheets": sheets,
        "sizes": sizes,
    }
    return _skeleton(groups, title) + data_block("map-data", data), asset("explorer.css"), asset("explorer.js")


def asset(name: str) -> str:
    """The text of a file beside this one."""
    return (files("hyvlm.plotting") / name).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """What a content security policy calls a script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def data_block(name: str, data: Any) -> str:
    """Values for scripts, in a block that no text in them can end."""
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    safe = written.replace("<", "\\u003c").replace("&", "\\u0026")
    return f'<script type="application/json" id="{name}">{safe}</script>\n'


def shortened(text: str, longest: int = LONGEST) -> str:
    """White space made single, what UTF-8 cannot encode written out, and the end of a long text cut off."""
    line = " ".join(encodable(text).split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def _group(group: Group) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "colour": group.colour,
        "shape": group.shape,
        "x": [round(float(v), 5) for v in group.places[:, 0]],
        "y": [round(float(v), 5) for v in group.places[:, 1]],
        "radius": None if group.radii is None else [round(float(v), 3) for v in group.radii],
        "text": [shortened(text) for text in group.texts],
        "pictures": len(group.pictures) > 0,
    }


def _sheets(pictures: Sequence[Image.Image]) -> tuple[dict[str, Any], list[int]]:
    """All pictures on as few sheets as there are, at the best quality that the budget allows; widths and heights."""
    batches = [pictures[start : start + COLUMNS**2] for start in range(0, len(pictures), COLUMNS**2)]
    for side, quality in RUNGS:
        urls: list[str] = []
        sizes: list[int] = []
        for batch in batches:
            urls.append(_sheet(batch, side, quality, sizes))
            if sum(map(len, urls)) * len(batches) / len(urls) > BUDGET and (side, quality) != RUNGS[-1]:
                break  # at this rate they will not fit
        else:
            break
    return {"side": side, "columns": COLUMNS, "urls": urls}, sizes


def _sheet(pictures: Sequence[Image.Image], side: int, quality: int, sizes: list[int]) -> str:
    rows = -(-len(pictures) // COLUMNS)
    sheet = Image.new("RGB", (min(COLUMNS, len(pictures)) * side, rows * side), "white")
    for i, picture in enumerate(pictures):
        small = picture.convert("RGB")
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        sheet.paste(small, (i % COLUMNS * side, i // COLUMNS * side))
        sizes += small.size
    buffer = io.BytesIO()
    sheet.save(buffer, format="JPEG", quality=quality, optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def mark(colour: str, shape: str) -> str:
    """The sign of a group, as it stands in a line of text."""
    return f'<svg class="mark" viewBox="-5 -5 10 10" aria-hidden="true" fill="{colour}">{MARKS[shape]}</svg>'


def _skeleton(groups: Sequence[Group], title: str) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" checked data-group="{i}">{mark(group.colour, group.shape)} '
        f"{html.escape(group.label)} ({len(group.places):,})</label>\n"
        for i, group in enumerate(groups)
    )
    return f"""<div class="explorer">
<div class="legend" role="group" aria-label="Groups that are shown">
{boxes}</div>
<div class="stage">
<canvas class="points" aria-hidden="true"></canvas>
<canvas class="over" tabindex="0" role="application" aria-roledescription="map" aria-label="{html.escape(title)}"
 aria-describedby="map-help"></canvas>
<div class="zoom"><button type="button" data-zoom="in" aria-label="Zoom in">+</button>
<button type="button" data-zoom="out" aria-label="Zoom out">−</button>
<button type="button" data-zoom="all" aria-label="Show all">all</button></div>
<div class="tip" hidden style="color:{INK}"><canvas class="picture" hidden></canvas>
<p class="kind"></p><p class="text" dir="auto"></p></div>
</div>
<p class="spoken" role="status" aria-live="polite"></p>
<p class="help" id="map-help">Point at a point, or tap it, to see it with what belongs to it. By keyboard: arrows go
from point to point, Enter to what belongs to it, + and − zoom, 0 shows all, Escape closes. Drag to move, double-click
to zoom in.</p>
<noscript><p>The map needs JavaScript; the rest of this page does not.</p></noscript>
</div>
"""
