"""Text-to-text retrieval: between the captions of an image, or between the texts of a class (HyFL-CLIP, Table 4)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Annotation, Embedder, evaluation_mode
from hyvlm.evaluation.metrics import ranked_precision
from hyvlm.evaluation.prompts import hash_lines
from hyvlm.evaluation.task import TASKS, Outcome, Task, percent, size_notes
from hyvlm.types import reasons


@dataclass(frozen=True)
class TextQueries:
    """Texts, and which of them are to be found by which.

    Attributes:
        texts: All texts that take part.
        owner: ``(len(texts),)`` int64, image or class of each.
        queries: ``(Q,)`` int64, rows of ``texts``; the texts of the same owner are the matches.
        gallery: ``(G,)`` int64, rows of ``texts`` that are ranked.
        itself: ``(Q,)`` int64, the place in ``gallery`` of each query, which is left out; None if they lie apart.
        scored: How many samples ask.
        skipped: Samples that do not, by reason.
    """

    texts: list[str]
    owner: Tensor
    queries: Tensor
    gallery: Tensor
    itself: Tensor | None
    scored: int
    skipped: Counter[str]


def by_image(annotations: list[Annotation]) -> TextQueries:
    """The first caption of every image asks for its others, among all captions that do not ask."""
    used = [annotation.texts for annotation in annotations if len(annotation.texts) > 1]
    owner = torch.tensor([i for i, texts in enumerate(used) for _ in texts], dtype=torch.long)
    is_query = torch.tensor([k == 0 for texts in used for k in range(len(texts))], dtype=torch.bool)
    return TextQueries(
        texts=[text for texts in used for text in texts],
        owner=owner,
        queries=is_query.nonzero()[:, 0],
        gallery=(~is_query).nonzero()[:, 0],
        itself=None,
        scored=len(used),
        skipped=Counter({"fewer than two captions": len(annotations) - len(used)}),
    )


def by_class(annotations: list[Annotation]) -> TextQueries:
    """Every text asks for all others of its class, among all other texts. Of a sample with several texts all count."""
    labelled = [annotation for annotation in annotations if len(annotation.labels) == 1 and annotation.texts]
    sample = torch.tensor([i for i, a in enumerate(labelled) for _ in a.texts], dtype=torch.long)
    owner = torch.tensor([a.labels[0] for a in labelled for _ in a.texts], dtype=torch.long)
    queries = (torch.bincount(owner)[owner] > 1).nonzero()[:, 0]
    scored = len(sample[queries].unique())
    lonely, unlabelled = len(labelled) - scored, len(annotations) - len(labelled)
    return TextQueries(
        texts=[text for annotation in labelled for text in annotation.texts],
        owner=owner,
        queries=queries,
        gallery=torch.arange(len(owner)),
        itself=queries,
        scored=scored,
        skipped=Counter({"no text or not exactly one label": unlabelled, "the only text of its class": lonely}),
    )


@TASKS.register("text-retrieval")
@dataclass(frozen=True, kw_only=True)
class TextRetrieval(Task):
    """Mean average precision and Precision@R of texts by text; no image is read.

    In a set with labels each text asks for the others of its class, else each image's first caption for its others.
    Candidates are ranked by the manifold's score: texts have no direction among themselves.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "texts"

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        known = embedder.annotations(samples)
        labelled = any(annotation.labels for annotation in known.annotations)
        asked = (by_class if labelled else by_image)(known.annotations)
        if not len(asked.queries):
            raise ValueError(f"{samples.name} has no two texts that belong together: {reasons(asked.skipped)}")
        points = embedder.texts(asked.texts)
        with evaluation_mode(embedder.model):
            found = ranked_precision(
                embedder.model.manifold.score,
                points[asked.queries],
                points[asked.gallery],
                asked.owner[asked.queries],
                asked.owner[asked.gallery],
                itself=asked.itself,
            )
        scores = percent(
            {
                "mean_average_precision": found.average_precision.mean().item(),
                "precision_at_r": found.precision_at_r.mean().item(),
            }
        )
        return Outcome(
            scores=scores,
            units=dict.fromkeys(scores, "%"),
            n=asked.scored,
            total=known.total,
            skipped=known.skipped + asked.skipped,
            skipped_examples=known.examples,
            ties={"queries": found.tied},
            details={
                "matches_by": "class" if labelled else "image",
                "queries": len(asked.queries),
                "gallery": len(asked.gallery),
                "distinct_texts": len(set(asked.texts)),
                "texts_hash": hash_lines(asked.texts),
            },
            notes=size_notes(samples, asked.scored, None if labelled else len(asked.texts)),
        )
