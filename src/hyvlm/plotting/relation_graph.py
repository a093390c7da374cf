"""From parts to wholes: which points are nearer the origin, and whose cone holds whom (HyCoCLIP's four relations)."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from hyvlm.geometry import Manifold, Product
from hyvlm.losses import HasCones, HasRadius
from hyvlm.plotting.explored import Explored
from hyvlm.plotting.explorer_map import shortened
from hyvlm.plotting.figures import COLOURS, INK
from hyvlm.plotting.page import jpeg_url
from hyvlm.plotting.training_figures import VIEW_NAMES

#: General and specific view of each relation.
RELATIONS = (("part_text", "part_image"), ("part_text", "text"), ("part_image", "image"), ("text", "image"))
#: Left, top, right, bottom.
Box = tuple[float, float, float, float]
#: Parts that one example shows.
PARTS = 2
#: Of a graph, in pixels: its width, margin, a row, a picture, the axis below.
WIDTH, MARGIN, ROW, PICTURE, AXIS = 360, 34, 66, 52, 34
INSIDE, OUTSIDE = "#333333", "#767676"


@dataclass(frozen=True)
class Node:
    """A point of an example.

    Attributes:
        view: Such as "part_text".
        text: What it says, or how it is called.
        radius: In units of length; None without an origin.
        picture: Of an image or part.
    """

    view: str
    text: str
    radius: float | None
    picture: Image.Image | None = None


@dataclass(frozen=True)
class Edge:
    """From the general to the specific of two nodes, by their places: their distance, and whether it is in its cone."""

    general: int
    specific: int
    distance: float
    inside: bool | None


@dataclass(frozen=True)
class _Label:
    markup: str
    box: Box


@dataclass(frozen=True)
class Relation:
    """A relation over all pairs of a data set.

    Attributes:
        general, specific: The views.
        n: Pairs.
        distance: Their median, in units of length.
        nearer: Share of pairs whose general point is nearer the origin; None without one.
        inside: Share whose specific point lies in the cone of the general one; None without cones.
    """

    general: str
    specific: str
    n: int
    distance: float
    nearer: float | None
    inside: float | None


@torch.no_grad()
def in_cone(manifold: Manifold, general: Tensor, specific: Tensor) -> Tensor | None:
    """Whether each specific point lies in the cone of the general one, bool ``(N,)``; None on a sphere.

    In a product, whether it does in the mean over the factors.
    """
    if not isinstance(manifold, HasCones):
        return None
    margin = manifold.half_aperture(general) - manifold.exterior_angle(general, specific)
    return (margin.mean(-1) if isinstance(manifold, Product) else margin) >= 0


@torch.no_grad()
def relations(manifold: Manifold, explored: Explored) -> list[Relation]:
    """The relations between views that have points; each part is held against its own image and caption."""
    found = []
    for general, specific in RELATIONS:
        first, second = (_rows(explored, view, (general, specific)) for view in (general, specific))
        if not len(first):
            continue
        inside = in_cone(manifold, first, second)
        nearer = manifold.radius(first) < manifold.radius(second) if isinstance(manifold, HasRadius) else None
        found.append(
            Relation(
                general,
                specific,
                len(first),
                manifold.distance(first, second).median().item(),
                None if nearer is None else nearer.double().mean().item(),
                None if inside is None else inside.double().mean().item(),
            )
        )
    return found


def _rows(explored: Explored, view: str, both: tuple[str, str]) -> Tensor:
    """Points of a view, a row each pair of the relation."""
    points = explored.points[view]
    by_part = any(name.startswith("part_") for name in both)
    return points[explored.owner] if by_part and not view.startswith("part_") else points


@torch.no_grad()
def example(manifold: Manifold, explored: Explored, row: int, parts: Sequence[int]) -> tuple[list[Node], list[Edge]]:
    """An image with its caption and some of its parts, by their rows; the most general node first."""
    names = [("image", row), ("text", row), *[(view, i) for i in parts for view in ("part_image", "part_text")]]
    points = torch.stack([explored.points[view][i] for view, i in names])
    radii = manifold.radius(points).tolist() if isinstance(manifold, HasRadius) else [None] * len(points)
    rank = {"part_text": 0, "part_image": 1, "text": 2, "image": 3}
    order = sorted(range(len(names)), key=lambda k: (radii[k] or 0.0, rank[names[k][0]]))
    nodes = [_node(explored, *names[k], radii[k]) for k in order]
    place = {names[k]: i for i, k in enumerate(order)}
    pairs = [("text", row, "image", row)]
    for i in parts:
        pairs += [("part_text", i, "part_image", i), ("part_text", i, "text", row), ("part_image", i, "image", row)]
    edges = []
    for general, g, specific, s in pairs:
        first, second = explored.points[general][g : g + 1], explored.points[specific][s : s + 1]
        inside = in_cone(manifold, first, second)
        apart = manifold.distance(first, second).item()
        ends = place[general, g], place[specific, s]
        edges.append(Edge(*ends, apart, None if inside is None else bool(inside.item())))
    return nodes, edges


def _node(explored: Explored, view: str, row: int, radius: float | None) -> Node:
    text = {"image": explored.keys, "text": explored.captions}.get(view, explored.phrases)[row]
    picture = None
    if view == "image":
        picture = explored.whole(row, 2 * PICTURE)
    elif view == "part_image":
        picture = explored.part(row, 2 * PICTURE)
    return Node(view, text, radius, picture)


def choose_examples(explored: Explored, count: int) -> list[tuple[int, list[int]]]:
    """Images at even distances that have the most different phrases, up to :data:`PARTS`, with the rows of these."""
    parts: dict[int, dict[str, int]] = {}
    for i, (row, phrase) in enumerate(zip(explored.owner, explored.phrases, strict=True)):
        parts.setdefault(row, {}).setdefault(phrase, i)
    most = min(PARTS, max(map(len, parts.values()), default=0))
    rich = [row for row, phrases in parts.items() if len(phrases) >= most]
    chosen = [rich[i * len(rich) // count] for i in range(count)] if len(rich) > count else rich
    return [(row, list(parts[row].values())[:PARTS]) for row in chosen]


def relation_graph(nodes: Sequence[Node], edges: Sequence[Edge], *, low: float, high: float, title: str) -> str:
    """A graph as SVG: a node each row, at its radius; an edge is solid where the cone of the general node holds the
    specific one, dashed where not, and says the distance.

    Args:
        low, high: Radii at the edges of the picture.
        title: For those who do not see it; escaped here.
    """
    on_axis = bool(nodes) and nodes[0].radius is not None
    height = ROW * len(nodes) + (AXIS if on_axis else 8)
    places = [(_across(node.radius, low, high), ROW * (i + 0.5)) for i, node in enumerate(nodes)]
    labels = [_label(node, *place) for node, place in zip(nodes, places, strict=True)]
    taken = [label.box for label in labels] + [(x - 26, y - 26, x + 26, y + 26) for x, y in places]
    lines = "".join(_edge(places[e.general], places[e.specific], e, taken) for e in edges)
    shapes = "".join(_shape(node, *place) for node, place in zip(nodes, places, strict=True))
    axis = _axis(low, high, height) if on_axis else ""
    said = [f"{VIEW_NAMES[n.view].removesuffix('s')} {shortened(n.text, 60)} {_radius(n)}".strip() for n in nodes]
    spoken = f"{title}: {'; '.join(said)}"
    return (
        f'<svg class="relations" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(spoken)}">'
        f"{axis}{lines}{shapes}{''.join(label.markup for label in labels)}</svg>\n"
    )


def _across(radius: float | None, low: float, high: float) -> float:
    share = 0.15 if radius is None else (radius - low) / max(high - low, 1e-12)
    return MARGIN + share * (WIDTH - 2 * MARGIN)


def _radius(node: Node) -> str:
    return "" if node.radius is None else f"radius {node.radius:.2f}"


def _edge(start: tuple[float, float], end: tuple[float, float], edge: Edge, taken: list[Box]) -> str:
    """The line and its distance, which stands where there is room; its place is then taken."""
    (x, y), (to_x, to_y) = start, end
    bend = 0.5 * (y + to_y)
    swing = 26 if abs(to_y - y) > 1.5 * ROW else 0  # a long edge passes beside the nodes between
    path = ((x, y), (x - swing, bend), (to_x - swing, bend), (to_x, to_y))
    spots = [_along(path, share) for share in (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82)]
    boxes = [(a - 13, b - 7, a + 13, b + 7) for a, b in spots]
    best = min(range(len(spots)), key=lambda k: sum(_overlap(boxes[k], other) for other in taken))
    taken.append(boxes[best])
    dashed = edge.inside is False
    dashes = ' stroke-dasharray="4 4"' if dashed else ""
    said = {True: ", inside the cone", False: ", outside the cone", None: ""}[edge.inside]
    return (
        f"<g><title>distance {edge.distance:.2f}{said}</title>"
        f'<path fill="none" stroke="{OUTSIDE if dashed else INSIDE}" stroke-width="1.4"'
        f"{dashes} "
        f'd="M{x:.1f} {y:.1f}C{x - swing:.1f} {bend:.1f} {to_x - swing:.1f} {bend:.1f} {to_x:.1f} {to_y:.1f}"/>'
        f'<text class="apart" x="{spots[best][0]:.1f}" y="{spots[best][1] + 3.5:.1f}">{edge.distance:.2f}</text></g>'
    )


def _along(path: Sequence[tuple[float, float]], share: float) -> tuple[float, float]:
    """A place on a cubic Bezier curve."""
    weights = [math.comb(3, k) * share**k * (1 - share) ** (3 - k) for k in range(4)]
    return sum(w * x for w, (x, _) in zip(weights, path, strict=True)), sum(
        w * y for w, (_, y) in zip(weights, path, strict=True)
    )


def _overlap(one: Box, other: Box) -> float:
    """Area that two boxes share."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    tall = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, wide) * max(0.0, tall)


def _shape(node: Node, x: float, y: float) -> str:
    colour = COLOURS[node.view]
    if node.picture is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}" stroke="#fff" stroke-width="1.5"/>'
    wide, tall = _extent(node.picture)
    box = f'x="{x - wide / 2:.1f}" y="{y - tall / 2:.1f}" width="{wide:.1f}" height="{tall:.1f}"'
    return (
        f'<image {box} href="{jpeg_url(node.picture)}" preserveAspectRatio="none"/>'
        f'<rect {box} fill="none" stroke="{colour}" stroke-width="2.5"/>'
    )


def _extent(picture: Image.Image) -> tuple[float, float]:
    scale = PICTURE / max(picture.size)
    return scale * picture.width, scale * picture.height


def _label(node: Node, x: float, y: float) -> _Label:
    """What stands beside a node, on the side that has more room: its text, if it is one, and its radius."""
    reach = 7.0 if node.picture is None else _extent(node.picture)[0] / 2 + 2
    left = x > WIDTH / 2
    room = (x if left else WIDTH - x) - reach - 6
    start = 2.0 if left else x + reach + 4
    says = f'<b dir="auto">{html.escape(shortened(node.text, 90))}</b>' if node.picture is None else ""
    radius = f"<span>{_radius(node)}</span>" if node.radius is not None else ""
    markup = (
        f'<foreignObject x="{start:.1f}" y="{y - ROW / 2 + 2:.1f}" width="{room:.1f}" height="{ROW - 4}">'
        f'<div class="node{" left" if left else ""}" title="{html.escape(shortened(node.text))}">'
        f"{says}{radius}</div></foreignObject>"
    )
    wide = min(room, 6.2 * max(len(node.text) if says else 0, 12))
    edge = x - reach - 4 - wide if left else start
    return _Label(markup, (edge, y - 14, edge + wide, y + 14))


def _axis(low: float, high: float, height: float) -> str:
    """Round radii below the graph, with faint lines above them."""
    step = _round_step((high - low) / 4)
    ticks = [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    digits = max(0, -math.floor(math.log10(step)))
    lines = "".join(
        f'<path stroke="#e6e6e6" d="M{_across(tick, low, high):.1f} 0V{height - AXIS + 4}"/>'
        f'<text class="tick" x="{_across(tick, low, high):.1f}" y="{height - AXIS + 17}">{tick:.{digits}f}</text>'
        for tick in ticks
    )
    return f'{lines}<text class="tick" x="{WIDTH / 2}" y="{height - 3}" fill="{INK}">radius</text>'


def _round_step(rough: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is not above ``rough``."""
    power = 10.0 ** math.floor(math.log10(max(rough, 1e-9)))
    return max(power * k for k in (1, 2, 5) if power * k <= max(rough, 1e-9) * (1 + 1e-9))
