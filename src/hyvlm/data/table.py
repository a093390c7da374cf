"""Tables of image paths and captions: CSV, TSV or JSON lines, one row an image or one row a caption."""

from __future__ import annotations

import ast
import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyvlm.data.boxes import boxes_are_normalised, cut_part
from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, Fingerprint, ImageFolder, check_offer, clean_texts, existing, text_fault
from hyvlm.types import BadSample, Sample

UNITS = ("pixel", "normalised")


@dataclass
class Entry:
    """One image of the table. A box is ``(row, box, phrase, unit)``; the unit is None where the table does not say.

    Of captions that cannot be used, those that are not just empty are counted in ``faults``.
    """

    captions: list[str] = field(default_factory=list)
    faults: int = 0
    boxes: list[tuple[int, list[float], object, str | None]] = field(default_factory=list)


class Table(SampleSet):
    """Images in the order in which the table first names them, with the captions of all their rows."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self.split = name, "all"
        drops, fingerprint = Drops(), Fingerprint("table")
        fingerprint.add_file(path.name, path)
        entries = _entries(path, drops)
        places = {image: _place(path.parent, image) for image in entries}
        found = existing(places.values(), path.parent, fingerprint, drops)
        entries = {image: entry for image, entry in entries.items() if places[image] in found}
        self.rows = [(image, places[image], entry) for image, entry in entries.items() if entry.captions]
        for image, entry in entries.items():
            if not entry.captions and not entry.faults:
                drops.add("empty caption", image)
        if not self.rows:
            raise ValueError(f"{path} has no row with an image and a caption")
        self.normalised = boxes_are_normalised(
            (f"row {row} of {path}", box)
            for entry in entries.values()
            for row, box, _, unit in entry.boxes
            if unit is None
        )
        self.folder = ImageFolder(path.parent)
        self.fingerprint = fingerprint.hexdigest()
        self.dropped, self.dropped_examples = drops.counts, drops.examples
        drops.report(name)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        name, place, entry = self.rows[index]
        sample = Sample(name, self.folder.load(place), texts=list(entry.captions))
        for number, (_, box, phrase, unit) in enumerate(entry.boxes):
            normalised = unit == "normalised" if unit else bool(self.normalised)
            where = f"part {number} of sample {name!r}"
            try:
                sample.parts.append(cut_part(sample.picture, box, phrase, where, normalised=normalised))
            except BadSample as bad:
                sample.dropped.append(bad)
        return sample


def read_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a table with their line numbers (from 1, the header included).

    Raises:
        ValueError: The file is not UTF-8, a line is not JSON, the quotes of a row do not match, or a column is missing
            or comes twice; names the row.
    """
    text = _decode(path)
    if path.suffix.lower() == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"row {number} of {path} is not JSON: {error}") from error
                if not isinstance(row, dict):
                    raise ValueError(f"row {number} of {path} is not a JSON object")
                _check_columns(row, f"row {number} of {path}")
                yield number, row
        return
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    # strict, for else a quote that is never closed takes the rest of the file for one cell
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    last = 0
    try:
        _check_columns(reader.fieldnames or [], str(path))
        last = reader.line_num
        for row in reader:
            if None in row:
                raise ValueError(f"row {reader.line_num} of {path} has more cells than the header; quote commas")
            last = reader.line_num
            yield last, row
    except csv.Error as error:
        raise ValueError(f"row {last + 1} of {path} cannot be read, its quotes may not match: {error}") from error


def _decode(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = data[: error.start].count(b"\n") + 1
        raise ValueError(
            f"row {row} of {path} is not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8"
        ) from error


def _check_columns(columns: Any, where: str) -> None:
    for column in ("image", "caption"):
        if column not in columns:
            raise ValueError(f"{where} has no column {column!r}; found: {', '.join(map(str, columns)) or 'nothing'}")
    twice = [column for column, n in Counter(list(columns)).items() if n > 1 and column]  # spreadsheets add empty ones
    if twice:
        raise ValueError(f"{where} has the column {twice[0]!r} more than once")


def _entries(path: Path, drops: Drops) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for number, row in read_rows(path):
        where = f"row {number} of {path}"
        image = str(row["image"] or "").strip()
        if not image:
            drops.add("no image path", where)
            continue
        entry = entries.setdefault(image, Entry())
        texts = _texts(row["caption"])
        entry.captions += clean_texts(texts)
        for fault in map(text_fault, texts):
            if fault and fault != "empty caption":  # an empty one counts only if the image is left with none
                entry.faults += 1
                drops.add(fault, where)
        known = [box[1:] for box in entry.boxes]  # rows that share an image may repeat its boxes
        entry.boxes += [box for box in _boxes(row.get("boxes"), number, where) if box[1:] not in known]
    return entries


def _texts(cell: object) -> list[Any]:
    """One caption, or a list of them as JSON or as Python writes it; what only looks like a list is a caption."""
    if not isinstance(cell, str):
        return cell if isinstance(cell, list) else ["" if cell is None else cell]
    text = cell.strip()
    value = _literal(text) if text.startswith("[") and text.endswith("]") else None
    return value if isinstance(value, list) else [text]


def _literal(text: str) -> object:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            pass  # not written that way
    return None


def _boxes(cell: object, number: int, where: str) -> list[tuple[int, list[float], object, str | None]]:
    if cell in (None, "", []):
        return []
    value = json_list(cell)
    shape = '[{"box": [x0, y0, x1, y1], "text": "a dog"}, ...]'
    if value is None or not all(isinstance(b, dict) and isinstance(b.get("box"), list) for b in value):
        raise ValueError(f"the boxes in {where} are not {shape}")
    for entry in value:
        if entry.get("unit") not in (None, *UNITS):
            raise ValueError(f"the unit of a box in {where} is {entry['unit']!r}; known: {', '.join(UNITS)}")
    return [(number, entry["box"], entry.get("text"), entry.get("unit")) for entry in value]


def json_list(cell: object) -> list[Any] | None:
    """A list, or a list written as JSON; None for anything else."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except ValueError:
            return None
    return cell if isinstance(cell, list) else None


def _place(folder: Path, image: str) -> str:
    """Where an image is, relative to the table's folder: there, else in ``images/`` beside the table."""
    beside = str(Path("images", image))
    return beside if not (folder / image).is_file() and (folder / beside).is_file() else image


@DATASETS.register("table")
def open_table(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """A CSV, TSV or JSONL file with columns image, caption and, optionally, boxes. Content: pairs.

    ``image`` is relative to the table, else to ``images/`` beside it; rows of one image are joined. ``caption`` is a
    text or a list of texts. ``boxes`` is a JSON list of ``{"box": [x0, y0, x1, y1], "text": ..., "unit": ...}``;
    without "unit" ("pixel" or "normalised") the file as a whole decides, see
    :func:`hyvlm.data.boxes.boxes_are_normalised`.
    The file is UTF-8, with or without a byte order mark, with any line ends.
    """
    check_offer("table", "content", content, ["pairs"])
    check_offer("table", "split", split or "all", ["all"])
    if not location.strip():
        raise ValueError("table needs a file: table:/path/to/file.csv")
    path = Path(location)
    if path.suffix.lower() not in (".csv", ".tsv", ".jsonl"):
        raise ValueError(f"a table is a .csv, .tsv or .jsonl file, got {location!r}")
    if not path.is_file():
        raise FileNotFoundError(f"table: no file {path}")
    return Table(path, f"table:{location}")
