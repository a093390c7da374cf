"""WebDataset tar shards with random access: every sample has a place in one order, however many processes read it."""

from __future__ import annotations

import glob
import json
import multiprocessing
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from braceexpand import braceexpand
from PIL import Image

from hyvlm.data.boxes import LazyPart
from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, FileSet, Fingerprint, check_offer, clean_texts, log, need_caption, text_fault
from hyvlm.data.grit import choose_parts
from hyvlm.data.images import load_image
from hyvlm.data.tarindex import ShardIndex, index_shard
from hyvlm.types import BadSample, Sample

#: From this many shards on, those not in the cache are indexed by several processes.
PARALLEL_FROM = 8


class Shards(FileSet):
    """Samples of all shards, in the order of the shards and of the first member of each sample in them.

    Equal keys in different shards are different samples; of samples with one key in one shard the first is kept.

    Args:
        paths: The shards.
        name: As the user gave it.
    Raises:
        ValueError: A shard holds samples but none that can be used, is no plain tar file, or is listed twice.
    """

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        self.name, self.split = name, "all"
        resolved = [path.resolve() for path in paths]
        twice = [path for path, full in zip(paths, resolved, strict=True) if resolved.count(full) > 1]
        if twice:
            raise ValueError(f"{name}: shard {twice[0]} is listed twice")
        self.shards = list(_index_all(paths))
        drops, fingerprint = Drops(), Fingerprint("shards")
        for shard in self.shards:
            fingerprint.add_file(shard.path.name, shard.path)
            drops.merge(shard.drops)
            _check_usable(shard)
        self.starts = np.cumsum([0, *(len(shard.samples) for shard in self.shards)])
        if not len(self):
            raise ValueError(f"{name}: the {len(paths)} shards hold no samples")
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        shard, row = self.shards[number], index - int(self.starts[number])
        record = read_record(shard, row)
        sample = Sample(record.key, load_image(record.image, record.where), record.captions)
        if "ref_exps" in record.document or "noun_chunks" in record.document:
            parts, sample.dropped, _ = choose_parts(record.document, sample.picture, record.where)
            sample.parts = list(parts)
        else:
            _add_parts(sample, shard, row, record.where)
        sample.dropped += record.faults
        return sample


@dataclass
class Record:
    """A sample as it is stored: captions, the document beside it (empty if there is none), the encoded image.

    ``faults`` are further captions that are neither empty nor of use.
    """

    key: str
    where: str
    captions: list[str]
    document: Mapping[str, Any]
    image: bytes | Path
    faults: list[BadSample] = field(default_factory=list)


def read_record(shard: ShardIndex, number: int) -> Record:
    """Sample ``number`` of a shard; the captions of its json count before that of its txt.

    Raises:
        BadSample: No caption is of use, or a text cannot be read.
        FileNotFoundError: The shard is gone.
    """
    row = shard.samples[number]
    key = row["key"].decode("utf-8", "replace")
    where = f"sample {key!r} of {shard.path}"
    with _open(shard.path) as file:
        document = _document(file, row["json"], where)
        caption = document.get("caption")
        texts = caption if isinstance(caption, list) else ["" if caption is None else caption]
        if row["text"][1] and not clean_texts(texts):
            texts = [_text(file, row["text"], where)]
        faults = [
            BadSample(fault, f"caption {n} of {where}")
            for n, fault in enumerate(map(text_fault, texts))
            if fault and fault != "empty caption"
        ]
        return Record(key, where, need_caption(texts, where), document, _bytes(file, row["image"]), faults)


def _add_parts(sample: Sample, shard: ShardIndex, number: int, where: str) -> None:
    row = shard.samples[number]
    with _open(shard.path) as file:
        for part in shard.parts[row["first"] : row["first"] + row["parts"]]:
            place = f"part {part['number']} of {where}"
            try:
                phrase = _text(file, part["text"], place)
                if not phrase.strip():
                    raise BadSample("empty phrase", place)
            except BadSample as bad:
                sample.dropped.append(bad)
                continue
            load = partial(_read_image, shard.path, tuple(part["image"].tolist()), place)
            sample.parts.append(LazyPart(phrase.strip(), load))


def expand_shards(pattern: str) -> list[Path]:
    """Files of a comma-separated list of paths, ``{00000..00003}`` ranges, globs and folders (all their .tar files).

    Raises:
        FileNotFoundError: A path, range or glob matches nothing, or a range only in part; quotes it as received.
    """
    if not pattern.strip():
        raise ValueError("shards needs a location: shards:/data/{00000..00009}.tar, a glob or a folder")
    paths: list[Path] = []
    for piece in re.split(r",(?![^{]*\})", pattern):
        try:
            names = list(braceexpand(piece.strip()))
        except ValueError as error:
            raise ValueError(f"shards: unbalanced braces in {pattern!r}") from error
        found = [path for name in names for path in _matches(name)]
        missing = [name for name in names if not _matches(name)]
        if not found:
            raise FileNotFoundError(f"shards: nothing matches {pattern!r}")
        if missing:
            raise FileNotFoundError(
                f"shards: {len(names) - len(missing)} of {len(names)} shards of {pattern!r} exist; "
                f"the first that is missing is {missing[0]}"
            )
        paths += found
    return paths


def _matches(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        return sorted(path.glob("*.tar"))
    if path.is_file():
        return [path]
    return sorted(Path(match) for match in glob.glob(name, recursive=True) if Path(match).is_file())


def _index_all(paths: Sequence[Path]) -> Iterator[ShardIndex]:
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)
    if len(paths) < PARALLEL_FROM or workers < 2 or multiprocessing.current_process().daemon:
        return map(index_shard, paths)
    with ProcessPoolExecutor(workers) as pool:
        return iter(list(pool.map(index_shard, paths, chunksize=4)))


def _check_usable(shard: ShardIndex) -> None:
    if len(shard.samples):
        return
    unusable = {reason: n for reason, n in shard.drops.counts.items() if not reason.startswith(("shard", "part"))}
    if unusable:
        total = sum(unusable.values())
        what = "an image and a txt/json caption" if set(unusable) != {"no txt or json caption"} else "txt/json caption"
        found = ", ".join(shard.suffixes[:8])
        hint = "; a key ends at the first dot of a name" if "name has dots before its suffix" in unusable else ""
        raise ValueError(f"{shard.path}: 0 of {total} samples have {what}; found: {found}{hint}")
    if not shard.drops.counts:
        log.warning("%s holds no samples", shard.path)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise FileNotFoundError(f"shards: {path} was there when the run began and cannot be opened now") from error


def _bytes(file: BinaryIO, place: Sequence[int]) -> bytes:
    file.seek(int(place[0]))
    return file.read(int(place[1]))


def _text(file: BinaryIO, place: Sequence[int], where: str) -> str:
    try:
        return _bytes(file, place).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSample("text is not UTF-8", where) from error


def _document(file: BinaryIO, place: Sequence[int], where: str) -> dict[str, Any]:
    if not place[1]:
        return {}
    try:
        document = json.loads(_text(file, place, where))
    except ValueError as error:
        raise BadSample("json cannot be read", where) from error
    return document if isinstance(document, dict) else {}


def _read_image(path: Path, place: tuple[int, int], where: str) -> Image.Image:
    with _open(path) as file:
        return load_image(_bytes(file, place), where)


@DATASETS.register("shards")
def open_shards(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """WebDataset tar shards: processed GRIT, raw GRIT (boxes cut on the fly), or images with txt/json. Content: pairs.

    ``location`` is a comma-separated list of paths, ranges ``{00000..00003}``, globs or folders. Shards have no splits:
    name those of one split.
    """
    check_offer("shards", "content", content, ["pairs"])
    check_offer("shards", "split", split or "all", ["all"])
    return Shards(expand_shards(location), f"shards:{location}")
