"""Sets of prompts to draw: from a file such as DrawBench's, or from the captions of any data set."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image

from hyvlm.data.catalog import SampleSet, open_data
from hyvlm.evaluation.task import choice_of_captions
from hyvlm.types import BadSample


@dataclass(frozen=True)
class PromptSet:
    """Prompts in a fixed order.

    Attributes:
        name: A column of the table: "COCO", "DrawBench".
        prompts: The texts.
        categories: One a prompt, or none at all.
        samples: Where the prompts' own images are, which the Fréchet distance compares with; None if there are none.
        rows: The sample of each prompt.
        skipped: Rows or samples left out, by reason.
    """

    name: str
    prompts: tuple[str, ...]
    categories: tuple[str, ...] = ()
    samples: SampleSet | None = None
    rows: tuple[int, ...] = ()
    skipped: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.prompts)

    def images(self) -> Iterator[Image.Image]:
        """The prompts' own images, RGB, read one at a time."""
        if self.samples is not None:
            for row in self.rows:
                yield self.samples[row].picture


def read_prompts(path: str | Path, *, name: str | None = None) -> PromptSet:
    """Prompts from a CSV file with a column ``Prompts`` and, if it has one, ``Category`` (DrawBench's form).

    Args:
        name: Of the set; None is the file's, without its suffix.
    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not UTF-8, or has no column ``Prompts``, or no prompt.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file of prompts at '{path}'")
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
    except UnicodeDecodeError as error:
        raise ValueError(f"'{path}' is not UTF-8: {error}") from error
    columns = list(reader.fieldnames or [])
    if "Prompts" not in columns:
        raise ValueError(f"'{path}' must have a column 'Prompts', it has: {', '.join(columns) or 'none'}")
    rows = [((row["Prompts"] or "").strip(), (row.get("Category") or "").strip()) for row in reader]
    kept = [row for row in rows if row[0]]
    if not kept:
        raise ValueError(f"'{path}' has no prompt")
    return PromptSet(
        name=name or path.stem,
        prompts=tuple(prompt for prompt, _ in kept),
        categories=tuple(category for _, category in kept) if "Category" in columns else (),
        skipped=Counter({"empty prompt": len(rows) - len(kept)}) if len(kept) < len(rows) else Counter(),
    )


def sample_prompts(
    data: str | SampleSet,
    *,
    split: str | None = None,
    count: int = 500,
    seed: int = 0,
    captions: str = "first",
    name: str | None = None,
) -> PromptSet:
    """Captions of ``count`` samples drawn without replacement, with their images; all that there are, if fewer.

    Args:
        data: What :func:`hyvlm.data.open_data` takes, opened for "pairs", or an open set.
        captions: "first", "last" or "joined" (all captions of an image, with a space between).
        name: Of the set; None is that of the data.
    Raises:
        ValueError: No such data or choice of captions, ``count`` below 1, or no sample has a caption.
        FileNotFoundError: A file of the data is not there.
    """
    choose = choice_of_captions(captions)
    if captions == "all":
        raise ValueError("a prompt is one caption of an image, first, last or joined, got 'all'")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    samples = open_data(data, split=split) if isinstance(data, str) else data
    prompts, rows = list[str](), list[int]()
    skipped = Counter(samples.dropped)
    for row in torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed)).tolist():
        if len(rows) == count:
            break
        try:
            sample = samples[row]
            _ = sample.picture
        except BadSample as error:
            skipped[error.reason] += 1
            continue
        if not sample.texts:
            skipped["no caption"] += 1
            continue
        prompts.append(choose(sample.texts)[0])
        rows.append(row)
    if not prompts:
        raise ValueError(f"no sample of {samples.name} has an image and a caption")
    return PromptSet(name or samples.name, tuple(prompts), samples=samples, rows=tuple(rows), skipped=skipped)
