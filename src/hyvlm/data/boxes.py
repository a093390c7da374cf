"""Boxes of parts: from what a file says to pixels of the (upright) image, and the crops that are cut with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from PIL import Image

from hyvlm.data.files import text_fault
from hyvlm.types import BadSample, Part

#: ``[x0, y0, x1, y1]`` in pixels, right and lower edge excluded.
PixelBox = tuple[int, int, int, int]


class LazyPart(Part):
    """A part whose image is decoded or cut when it is first looked at: parts that are not chosen cost nothing."""

    def __init__(self, text: str, load: Callable[[], Image.Image]) -> None:
        self.text = text
        self._load = load

    @cached_property
    def image(self) -> Image.Image:  # type: ignore[override]
        """The crop, RGB. Raises :class:`BadSample` if it cannot be decoded."""
        return self._load()


def to_pixels(box: Sequence[float], size: tuple[int, int], where: str, *, normalised: bool = False) -> PixelBox:
    """A box clipped to the image and widened to whole pixels.

    Args:
        box: ``[x0, y0, x1, y1]``, continuous coordinates with the origin at the upper left corner of the image.
        size: Width and height of the image in pixels.
        where: Names the part in the error.
        normalised: Whether the box is given in shares of width and height instead of pixels.
    Raises:
        BadSample: Four finite numbers are not given, the box has no area, or no pixel of the image lies in it.
    """
    if len(box) != 4 or not all(isinstance(v, int | float) and math.isfinite(v) for v in box):
        raise BadSample("box is not four numbers", where)
    width, height = size
    x0, y0, x1, y1 = (v * s for v, s in zip(box, (width, height) * 2, strict=True)) if normalised else box
    if x0 >= x1 or y0 >= y1:
        raise BadSample("box without area (x0 >= x1 or y0 >= y1)", where)
    if x0 >= width or y0 >= height or x1 <= 0 or y1 <= 0:
        raise BadSample("box outside the image", where)
    return max(0, math.floor(x0)), max(0, math.floor(y0)), min(width, math.ceil(x1)), min(height, math.ceil(y1))


def cut_part(
    image: Image.Image, box: Sequence[float], text: object, where: str, *, normalised: bool = False
) -> LazyPart:
    """The part of ``image`` inside ``box``, named ``text``.

    Raises:
        BadSample: As :func:`to_pixels`, or the phrase is empty or cannot be encoded.
    """
    if not isinstance(text, str) or not text.strip():
        raise BadSample("empty phrase", where)
    if fault := text_fault(text):
        raise BadSample(fault, where)
    if not normalised and "full_size" in image.info and len(box) == 4:  # the image was decoded at a fraction of it
        scales = [now / full for now, full in zip(image.size, image.info["full_size"], strict=True)] * 2
        box = [v * s if isinstance(v, int | float) else v for v, s in zip(box, scales, strict=True)]
    pixels = to_pixels(box, image.size, where, normalised=normalised)
    return LazyPart(text.strip(), lambda: image.crop(pixels))


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes ``[x0, y0, x1, y1]``; 0 if either has no area."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def boxes_are_normalised(boxes: Iterable[tuple[str, Sequence[float]]]) -> bool | None:
    """Whether the boxes of one file are shares of the image's size rather than pixels; None if there are no boxes.

    A box speaks for *normalised* if no coordinate exceeds 1 by more than rounding and at least one is not whole; for
    *pixels* if a coordinate exceeds 2. Others (the whole image ``[0, 0, 1, 1]``, or ``[0.1, 0.1, 1.2, 0.8]``) fit both
    and follow the rest of the file.

    Args:
        boxes: Pairs of a place, for the error, and a box.
    Raises:
        ValueError: Boxes of the file speak for both, or all of them fit both.
    """
    normalised = pixels = undecided = None
    for where, box in boxes:
        values = [v for v in box if isinstance(v, int | float) and math.isfinite(v)]
        if not values:
            continue
        if max(values) > 2:
            pixels = pixels or where
        elif max(values) <= 1.001 and any(v != round(v) for v in values):
            normalised = normalised or where
        else:
            undecided = undecided or where
    if normalised and pixels:
        raise ValueError(
            f"boxes are normalised (0 to 1) at {normalised} but pixels at {pixels}; one file uses one of the two"
        )
    if normalised or pixels:
        return normalised is not None
    if undecided:
        raise ValueError(
            f"boxes may be pixels or normalised (0 to 1), first at {undecided}: "
            'say which by "unit": "pixel" or "unit": "normalised" beside "box"'
        )
    return None
