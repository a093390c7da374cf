"""Traversals from images to the root as strips of a page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from PIL import Image

from hyvlm.geometry import Modality
from hyvlm.losses import HasRadius
from hyvlm.models import DualEncoder
from hyvlm.plotting.explored import Explored
from hyvlm.plotting.explorer_map import shortened
from hyvlm.plotting.figures import COLOURS, PALE
from hyvlm.plotting.page import jpeg_url
from hyvlm.retrieval.traverse import Candidates, Traversal, traverse

#: Side of a picture in pixels.
SIDE = 160
#: How strips look.
STYLE = """
.strip { display: flex; flex-wrap: wrap; gap: .5rem; list-style: none; padding: 0; margin: .4rem 0 1.6rem; }
.strip li { box-sizing: border-box; width: 7.2rem; padding: .4rem; border: 1px solid #e6e6e6; border-radius: .3rem;
  border-top: 4px solid #999; font-size: .8rem; line-height: 1.3; display: flex; flex-direction: column; }
.strip li > span { color: #595959; margin-top: auto; padding-top: .3rem; }
.strip img { width: 100%; height: 5.6rem; object-fit: contain; background: #f6f6f6; }
.strip b { font-weight: 400; display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 7;
  overflow: hidden; } .strip .start { background: #f6f6f6; }
@media (max-width: 480px) { .strip li { width: calc(33.3% - .4rem); } }
"""


@dataclass(frozen=True)
class End:
    """Where a way ends that does not lead to the root; ``radius`` is None without an origin."""

    name: str
    kind: Modality
    radius: float | None
    picture: Image.Image | None = None


@dataclass(frozen=True)
class Strip:
    """A traversal with its ends and the pictures of the images that it met, by their rows.

    Attributes:
        key: What the start is called: an image's key, or the text.
        radius: The start's, in units of length; None without an origin.
        start: Its picture; without one, as for texts, its name is shown.
        pictures: An image that has none here is shown by its name.
        kind: What the start is.
        end: None for the root.
    """

    key: str
    radius: float | None
    start: Image.Image | None
    traversal: Traversal
    pictures: Mapping[int, Image.Image]
    kind: Modality = "image"
    end: End | None = None


def walk_to_root(model: DualEncoder, explored: Explored, count: int) -> list[Strip]:
    """From up to ``count`` images, at even distances, to the root; none on a manifold that has none.

    Candidates are all captions, phrases and other images. If half of the ways meet none whose cone holds a point of
    them, all ways are walked without regard to cones (``traversal.entailed`` says which).
    """
    if not isinstance(model.manifold, HasRadius):
        return []
    n = len(explored.index)
    texts = {text: ("text", i) for i, text in reversed(list(enumerate(explored.captions)))}
    texts |= {phrase: ("part_text", i) for i, phrase in reversed(list(enumerate(explored.phrases)))}
    rows = torch.stack([explored.points[view][i] for view, i in texts.values()])
    names = [f"{key}\n{i}" for i, key in enumerate(explored.keys)]  # keys may repeat
    kinds: list[Modality] = ["image" if i < n else "text" for i in range(n + len(texts))]
    candidates = Candidates(torch.cat([explored.points["image"], rows]), [*names, *texts], kinds)
    starts = [i * n // count for i in range(count)] if n > count else list(range(n))
    for entailed in (True, False):
        walks = [_walk(model, explored, candidates, start, entailed) for start in starts]
        if 2 * sum(len(walk.steps) > 1 for walk in walks) > len(walks):
            break
    return [_strip(model, explored, *pair) for pair in zip(starts, walks, strict=True)]


def _walk(model: DualEncoder, explored: Explored, candidates: Candidates, start: int, entailed: bool) -> Traversal:
    point = explored.points["image"][start]
    return traverse(model, point, candidates, kind="image", entailed=entailed, leave_out=[start])


def _strip(model: DualEncoder, explored: Explored, start: int, walk: Traversal) -> Strip:
    met = {s.row: explored.whole(s.row, SIDE) for s in walk.steps if s.kind == "image" and s.row is not None}
    with torch.no_grad():
        radius = model.manifold.radius(explored.points["image"][start]).item()  # type: ignore[operator]
    return Strip(explored.keys[start], radius, explored.whole(start, SIDE), walk, met)


def strip_html(strip: Strip) -> str:
    """The start, what was met in order, and the root or the end last."""
    cells = [_cell(strip.key, strip.start, _at(strip.radius, None, "start"), "start", strip.kind)]
    for step in strip.traversal.steps:
        name = step.name.partition("\n")[0] if step.kind == "image" else step.name
        picture = strip.pictures.get(step.row) if step.kind == "image" and step.row is not None else None
        cells.append(_cell(name, picture, _at(step.radius, step.t), "", step.kind))
    if strip.end is not None:
        cells.append(
            _cell(strip.end.name, strip.end.picture, _at(strip.end.radius, None, "end"), "start", strip.end.kind)
        )
    goal = "the root" if strip.end is None else shortened(strip.end.name, 80)
    name = html.escape(f"From {shortened(strip.key, 80)} to {goal}")
    return f'<ol class="strip" aria-label="{name}">\n{"".join(cells)}</ol>\n'


def _at(radius: float | None, t: float | None, end: str = "") -> str:
    """Where on the way a cell stands."""
    if radius is None:
        return end or f"at {100 * (t or 0):.0f} % of the way"
    return f"{end}, radius {radius:.2f}" if end else f"at radius {radius:.2f}"


def _cell(name: str, picture: Image.Image | None, where: str, css: str, kind: str) -> str:
    colour = COLOURS.get(kind, PALE)
    if picture is None:
        shown = f'<b dir="auto">{html.escape(shortened(name, 160))}</b>'
    else:
        shown = f'<img alt="{html.escape(shortened(name, 80))}" src="{jpeg_url(picture)}">'
    css = f'class="{css}" ' if css else ""
    return f'<li {css}style="border-top-color:{colour}">{shown}<span>{where}</span></li>\n'
