"""Grounded captions as GLIGEN released them for CC3M (Li et al. 2023): TSV files with images, captions and boxes.

A line is an id, a tab and a JSON object with "data_id", "image" (a JPEG in base64), "file_name", "caption" and "annos".
Each of "annos" has a "bbox" ``[x, y, width, height]`` in pixels of that image and "tokens_positive", the ranges
``[start, end]`` of the caption that name what is in the box. Its four CLIP embeddings in base64 are not decoded here.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

from hyvlm.data.boxes import LazyPart, cut_part
from hyvlm.data.files import need_caption
from hyvlm.data.sets.shards import Record, expand_shards
from hyvlm.types import BadSample

#: A longer row is no image with its boxes; those that were released have 170 kB on average.
MAX_ROW = 2**26
#: How much of a file is looked at to tell that it is such a TSV: a few rows, of which one may be damaged.
HEAD = 2**20
ID = rb"[\w.:-]{1,200}"
ROW_START = re.compile(rb"(?:\A|\n)" + ID + rb"\t\s*\{")


def find_files(source: str) -> list[Path]:
    """The TSV files of a folder, or those that a list, range or glob names.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: A file is no TSV of this kind.
    """
    folder = Path(source)
    paths = sorted(folder.glob("*.tsv")) if folder.is_dir() else expand_shards(source)
    if not paths:
        raise FileNotFoundError(f"prepare cc3m-gligen: no .tsv file in {source}")
    for path in paths:
        with path.open("rb") as file:
            head = file.read(HEAD)
        if head.startswith(b"version https://git-lfs"):
            raise ValueError(f"prepare cc3m-gligen: {path} is a Git LFS pointer; get the file itself by git lfs pull")
        if not ROW_START.search(head):
            raise ValueError(f"prepare cc3m-gligen: {path} is no TSV of GLIGEN: no line is an id, a tab and JSON")
    return paths


def pieces(path: Path, piece_bytes: int) -> list[tuple[int, int]]:
    """Ranges ``(start, stop)`` of bytes, about equal and at most ``piece_bytes``, that cover a file.

    Raises:
        ValueError: ``piece_bytes`` is not positive.
    """
    if piece_bytes < 1:
        raise ValueError(f"prepare cc3m-gligen: shard_bytes must be positive, got {piece_bytes}")
    size = path.stat().st_size
    count = math.ceil(size / piece_bytes)
    edges = [size * i // count for i in range(count + 1)]
    return list(itertools.pairwise(edges))


def rows(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[str, bytes]]:
    """Place and content of the lines that begin at bytes ``start`` to ``stop``; of one too long only the beginning."""
    with path.open("rb") as file:
        if start:  # to the first line that begins here: one that holds the byte before is the piece before's
            file.seek(start - 1)
            _skip_line(file)
        while stop is None or file.tell() < stop:
            where = f"row at byte {file.tell()} of {path}"
            line = file.readline(MAX_ROW)
            if not line:
                return
            if len(line) == MAX_ROW and not line.endswith(b"\n"):
                _skip_line(file)
            yield where, line


def _skip_line(file: BinaryIO) -> None:
    while (skipped := file.readline(MAX_ROW)) and not skipped.endswith(b"\n"):
        pass


def read_row(row: bytes, where: str) -> Record:
    """The sample of one line.

    Raises:
        BadSample: The line is empty, too long, cut short or not an id, a tab and a JSON object; or the object has no
            image, one that is not base64, or no caption that is of use.
    """
    if not row.strip():
        raise BadSample("row is empty", where)
    whole = row.endswith(b"\n")
    if not whole and len(row) == MAX_ROW:
        raise BadSample("row is too long", where)
    key, _, text = row.partition(b"\t")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSample("row is not an id, a tab and JSON" if whole else "row is cut short", where) from error
    if not re.fullmatch(ID, key) or not isinstance(document, dict):
        raise BadSample("row is not an id, a tab and JSON", where)
    where = f"id {key.decode()}, {where}"
    caption, encoded = document.get("caption"), document.get("image")
    captions = need_caption(["" if caption is None else caption], where)
    if not isinstance(encoded, str) or not encoded:
        raise BadSample("no image", where)
    try:
        image = base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise BadSample("image is not base64", where) from error
    return Record(key.decode(), where, captions, document, image)


def boxed_parts(document: Mapping[str, Any], image: Image.Image, where: str) -> tuple[list[LazyPart], list[BadSample]]:
    """The parts of a row in the order of its boxes, and the boxes that cannot be used.

    The ranges of one box are joined by a blank, as GLIGEN does to embed them.
    """
    boxes = document.get("annos")
    if not isinstance(boxes, list):
        return [], [BadSample("annos is not a list of boxes", where)]
    parts, bad = [], []
    for number, box in enumerate(boxes):
        place = f"part {number} of {where}"
        try:
            if not isinstance(box, dict):
                raise BadSample("box is not an object", place)
            phrase = _phrase(document["caption"], box.get("tokens_positive"), place)
            parts.append(cut_part(image, _corners(box.get("bbox"), place), phrase, place))
        except BadSample as error:
            bad.append(error)
    return parts, bad


def _corners(box: object, where: str) -> Sequence[float]:
    """``[x0, y0, x1, y1]`` of ``[x, y, width, height]``."""
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
        raise BadSample("box is not four numbers", where)
    try:
        x, y, width, height = map(float, box)
    except OverflowError as error:
        raise BadSample("box is not four numbers", where) from error
    return [x, y, x + width, y + height]


def _phrase(caption: str, ranges: object, where: str) -> str:
    if not isinstance(ranges, list) or not ranges:
        raise BadSample("empty phrase", where)
    texts = []
    for span in ranges:
        if not isinstance(span, list) or len(span) != 2 or not all(type(v) is int for v in span):
            raise BadSample("range is not [start, end]", where)
        start, end = span
        if not 0 <= start < end <= len(caption):
            raise BadSample("phrase outside the caption", where)
        texts.append(caption[start:end].strip())
    return " ".join(texts)
