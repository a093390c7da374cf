"""From a model and a data set to a :class:`~hyvlm.diagnostics.diagnosis.Diagnosis`; the ``hyperbolicity`` suite."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from torch.nn import Parameter

import hyvlm
from hyvlm.config import load_config
from hyvlm.data.catalog import SampleSet, open_data
from hyvlm.diagnostics.diagnosis import Diagnosis, ModelDiagnosis
from hyvlm.diagnostics.distortion import Quantity, aperture_curve, relation_ratios, surface
from hyvlm.diagnostics.gradients import (
    CurvatureGradients,
    GradientCosines,
    curvature_gradients,
    term_gradient_cosines,
)
from hyvlm.diagnostics.operating_point import operating_points
from hyvlm.diagnostics.radii import radial_distributions
from hyvlm.diagnostics.readout import has_map, plan_readout, readout_ablation
from hyvlm.diagnostics.relations import KnownObjective, Pair, objective_of, relations_of, run_of
from hyvlm.diagnostics.subset import spread
from hyvlm.diagnostics.trajectories import Trajectories, read_trajectories
from hyvlm.diagnostics.verdict import Thresholds, judge, no_verdict
from hyvlm.diagnostics.views import Collected, collect_views
from hyvlm.evaluation.cache import EmbeddingCache
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.runner import EvalSpec, choose_device
from hyvlm.evaluation.task import TASKS
from hyvlm.geometry import Lorentz, Manifold, ProductLorentz, Sphere
from hyvlm.methods import OBJECTIVES
from hyvlm.types import Views

#: The ``hyperbolicity`` suite: what is read with and without the map where the caller names no tasks.
SUITE = ("classification", "retrieval", "hierarchy")
#: Samples a batch of gradients where the run's own batch size is not known, and in all batches together.
GRADIENT_BATCH, GRADIENT_SAMPLES = 256, 2048
#: Measured for every model, whatever its objective compares (Fig. 3).
TEXT_IMAGE = Pair("text", "image", ("distance", "exterior_angle"))


def diagnose(
    model: str | Path,
    data: str,
    *,
    split: str | None = None,
    control: str | Path | None = None,
    objective: str | None = None,
    captions: str | None = None,
    limit: int | None = None,
    tasks: str | Sequence[str | EvalSpec] | None = None,
    readout: str | None = None,
    thresholds: Thresholds | None = None,
    resize: str | None = None,
    part_size: int | None = None,
    device: str | None = None,
    cache: str | Path | None = None,
    batch_size: int = 64,
    workers: int = 0,
) -> Diagnosis:
    """How hyperbolic a model is on a data set.

    Args:
        model, control: What :func:`hyvlm.load` takes; a run folder also gives the objective and the trajectories.
        data: Data set with captions, as :func:`hyvlm.data.open_data` takes it; its parts are used if it has any.
        objective: Name of the objective whose relations are measured; None is the run's own, or else a usual one.
        captions: Which caption of an image is its text: "first" (the default), "last", or all "joined". If given, tasks
            on captions take the same, otherwise their own default.
        limit: At most so many samples of every set, at even distances.
        tasks: One or several: "TASK", measured on ``data``, "TASK=DATA", or an evaluation with all its settings; one
            that does not fit the data is an error. None is the :data:`SUITE`, of which those that do not fit are listed
            with the reason.
        readout: "trained" or "published", what ranks pairs (``model.readout``); None leaves it as saved.
        resize: "squash" or "crop"; None is the model's own way, or else each task's.
        part_size: Side of part crops in pixels; None is that of the run's own training, or else that of the images.
        device: Where models run; None is the fastest.
        cache: Folder that keeps embeddings between calls.
        batch_size: Images, or texts, at a time.
        workers: Processes that read images.
    Raises:
        ValueError, FileNotFoundError: One sentence on what is wrong with a name, the data or a model.
    """
    if objective is not None:
        OBJECTIVES[objective]
    samples = spread(open_data(data, split=split), limit)
    settings = {"captions": captions, "resize": resize, "part_size": part_size}
    asked = SUITE if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    specs = [_spec(task, data, split, settings) if isinstance(task, str) else task for task in asked]
    load = partial(
        _embedder, readout=readout, device=device, cache=EmbeddingCache(cache), batch_size=batch_size, workers=workers
    )
    subject, other = load(model), load(control) if control is not None else None
    plan = plan_readout(specs, subject.model, limit=limit, must_run=tasks is not None)
    names = _names(model, control)
    look = partial(
        diagnose_model,
        samples=samples,
        objective=objective,
        captions=captions or "first",
        resize=resize,
        part_size=part_size,
    )
    own, collected = look(subject, name=names[0], path=model)
    against = None
    if other is not None and control is not None:
        against, _ = look(other, name=names[1], path=control)
    scores = readout_ablation(subject, plan, control=other)
    reason = _no_question(subject)
    return Diagnosis(
        data=samples.name,
        split=samples.split,
        data_fingerprint=samples.fingerprint,
        samples=collected.samples,
        total=collected.total,
        skipped=dict(collected.skipped),
        model=own,
        control=against,
        readout=scores,
        verdict=no_verdict(reason, thresholds) if reason else judge(own.ratios, scores, thresholds),
        settings={**settings, "limit": limit, "tasks": [spec.task for spec in specs], "readout": readout},
        library=importlib.metadata.version("hyvlm"),
    )


def diagnose_model(
    embedder: Embedder,
    samples: SampleSet,
    *,
    name: str,
    path: str | Path,
    objective: str | None = None,
    captions: str = "first",
    resize: str | None = None,
    part_size: int | None = None,
) -> tuple[ModelDiagnosis, Collected]:
    """What the points of one model on ``samples`` say, and these points.

    Args:
        path: Where the model was loaded from: there may be its objective and the course of its training.
        resize: "squash" or "crop" images to size; None is the model's own way, squashed if it has none.
        part_size: Side of part crops in pixels; None is that of the run's own training, or else that of the images.
    Raises:
        ValueError: Fewer than two samples have points, or the data have no captions.
    """
    run, notes, known = run_of(path), list[str](), None
    config = load_config(str(run / "config.yaml")) if run else None
    if part_size is None and config:
        part_size = config.data.part_size
    try:
        collected = collect_views(embedder, samples, captions=captions, resize=resize, part_size=part_size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    manifold, points = embedder.model.manifold, collected.views.points
    if has_map(embedder.model):
        known = objective_of(path, name=objective, parts="part_text" in points)
    elif reason := _no_question(embedder):
        notes.append(reason)
    if collected.texts_cut:
        notes.append(f"{collected.texts_cut} texts were longer than the model's context and lost their end")
    trajectories = _trajectories(run, notes)
    diagnosis = ModelDiagnosis(
        name=name,
        fingerprint=embedder.model_fingerprint,
        manifold=type(manifold).__name__.lower(),
        curvature=_curvature(manifold),
        curvature_floor=_floor(manifold),
        objective=known.source if known else None,
        points={view: len(rows) for view, rows in points.items()},
        not_finite=dict(collected.not_finite),
        radii=radial_distributions(manifold, points),
        operating_points=operating_points(manifold, points),
        trajectories=trajectories,
        notes=notes,
    )
    if known is None:
        return diagnosis, collected
    batch_size = config.train.batch_size if config and known.trained else None
    return _with_distortion(diagnosis, manifold, known, collected.views, batch_size), collected


def _with_distortion(
    diagnosis: ModelDiagnosis, manifold: Manifold, known: KnownObjective, views: Views, batch_size: int | None
) -> ModelDiagnosis:
    """Ratios, surfaces, apertures and gradients of a model that has an exponential map."""
    relations = relations_of(known.objective, views.points)
    measured = {(q, frozenset((p.general, p.specific))) for p in relations.pairs for q in p.quantities}
    own = frozenset((TEXT_IMAGE.general, TEXT_IMAGE.specific))
    lacking = tuple(q for q in TEXT_IMAGE.quantities if (q, own) not in measured)
    pairs = [*relations.pairs, *([dataclasses.replace(TEXT_IMAGE, quantities=lacking)] if lacking else [])]
    ratios, surfaces = [], []
    for pair in pairs:
        first, second = pair.rows(views)
        for quantity in cast(tuple[Quantity, ...], pair.quantities):
            ratios.append(relation_ratios(manifold, first, second, relation=pair.name, quantity=quantity))
            if quantity != "aperture":
                surfaces.append(surface(manifold, first, second, relation=pair.name, quantity=quantity))
    opening = dict.fromkeys(pair.general for pair in pairs if "aperture" in pair.quantities)
    return dataclasses.replace(
        diagnosis,
        ratios=ratios,
        surfaces=surfaces,
        apertures=[aperture_curve(manifold, views.points[view], view) for view in opening],
        gradients=_gradients(known, manifold, views, batch_size or GRADIENT_BATCH),
        gradient_cosines=_cosines(known, manifold, views, batch_size or GRADIENT_BATCH),
        notes=[*diagnosis.notes, *relations.left_out],
    )


def _gradients(known: KnownObjective, manifold: Manifold, views: Views, batch_size: int) -> CurvatureGradients:
    batches = max(1, GRADIENT_SAMPLES // batch_size)
    return curvature_gradients(known.objective, manifold, views, batch_size=max(2, batch_size), max_batches=batches)


def _cosines(known: KnownObjective, manifold: Manifold, views: Views, batch_size: int) -> GradientCosines | None:
    batches, size = max(1, GRADIENT_SAMPLES // batch_size), max(2, batch_size)
    try:
        return term_gradient_cosines(known.objective, manifold, views, batch_size=size, max_batches=batches)
    except ValueError:  # no term can be computed: the gradients of the curvature say so, with the reason
        return None


def _trajectories(run: Path | None, notes: list[str]) -> Trajectories | None:
    """The course of training; where it cannot be read, the reason goes to ``notes``."""
    if run is None:
        notes.append("no trajectories: the model does not lie in a run folder")
        return None
    try:
        return read_trajectories(run)
    except (ValueError, FileNotFoundError) as error:
        notes.append(f"no trajectories: {error}")
        return None


def _curvature(manifold: Manifold) -> list[float]:
    if not isinstance(manifold, Lorentz | ProductLorentz):
        return []
    values: list[float] = manifold.c.detach().double().reshape(-1).tolist()
    return values


def _floor(manifold: Manifold) -> float | None:
    curved = manifold.factor if isinstance(manifold, ProductLorentz) else manifold
    if not isinstance(curved, Lorentz) or not isinstance(curved.log_c, Parameter) or curved.bounds is None:
        return None
    return curved.bounds[0]


def _no_question(embedder: Embedder) -> str | None:
    """Why nothing can be said of how hyperbolic a model is, and what applies to it; None if something can."""
    if has_map(embedder.model):
        return None
    if isinstance(embedder.model.manifold, Sphere):
        return (
            "a sphere has no exponential map at an origin, no radii and no cones: only scores and effective rank apply"
        )
    return "the space is flat, without a map to leave out: only scores, radii, saturation and effective rank apply"


def _spec(task: str, data: str, split: str | None, settings: Mapping[str, str | int | None]) -> EvalSpec:
    """A task on ``data``, or on its own: "TASK=DATA"; settings that it has. Raises ValueError for an unknown task."""
    name, own, where = task.partition("=")
    known = {field.name for field in dataclasses.fields(TASKS[name])}
    given = {key: value for key, value in settings.items() if key in known}
    return EvalSpec(name, where if own else data, None if own else split, **given)  # type: ignore[arg-type]


def _embedder(
    path: str | Path, readout: str | None, device: str | None, cache: EmbeddingCache, batch_size: int, workers: int
) -> Embedder:
    model, _, tokenizer = hyvlm.load(path, device=choose_device(device), readout=readout)
    return Embedder(model, tokenizer, cache, batch_size=batch_size, workers=workers)


def _names(model: str | Path, control: str | Path | None) -> list[str]:
    """The last part of each path, or the whole paths where two would be called the same."""
    paths = [str(path) for path in (model, control) if path is not None]
    short = [path.rstrip("/").rsplit("/", 1)[-1] or path for path in paths]
    return short if len(set(short)) == len(short) else paths
