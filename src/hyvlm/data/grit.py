"""Grounded captions as GRIT writes them (Peng et al. 2023, Kosmos-2): phrases of the caption with normalised boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from hyvlm.data.boxes import LazyPart, cut_part, overlap
from hyvlm.data.sets.table import json_list
from hyvlm.types import BadSample

#: Boxes that overlap by this much (intersection over union) show the same thing: the better one stays.
MAX_OVERLAP = 0.5


def choose_parts(
    document: Mapping[str, Any], image: Image.Image, where: str, *, max_overlap: float = MAX_OVERLAP
) -> tuple[list[LazyPart], list[BadSample], int]:
    """The parts of a grounded caption, best first.

    Rows ``[start, end, x0, y0, x1, y1, score]`` stand in ``ref_exps`` (whole expressions: "a dog in a field") or, where
    that is empty, in ``noun_chunks`` ("a dog"): the phrase is ``caption[start:end]``, the box is normalised. The choice
    is greedy: rows in the order of falling score (of equal scores, the first in the file), each taken if its
    intersection over union with every box taken before is below ``max_overlap``. Nested things (the hat of a man) stay.

    Args:
        document: The sample's JSON.
        image: The whole image.
        where: Names the sample in errors.
        max_overlap: 1 keeps all boxes but equal ones.
    Returns:
        The parts, the rows that cannot be used, and the number of rows left out for their overlap.
    """
    caption = document.get("caption")
    rows = _rows(document, "ref_exps") or _rows(document, "noun_chunks")
    usable: list[tuple[float, LazyPart, Sequence[float]]] = []
    bad = []
    for number, row in enumerate(rows):
        place = f"part {number} of {where}"
        try:
            start, end, *box, score = _numbers(row, place)
            if not isinstance(caption, str) or not 0 <= start < end <= len(caption):
                raise BadSample("phrase outside the caption", place)
            part = cut_part(image, box, caption[int(start) : int(end)], place, normalised=True)
            usable.append((score, part, box))
        except BadSample as error:
            bad.append(error)
    usable.sort(key=lambda entry: -entry[0])
    taken: list[tuple[LazyPart, Sequence[float]]] = []
    for _, part, place_in_image in usable:
        if all(overlap(place_in_image, other) < max_overlap for _, other in taken):
            taken.append((part, place_in_image))
    return [part for part, _ in taken], bad, len(usable) - len(taken)


def _rows(document: Mapping[str, Any], field: str) -> list[Any]:
    return json_list(document.get(field)) or []


def _numbers(row: object, where: str) -> list[float]:
    if isinstance(row, list | tuple) and len(row) in (6, 7) and all(isinstance(v, int | float) for v in row):
        return [*row, 1.0][:7]
    raise BadSample("row is not [start, end, x0, y0, x1, y1, score]", where)
