"""Traversals from images to the root as strips of a page."""

from __future__ import annotations

import html
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


@dataclass(frozen=True)
class Strip:
    """A traversal with its start and the pictures of the images that it met, by their names."""

    key: str
    radius: float
    start: Image.Image
    traversal: Traversal
    pictures: dict[str, Image.Image]


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
    met = {s.name: explored.whole(s.row, SIDE) for s in walk.steps if s.kind == "image" and s.row is not None}
    with torch.no_grad():
        radius = model.manifold.radius(explored.points["image"][start]).item()  # type: ignore[operator]
    return Strip(explored.keys[start], radius, explored.whole(start, SIDE), walk, met)


def strip_html(strip: Strip) -> str:
    """The start, what was met in order, and the root last."""
    cells = [_picture_cell(strip.start, strip.key, strip.radius, "start")]
    for step in strip.traversal.steps:
        radius = step.radius or 0.0
        if step.kind == "image":
            cells.append(_picture_cell(strip.pictures[step.name], step.name.partition("\n")[0], radius, ""))
        else:
            colour = COLOURS["text"] if step.kind == "text" else PALE
            cells.append(
                f'<li style="border-top-color:{colour}"><b dir="auto">{html.escape(shortened(step.name, 160))}</b>'
                f"<span>at radius {radius:.2f}</span></li>\n"
            )
    name = html.escape(f"From {shortened(strip.key, 80)} to the root")
    return f'<ol class="strip" aria-label="{name}">\n{"".join(cells)}</ol>\n'


def _picture_cell(picture: Image.Image, key: str, radius: float, kind: str) -> str:
    said = "start, radius" if kind else "at radius"
    return (
        f'<li class="{kind}" style="border-top-color:{COLOURS["image"]}"><img alt="{html.escape(shortened(key, 80))}" '
        f'src="{jpeg_url(picture)}"><span>{said} {radius:.2f}</span></li>\n'
    )
