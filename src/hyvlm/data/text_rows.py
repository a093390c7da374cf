"""Texts with their keys, from a file of lines, a table, Parquet, or any data set with captions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyvlm.data.catalog import SampleSet, open_data
from hyvlm.data.files import Drops, Fingerprint, NotOffered, dropped_samples, text_fault
from hyvlm.data.sets.shards import expand_shards, read_record
from hyvlm.data.sets.table import ALIASES, decode, json_list, read_rows
from hyvlm.data.tarindex import index_shard
from hyvlm.errors import MissingExtra
from hyvlm.types import BadSample, encodable

TABLES = (".csv", ".tsv", ".jsonl")
COLUMNS = ("caption", *ALIASES["caption"])


@dataclass
class TextRows:
    """Texts in the order of their source.

    Attributes:
        name: The source as the user gave it.
        keys, texts, indices: Of each text that can be used: its name, itself, its place among all of the source.
        total: How many texts the source has, those of no use included.
        drops: What is left out, by reason.
        fingerprint: Hash of the keys and texts.
    """

    name: str
    keys: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    total: int = 0
    drops: Drops = field(default_factory=Drops)
    fingerprint: str = ""

    def __len__(self) -> int:
        return len(self.texts)


#: A key, and its texts or the reason why they cannot be read.
Row = tuple[str, list[Any] | BadSample]


def open_texts(spec: str, *, split: str | None = None) -> TextRows:
    """Read all texts of a source into memory.

    Args:
        spec: A ``.txt`` of one text a line; a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file with a column
            ``caption``, ``text`` or ``title`` and, if it likes, ``key``; or a data set with captions, NAME or
            NAME:LOCATION (tar shards need no name). Keys that a file does not give are "row N", counted from 1, the
            header included; of several texts of one sample "KEY#N", counted from 0.
    Raises:
        ValueError: The file cannot be read, has no such column, or no text that can be used.
        FileNotFoundError: There is no such file.
        MissingExtra: pyarrow, which reads Parquet, is not installed.
    """
    rows, before = TextRows(spec), Drops()  # what is left out here, and when the source was opened
    digest = Fingerprint("text rows")
    for key, texts in _rows(spec, split, before):
        if isinstance(texts, BadSample):
            rows.total += 1
            rows.drops.add(texts.reason, texts.where)
            continue
        for number, text in enumerate(texts):
            name = encodable(key if len(texts) == 1 else f"{key}#{number}")
            fault = text_fault(text)
            if fault:
                rows.drops.add("empty text" if fault == "empty caption" else fault, f"{name} of {spec}")
            else:
                digest.update(name, text.strip())
                rows.keys.append(name)
                rows.texts.append(text.strip())
                rows.indices.append(rows.total)
            rows.total += 1
    rows.total += dropped_samples(before.counts)
    before.merge(rows.drops)
    rows.drops = before
    if not rows.texts:
        raise ValueError(f"{spec} has no text that could be used{rows.drops.aside()}")
    rows.fingerprint = digest.hexdigest()
    return rows


def _rows(spec: str, split: str | None, drops: Drops) -> Iterator[Row]:
    suffix, path = Path(spec).suffix.lower(), Path(spec)
    kind, _, location = spec.partition(":")
    if suffix == ".tar" and kind not in ("shards", "images"):
        kind, location = "shards", spec
    if kind == "shards":
        return _of_shards(location, drops)
    if suffix in (".txt", ".parquet", *TABLES) and (path.is_file() or ":" not in spec):
        if split is not None:
            raise ValueError(f"{spec} has no splits: leave --split out")
        if not path.is_file():
            raise FileNotFoundError(f"no file of texts {spec}")
        if suffix == ".txt":
            return ((f"row {n}", [line]) for n, line in enumerate(_lines(path), start=1))
        return _of_table(read_parquet(path) if suffix == ".parquet" else read_rows(path, ("caption",)), path)
    if path.exists() and ":" not in spec:
        raise ValueError(f"{spec} is no file of texts (.txt, {', '.join(TABLES)}, .parquet) and no NAME:LOCATION")
    return _of_samples(_open_captions(spec, split), drops)


def _lines(path: Path) -> list[str]:
    lines = decode(path).replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _of_table(rows: Iterable[tuple[int, Any]], path: Path) -> Iterator[Row]:
    for number, row in rows:
        column = next((name for name in COLUMNS if name in row), None)
        if column is None:
            raise ValueError(f"row {number} of {path} has no column {' or '.join(COLUMNS)}")
        cell, key = row[column], row.get("key")
        listed = json_list(cell)
        many = listed is not None and all(isinstance(text, str) for text in listed)
        yield f"row {number}" if key in (None, "") else str(key), listed if listed and many else [cell or ""]


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a Parquet file, counted from 1, of the columns that texts and their keys may be in.

    Raises:
        ValueError: It is no Parquet file, or has no column of texts.
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("reading Parquet", "pyarrow", "search") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            column = next((name for name in COLUMNS if name in names), None)
            if column is None:
                raise ValueError(f"{path} has no column {' or '.join(COLUMNS)}; found: {', '.join(names)}")
            number = 0
            for batch in file.iter_batches(columns=[column, *({"key"} & set(names))]):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} is cut short or no Parquet file: {error}") from error


def _of_shards(location: str, drops: Drops) -> Iterator[Row]:
    """Captions without a look at the images beside them."""
    for path in expand_shards(location):
        shard = index_shard(path)
        drops.merge(shard.drops)
        for number in range(len(shard.samples)):
            try:
                record = read_record(shard, number)
                yield record.key, list(record.captions)
            except BadSample as bad:
                yield "", bad


def _open_captions(spec: str, split: str | None) -> SampleSet:
    for content in ("texts", "pairs", "negatives"):
        try:
            return open_data(spec, split=split, content=content)
        except NotOffered:
            continue
    raise ValueError(f"{spec} has no captions")


def _of_samples(samples: SampleSet, drops: Drops) -> Iterator[Row]:
    drops.counts.update(samples.dropped)
    drops.examples += list(samples.dropped_examples)
    for index in range(len(samples)):
        try:
            sample = samples[index]
            yield sample.key, list(sample.texts)
        except BadSample as bad:
            yield "", bad
