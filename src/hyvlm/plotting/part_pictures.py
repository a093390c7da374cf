"""Pictures of parts and wholes for ``hyvlm plot``: crops, uncertainty, radii, distances, parts (UNCHA, Sec. S.2.5)."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.data.crops import RandomCrops, random_boxes
from hyvlm.diagnostics.radii import radial_distribution
from hyvlm.diagnostics.separation import median_distance, separation
from hyvlm.diagnostics.subset import spread
from hyvlm.diagnostics.views import Collected, collect_views
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.tasks.part_uncertainty import check_origin, correlation, part_uncertainty
from hyvlm.losses import uncertainty
from hyvlm.plotting.embedding_map import embedding_map, place
from hyvlm.plotting.figures import Files
from hyvlm.plotting.gather import read_sample
from hyvlm.plotting.part_figures import Crop, Moment, Scatter, crop_sheet, distances_figure, uncertainty_scatter
from hyvlm.plotting.request import PICTURES, Request
from hyvlm.plotting.training_figures import radial_figure
from hyvlm.types import BadSample

#: Crops of the image of a sheet; crops of every image of a set that has no parts.
SHEET, CROPS = 24, 4


def with_parts(request: Request) -> tuple[SampleSet, str]:
    """The images that take part, and how their parts are called: random crops where the first ones have no part."""
    samples = spread(request.samples, request.limit)
    if any(_has_part(samples, i) for i in range(min(len(samples), 8))):
        return samples, "part images"
    return RandomCrops(samples, CROPS, seed=request.seed), "random crops"


def _has_part(samples: SampleSet, index: int) -> bool:
    try:
        return bool(samples[index].parts)
    except BadSample:  # it is counted where the images are read
        return False


def _collect(request: Request, embedder: Embedder, samples: SampleSet) -> Collected:
    return collect_views(embedder, samples, captions=request.captions, resize=request.resize)


def _radii(embedder: Embedder, points: Tensor) -> Tensor:
    check_origin(embedder.model.manifold)
    with evaluation_mode(embedder.model):
        radii: Tensor = embedder.model.manifold.radius(points)  # type: ignore[operator]
    return radii.cpu()


@PICTURES.register("crops")
def crops(request: Request) -> Files:
    """Random crops of an image from the lowest to the highest uncertainty, that is from the largest norm (S.13)."""
    entry, image = read_sample(request.samples, request.sample, request.captions)
    cut = [image.crop(box) for box in random_boxes(*image.size, SHEET, seed=(request.seed, request.sample))]
    sheets = {}
    for name, embedder in request.embedders.items():
        check_origin(embedder.model.manifold)
        transform = embedder.transform(request.resize)
        with evaluation_mode(embedder.model):
            pixels = torch.stack([transform(crop) for crop in cut]).to(embedder.device)
            points = embedder.model.encode_image(pixels)
            certain = uncertainty(points, embedder.model.manifold)
        values = zip(cut, certain.tolist(), points.norm(dim=-1).tolist(), strict=True)
        sheets[name] = [Crop(crop, u, norm) for crop, u, norm in values]
    return {"png": crop_sheet(entry.image, sheets)}


@PICTURES.register("uncertainty")
def uncertainty_(request: Request) -> Files:
    """Uncertainty of parts over their closeness to their whole, with correlations (Fig. 4b)."""
    samples, what = with_parts(request)
    drawn = {}
    for name, embedder in request.embedders.items():
        check_origin(embedder.model.manifold)
        views = _collect(request, embedder, samples).views
        with evaluation_mode(embedder.model):
            points = views.points
            found = part_uncertainty(
                embedder.model.manifold, points["image"], points["part_image"], views.owner["part"]
            )
        drawn[name] = Scatter(
            found,
            correlation(found.similarity, found.uncertainty, found.owner),
            correlation(found.cosine, found.uncertainty, found.owner),
        )
    return {"png": uncertainty_scatter(drawn, what=what)}


@PICTURES.register("radii")
def radii(request: Request) -> Files:
    """Densities of whole and part views over the hyperbolic radius and over the space norm (S.9)."""
    samples, what = with_parts(request)
    panels, labels = {}, {}
    for name, embedder in request.embedders.items():
        points = _seen(_collect(request, embedder, samples), what)
        for measure, unit in (("radius", "distance from the origin, units of length"), ("norm", "norm of the point")):
            title = f"{name}, by {measure}"
            values = {v: _radii(embedder, p) if measure == "radius" else p.norm(dim=-1) for v, p in points.items()}
            panels[title] = [radial_distribution(view, rows) for view, rows in values.items()]
            labels[title] = unit
    return {"png": radial_figure(panels, labels=labels)}


def _seen(collected: Collected, what: str) -> dict[str, Tensor]:
    """The points of each view; random crops have no text."""
    return {v: p for v, p in collected.views.points.items() if not (v == "part_text" and what == "random crops")}


@PICTURES.register("distances")
def distances(request: Request) -> Files:
    """MMD, W1 and W2 between the radii of whole and part images over the checkpoints of a run (S.10)."""
    samples, what = with_parts(request)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, embedder in request.embedders.items():
        points = _collect(request, embedder, samples).views.points
        found[name] = _radii(embedder, points["image"]), _radii(embedder, points["part_image"])
    width = median_distance(torch.cat(list(found.values())[-1]).numpy())  # of the last checkpoint, for all of them
    moments = [
        Moment(
            name,
            radial_distribution("image", whole),
            radial_distribution("part_image", part),
            separation(whole, part, bandwidth=width),
        )
        for name, (whole, part) in found.items()
    ]
    rows = [{"checkpoint": one.name, **asdict(one.distance)} for one in moments]
    return {"json": json.dumps(rows, indent=2) + "\n", "png": distances_figure(moments, what=what)}


@PICTURES.register("parts")
def parts(request: Request) -> Files:
    """Whole and part images and texts in two dimensions; those of the chosen image as stars (S.6, S.7, S.14)."""
    entry, _ = read_sample(request.samples, request.sample, request.captions)
    samples, what = with_parts(request)
    layouts = {}
    for name, embedder in request.embedders.items():
        groups = _seen(_collect(request, embedder, samples), what)
        groups["whole_text"] = groups.pop("text")
        own, labels = _own(request, embedder, entry.caption, what)
        layout = place(embedder.model.manifold, groups | own, seed=request.seed)
        reach = max(float(np.linalg.norm(rows, axis=1).max()) for rows in layout.places.values()) if layout.disk else 1
        reach = 0.05 * math.ceil(min(1.15 * reach, 1) / 0.05)
        layouts[name] = replace(layout, labels=labels, reach=reach)
    return {"png": embedding_map(layouts)}


def _own(
    request: Request, embedder: Embedder, caption: str, what: str
) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """Points of the chosen image, its caption and its parts, and what is written beside them."""
    chosen = RandomCrops(request.samples, CROPS, seed=request.seed) if what == "random crops" else request.samples
    sample, transform = chosen[request.sample], embedder.transform(request.resize)
    pixels = torch.stack([transform(one) for one in (sample.picture, *(part.image for part in sample.parts))])
    with evaluation_mode(embedder.model):
        images = embedder.model.encode_image(pixels.to(embedder.device))
    own = {"own_image": images[:1], "own_text": embedder.texts([caption])}
    phrases = [part.text for part in sample.parts]
    if phrases:
        own["own_part_image"] = images[1:]
    if any(phrases):
        own["own_part_text"] = embedder.texts(phrases)
    return own, {"own_part_image": phrases} if any(phrases) else {}
