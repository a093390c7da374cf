"""Data sets by name: ``open_data("coco:/data/coco", split="val2017")``; each entry says which content it can give.

A sample set is a map-style data set with a stable order and a fingerprint of its content, so that a run can resume in
the middle of an epoch, processes can share it without overlap, and embeddings can be cached.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from torch.utils.data import Dataset

from hyvlm.registry import Registry
from hyvlm.types import Sample

#: What a sample set is opened for: images with captions and parts; images with one class each; images with label sets;
#: texts without images; images with a true caption and false ones; images with a class for every pixel; images alone.
CONTENTS = ("pairs", "classes", "labels", "texts", "negatives", "masks", "images")


class SampleSet(Dataset[Sample]):
    """Samples in a stable order.

    Attributes:
        name: The data set and where it was read from, as the user gave it ("scenes", "coco:/data/coco").
        split: Which split.
        fingerprint: Hash of the content that a sample can depend on; equal fingerprints mean equal samples.
        image_fingerprint: Of the images alone, where a set has one: equal for sets that show the same images in the
            same order under other annotations, so that they pass a tower once for all of them.
        classes: Class names, for contents "classes", "labels" and "masks", and of texts or negatives that are sorted
            into some; ``Sample.labels`` and ``Sample.mask`` index them.
        parents: Child name to parent name of the class taxonomy, where one is known.
        hierarchy: File of ``child parent`` lines over the classes that comes with the set.
        class_ids: What a hierarchy may call the classes instead of their names (ImageNet's synsets).
        dropped: How many samples were left out when the set was opened, by reason; they are not in ``len``.
        dropped_examples: Where the first few of them are.
        expected: How many samples the published set has, where that is known.
        expected_captions: How many captions it has, where that is known.
        remarks: What a reader of numbers on this set must know.
    """

    name: str
    split: str
    fingerprint: str
    classes: tuple[str, ...] = ()
    parents: Mapping[str, str] | None = None
    hierarchy: Path | None = None
    class_ids: tuple[str, ...] = ()
    dropped: Mapping[str, int] = MappingProxyType({})
    dropped_examples: Sequence[str] = ()
    expected: int | None = None
    expected_captions: int | None = None
    remarks: Sequence[str] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Sample:
        """Raises :class:`hyvlm.types.BadSample` if this one sample cannot be used."""


#: Called as ``opener(location, split=..., content=...)``; ``split`` None means the set's own default.
Opener = Callable[..., SampleSet]
DATASETS: Registry[Opener] = Registry("dataset")


def open_data(spec: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """Open ``"NAME"`` or ``"NAME:LOCATION"``; a bare path ending in a known suffix (.tar, .csv, .jsonl) needs no name.

    Raises:
        ValueError: Unknown data set, or one that does not offer ``content`` or ``split``.
        FileNotFoundError: A file that should be there is not.
    """
    if content not in CONTENTS:
        raise ValueError(f"unknown content {content!r}; known: {', '.join(CONTENTS)}")
    name, _, location = spec.partition(":")
    known = ", ".join(DATASETS)
    suffixes = {".tar": "shards", ".csv": "table", ".jsonl": "table", ".tsv": "table"}
    for suffix, kind in suffixes.items():
        if name not in DATASETS and spec.lower().endswith(suffix):
            name, location = kind, spec
    if not name:
        raise ValueError(f"no data set in {spec!r}: say NAME or NAME:LOCATION, with NAME one of {known}")
    if name not in DATASETS and not location and Path(name).exists():
        raise ValueError(f"{name} is a path: put the kind of data set before it, such as coco:{name} ({known})")
    return DATASETS[name](location, split=split, content=content)
