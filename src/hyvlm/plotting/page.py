"""Pages of one file that need no network: skeleton, common style, and pictures as data URLs."""

from __future__ import annotations

import base64
import html
import io

from PIL import Image

STYLESHEET = """
body { font: 16px/1.5 system-ui, sans-serif; color: #333; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
img { max-width: 100%; } figure { margin: 0; } figcaption { font-size: .85rem; color: #595959; }
"""


def page(title: str, body: str, *, stylesheet: str = "") -> str:
    """A whole page.

    Args:
        title: Plain text, of the window and of the heading; escaped here.
        body: HTML below the heading.
        stylesheet: Rules after the common ones.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLESHEET}{stylesheet.lstrip()}</style></head>\n<body>\n"
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
