"""Pictures of what is where in an image for ``hyvlm plot``: segmentation, similarity."""

from __future__ import annotations

import numpy as np
from PIL import Image
from torch import Tensor

from hyvlm.evaluation.dense import HasOrigin, class_queries, dense_points, extrapolate
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.tasks.segmentation import Segmentation, read_masked
from hyvlm.plotting.figures import Files
from hyvlm.plotting.gather import read_sample
from hyvlm.plotting.request import PICTURES, Request
from hyvlm.plotting.segmentation import segmentation_figure, similarity_figure
from hyvlm.types import BadSample


@PICTURES.register("segmentation")
def segmentation(request: Request) -> Files:
    """The classes of an image's pixels as they are annotated and as each model sees them."""
    samples = request.samples
    if not 0 <= request.sample < len(samples):
        raise ValueError(f"{samples.name} has samples 0 to {len(samples) - 1}, got {request.sample}")
    try:
        image, mask = read_masked(samples, request.sample)
    except BadSample as bad:
        raise ValueError(f"sample {request.sample} of {samples.name} cannot be drawn: {bad}") from bad
    maps = {"annotated": mask}
    for name, embedder in request.embedders.items():
        queries = class_queries(
            embedder, samples.classes, templates=request.templates, background=request.background
        )  # fmt: skip
        scores = queries.by_class(pixel_scores(request, embedder, image, queries.points, mask.shape))
        maps[name] = scores.argmax(0).cpu().numpy()
    return {"png": segmentation_figure(image, samples.classes, maps)}


@PICTURES.register("similarity")
def similarity(request: Request) -> Files:
    """How close each place of an image is to texts, or to its caption (UNCHA, Figs. S.11, S.12)."""
    entry, image = read_sample(request.samples, request.sample, request.captions)
    maps: dict[str, dict[str, np.ndarray]] = {}
    for text in request.texts or (entry.caption,):
        maps[text] = {}
        for name, embedder in request.embedders.items():
            points = embedder.class_points([text], ["{}"])
            size = entry.image.height, entry.image.width
            maps[text][name] = pixel_scores(request, embedder, image, points, size)[0].cpu().numpy()
    return {"png": similarity_figure(entry.image, maps)}


def pixel_scores(
    request: Request, embedder: Embedder, image: Image.Image, points: Tensor, size: tuple[int, int]
) -> Tensor:
    """Scores ``(Q, H, W)`` of texts at every pixel, as in the task of segmentation."""
    model, task = embedder.model, Segmentation()
    factor = request.extrapolation if isinstance(model.manifold, HasOrigin) else 1.0
    with evaluation_mode(model):
        dense = dense_points(
            embedder,
            image,
            side=task.side(embedder.image_size),
            resize_by=request.resize or model.resize or task.resize,
        )
        return dense.scores(model, extrapolate(model, points, factor), size)
