"""What the app shows, as pieces of HTML: hits, ways, the map. Nothing here knows of gradio.

Pictures travel inside the HTML, so that the server needs to hand out no file.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from PIL import Image

from hyvlm.data.images import load_image
from hyvlm.evaluation.runner import choose_device
from hyvlm.geometry import Sphere
from hyvlm.plotting.collection_map import collection_map
from hyvlm.plotting.explorer_map import shortened
from hyvlm.plotting.page import jpeg_url, number
from hyvlm.plotting.strips import STYLE as STRIPS
from hyvlm.plotting.strips import End, Strip, strip_html
from hyvlm.registry import unknown
from hyvlm.retrieval.collection import Collection, Group
from hyvlm.retrieval.places import Place, Places, picture_of
from hyvlm.retrieval.search import Hits, Searcher
from hyvlm.types import BadSample

#: Hits of one search, and points of one way, at the most.
MOST_HITS, MOST_STEPS = 100, 200
#: Side of a picture of a hit, and of a step, in pixels.
HIT, STEP = 240, 160
#: What a query can be.
KINDS = ("text", "picture", "key")
#: Whether only candidates count whose cone holds the point of the way.
CONES = {"as usual": None, "only those that hold the point": True, "left aside": False}

STYLE = (
    """
[id$="-upload"] a { pointer-events: none; } /* a link to the upload, which is not handed out again */
.paper { background: #fff; color: #333; font: 15px/1.5 system-ui, sans-serif; padding: .2rem .6rem .6rem;
  border-radius: .4rem; overflow-wrap: anywhere; }
.paper .facts { color: #595959; margin: .4rem 0; } .paper .message { border-left: 4px solid #D55E00;
  padding: .3rem .7rem; margin: .6rem 0; }
.paper .query { height: 4.5rem; display: block; border: 1px solid #e6e6e6; margin: .4rem 0; }
.paper .hits { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .8rem;
  list-style: none; padding: 0; margin: .6rem 0; }
.paper .hits li { border: 1px solid #e6e6e6; border-radius: .3rem; padding: .5rem; display: flex;
  flex-direction: column; gap: .25rem; }
.paper .hits img, .paper .gone { width: 100%; height: 8.5rem; object-fit: contain; background: #f6f6f6; margin: 0; }
.paper .gone { display: flex; align-items: center; justify-content: center; color: #595959; font-size: .8rem; }
.paper .numbers { font-size: .85rem; } .paper .key { font-size: .8rem; color: #595959; }
.paper .does { margin-top: auto; display: flex; flex-wrap: wrap; gap: .3rem; }
.paper button { font: inherit; font-size: .8rem; color: #333; background: #fff; border: 1px solid #767676;
  border-radius: .3rem; padding: .15rem .5rem; min-height: 1.75rem; cursor: pointer; }
.paper button:hover { background: #f0f0f0; } .paper :focus-visible { outline: 3px solid #0072B2; outline-offset: 1px; }
.paper .wide { overflow-x: auto; } .paper table { border-collapse: collapse; width: 100%; font-size: .9rem; }
.paper th, .paper td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
  border-bottom: 1px solid #e6e6e6; } .paper .number { text-align: right; white-space: nowrap; }
.paper td:last-child { width: 100%; }
.paper iframe { width: 100%; height: min(66rem, 100vw + 22rem); border: 0; background: #fff; }
@media (max-width: 480px) { .paper { padding: .2rem; } .paper table { font-size: .8rem; }
  .paper th, .paper td { padding-right: .5rem; } .paper .hits { grid-template-columns: 1fr 1fr; gap: .5rem; } }
"""
    + STRIPS
)


@dataclass(frozen=True)
class Query:
    """The fields of a form, of which ``kind`` says the one that counts.

    Attributes:
        kind: One of :data:`KINDS`.
        upload: The bytes of a picture.
    """

    kind: str
    text: str | None = None
    upload: bytes | None = None
    key: str | None = None


class Views:
    """A collection with its model, and what a page shows of it.

    Args:
        collection: What is searched.
        places: The same with its model.
    Raises:
        ValueError, FileNotFoundError: As :class:`~hyvlm.retrieval.search.Searcher` does.
    """

    def __init__(self, collection: Collection, places: Places) -> None:
        self.collection, self.places = collection, places
        self.groups = [group.name for group in (collection.images, collection.texts) if group is not None]
        self._searchers = {name: Searcher(collection, places.model, group=name) for name in self.groups}

    @classmethod
    def open(cls, folder: str | Path, *, model: str | None = None, device: str | None = None) -> Views:
        """Open a collection and its model.

        Raises:
            ValueError, FileNotFoundError: There is no such collection, or the model is missing or another one.
        """
        collection = Collection.open(folder)
        return cls(collection, Places(collection, *collection.load_model(model, device=choose_device(device))))

    @property
    def has_origin(self) -> bool:
        """Whether there are radii, cones and a root."""
        return not isinstance(self.places.model.manifold, Sphere)

    @cached_property
    def radius_limits(self) -> tuple[float, float]:
        """Of all points, in units of length, rounded outward to three digits; (0, 0) without an origin."""
        radii = [self.collection.group(name).radii for name in self.groups]
        known = [group for group in radii if group is not None and len(group)]
        if not known or not self.has_origin:
            return 0.0, 0.0
        low, high = min(float(r.min()) for r in known), max(float(r.max()) for r in known)
        return math.floor(1000 * low) / 1000, math.ceil(1000 * high) / 1000

    @property
    def summary(self) -> str:
        """What is open, in a line."""
        counts = " and ".join(f"{len(self.collection.group(name)):,} {name}" for name in self.groups)
        return f"{counts}; model {shortened(str(self.collection.manifest['model']['path']), 80)}"

    def place(self, query: Query, what: str = "the query") -> Place:
        """The point of a query.

        Raises:
            ValueError: It is empty, a picture that cannot be read, or a key that there is not.
        """
        if query.kind == "text":
            if not (query.text or "").strip():
                raise ValueError(f"{what} is an empty text: write what to look for, in any script")
            return self.places.of_text(str(query.text))
        if query.kind == "key":
            if not (query.key or "").strip():
                raise ValueError(f"{what} is an empty key: write the key of an image or of a text of the collection")
            return self.places.of_key(str(query.key).strip())
        if query.kind != "picture":
            raise ValueError(unknown("kind of query", query.kind, list(KINDS)))
        if not query.upload:
            raise ValueError(f"{what} has no picture: upload one, or choose another kind of query")
        try:
            picture = load_image(query.upload, "the upload")
        except BadSample as error:
            raise ValueError(f"the picture cannot be read: {error.reason}") from error
        return self.places.of_picture(picture, "the picture")

    def search(
        self,
        query: Query,
        *,
        group: str,
        k: int = 12,
        radius_min: float | None = None,
        radius_max: float | None = None,
        within: str = "",
    ) -> str:
        """The hits of a query in "images", as a gallery, or in "texts", as a table.

        Args:
            radius_min, radius_max: A bound that leaves nothing out, by :attr:`radius_limits`, is none.
            within: Only what lies in the cone of this text; empty for all.
        Raises:
            ValueError: One sentence on what is wrong with the query or a filter.
        """
        found = self.collection.group(group)
        if not 1 <= k <= MOST_HITS:
            raise ValueError(f"1 to {MOST_HITS} results can be shown, got {k}")
        place = self.place(query)
        low, high = self.radius_limits
        hits = self._searchers[group].search(
            place.point.unsqueeze(0),
            by=place.kind,
            k=k,
            radius_min=radius_min if radius_min is not None and radius_min > low else None,
            radius_max=radius_max if radius_max is not None and radius_max < high else None,
            within=self.places.of_text(within).point if within.strip() else None,
        )
        count = int((hits.rows[0] >= 0).sum())
        if not count:
            return message(f"None of the {len(found):,} {group} passes the filters: widen them.", role="status")
        asked = shortened(place.name, 120)
        facts = f"{count:,} of {len(found):,} {group} for {asked}. Score: {hits.score_name}."
        shown = "" if place.picture is None else f'<img class="query" alt="The query" src="{_url(place.picture, HIT)}">'
        results = self._gallery(found, hits) if group == "images" else self._table(found, hits)
        return paper(f'{shown}<p class="facts" role="status" dir="auto">{html.escape(facts)}</p>\n{results}')

    def _gallery(self, group: Group, hits: Hits) -> str:
        items = []
        for rank, (row, score) in enumerate(_found(hits), start=1):
            key, picture = group.keys[row], picture_of(self.collection, row)
            name = html.escape(shortened(key, 120))
            gone = '<div class="gone">the picture cannot be read any more</div>'
            shown = gone if picture is None else f'<img alt="{name}" src="{_url(picture, HIT)}">'
            items.append(
                f'<li>{shown}<div class="numbers"><b>{rank}</b> score {score:#.4g}<br>{_radius(group, row)}</div>'
                f'<div class="key">{name}</div>{self._does("key", key)}</li>\n'
            )
        return f'<ol class="hits" aria-label="Images found">\n{"".join(items)}</ol>\n'

    def _table(self, group: Group, hits: Hits) -> str:
        assert group.texts is not None
        rows = []
        for rank, (row, score) in enumerate(_found(hits), start=1):
            text = group.texts[row]
            key = html.escape(shortened(group.keys[row], 120))
            radius = "–" if group.radii is None else number(float(group.radii[row]), 3)
            numbers = "".join(f'<td class="number">{value}</td>' for value in (rank, f"{score:#.4g}", radius))
            said = f'<div dir="auto">{html.escape(shortened(text))}</div><div class="key">{key}</div>'
            rows.append(f"<tr>{numbers}<td>{said}{self._does('text', text)}</td></tr>\n")
        head = "".join(f'<th scope="col" class="number">{name}</th>' for name in ("rank", "score", "radius"))
        head += '<th scope="col">text and key</th>'
        label = 'role="region" aria-label="Texts found"'
        return f'<div class="wide" tabindex="0" {label}><table><tr>{head}</tr>\n{"".join(rows)}</table></div>\n'

    def _does(self, kind: str, name: str) -> str:
        """The buttons of a hit: a search with it, and the way from it."""
        data, said = f'data-kind="{kind}" data-name="{html.escape(name)}"', html.escape(shortened(name, 60))
        buttons = f'<button type="button" data-do="search" {data} aria-label="Search with {said}">similar</button>'
        if self.has_origin:
            label = f"Walk from {said} to the root"
            buttons += f'<button type="button" data-do="walk" {data} aria-label="{label}">to the root</button>'
        return f'<div class="does">{buttons}</div>'

    def walk(
        self,
        start: Query,
        end: Query | None = None,
        *,
        within: str | None = None,
        steps: int = 50,
        by: str = "geodesic",
        entailed: bool | None = None,
    ) -> str:
        """The way from one place to another, or to the root, as a strip.

        Args:
            end: None for the root.
            within: "texts", "images", "both" or None for what there is.
        Raises:
            ValueError: One sentence on what is wrong; also without an end on a manifold that has no root.
        """
        if not 2 <= steps <= MOST_STEPS:
            raise ValueError(f"a way has 2 to {MOST_STEPS} steps, got {steps}")
        first = self.place(start, "the start")
        last = None if end is None else self.place(end, "the end")
        walk = self.places.walk(first, last, within=within, steps=steps, by=by, entailed=entailed)
        rows = {step.row for step in walk.steps if step.kind == "image" and step.row is not None}
        read = {row: picture_of(self.collection, row) for row in rows}
        strip = Strip(
            first.name,
            walk.start_radius,
            _small(first.picture),
            walk,
            {row: small for row, picture in read.items() if (small := _small(picture)) is not None},
            first.kind,
            None if last is None else End(last.name, last.kind, walk.end_radius, _small(last.picture)),
        )
        met = sum(step.kind != "root" for step in walk.steps)
        facts = f"{met:,} met at {walk.looked:,} points of the way, each listed where it is met first."
        if walk.entailed:
            facts += " Only those count whose cone holds the point."
        if walk.empty:
            facts += f" At {walk.empty:,} points there was none."
        return paper(f'<p class="facts" role="status">{html.escape(facts)}</p>\n{strip_html(strip)}')

    @cached_property
    def map(self) -> str:
        """The map, a page in a frame of its own.

        Raises:
            ValueError: There are fewer than 3 points, or all coincide.
        """
        with torch.no_grad():
            page = collection_map(self.collection, self.collection.manifold())
        frame = f'<iframe title="Map of the collection" sandbox="allow-scripts" srcdoc="{html.escape(page)}"></iframe>'
        return paper(frame)


def paper(content: str) -> str:
    """HTML on white, whatever the colours of the page around it."""
    return f'<div class="paper">{content}</div>'


def message(text: str, *, role: str = "alert") -> str:
    """A sentence to the reader."""
    line = " ".join(text.split())
    return paper(f'<p class="message" role="{role}" dir="auto">{html.escape(line[:1].upper() + line[1:])}</p>')


def _found(hits: Hits) -> list[tuple[int, float]]:
    """Row and score of each hit of the first query."""
    pairs = zip(hits.rows[0].tolist(), hits.scores[0].tolist(), strict=True)
    return [(row, score) for row, score in pairs if row >= 0]


def _radius(group: Group, row: int) -> str:
    return "" if group.radii is None else f"radius {float(group.radii[row]):.3f}"


def _small(picture: Image.Image | None, side: int = STEP) -> Image.Image | None:
    if picture is None:
        return None
    small = picture.copy()
    small.thumbnail((side, side))
    return small


def _url(picture: Image.Image, side: int) -> str:
    small = _small(picture, side)
    assert small is not None
    return jpeg_url(small)
