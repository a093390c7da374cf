"""Image-text retrieval in both directions, with any number of captions per image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.metrics import Ranks, retrieval_ranks
from hyvlm.evaluation.prompts import hash_lines
from hyvlm.evaluation.task import TASKS, Outcome, Task, choice_of_captions, percent


@TASKS.register("retrieval")
@dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """Recall@k of images by text (``t2i``) and of texts by image (``i2t``: any of the image's captions is a hit).

    Attributes:
        captions: "all" of an image's captions, or only the "first" or the "last"; the built-in scenes list theirs from
            short to long, and only the last one tells a scene from the others.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "pairs"

    ks: tuple[int, ...] = (1, 5, 10)
    captions: str = "all"

    def __post_init__(self) -> None:
        choice_of_captions(self.captions)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        images = embedder.images(samples, resize=self.resize, image_size=self.image_size)
        images = images.select([i for i, a in enumerate(images.annotations) if a.texts], "no caption")
        used = [annotation.texts[choice_of_captions(self.captions)] for annotation in images.annotations]
        captions = [text for texts in used for text in texts]
        if not captions:
            raise ValueError(f"{samples.name} has no captions to retrieve by")
        caption_owner = torch.tensor([i for i, texts in enumerate(used) for _ in texts])
        image_owner = torch.arange(len(images.points))
        texts = embedder.texts(captions)
        score = embedder.model.score  # always (image, text): a score may differ by direction
        with evaluation_mode(embedder.model):
            t2i = retrieval_ranks(lambda t, i: score(i, t).T, texts, images.points, caption_owner, image_owner)
            i2t = retrieval_ranks(score, images.points, texts, image_owner, caption_owner)
        ranks: dict[str, Ranks] = {"t2i": t2i, "i2t": i2t}
        scores = percent({f"{way}_recall@{k}": r.recall_at(k) for way, r in ranks.items() for k in self.ks})
        return Outcome(
            scores=scores,
            units=dict.fromkeys(scores, "%"),
            n=len(image_owner),
            total=images.total,
            skipped=images.skipped,
            skipped_examples=images.examples,
            ties={way: r.tied for way, r in ranks.items()},
            details={
                "captions": len(captions),
                "distinct_captions": len(set(captions)),
                "captions_hash": hash_lines(captions),
            },
        )
