"""A diagnosis as one page to look at: the verdict first, then figures and tables of what it rests on."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from hyvlm.diagnostics.diagnosis import Diagnosis, ModelDiagnosis
from hyvlm.diagnostics.readout import ReadoutAblation, ReadoutRow
from hyvlm.diagnostics.trajectories import Trajectory
from hyvlm.diagnostics.verdict import Verdict
from hyvlm.plotting.distortion_figures import (
    QUANTITIES,
    aperture_figure,
    curvature,
    heat_maps,
    ratio_ranges,
    relation_label,
)
from hyvlm.plotting.figures import missing_letters, save
from hyvlm.plotting.page import bullets, number, page, png_url, table
from hyvlm.plotting.part_figures import cosine_figure
from hyvlm.plotting.training_figures import (
    VIEW_NAMES,
    gradient_figure,
    logged_rows,
    operating_point_figure,
    radial_figure,
    trajectory_figure,
)

STYLESHEET = """
section { margin: 2.2rem 0; } p { max-width: 48rem; margin: .4rem 0 .8rem; }
p, li, h1 { overflow-wrap: anywhere; }
img { display: block; margin: .6rem 0; } figcaption { max-width: 48rem; margin-bottom: 1rem; }
.verdict { max-width: none; border-left: .4rem solid #999; background: #f6f6f6; padding: .8rem 1.1rem; }
.verdict strong { font-size: 1.15rem; } .weak { border-color: #D55E00; } .strong { border-color: #0072B2; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .6rem 0 1rem; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #e6e6e6; }
th { font-weight: 600; border-bottom-color: #999; } td, th { overflow-wrap: break-word; }
.number { text-align: right; white-space: nowrap; } .largest { background: #FFF3D6; }
"""
STEM = "diagnosis"
#: A figure's name to its heading and what to see in it.
FIGURES = {
    "ratios": (
        "Distortion ratios",
        "How much the exponential map changes distances, exterior angles and half-apertures between the model's own "
        "matched points: what is measured on the manifold over what is measured between the same tangent vectors. "
        "At 1 the map changes nothing.",
    ),
    "heat-maps": (
        "Where the map would distort",
        "The same ratios over the angle between two points and the second one's radius, with the first one's radius at "
        "its mode. The dashed box holds 98 % of the pairs' radii and of their angles. White is a ratio of 1; mind the "
        "range of the colours.",
    ),
    "apertures": (
        "Half-apertures of the cones",
        "Left their ratio, right both, over the radii of each view that opens cones. Shaded: the flat cone is still a "
        "half-space while the hyperbolic one is not.",
    ),
    "operating-point": (
        "Operating point",
        "How far the points lie from the origin, in radii of curvature. Far below 1 space is nearly flat.",
    ),
    "radii": ("Radial distributions", "Kernel densities of the distance from the origin."),
    "gradients": (
        "What pulls at the curvature",
        "Share of each term of the objective in the gradient of log c, with the tangent vectors held fixed.",
    ),
    "gradient-cosines": (
        "Which terms pull alike",
        "Cosines between the gradients of the objective's kinds of terms with respect to the tangent vectors of all "
        "points: near 1 they pull in one direction, below 0 against each other.",
    ),
    "trajectories": (
        "Course of training",
        "As logged; losses are means over the terms of a kind. Iterations are logarithmic.",
    ),
}


def write_report(diagnosis: Diagnosis, out: str | Path) -> list[Path]:
    """Write ``diagnosis.html``, which holds all of the report, and its figures as ``diagnosis-NAME.png`` as well.

    Figures of an earlier report in the folder that this one does not have are removed.

    Args:
        out: Folder, made if need be.
    Returns:
        The files, the page first. Figures that nothing was measured for are not among them.
    """
    out = Path(out)
    with missing_letters():
        drawn = figures(diagnosis)
        files = {name: save({"png": figure}, out, f"{STEM}-{name}")[0] for name, figure in drawn.items()}
    pictures = {name: png_url(path.read_bytes()) for name, path in files.items()}
    page = save({"html": diagnosis_page(diagnosis, pictures)}, out, STEM)
    for name in FIGURES:
        if name not in files:
            (out / f"{STEM}-{name}.png").unlink(missing_ok=True)
    return [*page, *files.values()]


def figures(diagnosis: Diagnosis) -> dict[str, Figure]:
    """The figures, by their names in :data:`FIGURES`, that something was measured for."""
    model, models = diagnosis.model, _models(diagnosis)
    controls = {model.name: diagnosis.control} if diagnosis.control else {}
    drawn: dict[str, Figure] = {}
    if any(math.isfinite(ratio.median) for ratio in model.ratios):
        drawn["ratios"] = ratio_ranges(model.ratios, tolerance=diagnosis.verdict.thresholds.tolerance)
    if surfaces := {m.name: m.surfaces for m in models if m.surfaces}:
        drawn["heat-maps"] = heat_maps(surfaces)
    if apertures := {m.name: m.apertures for m in models if m.apertures}:
        drawn["apertures"] = aperture_figure(apertures)
    if any(point.extent for m in models for point in m.operating_points):
        drawn["operating-point"] = operating_point_figure({m.name: m.operating_points for m in models})
    if any(m.radii for m in models):
        drawn["radii"] = radial_figure({model.name: model.radii}, {name: m.radii for name, m in controls.items()})
    if model.gradients and any(term.share is not None for term in model.gradients.terms):
        drawn["gradients"] = gradient_figure(model.gradients.terms, signed=len(model.curvature) == 1)
    if model.gradient_cosines:
        drawn["gradient-cosines"] = cosine_figure({model.name: model.gradient_cosines})
    if logged_rows([_course(m) for m in models]):
        courses = {name: _course(m) for name, m in controls.items()}
        floors = {} if model.curvature_floor is None else {model.name: model.curvature_floor}
        drawn["trajectories"] = trajectory_figure({model.name: _course(model)}, courses, floors=floors)
    return drawn


def _models(diagnosis: Diagnosis) -> list[ModelDiagnosis]:
    return [diagnosis.model, *([diagnosis.control] if diagnosis.control else [])]


def _course(model: ModelDiagnosis) -> Mapping[str, Trajectory]:
    return model.trajectories.by_name if model.trajectories else {}


def diagnosis_page(diagnosis: Diagnosis, pictures: Mapping[str, str]) -> str:
    """The page, without any file beside it.

    Args:
        pictures: Addresses of the figures, by their names in :data:`FIGURES`.
    Returns:
        HTML; everything that names or measures something is escaped.
    """
    models = _models(diagnosis)
    tables = {
        "ratios": _ratios(models),
        "operating-point": _operating_points(models),
        "radii": _radii(models),
        "gradients": _gradients(diagnosis.model),
        "trajectories": _logged(models),
    }
    sections = []
    for name, (heading, caption) in FIGURES.items():
        if name in pictures or tables.get(name):
            sections.append(_section(heading, _picture(heading, caption, pictures.get(name)) + tables.get(name, "")))
    sections.insert(1, _section("Read-out with and without the exponential map", _readout(diagnosis.readout)))
    title = f"How hyperbolic is {diagnosis.model.name}?"
    top = _verdict(diagnosis.verdict) + _samples(diagnosis) + _facts(models)
    return page(title, top + "".join(sections) + _end(diagnosis), stylesheet=STYLESHEET)


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{html.escape(heading)}</h2>\n{content}</section>\n"


def _picture(heading: str, caption: str, address: str | None) -> str:
    if address is None:
        return ""
    return (
        f'<figure><img alt="{html.escape(heading)}" src="{html.escape(address)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>\n"
    )


def _verdict(verdict: Verdict) -> str:
    sentence = verdict.sentence[:1].upper() + verdict.sentence[1:]
    kind = {True: "weak", False: "strong", None: "open"}[verdict.weakly_hyperbolic]
    answer, colon, evidence = (html.escape(part) for part in sentence.partition(":"))
    return f'<p class="verdict {kind}"><strong>{answer}{colon}</strong>{evidence}</p>\n'


def _samples(diagnosis: Diagnosis) -> str:
    where = f"{diagnosis.data} ({diagnosis.split})" if diagnosis.split else diagnosis.data
    text = f"Measured on {diagnosis.samples:,} of {diagnosis.total:,} samples of {where}."
    if diagnosis.skipped:
        left = ", ".join(f"{count:,} ({reason})" for reason, count in diagnosis.skipped.items())
        text += f" Left out: {left}."
    return f"<p>{html.escape(text)}</p>\n"


def _facts(models: Sequence[ModelDiagnosis]) -> str:
    rows = [
        ["manifold", *[m.manifold for m in models]],
        ["curvature magnitude c", *[_curvatures(m.curvature) for m in models]],
        ["objective", *[m.objective or "none known" for m in models]],
        ["points", *[", ".join(f"{n:,} {VIEW_NAMES.get(view, view)}" for view, n in m.points.items()) for m in models]],
        ["left out as not finite", *[_counts(m.not_finite) for m in models]],
    ]
    return table(["", *[m.name for m in models]], rows)


def _curvatures(values: Sequence[float]) -> str:
    if len(values) < 2:
        return curvature(values[0]) if values else "none"
    mean = sum(values) / len(values)
    return f"{curvature(mean)} in the mean of {len(values)} ({curvature(min(values))} to {curvature(max(values))})"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {VIEW_NAMES.get(view, view)}" for view, count in counts.items()) or "none"


def _ratios(models: Sequence[ModelDiagnosis]) -> str:
    models = [m for m in models if m.ratios]
    rows = [
        [*_named(models, m), QUANTITIES[r.quantity], relation_label(r.relation), f"{r.n:,}", f"{r.undefined:,}"]
        + [number(value, 4) for value in (r.low, r.median, r.high)]
        for m in models
        for r in sorted(m.ratios, key=lambda r: list(QUANTITIES).index(r.quantity))
    ]
    head = ["quantity", "relation", "values", "undefined", "5 %", "median", "95 %"]
    return table([*_model_column(models), *head], rows, numbers=5)


def _model_column(models: Sequence[ModelDiagnosis]) -> list[str]:
    return ["model"] if len(models) > 1 else []


def _named(models: Sequence[ModelDiagnosis], model: ModelDiagnosis) -> list[str]:
    return [model.name] if len(models) > 1 else []


def _operating_points(models: Sequence[ModelDiagnosis]) -> str:
    models = [m for m in models if m.operating_points]
    rows = [
        [*_named(models, m), VIEW_NAMES.get(p.view, p.view), f"{p.count:,}"]
        + [number((p.extent or {}).get(q), 3) for q in ("5%", "50%", "95%")]
        + [_percent(p.saturated), number(p.effective_rank, 1)]
        for m in models
        for p in m.operating_points
    ]
    head = ["view", "points", "√c |x|, 5 %", "median", "95 %", "saturated cones, %", "effective rank"]
    return table([*_model_column(models), *head], rows, numbers=6)


def _signed(value: float) -> str:
    return f"{value:+.3g}" if math.isfinite(value) else number(None, 0)


def _percent(share: float | None) -> str:
    return number(None if share is None else 100 * share, 1)


def _radii(models: Sequence[ModelDiagnosis]) -> str:
    models = [m for m in models if m.radii]
    rows = [
        [*_named(models, m), VIEW_NAMES.get(r.view, r.view), f"{r.count:,}", number(r.mode, 3), number(r.mean, 3)]
        + [number(r.quantiles.get(q), 3) for q in ("5%", "50%", "95%")]
        for m in models
        for r in m.radii
    ]
    head = ["view", "points", "mode", "mean", "5 %", "median", "95 %"]
    return table([*_model_column(models), *head], rows, numbers=6)


def _gradients(model: ModelDiagnosis) -> str:
    found = model.gradients
    if found is None:
        return ""
    rows = [
        [relation_label(t.term), number(t.weight, 3), number(t.value, 4), _signed(t.gradient), _percent(t.share)]
        for t in found.terms
    ]
    learned = "" if found.learned else "The curvature of this model is fixed; this is what would pull at it. "
    text = [f"{learned}Batches averaged: {found.batches:,}, of {found.batch_size:,} samples each."] if rows else []
    return table(["term", "weight", "value", "gradient", "share, %"], rows, numbers=4) + bullets(
        [*text, *([found.reason] if found.reason else []), *[f"left out: {line}" for line in found.left_out]]
    )


def _logged(models: Sequence[ModelDiagnosis]) -> str:
    lines = []
    for model in models:
        found = model.trajectories
        if found is None:
            continue
        counts = {
            "steps logged again": found.repeated,
            "damaged lines": found.damaged,
            "values not finite": found.not_finite,
        }
        if left := ", ".join(f"{count:,} ({what})" for what, count in counts.items() if count):
            lines.append(f"{model.name}: left out {left}")
    return bullets(lines)


def _readout(readout: ReadoutAblation) -> str:
    largest = readout.largest_change
    controlled = any(row.control is not None for row in readout.rows)
    rows, marked = [], []
    for i, row in enumerate(readout.rows):
        rows.append(_scores(row, controlled))
        marked += [i] if row == largest and row.difference else []
    head = ["task", "data", "metric", "n", "with", "without", "difference", *(["control"] if controlled else [])]
    text = []
    if largest is not None and largest.points is not None:
        text = [f"Largest change: {largest.points:+.2f} points, {largest.task} {largest.metric} on {largest.data}."]
    text += [f"{task} was not measured: {reason}" for task, reason in readout.not_run.items()]
    if not rows:
        text.append("No task was read out.")
    return table(head, rows, numbers=5 if controlled else 4, marked=marked) + bullets(text)


def _scores(row: ReadoutRow, controlled: bool) -> list[str]:
    digits = 2 if row.unit in ("%", "points") else 4
    difference = "–" if row.difference is None else f"{row.difference:+.{digits}f}"
    metric = f"{row.metric}, {row.unit}" if row.unit else row.metric
    where = f"{row.data} ({row.split})" if row.split else row.data
    scores = [number(row.with_map, digits), number(row.without_map, digits), difference]
    return [row.task, where, metric, f"{row.n:,}", *scores, *([number(row.control, digits)] if controlled else [])]


def _end(diagnosis: Diagnosis) -> str:
    models = _models(diagnosis)
    lines = [": ".join([*_named(models, m), note]) for m in models for note in m.notes]
    settings = ", ".join(f"{name} {_setting(value)}" for name, value in diagnosis.settings.items() if value is not None)
    lines += [f"Settings: {settings}."] if settings else []
    models_read = ", ".join(f"{m.name} {m.fingerprint}" for m in models)
    lines.append(f"hyvlm {diagnosis.library}; fingerprints: data {diagnosis.data_fingerprint}, {models_read}.")
    return _section("Notes", bullets(lines))


def _setting(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
