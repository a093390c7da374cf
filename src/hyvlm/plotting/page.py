"""Pages of one file that need no network: skeleton, common style, tables, and pictures as data URLs."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence

from PIL import Image

STYLESHEET = """
body { font: 16px/1.5 system-ui, sans-serif; color: #333; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
img { max-width: 100%; } figure { margin: 0; } figcaption { font-size: .85rem; color: #595959; }
"""


def page(title: str, body: str, *, stylesheet: str = "", head: str = "") -> str:
    """A whole page.

    Args:
        title: Plain text, of the window and of the heading; escaped here.
        body: HTML below the heading.
        stylesheet: Rules after the common ones.
        head: Further tags of the head, before all that they may govern.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{head}<title>{html.escape(title)}</title>\n<style>{STYLESHEET}{stylesheet.lstrip()}</style></head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{body}</body></html>\n"
    )


def jpeg_url(image: Image.Image) -> str:
    """A picture as the address that holds all of it."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, format="JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def png_url(content: bytes) -> str:
    """The same of a PNG file's bytes."""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def number(value: float | None, digits: int) -> str:
    """A dash for what is not there or no finite number."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def bullets(lines: Sequence[str]) -> str:
    """A list of sentences; nothing if there are none."""
    items = "".join(f"<li>{html.escape(line)}</li>\n" for line in lines)
    return f"<ul>\n{items}</ul>\n" if items else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0, marked: Sequence[int] = ()) -> str:
    """A table of plain text, whose last ``numbers`` columns are numbers; nothing if it has no row.

    Args:
        marked: Rows to stand out.
    """
    if not rows:
        return ""

    def line(cells: Sequence[str], tag: str, kind: str = "") -> str:
        first = len(cells) - numbers
        written = (
            f"<{tag}{' class=number' if i >= first else ''}>{html.escape(cell)}</{tag}>" for i, cell in enumerate(cells)
        )
        return f"<tr{kind}>{''.join(written)}</tr>\n"

    body = "".join(line(cells, "td", " class=largest" if i in marked else "") for i, cells in enumerate(rows))
    return f'<div class="wide"><table>\n{line(head, "th")}{body}</table></div>\n'
