"""Tables of image paths and captions: CSV, TSV or JSON lines, one row an image or one row a caption."""

from __future__ import annotations

import ast
import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyvlm.data.boxes import boxes_are_normalised, cut_part
from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, FileSet, Fingerprint, ImageFolder, check_offer, clean_texts, existing, text_fault
from hyvlm.types import BadSample, Sample

UNITS = ("pixel", "normalised")
#: Other names of the columns, as other tools write them.
ALIASES = {"image": ("filepath",), "caption": ("text", "title")}


@dataclass
class Entry:
    """One image of the table (of content "negatives", one row).

    A box is ``(row, box, phrase, unit)``; the unit is None where the table does not say. Of captions that cannot be
    used, those that are not just empty are counted in ``faults``. An image of None is not in the table.
    """

    image: str | None
    captions: list[str] = field(default_factory=list)
    negatives: list[str] = field(default_factory=list)
    faults: int = 0
    boxes: list[tuple[int, list[float], object, str | None]] = field(default_factory=list)


class Table(FileSet):
    """Images in the order in which the table first names them, with the captions of all their rows.

    For content "texts" the images need not exist, nor the column; rows without an image are samples of their own. For
    content "negatives" every row is a sample.
    """

    def __init__(self, path: Path, name: str, content: str = "pairs") -> None:
        self.name, self.split, self.content = name, "all", content
        drops, fingerprint = Drops(), Fingerprint("table" if content == "pairs" else f"table {content}")
        fingerprint.add_file(path.name, path)
        entries = _entries(path, drops, content)
        places = {key: _place(path.parent, entry.image or "") for key, entry in entries.items()}
        if content != "texts":
            found = existing(places.values(), path.parent, fingerprint, drops)
            entries = {key: entry for key, entry in entries.items() if places[key] in found}
        self.rows = [(key, places[key], entry) for key, entry in entries.items() if _usable(key, entry, content, drops)]
        if not self.rows:
            raise ValueError(f"{path} has no row with {_NEEDED[content]}{drops.aside()}")
        self.normalised = boxes_are_normalised(
            (f"row {row} of {path}", box)
            for entry in entries.values()
            for row, box, _, unit in entry.boxes
            if unit is None
        )
        self.folder = ImageFolder(path.parent)
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        key, place, entry = self.rows[index]
        texts, negatives = list(entry.captions), list(entry.negatives)
        if self.content == "texts":
            return Sample(key, None, texts=texts)
        sample = Sample(key, self.folder.load(place), texts=texts, negatives=negatives)
        if self.content == "negatives":
            return sample
        for number, (_, box, phrase, unit) in enumerate(entry.boxes):
            normalised = unit == "normalised" if unit else bool(self.normalised)
            where = f"part {number} of sample {key!r}"
            try:
                sample.parts.append(cut_part(sample.picture, box, phrase, where, normalised=normalised))
            except BadSample as bad:
                sample.dropped.append(bad)
        return sample


_NEEDED = {
    "pairs": "an image and a caption",
    "texts": "a caption",
    "negatives": "an image, a caption and negatives",
}


def _usable(key: str, entry: Entry, content: str, drops: Drops) -> bool:
    """Whether an entry has what ``content`` needs; what it lacks is counted, faults of its captions already are."""
    if not entry.captions:
        if not entry.faults:
            drops.add("empty caption", key)
        return False
    if content == "negatives" and not entry.negatives:
        drops.add("no negatives", key)
        return False
    return True


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a table with their line numbers (from 1, the header included); ``needed`` columns may go by an alias.

    Raises:
        ValueError: The file is not UTF-8, a line is not JSON, the quotes of a row do not match, or a column is missing
            or comes twice; names the row.
    """
    text = decode(path)
    if path.suffix.lower() in (".jsonl", ".jsonlines"):
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"row {number} of {path} is not JSON: {error}") from error
                if not isinstance(row, dict):
                    raise ValueError(f"row {number} of {path} is not a JSON object")
                _check_columns(row, f"row {number} of {path}", needed)
                yield number, row
        return
    header = text[: text.find("\n")] if "\n" in text else text
    delimiter = "\t" if path.suffix.lower() == ".tsv" or ("\t" in header and "," not in header) else ","
    # strict, for else a quote that is never closed takes the rest of the file for one cell
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    last = 0
    try:
        _check_columns(reader.fieldnames or [], str(path), needed)
        last = reader.line_num
        for row in reader:
            if None in row:
                raise ValueError(f"row {reader.line_num} of {path} has more cells than the header; quote commas")
            last = reader.line_num
            yield last, row
    except csv.Error as error:
        raise ValueError(f"row {last + 1} of {path} cannot be read, its quotes may not match: {error}") from error


def decode(path: Path) -> str:
    """The text of a UTF-8 file, with or without byte order mark. Raises ValueError that names the row."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = data[: error.start].count(b"\n") + 1
        raise ValueError(
            f"row {row} of {path} is not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8"
        ) from error


def _check_columns(columns: Any, where: str, needed: Sequence[str]) -> None:
    for column in needed:
        names = (column, *ALIASES.get(column, ()))
        if not any(name in columns for name in names):
            raise ValueError(f"{where} has no column {column!r}; found: {', '.join(map(str, columns)) or 'nothing'}")
    twice = [column for column, n in Counter(list(columns)).items() if n > 1 and column]  # spreadsheets add empty ones
    if twice:
        raise ValueError(f"{where} has the column {twice[0]!r} more than once")


def _cell(row: Mapping[str, Any], column: str) -> Any:
    """The cell of a column under the first of its names that the table has."""
    return next((row[name] for name in (column, *ALIASES.get(column, ())) if name in row), None)


def _entries(path: Path, drops: Drops, content: str) -> dict[str, Entry]:
    """Entries by their keys: the image; with content "negatives", and where there is no image, the row as well."""
    entries: dict[str, Entry] = {}
    needed = ("caption",) if content == "texts" else ("image", "caption")
    for number, row in read_rows(path, (*needed, "negatives") if content == "negatives" else needed):
        where = f"row {number} of {path}"
        image = str(_cell(row, "image") or "").strip()
        if not image and content != "texts":
            drops.add("no image path", where)
            continue
        key = f"{image} row {number}".lstrip() if content == "negatives" or not image else image
        entry = entries.setdefault(key, Entry(image or None))
        for field_name, kept in (("caption", entry.captions), ("negatives", entry.negatives)):
            texts = _texts(row.get(field_name) if field_name == "negatives" else _cell(row, field_name))
            kept += clean_texts(texts)
            for fault in map(text_fault, texts):
                if fault and fault != "empty caption":  # an empty one counts only if the image is left with none
                    entry.faults += field_name == "caption"
                    drops.add(fault, where)
        known = [box[1:] for box in entry.boxes]  # rows that share an image may repeat its boxes
        if content == "pairs":
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
    """A CSV, TSV or JSONL file with columns image, caption and, optionally, boxes. Content: pairs, texts, negatives.

    ``image`` (or ``filepath``) is relative to the table, else to ``images/`` beside it; rows of one image are joined.
    ``caption`` (or ``text``, or ``title``) is a text or a list of texts. ``boxes`` is a JSON list of
    ``{"box": [x0, y0, x1, y1], "text": ..., "unit": ...}``; without "unit" ("pixel" or "normalised") the file as a
    whole decides, see :func:`hyvlm.data.boxes.boxes_are_normalised`. Content "texts" needs no image. Content
    "negatives" takes each row by itself and asks for a column ``negatives``: a text or a list of texts that are false
    of the image. The file is UTF-8, with or without a byte order mark, with any line ends; a .csv whose header has
    tabs and no commas is parted by tabs.
    """
    check_offer("table", "content", content, ["pairs", "texts", "negatives"])
    check_offer("table", "split", split or "all", ["all"])
    if not location.strip():
        raise ValueError("table needs a file: table:/path/to/file.csv")
    path = Path(location)
    if path.suffix.lower() not in (".csv", ".tsv", ".jsonl"):
        raise ValueError(f"a table is a .csv, .tsv or .jsonl file, got {location!r}")
    if not path.is_file():
        raise FileNotFoundError(f"table: no file {path}")
    return Table(path, f"table:{location}", content)
