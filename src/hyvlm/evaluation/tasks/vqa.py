"""Whether images answer for perturbed captions, asked of BLIP's VQA model (HyFL-CLIP, S4.3 and Table S6)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from PIL import Image
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.data.sentences import PERTURBATIONS, split_sentences
from hyvlm.errors import MissingExtra
from hyvlm.evaluation.embed import Embedder, evaluation_mode, progress
from hyvlm.evaluation.metrics import classify
from hyvlm.evaluation.task import TASKS, Outcome, size_notes
from hyvlm.evaluation.tasks.perturbed_retrieval import (
    PAPER_SETTINGS,
    PerturbedTask,
    draws,
    one_sentence_note,
    perturb_all,
)
from hyvlm.evaluation.tasks.retrieval import CaptionedImages, images_by_text
from hyvlm.models import DualEncoder
from hyvlm.registry import unknown
from hyvlm.types import BadSample

#: Where a sentence is cut into phrases. "of" and "to" stay: "a piece of cake", "next to a dog" are one phrase.
_JOINTS = (
    "and|or|but|while|as|which|that|who|where|with|without|in|on|at|by|near|beside|behind|under|beneath|below|above|"
    "over|between|among|around|against|along|across|through|into|onto|from|for"
)
_CUT = re.compile(rf"[,;:()\[\]\"“”.!?…]+|\s[-–—]+\s|—|\b(?:{_JOINTS})\b", re.IGNORECASE)
SHORTEST = 3  # characters of a phrase


def phrases(text: str, count: int = 5) -> list[str]:
    """At most ``count`` phrases of ``text``, spread evenly over it.

    Sentences (:func:`hyvlm.data.sentences.split_sentences`) are cut at punctuation, at conjunctions and relative
    pronouns (and, or, but, while, as, which, that, who, where) and at prepositions (with, in, on, near, behind, ...;
    not at "of" and "to"). What is shorter than three characters or was there before (in any case) is dropped. Of n
    that are left, phrase ``floor((i + 1/2) * n / count)`` is taken for i = 0, 1, ...; all, if n is at most ``count``.
    A text without any is its own phrase.
    """
    pieces = [piece.strip(" \t\n'’*") for sentence in split_sentences(text) for piece in _CUT.split(sentence)]
    distinct = dict[str, str]()
    for piece in pieces:
        if len(piece) >= SHORTEST:
            distinct.setdefault(piece.casefold(), piece)
    found = list(distinct.values())
    if len(found) > count:
        found = [found[(2 * i + 1) * len(found) // (2 * count)] for i in range(count)]
    return found or [text.strip()]


class Answerer:
    """BLIP's VQA model as a judge of yes-or-no questions.

    Args:
        source: Folder that transformers' ``save_pretrained`` wrote with a ``BlipForQuestionAnswering`` and its
            ``BlipProcessor``, or their name on the hub.
    Raises:
        MissingExtra: transformers is not installed.
        FileNotFoundError: ``source`` is a path where nothing is, or the hub has no such model (or is out of reach).
        ValueError: Its vocabulary has no "yes".
    """

    def __init__(self, source: str, device: torch.device, batch_size: int = 64) -> None:
        check_source(source)
        from transformers import BlipForQuestionAnswering, BlipProcessor

        try:
            self.processor: Any = BlipProcessor.from_pretrained(source)
            self.model: Any = BlipForQuestionAnswering.from_pretrained(source).eval().to(device)
        except OSError as error:
            raise FileNotFoundError(f"no BLIP model for visual questions at '{source}': {_line(error)}") from error
        self.device, self.batch_size = device, batch_size
        words = self.processor.tokenizer
        self.yes = int(words.convert_tokens_to_ids("yes"))
        if self.yes == words.unk_token_id:
            raise ValueError(f"the vocabulary of '{source}' has no word 'yes'")

    def yes_probability(self, image: Image.Image, questions: Sequence[str]) -> Tensor:
        """Probability, ``(N,)``, that the answer's first word is "yes": of the whole vocabulary, not of yes and no.

        It is what transformers' ``generate`` starts an answer from. Questions of one length go together, so that none
        is padded: where an answer looks at its question, some versions of transformers do not mask the padding.
        """
        limit = self.model.config.text_config.max_position_embeddings
        ids = self.processor.tokenizer(list(questions), truncation=True, max_length=limit).input_ids
        by_length: dict[int, list[int]] = {}
        for i, row in enumerate(ids):
            by_length.setdefault(len(row), []).append(i)
        answers = torch.empty(len(questions), dtype=torch.float64)
        with evaluation_mode(self.model):
            pixels = self.processor.image_processor(images=image, return_tensors="pt").pixel_values
            seen = self.model.vision_model(pixel_values=pixels.to(self.device)).last_hidden_state
            for rows in by_length.values():
                for start in range(0, len(rows), self.batch_size):
                    part = rows[start : start + self.batch_size]
                    answers[part] = self._answer(seen, torch.tensor([ids[i] for i in part], device=self.device))
        return answers

    def _answer(self, seen: Tensor, ids: Tensor) -> Tensor:
        """Of questions ``(n, L)`` about one image, whose patches ``seen`` ``(1, P, W)`` holds."""
        asked = self.model.text_encoder(input_ids=ids, encoder_hidden_states=seen.expand(len(ids), -1, -1))
        start = torch.full((len(ids), 1), self.model.decoder_start_token_id, device=self.device)
        words = self.model.text_decoder(input_ids=start, encoder_hidden_states=asked.last_hidden_state).logits[:, -1]
        return cast(Tensor, words.double().softmax(-1)[:, self.yes].cpu())


def check_source(source: str | None) -> None:
    """Raise what :class:`Answerer` would, as far as it can be known without loading a weight."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise MissingExtra("the task 'blip-vqa'", "transformers", "vqa") from error
    if source is None:
        raise ValueError("the task 'blip-vqa' needs vqa: a folder or hub name, such as 'Salesforce/blip-vqa-base'")
    is_path = source.startswith((".", "/", "~")) or source.count("/") != 1
    if is_path and not Path(source).is_dir():
        raise FileNotFoundError(f"no folder with a BLIP model for visual questions at '{source}'")
    try:  # the smallest file first: a hub out of reach is asked for every file again and again, and gets another name
        transformers.BlipConfig.from_pretrained(source)
    except OSError as error:
        raise FileNotFoundError(f"no BLIP model for visual questions at '{source}': {_line(error)}") from error


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


@dataclass(frozen=True)
class _Query:
    """One perturbed caption: what is asked, and of which images (rows)."""

    how: str
    questions: tuple[str, ...]
    truth: int
    retrieved: int


@TASKS.register("blip-vqa")
@dataclass(frozen=True, kw_only=True)
class BlipVQA(PerturbedTask):
    """How far images agree with perturbed captions: the caption's own image, and the one that the model finds by it.

    Every perturbed caption gives up to five questions, ``"PHRASE?"`` (:func:`phrases`). The score of an image is the
    mean over them of BLIP's probability of "yes"; scores are means over captions and seeds, 0 to 1, as
    ``gt_PERTURBATION`` (own image) and ``retrieved_PERTURBATION`` (best image by the model's score; in a tie one that
    is not the caption's own).

    Attributes:
        vqa: Folder or hub name of BLIP's VQA model.
        perturbations: Names in :data:`hyvlm.data.sentences.PERTURBATIONS`; the default is Table S6's.
        phrases: Most questions a caption.
    """

    version: ClassVar[int] = 1

    vqa: str | None = None
    perturbations: tuple[str, ...] = PAPER_SETTINGS
    phrases: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        for how in self.perturbations:
            if how not in PERTURBATIONS:
                raise ValueError(unknown("perturbation", how, list(PERTURBATIONS)))
        if self.phrases < 1:
            raise ValueError(f"phrases must be at least 1, got {self.phrases}")

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        check_source(self.vqa)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        answerer = Answerer(str(self.vqa), embedder.device, embedder.batch_size)
        found = self.read(embedder, samples)
        images = found.images
        queries, tied = self._queries(embedder, found)
        yes = _answers(answerer, queries, samples, len(images.points), show=embedder.show_progress)
        scores = {}
        for image in ("gt", "retrieved"):
            for how in self.perturbations:
                means = [_mean(yes, query, image) for query in queries if query.how == how]
                scores[f"{image}_{how}"] = sum(means) / len(means)
        return Outcome(
            scores=scores,
            units={},
            n=len(images.points),
            total=images.total,
            skipped=images.skipped,
            skipped_examples=images.examples,
            ties=tied,
            details={
                **found.details(),
                "questions": sum(len(query.questions) for query in queries),
                "answers": len(yes),
            },
            notes=[*size_notes(samples, len(images.points)), *one_sentence_note(found.captions)],
        )

    def _queries(self, embedder: Embedder, found: CaptionedImages) -> tuple[list[_Query], dict[str, int]]:
        """Every perturbed caption with its questions and images; how many of their first places are ties."""
        queries, tied = list[_Query](), dict.fromkeys(self.perturbations, 0)
        for how, seed in embedder.progress(draws(self.perturbations, self.seeds), "perturbed captions", "draw"):
            texts = perturb_all(found.captions, how, seed)
            with evaluation_mode(embedder.model):
                points = embedder.texts(texts)
                first = classify(images_by_text(embedder.model), points, found.images.points, found.owner)
            tied[how] += first.tied
            for text, truth, best in zip(texts, found.owner.tolist(), first.predicted.tolist(), strict=True):
                questions = tuple(f"{phrase}?" for phrase in phrases(text, self.phrases))
                queries.append(_Query(how, questions, truth, best))
        return queries, tied


def _mean(yes: dict[tuple[int, str], float], query: _Query, image: str) -> float:
    row = query.truth if image == "gt" else query.retrieved
    return sum(yes[row, question] for question in query.questions) / len(query.questions)


def _answers(
    answerer: Answerer, queries: Sequence[_Query], samples: SampleSet, count: int, *, show: bool
) -> dict[tuple[int, str], float]:
    """Probability of yes by image row and question; every image is read once and asked each of its questions once."""
    wanted: dict[int, dict[str, None]] = {}
    for query in queries:
        for row in (query.truth, query.retrieved):
            wanted.setdefault(row, {}).update(dict.fromkeys(query.questions))
    yes: dict[tuple[int, str], float] = {}
    pictures: Iterable[tuple[int, Image.Image]] = enumerate(_captioned(samples))
    seen = 0
    for row, picture in progress(pictures, "images asked", "image") if show else pictures:
        questions, seen = list(wanted.get(row, ())), row + 1
        if questions:
            answers = answerer.yes_probability(picture, questions).tolist()
            yes.update({(row, question): answer for question, answer in zip(questions, answers, strict=True)})
    if seen != count:
        raise ValueError(f"{samples.name} changed while it was read: {count} usable images before, {seen} now")
    return yes


def _captioned(samples: SampleSet) -> Iterator[Image.Image]:
    """Images of the samples that can be read and have a caption: the rows of their embeddings."""
    for index in range(len(samples)):
        try:
            sample = samples[index]
            picture = sample.picture
        except BadSample:
            continue  # counted when it was embedded
        if sample.texts:
            yield picture
