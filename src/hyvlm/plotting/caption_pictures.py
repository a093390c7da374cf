"""Pictures of captions and their images for ``hyvlm plot``: tokens, map, ranks, retrieval (HyFL-CLIP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hyvlm.data.sentences import PERTURBATIONS, perturb, split_sentences
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.tasks.perturbed_ranks import HasPairwiseCones, entailment_margin
from hyvlm.evaluation.tasks.retrieval import images_by_text
from hyvlm.geometry import Sphere
from hyvlm.losses.midpoint import HasMidpoint, token_midpoint, token_weights
from hyvlm.plotting.contributions import contributions
from hyvlm.plotting.embedding_map import embedding_map, place
from hyvlm.plotting.figures import Files
from hyvlm.plotting.gather import Gathered, read_sample
from hyvlm.plotting.rank_bars import RankPanel, rank_bars
from hyvlm.plotting.request import PICTURES, Request
from hyvlm.plotting.retrieval_page import Found, Query, retrieval_figure
from hyvlm.plotting.token_page import token_figure, token_page
from hyvlm.types import Tokens

#: Versions of the caption under each perturbation, in maps and rank distributions.
VERSIONS = 5
#: The perturbations whose retrieval is shown, those of the paper's figure, and how they are called there.
SHOWN_PERTURBATIONS = {
    "random_2": "two random sentences",
    "shuffled": "shuffled sentences",
    "word_dropout_0.5": "word dropout, p = 0.5",
}


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

    At seed 0 they are the versions that :func:`hyvlm.evaluation.tasks.perturbed_ranks.perturbed_ranks` ranks.
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
