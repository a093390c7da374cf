"""What a model makes of a data set, as one page to look around in: map, radii, parts, traversals, results."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hyvlm
from hyvlm.data.catalog import SampleSet, open_data
from hyvlm.diagnostics.radii import RadialDistribution, radial_distributions
from hyvlm.diagnostics.subset import spread
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.report import read_results_file
from hyvlm.evaluation.runner import choose_device
from hyvlm.files import check_folder, write_text
from hyvlm.geometry import Manifold
from hyvlm.plotting.explored import Explored, explore
from hyvlm.plotting.explorer_map import mark, script_hash
from hyvlm.plotting.figures import COLOURS, NAMES
from hyvlm.plotting.page import bullets, number, page, png_url, table
from hyvlm.plotting.pictures import short_names
from hyvlm.plotting.radius_figures import radius_pictures
from hyvlm.plotting.relation_graph import Relation, choose_examples, example, relation_graph, relations
from hyvlm.plotting.report_map import PlacedMap, place_map
from hyvlm.plotting.strips import STYLE as STRIPS
from hyvlm.plotting.strips import Strip, strip_html, walk_to_root
from hyvlm.types import reasons

STEM = "report"
#: Images of one page, at the most: the page must stay small enough to open.
LIMIT = 10_000
#: Images whose parts, and whose way to the root, are shown.
EXAMPLES, WALKS = 3, 4

STYLESHEET = """
body { overflow-wrap: break-word; } section { margin: 2.6rem 0; } h2 { margin-bottom: .4rem; }
p { max-width: 48rem; margin: .4rem 0 .8rem; } p, li, h1 { overflow-wrap: anywhere; }
.facts { color: #595959; } img { display: block; }
.wide { overflow-x: auto; } .wide:focus-visible { outline: 3px solid #0072B2; }
table { border-collapse: collapse; font-size: .9rem; margin: .6rem 0 1rem; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #e6e6e6; }
th { font-weight: 600; border-bottom-color: #999; }
.number { text-align: right; white-space: nowrap; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1.4rem 2rem; }
.grid.two { grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); max-width: 60rem; }
.legend span { display: inline-flex; align-items: center; gap: .35rem; }
.relations { display: block; width: 100%; max-width: 27rem; margin: 0 auto; }
.relations .apart { font: 10.5px system-ui, sans-serif; text-anchor: middle; fill: #333; stroke: #fff;
  stroke-width: 3px; paint-order: stroke; }
.relations .tick { font: 11px system-ui, sans-serif; text-anchor: middle; fill: #595959; }
.node { height: 100%; display: flex; flex-direction: column; justify-content: center; font-size: 12px;
  line-height: 1.25; } .node.left { text-align: right; } .node span { color: #595959; }
.node b, .node span { background: rgb(255 255 255 / 78%); align-self: flex-start; }
.node.left b, .node.left span { align-self: flex-end; }
.node b { font-weight: 400; display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2;
  overflow: hidden; overflow-wrap: anywhere; }
@media (max-width: 480px) { body { margin: 1rem auto; } table { font-size: .78rem; } th, td { padding-right: .5rem; } }
"""


@dataclass(frozen=True)
class Report:
    """What the page shows.

    Attributes:
        name, fingerprint: The model's.
        manifold: Its name, with the curvatures it has.
        data: Data set and split.
        total: Samples that it has, those that cannot be used included.
        explored: Points, pictures and texts.
        placed: The map, ready to be shown.
        radii: Radial distributions of the views; empty without an origin.
        radius_pictures: PNG files of them, by view.
        relations: Over all parts and wholes.
        graphs: SVG of some of them.
        strips: Ways to the root; none without one.
        results: Entries of results files, and whether each is of this model.
    """

    name: str
    fingerprint: str
    manifold: str
    data: str
    total: int
    explored: Explored
    placed: PlacedMap
    radii: list[RadialDistribution]
    radius_pictures: Mapping[str, bytes]
    relations: list[Relation]
    graphs: list[str]
    strips: list[Strip]
    results: list[Mapping[str, Any]]


def write_report(
    model: str,
    data: str,
    out: str | Path,
    *,
    split: str | None = None,
    limit: int = LIMIT,
    results: Sequence[str | Path] = (),
    captions: str = "first",
    resize: str | None = None,
    seed: int = 0,
    device: str | None = None,
    batch_size: int = 64,
    workers: int = 0,
) -> Path:
    """Write ``report.html`` into the folder ``out``. The same points give the same bytes; see docs/report.md.

    Args:
        model: What :func:`hyvlm.load` takes.
        data: Images with captions, as :func:`hyvlm.data.open_data` takes them; parts are shown if there are any.
        limit: Images, at even distances through the set, at the most; up to :data:`LIMIT`.
        results: Files that ``hyvlm eval`` wrote, for the tables at the end.
        captions: The text of an image: its "first" or "last" caption, or all "joined".
        seed: Of the points that HoroPCA is fitted on, and of t-SNE.
        workers: Processes that read images.
    Returns:
        The page.
    Raises:
        ValueError, FileNotFoundError: One sentence on what is wrong with the data, the model or a file.
    """
    if not 2 <= limit <= LIMIT:
        raise ValueError(f"a report shows 2 to {LIMIT:,} images, got a limit of {limit:,}")
    check_folder(out, "the folder for the report", [f"{STEM}.html"])
    entries = [entry for path in results for entry in read_results_file(path)]
    samples = open_data(data, split=split)
    loaded, _, tokenizer = hyvlm.load(model, device=choose_device(device))
    embedder = Embedder(loaded, tokenizer, batch_size=batch_size, workers=workers)
    explored = explore(embedder, spread(samples, limit), captions=captions, resize=resize)
    loaded.to("cpu")  # what follows is small
    found = measure(embedder, explored, name=short_names([model])[0], samples=samples, results=entries, seed=seed)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{STEM}.html"
    write_text(path, report_page(found))
    return path


def measure(
    embedder: Embedder,
    explored: Explored,
    *,
    name: str,
    samples: SampleSet,
    results: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
) -> Report:
    """Everything that the page shows, from points on the CPU; the model must be there too.

    Raises:
        ValueError: If all points coincide.
    """
    manifold = embedder.model.manifold
    with evaluation_mode(embedder.model):
        radii = radial_distributions(manifold, {v: p for v, p in explored.views().items() if len(p) > 1})
        return Report(
            name=name,
            fingerprint=embedder.model_fingerprint,
            manifold=_manifold(embedder),
            data=f"{samples.name} ({samples.split})" if samples.split else samples.name,
            total=len(samples)
            + sum(n for why, n in samples.dropped.items() if not why.startswith(("part: ", "shard "))),
            explored=explored,
            placed=place_map(manifold, explored, seed=seed),
            radii=radii,
            radius_pictures=radius_pictures(manifold, explored.views()),
            relations=relations(manifold, explored),
            graphs=_graphs(manifold, explored),
            strips=walk_to_root(embedder.model, explored, WALKS),
            results=list(results),
        )


def _manifold(embedder: Embedder) -> str:
    name = str(embedder.model.config["manifold"]["name"])
    c = embedder.model.manifold.describe().get("c")
    if c is None:
        return name
    low, high = (min(c), max(c)) if isinstance(c, list) else (c, c)
    return f"{name}, c = {low:.3g}" + (f" to {high:.3g}" if high > low else "")


def _graphs(manifold: Manifold, explored: Explored) -> list[str]:
    examples = [example(manifold, explored, *chosen) for chosen in choose_examples(explored, EXAMPLES)]
    radii = [node.radius for nodes, _ in examples for node in nodes if node.radius is not None]
    low, high = (min(radii), max(radii)) if radii else (0.0, 1.0)
    return [
        relation_graph(nodes, edges, low=low, high=high, title=f"from parts to the whole, example {i + 1}")
        for i, (nodes, edges) in enumerate(examples)
    ]


def report_page(report: Report) -> str:
    """The page, without any file beside it; what names or says something is escaped."""
    placed = report.placed
    sections = [
        ("Map", f"<p>{html.escape(placed.note)}</p>\n{placed.body}"),
        ("How far from the origin", _radii(report)),
        ("From parts to wholes", _relations(report)),
        ("Toward the root", _strips(report)),
        ("Results", _results(report)),
    ]
    body = _facts(report) + "".join(_section(heading, content) for heading, content in sections if content)
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{script_hash(placed.script)}'"
        "; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return page(
        f"What {report.name} makes of {report.data}",
        body + f"<script>{placed.script}</script>\n",
        stylesheet=STYLESHEET + STRIPS + placed.style,
        head=head,
    )


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{html.escape(heading)}</h2>\n{content}</section>\n"


def _facts(report: Report) -> str:
    explored = report.explored
    views = ", ".join(f"{len(points):,} {NAMES[view]}" for view, points in explored.views().items())
    lines = [
        f"Model {report.fingerprint} ({report.manifold}), hyvlm {hyvlm.__version__}.",
        f"{len(explored.index):,} of {report.total:,} samples: {views}.",
    ]
    if explored.skipped:
        lines.append(f"Left out: {reasons(explored.skipped)}.")
    if explored.texts_cut:
        lines.append(f"{explored.texts_cut:,} texts were longer than the model's context and lost their end.")
    return f'<p class="facts">{html.escape(" ".join(lines))}</p>\n'


def _radii(report: Report) -> str:
    if not report.radii:
        return "<p>Points of this manifold have no radius: it has no origin.</p>\n"
    pictures = "".join(
        f'<figure><img alt="Histogram of the radii of {r.count:,} {NAMES[r.view]}, median {r.quantiles["50%"]:.3f}" '
        f'src="{png_url(report.radius_pictures[r.view])}"></figure>\n'
        for r in report.radii
    )
    rows = [
        [NAMES[r.view], f"{r.count:,}", *[number(r.quantiles[q], 3) for q in ("5%", "50%", "95%")]]
        for r in report.radii
    ]
    text = "Distance of each point from the origin, in units of length: the general near it, the specific far out."
    head = ["view", "points", "5 %", "median", "95 %"]
    return f'<p>{text}</p>\n<div class="grid two">\n{pictures}</div>\n' + table(head, rows, numbers=4)


def _relations(report: Report) -> str:
    if not report.graphs:
        return "<p>The images of this set have no parts.</p>\n"
    rows = []
    for r in report.relations:
        name = f"{NAMES[r.general].removesuffix('s')} → {NAMES[r.specific].removesuffix('s')}"
        rows.append([name, f"{r.n:,}", number(r.distance, 3), _percent(r.nearer), _percent(r.inside)])
    head = ["relation", "pairs", "distance", "in order, %", "in cone, %"]
    dots = "".join(
        f"<span>{mark(COLOURS[view], 'square' if view.endswith('image') else 'circle')} {NAMES[view]}</span>\n"
        for view in ("part_text", "part_image", "text", "image")
    )
    return (
        "<p>The more general a point, the higher it stands and the further left, by its radius. Lines carry the "
        "distance; they are solid where the cone of the general point holds the specific one, dashed where not.</p>\n"
        f'<p class="legend">\n{dots}</p>\n<div class="grid">\n{"".join(report.graphs)}</div>\n'
        "<p>Over all pairs: the median distance, how many have the general point nearer the origin, and how many have "
        "the specific one in its cone.</p>\n" + table(head, rows, numbers=4)
    )


def _percent(share: float | None) -> str:
    return number(None if share is None else 100 * share, 1)


def _strips(report: Report) -> str:
    if not report.strips:
        return "<p>This manifold has no root to walk to.</p>\n"
    entailed = report.strips[0].traversal.entailed
    text = (
        "From an image in equal steps along the geodesic to the origin: at each step the nearest text and the nearest "
        f"image{' whose cone holds the point' if entailed else ''}, each listed where it is met first; the origin ends "
        "the way where nothing else is nearer."
    )
    if not entailed:
        text += " Cones are left aside: on most of these ways no cone of a text or an image holds any point."
    return f"<p>{text}</p>\n" + "".join(strip_html(strip) for strip in report.strips)


def _results(report: Report) -> str:
    others = any(entry["model"] != report.fingerprint for entry in report.results)
    rows = []
    for entry in report.results:
        model = report.name if entry["model"] == report.fingerprint else str(entry["model"])
        where = f"{entry['data']} ({entry['split']})" if entry["split"] else str(entry["data"])
        rows += [[*([model] if others else []), str(entry["task"]), where, *score] for score in _scores(entry)]
    head = [*(["model"] if others else []), "task", "data", "metric", "value", "95 % interval", "samples"]
    note = ["Models that are called by their fingerprint are others than the one of this page."] if others else []
    return table(head, rows, numbers=3) + bullets(note)


def _scores(entry: Mapping[str, Any]) -> Iterator[list[str]]:
    """Metric, value, interval and samples of each score of an entry."""
    for metric, value in entry["scores"].items():
        unit, ends = entry["units"].get(metric, ""), entry["intervals_95"].get(metric)
        digits = 2 if unit == "%" else 3
        interval = f"{number(ends[0], digits)} to {number(ends[1], digits)}" if ends else ""
        name = f"{metric}, {unit}" if unit else metric
        yield [name, number(value, digits), interval, f"{entry['n']:,}"]
