"""The map of a collection: its images and texts in two dimensions, as a page to look around in."""

from __future__ import annotations

import html

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from hyvlm.geometry import Lorentz, Manifold
from hyvlm.plotting.embedding_map import place
from hyvlm.plotting.explorer_map import SHAPES, explorer
from hyvlm.plotting.explorer_map import Group as Shown
from hyvlm.plotting.figures import COLOURS
from hyvlm.plotting.page import page
from hyvlm.plotting.report_map import TSNE_POINTS
from hyvlm.retrieval.blocks import as_tensor
from hyvlm.retrieval.collection import Collection, Group
from hyvlm.retrieval.places import picture_of

#: Points of a group, at the most: each image is read for its thumbnail.
LIMIT = 2000
#: Points that HoroPCA is fitted on: the share it keeps hardly grows with more, the seconds by their square.
SAMPLE = 500
#: Side of a thumbnail in pixels, at the most.
SIDE = 64


def collection_map(collection: Collection, manifold: Manifold, *, limit: int = LIMIT, seed: int = 0) -> str:
    """The page. Rows are taken at even distances; of equal texts the first is shown.

    Args:
        manifold: That of the points. Lorentz manifolds are placed by HoroPCA, others by t-SNE of fewer points.
        limit: Points of a group, at the most.
    Raises:
        ValueError: If there are fewer than 3 points, or all coincide.
    """
    groups = [group for group in (collection.images, collection.texts) if group is not None]
    if not isinstance(manifold, Lorentz):
        limit = min(limit, TSNE_POINTS // len(groups))
    rows = {group.name: _rows(group, limit) for group in groups}
    points = {group.name: as_tensor(group.points[rows[group.name]], "cpu", torch.float32) for group in groups}
    together = torch.cat(list(points.values()))
    if (together == together[0]).all():
        raise ValueError(f"all {len(together):,} points of the map coincide: there is nothing to see")
    layout = place(manifold, points, sample=SAMPLE, seed=seed)
    shown = [_shown(collection, group, rows[group.name], layout.places[group.name]) for group in groups]
    counts = " and ".join(f"{len(rows[group.name]):,} of {len(group):,} {group.name}" for group in groups)
    where = "in the Poincaré disk" if layout.disk else "in the plane"
    equal = "; equal texts are one point" if collection.texts is not None else ""
    body, style, script = explorer(
        shown,
        disk=layout.disk,
        root=None if layout.root is None else layout.root.tolist(),
        title=f"Map of {' and '.join(group.name for group in groups)}",
    )
    note = html.escape(f"{counts} {where}, by {layout.note}{equal}.")
    content = f"<p>{note}</p>\n{body}<script>{script}</script>\n"
    return page("Map of the collection", content, stylesheet="body { margin: .5rem auto; padding: 0 .2rem; }\n" + style)


def _rows(group: Group, limit: int) -> NDArray[np.int64]:
    """Rows at even distances; of equal texts the first."""
    if group.texts is None:
        rows = np.arange(len(group))
    else:
        first: dict[str, int] = {}
        rows = np.array(list(dict.fromkeys(first.setdefault(text, i) for i, text in enumerate(group.texts))))
    count = min(limit, len(rows))
    return rows[np.arange(count) * len(rows) // count]


def _shown(collection: Collection, group: Group, rows: NDArray[np.int64], places: NDArray[np.floating]) -> Shown:
    kind = group.name.removesuffix("s")
    texts = [(group.keys if group.texts is None else group.texts)[row] for row in rows]
    return Shown(
        kind=kind,
        label=group.name,
        colour=COLOURS[kind],
        shape=SHAPES[1] if kind == "image" else SHAPES[0],
        places=places,
        texts=texts,
        radii=None if group.radii is None else group.radii[rows],
        pictures=[_thumbnail(collection, row) for row in rows.tolist()] if kind == "image" else (),
    )


def _thumbnail(collection: Collection, row: int) -> Image.Image:
    picture = picture_of(collection, row)
    if picture is None:  # gone since; a grey square stands for it
        return Image.new("RGB", (SIDE, SIDE), "#dddddd")
    picture.thumbnail((SIDE, SIDE))
    return picture
