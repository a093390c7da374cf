"""Whether an image or a part of it finds its caption among those of others and above false ones (UNCHA, Table S.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.data.sets.sdci import MATCHING_TESTS
from hyvlm.evaluation.embed import Annotation, Embedder, evaluation_mode
from hyvlm.evaluation.metrics import Choices, ScoreFunction, score_blocks, wilson_interval
from hyvlm.evaluation.prompts import hash_lines
from hyvlm.evaluation.task import TASKS, Outcome, Task, percent_interval
from hyvlm.models import DualEncoder

#: Entries that are told apart at a time, consecutive in the set, and captions of an entry in the tests "pick5": both as
#: in the authors' code.
BATCH = 8
PICK = 5


def match_in_batches(score: ScoreFunction, images: Tensor, captions: Tensor, *, batch: int = BATCH) -> Choices:
    """Whether an image scores all its captions above every caption of the others in its batch.

    Args:
        score: ``(n, D), (m, D) -> (n, m)``, higher is better.
        images: ``(N, D)``; consecutive ones are a batch, the last of which may be smaller.
        captions: ``(N, K, D)``.
    Raises:
        ValueError: If there is no image, or a score is NaN.
    """
    wins, tied = [], 0
    for start in range(0, len(images), batch):
        part = slice(start, start + batch)
        mine = torch.eye(len(images[part]), dtype=torch.bool, device=images.device)
        scores = _scores(score, images[part], captions[part].flatten(0, 1)).unflatten(1, (len(mine), -1))
        own = scores.amin(2).diagonal()
        best = scores.amax(2).masked_fill(mine, -torch.inf).amax(1)
        wins.append((own > best).cpu())
        tied += int((own == best).sum())
    return Choices(torch.cat(wins) if wins else _none(), tied)


def match_above(score: ScoreFunction, images: Tensor, captions: Tensor, negatives: Sequence[Tensor]) -> Choices:
    """Whether an image scores all its captions ``(N, K, D)`` above all its negatives, N times ``(m, D)``.

    Raises:
        ValueError: If there is no image, or a score is NaN.
    """
    wins, tied = torch.empty(len(images), dtype=torch.bool), 0
    for i, false in enumerate(negatives):
        scores = _scores(score, images[i : i + 1], torch.cat([captions[i], false]))[0]
        own, best = scores[: captions.shape[1]].min(), scores[captions.shape[1] :].max()
        wins[i] = bool(own > best)
        tied += int(own == best)
    return Choices(wins if len(images) else _none(), tied)


def _none() -> Tensor:
    raise ValueError("there is no image to find a caption for")


def _scores(score: ScoreFunction, images: Tensor, texts: Tensor) -> Tensor:
    """All scores at once; equal texts tie exactly."""
    return next(score_blocks(score, images, texts))[1]


@TASKS.register("part-matching")
@dataclass(frozen=True, kw_only=True)
class PartMatching(Task):
    """Images and crops of their parts against captions of others and false ones, the six tests of sDCI (Table S.7).

    all_scm: The first caption scores higher than those of the seven other entries of its batch. all_neg: ... than its
    first negative. pick5_scm, pick5_neg: The same of the worst of its first five captions, against the best of each
    other's five and against the negative. base_neg: As all_neg, of whole images alone. hard_negs: As all_neg, against
    the hardest negative: the one that the set names, as sDCI does by CLIP's scores; else the model's own highest.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "negatives"

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        if tuple(samples.classes) != MATCHING_TESTS:
            raise ValueError(f"part-matching needs parts with captions and negatives, such as sdci; not {samples.name}")

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        images = embedder.images(samples, resize=self.resize, image_size=self.image_size)
        usable = [i for i, a in enumerate(images.annotations) if a.texts and a.negatives and a.labels]
        left = images.select(usable, "no caption or no negative")
        given = bool(getattr(samples, "hardest_last", False))
        tests = _tests(left.annotations, hardest_given=given)
        texts = dict.fromkeys(text for a in left.annotations for text in (*a.texts, *a.negatives))
        points = dict(zip(texts, embedder.texts(list(texts)), strict=True))
        found: dict[str, Choices] = {}
        with evaluation_mode(embedder.model):
            for name, (rows, pick, pool) in tests.items():
                if rows:
                    chosen = [left.annotations[i] for i in rows]
                    found[name] = _choose(embedder.model.score, left.points[rows], chosen, points, pick, pool)
        shares = {name: 100 * choices.right.double().mean().item() for name, choices in found.items()}
        counts = {name: len(rows) for name, (rows, _, _) in tests.items()}
        return Outcome(
            scores={name: shares.get(name, float("nan")) for name in tests},
            units=dict.fromkeys(tests, "%"),
            n=len(left.points),
            total=left.total,
            skipped=left.skipped,
            skipped_examples=left.examples,
            ties={name: choices.tied for name, choices in found.items()},
            intervals={
                name: percent_interval(wilson_interval(int(choices.right.sum()), len(choices.right)))
                for name, choices in found.items()
            },
            undefined={name: f"no entry with {_needs(name)}" for name in tests if name not in found},
            details={
                "entries": counts,
                "batch": BATCH,
                "hardest": "named by the set" if given else "by the model's own score",
                "texts_hash": hash_lines(list(texts)),
            },
            notes=[] if given else ["the hardest negative is that of this model: hard_negs is harder than on sDCI"],
        )


#: Rows of a test, how many captions each has, and which of its negatives: a slice, or None to match within batches.
_Test = tuple[list[int], int, slice | None]


def _tests(annotations: Sequence[Annotation], *, hardest_given: bool) -> dict[str, _Test]:
    base, everything = ([i for i, a in enumerate(annotations) if label in a.labels] for label in (0, 1))
    five = [i for i in everything if len(annotations[i].texts) >= PICK]
    first, hardest = slice(0, 1), slice(-1, None) if hardest_given else slice(None)
    return {
        "all_scm": (everything, 1, None),
        "all_neg": (everything, 1, first),
        "pick5_scm": (five, PICK, None),
        "pick5_neg": (five, PICK, first),
        "base_neg": (base, 1, first),
        "hard_negs": (everything, 1, hardest),
    }


def _needs(test: str) -> str:
    return f"{PICK} captions" if test.startswith("pick5") else "a whole image" if test == "base_neg" else "a part"


def _choose(
    score: ScoreFunction,
    images: Tensor,
    annotations: Sequence[Annotation],
    points: Mapping[str, Tensor],
    pick: int,
    pool: slice | None,
) -> Choices:
    """One test of ``images`` ``(N, D)``; ``points`` are those of all texts."""
    captions = torch.stack([torch.stack([points[text] for text in a.texts[:pick]]) for a in annotations])
    if pool is None:
        return match_in_batches(score, images, captions)
    negatives = [torch.stack([points[text] for text in a.negatives[pool]]) for a in annotations]
    return match_above(score, images, captions, negatives)
