"""Pictures of what models make of a data set, by name; ``hyvlm plot KIND MODEL [MODEL] --data ...`` draws them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import hyvlm
from hyvlm.data.catalog import SampleSet, open_data
from hyvlm.data.sentences import PERTURBATIONS, perturb, split_sentences
from hyvlm.evaluation.dense import HasOrigin, class_queries, dense_points, extrapolate
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.perturbed_ranks import HasPairwiseCones, entailment_margin
from hyvlm.evaluation.retrieval import images_by_text
from hyvlm.evaluation.runner import choose_device
from hyvlm.evaluation.segmentation import Segmentation, read_masked
from hyvlm.files import check_folder, write_text
from hyvlm.geometry import Sphere
from hyvlm.losses.midpoint import HasMidpoint, token_midpoint, token_weights
from hyvlm.plotting.checkpoints import Checkpoints
from hyvlm.plotting.contributions import check_temperature, contributions
from hyvlm.plotting.embedding_map import embedding_map, place
from hyvlm.plotting.figures import missing_letters
from hyvlm.plotting.gather import Gathered, gather, read_sample
from hyvlm.plotting.rank_bars import RankPanel, rank_bars
from hyvlm.plotting.retrieval_page import Found, Query, retrieval_figure
from hyvlm.plotting.segmentation import segmentation_figure, similarity_figure
from hyvlm.plotting.token_page import token_figure, token_page
from hyvlm.registry import Registry
from hyvlm.types import BadSample, Tokens

#: Versions of the caption under each perturbation, in maps and rank distributions.
VERSIONS = 5
#: The perturbations whose retrieval is shown, those of the paper's figure, and how they are called there.
SHOWN_PERTURBATIONS = {
    "random_2": "two random sentences",
    "shuffled": "shuffled sentences",
    "word_dropout_0.5": "word dropout, p = 0.5",
}


@dataclass(frozen=True)
class Request:
    """What to draw.

    Attributes:
        embedders: Models by the names that the picture gives them, in its order.
        samples: Images with captions (content "pairs").
        sample: Place in ``samples`` of the image that the picture is about.
        captions: Which of an image's captions is its (long) text: "first", "last", or all of them "joined".
        limit: Images of the data set that take part, the chosen one included, at the most.
        temperature: Of the tokens' weights (Eq. 17).
        seed: Of perturbations, of HoroPCA's draw of points and of t-SNE.
        resize: "squash" images to a square, or "crop" the centre; None is each model's own way.
        texts: What is looked for in the image (similarity); none is its caption.
        templates, background: Of the classes (segmentation), as of the task.
        extrapolation: Factor of the texts' distance from the origin (similarity, segmentation), where there is one.

    Raises:
        ValueError: The temperature or the extrapolation is not positive.
    """

    embedders: Mapping[str, Embedder]
    samples: SampleSet
    sample: int = 0
    captions: str = "joined"
    limit: int = 500
    temperature: float = 0.07
    seed: int = 0
    resize: str | None = None
    texts: tuple[str, ...] = ()
    templates: str = Segmentation.templates
    background: str = Segmentation.background
    extrapolation: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not 0 < self.extrapolation < math.inf:
            raise ValueError(f"extrapolation must be a positive number, got {self.extrapolation}")

    def gather(self) -> Gathered:
        """The images that take part, the chosen one first, and their points; what was passed over goes to stderr."""
        gathered = gather(
            self.embedders,
            self.samples,
            sample=self.sample,
            captions=self.captions,
            limit=self.limit,
            resize=self.resize,
        )
        if gathered.skipped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in gathered.skipped.items())
            print(f"hyvlm: {gathered.skipped.total()} samples were passed over: {reasons}", file=sys.stderr)
        return gathered


#: A picture's files, by suffix.
Files = dict[str, Figure | str]
PICTURES: Registry[Callable[[Request], Files]] = Registry("picture")
#: What the samples of a picture must hold, where that is not captions.
CONTENTS = {"segmentation": "masks"}
#: Pictures of a run's checkpoints, of which one at a time is held.
OVER_TRAINING = ("distances",)


def draw(
    kind: str,
    models: Sequence[str],
    data: str,
    out: str | Path,
    *,
    split: str | None = None,
    sample: int = 0,
    captions: str = "joined",
    limit: int = 500,
    temperature: float = 0.07,
    seed: int = 0,
    resize: str | None = None,
    texts: Sequence[str] = (),
    templates: str = Segmentation.templates,
    background: str = Segmentation.background,
    extrapolation: float = 1.0,
    device: str | None = None,
    batch_size: int = 64,
) -> list[Path]:
    """Draw one picture and write it into the folder ``out``, as ``KIND-SAMPLE.png`` (tokens: and ``.html``).

    Args:
        kind: A name in :data:`PICTURES`.
        models: What :func:`hyvlm.load` takes, one or more; they are drawn side by side, under their last name.
        data: Data set with captions (segmentation: with masks), as :func:`hyvlm.data.open_data` takes it.
        device: Where models run; None is the fastest.
        batch_size: Images, or texts, at a time.
    Returns:
        The files.
    Raises:
        ValueError, FileNotFoundError: One sentence on what is wrong with a name, the data or a model.
    """
    picture = PICTURES[kind]
    if not models:
        raise ValueError(f"the picture {kind!r} needs at least one model")
    check_folder(out, "the folder for pictures")
    samples = open_data(data, split=split, content=CONTENTS.get(kind, "pairs"))
    place_of = choose_device(device)
    embedders: dict[str, Embedder] = {}
    for name, path in zip(short_names(models), [] if kind in OVER_TRAINING else models, strict=False):
        model, _, tokenizer = hyvlm.load(path, device=place_of)
        embedders[name] = Embedder(model, tokenizer, batch_size=batch_size)
    request = Request(
        embedders or Checkpoints(models, place_of, batch_size),
        samples,
        sample,
        captions,
        limit,
        temperature,
        seed,
        resize,
        tuple(texts),
        templates,
        background,
        extrapolation,
    )
    with missing_letters():
        return save(picture(request), Path(out), f"{kind}-{sample}")


def save(files: Files, out: Path, stem: str) -> list[Path]:
    """Write each file under a temporary name and rename it; the folder is made if need be."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, content in files.items():
        path = out / f"{stem}.{suffix}"
        if isinstance(content, str):
            write_text(path, content)
        else:
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            content.savefig(draft, dpi=150, format=suffix)
            os.replace(draft, path)
        written.append(path)
    return written


def short_names(models: Sequence[str]) -> list[str]:
    """The last part of each model's path, or the whole paths where two would be called the same.

    Raises:
        ValueError: If the same model is given twice.
    """
    if len(set(models)) < len(models):
        raise ValueError(f"each model once, got {', '.join(models)}")
    names = [model.rstrip("/").rsplit("/", 1)[-1] or model for model in models]
    return names if len(set(names)) == len(names) else list(models)


@PICTURES.register("tokens")
def tokens(request: Request) -> Files:
    """How much each word of a caption contributes, as a page and a sheet (Figs. 4, S5-S7, S12-S14)."""
    entry, image = read_sample(request.samples, request.sample, request.captions)
    found = {
        name: contributions(
            embedder, image, entry.caption, temperature=request.temperature, resize=request.resize
        )
        for name, embedder in request.embedders.items()
    }  # fmt: skip
    title = f"Token contributions, sample {request.sample} of {request.samples.name}"
    return {"html": token_page(entry.image, found, title=title), "png": token_figure(entry.image, found)}


@PICTURES.register("map")
def map_(request: Request) -> Files:
    """Images, short and long texts, token midpoints and perturbed captions in two dimensions (Figs. 4, S1, S2)."""
    gathered = request.gather()
    perturbed = perturbed_captions(gathered, request.seed)
    short = [(split_sentences(caption) or [caption])[0] for caption in gathered.captions]
    layouts = {}
    for name, embedder in request.embedders.items():
        groups = {"image": gathered.points[name]}
        if short != gathered.captions:
            groups["short_text"] = embedder.texts(short)
        groups["text"] = embedder.texts(gathered.captions)
        if isinstance(embedder.model.manifold, HasMidpoint):
            groups["midpoint"] = midpoints(embedder, gathered.captions, gathered.points[name], request.temperature)
        if perturbed:
            groups["perturbed"] = embedder.texts(perturbed)
        layout = place(embedder.model.manifold, groups, seed=request.seed)
        chosen = {"own_text": layout.places["text"][:1], "own_image": layout.places["image"][:1]}
        layouts[name] = replace(layout, places={**layout.places, **chosen})
    return {"png": embedding_map(layouts)}


def midpoints(embedder: Embedder, captions: Sequence[str], images: Tensor, temperature: float) -> Tensor:
    """Midpoints ``(N, D)`` of the captions' tokens, weighted by closeness to their images ``(N, D)`` (Eq. 17, 18)."""
    model = embedder.model
    found = []
    with evaluation_mode(model):
        for start in range(0, len(captions), embedder.batch_size):
            rows = slice(start, start + embedder.batch_size)
            _, words = model.encode_text_tokens(embedder.tokenizer(list(captions[rows])).to(embedder.device))
            found.append(_midpoint(embedder, words, images[rows], temperature))
    return torch.cat(found)


def _midpoint(embedder: Embedder, words: Tokens, images: Tensor, temperature: float) -> Tensor:
    manifold = embedder.model.manifold
    assert isinstance(manifold, HasMidpoint)
    return token_midpoint(manifold, words, token_weights(manifold, words, images, temperature))


def perturbed_captions(gathered: Gathered, seed: int) -> list[str]:
    """The chosen caption under every perturbation, five versions of each, without those that are no change or equal.

    At seed 0 they are the versions that :func:`hyvlm.evaluation.perturbed_ranks.perturbed_ranks` ranks.
    """
    caption, index = gathered.captions[0], gathered.entries[0].index
    versions = [perturb(caption, how, seed=(seed + i, index)) for how in PERTURBATIONS for i in range(VERSIONS)]
    return [text for text in dict.fromkeys(versions) if text != caption]


@PICTURES.register("ranks")
def ranks(request: Request) -> Files:
    """Where perturbed captions of an image rank among all captions, one panel a measure (Fig. S3)."""
    gathered = request.gather()
    perturbed = perturbed_captions(gathered, request.seed)
    if not perturbed:
        raise ValueError(f"no perturbation changes the caption {gathered.captions[0]!r}: there are no ranks to show")
    panels: dict[str, RankPanel] = {}
    for name, embedder in request.embedders.items():
        texts = embedder.texts([*gathered.captions, *perturbed])
        panels |= _panels(name, embedder, gathered.points[name][:1], texts, len(gathered.captions))
    return {"png": rank_bars(panels)}


def _panels(name: str, embedder: Embedder, image: Tensor, texts: Tensor, captions: int) -> dict[str, RankPanel]:
    """One by closeness to ``image`` ``(1, D)``; one by entailment, where there are cones.

    The entailment is that of the task ``perturbed-ranks``: of the chosen caption, which is the first of ``texts``.
    """
    manifold = embedder.model.manifold
    measure = "cosine" if isinstance(manifold, Sphere) else "minus distance"
    with evaluation_mode(embedder.model):
        scores = {f"{name}, {measure} to the image": (manifold.similarity(image, texts)[0], measure)}
        if isinstance(manifold, HasPairwiseCones):
            margin = entailment_margin(manifold)(texts[:1], texts)[0]
            scores[f"{name}, entailment of its caption"] = (margin, "margin, radians")
    found = {title: (values.cpu().numpy(), unit) for title, (values, unit) in scores.items()}
    return {title: RankPanel(values[:captions], 0, values[captions:], unit) for title, (values, unit) in found.items()}


@PICTURES.register("retrieval")
def retrieval(request: Request) -> Files:
    """The first image that each model finds by a caption and by its perturbed versions (Figs. 1, S4)."""
    gathered = request.gather()
    caption = gathered.captions[0]
    versions = dict[str, str]()
    unchanged = []
    for how, label in SHOWN_PERTURBATIONS.items():
        text = perturb(caption, how, seed=(request.seed, gathered.entries[0].index))
        if text == caption:
            unchanged.append(label)
        else:
            versions[label] = text
    original = "original caption" + (f"   (unchanged by: {', '.join(unchanged)})" if unchanged else "")
    versions = {original: caption, **versions}
    found = {
        name: first_found(embedder, gathered, name, list(versions.values()))
        for name, embedder in request.embedders.items()
    }
    queries = [
        Query(label, text, {name: found[name][i] for name in found}) for i, (label, text) in enumerate(versions.items())
    ]
    return {"png": retrieval_figure(gathered.entries[0].image, queries)}


def first_found(embedder: Embedder, gathered: Gathered, name: str, texts: Sequence[str]) -> list[Found]:
    """For each text: the best image, and the rank of the chosen one; an image as good as it counts as better."""
    points = gathered.points[name]
    with evaluation_mode(embedder.model):
        scores = images_by_text(embedder.model)(embedder.texts(texts), points).cpu()
    found = []
    for row in scores:
        rank = int((row >= row[0]).sum())
        best = 0 if rank == 1 else 1 + int(row[1:].argmax())
        found.append(Found(gathered.entries[best].image, rank, len(row)))
    return found


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


from hyvlm.plotting import part_pictures  # noqa: E402, F401  (it registers, and needs what is above)
