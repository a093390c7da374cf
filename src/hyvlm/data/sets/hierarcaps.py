"""HierarCaps: images with captions that go from coarse to fine. Alper and Averbuch-Elor 2024."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import check_offer, read_json
from hyvlm.data.sets.captioned import UNREADABLE, CaptionedImages, Captions, need_file
from hyvlm.data.sets.table import json_list, read_rows

#: Images of the published test set.
TEST_IMAGES = 1000
#: Where images are looked for, relative to the file's folder; the last is the place in the authors' repository.
_IMAGE_FOLDERS = ("", "images", "val2014", "images/val2014", os.path.join(os.pardir, "assets", "test_imgs"))
#: Names of the fields, the first that is there counts.
_IMAGE = ("image", "image_path", "filepath", "path", "file_name", "filename")
_URL = ("image_url", "url")
_CAPTIONS = ("captions", "positive", "positive_captions", "hierarchical_captions", "caption_hierarchy")
_NEGATIVES = ("negatives", "negative", "negative_captions")


def split_captions(cell: object) -> list[Any]:
    """The captions in a cell: a list, as such or as JSON, or one text with ``=>`` or else ``||`` between captions."""
    if not isinstance(cell, str):
        return cell if isinstance(cell, list) else [] if cell is None else [cell]
    if not cell.strip():
        return []
    listed = json_list(cell) if cell.lstrip().startswith("[") else None
    return cell.split("=>" if "=>" in cell else "||") if listed is None else listed


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """Rows with their numbers; None for an entry of a JSON list that is no object."""
    if path.suffix.lower() != ".json":
        yield from read_rows(path, ())
        return
    document = read_json(path)
    if isinstance(document, dict):
        document = document.get("samples", document.get("data"))
    if not isinstance(document, list):
        raise ValueError(f"{path} is not a JSON list of objects, nor an object with such a list under 'samples'")
    for number, row in enumerate(document):
        yield number, row if isinstance(row, dict) else None


def _field(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _image(row: Mapping[str, Any]) -> Any:
    """The path of a row's image, or else the file name at the end of its URL."""
    image = _field(row, _IMAGE)
    return str(_field(row, _URL) or "").partition("?")[0].rpartition("/")[2] if image is None else image


@DATASETS.register("hierarcaps")
def open_hierarcaps(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """A CSV, TSV, JSON or JSONL file of images with captions, coarse to fine. Content: pairs, negatives, texts.

    ``captions`` (or ``positive``) is a list, or one text with ``=>`` (else ``||``) between the captions; ``image`` is
    a path, ``image_url`` will do for its file name. Images are relative to the file, or in ``images/``, ``val2014/``
    or ``images/val2014/`` beside it. ``id`` is the key, else the image with its row. Content "negatives" takes the
    rows that have ``negative`` (or ``negatives``): captions that are false of the image.
    """
    check_offer("hierarcaps", "content", content, ["pairs", "negatives", "texts"])
    check_offer("hierarcaps", "split", split or "all", ["all"])
    path = need_file(location, "hierarcaps", ".csv", ".tsv", ".json", ".jsonl", ".jsonlines")
    captions, columns, published = Captions(), dict[str, None](), True
    for number, row in _rows(path):
        where = f"row {number} of {path}"
        if row is None:
            captions.drops.add(UNREADABLE, where)
            continue
        columns.update(dict.fromkeys(row))
        image, key = _image(row), _field(row, ("id",))
        texts, negatives = split_captions(_field(row, _CAPTIONS)), split_captions(_field(row, _NEGATIVES))
        published = published and not negatives  # the test set has none
        if content == "negatives" and not negatives:
            captions.drops.add("no negatives", where)
        elif not image and content != "texts":
            captions.drops.add("no image path", where)
        else:
            captions.add(
                image or "none", texts, where, f"{image} row {number}".lstrip() if key is None else key, negatives
            )
    for names in (_CAPTIONS, _NEGATIVES if content == "negatives" else _CAPTIONS):
        if columns and columns.keys().isdisjoint(names):
            raise ValueError(f"{path} has no column {names[0]!r} (or {names[1]!r}); found: {', '.join(columns)}")
    return CaptionedImages(
        f"hierarcaps:{location}",
        "all",
        content,
        captions.placed(path.parent, _IMAGE_FOLDERS),
        path.parent,
        captions.drops,
        expected=TEST_IMAGES if published and content == "pairs" else None,
    )
