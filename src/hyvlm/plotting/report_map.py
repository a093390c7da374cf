"""The map of a report: where each point lies in two dimensions, and what belongs to what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hyvlm.geometry import Lorentz, Manifold
from hyvlm.losses import HasRadius
from hyvlm.plotting.embedding_map import place
from hyvlm.plotting.explored import Explored
from hyvlm.plotting.explorer_map import SHAPES, Group, Link, explorer
from hyvlm.plotting.figures import COLOURS, NAMES

#: Points that t-SNE can take, which compares all with all.
TSNE_POINTS = 2000
#: In the order that they are drawn.
VIEWS = ("part_image", "image", "part_text", "text")


@dataclass(frozen=True)
class PlacedMap:
    """The map as a piece of a page (see :func:`explorer`), and how its points were placed."""

    body: str
    style: str
    script: str
    note: str


def place_map(manifold: Manifold, explored: Explored, *, seed: int = 0) -> PlacedMap:
    """The map: equal texts are one point. Lorentz manifolds are placed by HoroPCA, others by t-SNE of fewer points.

    Raises:
        ValueError: If all points coincide.
    """
    shown, said = _few(manifold, explored)
    rows = {view: _distinct(shown, view) for view in VIEWS if len(shown.points[view])}
    points = {view: shown.points[view][list(dict.fromkeys(rows[view]))] for view in rows}
    together = torch.cat(list(points.values()))
    if (together == together[0]).all():
        raise ValueError(f"all {len(together):,} points of {shown.samples.name} coincide: there is nothing to map")
    layout = place(manifold, points, seed=seed)
    groups = [_group(manifold, shown, view, points[view], rows[view], layout.places[view]) for view in rows]
    where = "in the Poincaré disk" if layout.disk else "in the plane"
    if layout.disk:
        reach = max(float(np.linalg.norm(rows, axis=1).max()) for rows in layout.places.values())
        said = (
            f"The point farthest out lies at {reach:.2f} of the disk's radius; where its rim is in view, it is drawn."
        )
    note = f"Images and texts {where}, by {layout.note}. {said}"
    body, style, script = explorer(
        groups,
        _links(shown, rows),
        disk=layout.disk,
        root=None if layout.root is None else layout.root.tolist(),
        title=f"Map of {', '.join(group.label for group in groups)}",
    )
    return PlacedMap(body, style, script, note)


def _few(manifold: Manifold, explored: Explored) -> tuple[Explored, str]:
    """As many images, at even distances, as can be placed with all that belongs to them; and a sentence on it."""
    total = sum(map(len, explored.points.values()))
    if isinstance(manifold, Lorentz) or total <= TSNE_POINTS:
        return explored, "" if isinstance(manifold, Lorentz) else "This manifold has no HoroPCA."
    n = len(explored.index)
    count = max(2, n * TSNE_POINTS // total)
    wholes = torch.zeros(n, dtype=torch.bool)
    wholes[[i * n // count for i in range(count)]] = True
    shown = explored.select(wholes, torch.ones(len(explored.owner), dtype=torch.bool))
    return shown, f"This manifold has no HoroPCA; t-SNE compares all with all, so {count:,} of {n:,} images are shown."


def _distinct(explored: Explored, view: str) -> list[int]:
    """Of each row of a view the first row that is shown for it: equal texts lie in one place."""
    if view in ("image", "part_image"):
        return list(range(len(explored.points[view])))
    texts = explored.captions if view == "text" else explored.phrases
    first: dict[str, int] = {}
    return [first.setdefault(text, i) for i, text in enumerate(texts)]


def _group(
    manifold: Manifold, explored: Explored, view: str, points: Tensor, rows: Sequence[int], places: np.ndarray
) -> Group:
    kept = list(dict.fromkeys(rows))
    texts, pictures = _content(explored, view)
    with torch.no_grad():
        radii = manifold.radius(points).numpy() if isinstance(manifold, HasRadius) else None
    return Group(
        kind=NAMES[view].removesuffix("s"),
        label=NAMES[view],
        colour=COLOURS[view],
        shape=dict(zip(VIEWS, (SHAPES[1], SHAPES[0], SHAPES[3], SHAPES[2]), strict=True))[view],
        places=places,
        texts=[texts[i] for i in kept],
        radii=radii,
        pictures=[pictures[i] for i in kept] if pictures else (),
    )


def _content(explored: Explored, view: str) -> tuple[Sequence[str], Sequence[Image.Image]]:
    """What the rows of a view are called, and their pictures."""
    if view == "image":
        return explored.keys, explored.pictures
    if view == "part_image":
        return explored.phrases, explored.part_pictures
    return (explored.captions if view == "text" else explored.phrases), ()


def _links(explored: Explored, rows: dict[str, list[int]]) -> list[Link]:
    """Image to caption, image to parts, part to phrase, by places in the groups."""
    order = list(rows)
    place = {view: {row: i for i, row in enumerate(dict.fromkeys(rows[view]))} for view in rows}

    def link(first: str, second: str, pairs: Sequence[tuple[int, int]]) -> Link:
        at, to = place[first], place[second]
        places = [(at[rows[first][a]], to[rows[second][b]]) for a, b in pairs]
        return Link(order.index(first), order.index(second), list(dict.fromkeys(places)))

    links = [link("image", "text", [(i, i) for i in range(len(explored.index))])]
    if explored.owner:
        parts = range(len(explored.owner))
        links.append(link("image", "part_image", [(explored.owner[i], i) for i in parts]))
        links.append(link("part_image", "part_text", [(i, i) for i in parts]))
    return links
