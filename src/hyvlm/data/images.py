"""From the bytes of any image file to an upright RGB image of bounded size, or a ``BadSample`` that says why not.

Training asks for one rectangle of an image at a small size: within :func:`decode_on_demand`, a JPEG is only opened, and
decoded once it is known how finely its pixels are needed.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from hyvlm.types import BadSample

#: Larger images are read at a fraction of their size (JPEG) or refused. 8192 x 8192 pixels are 200 MB as RGB.
MAX_PIXELS = 2**26
#: What is decoded; other formats that PIL knows may run programs (EPS) or are no photographs.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
#: File suffixes that are taken for images; what a file really is, its content decides.
IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")

#: Fractions of its size, 1 in so many, at which a JPEG can be decoded for less than the whole of it; largest first.
SHRINKS = (8, 4, 2)

_on_demand: ContextVar[bool] = ContextVar("on_demand", default=False)


def load_image(source: bytes | Path | str, where: str = "", *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode an image to RGB, upright by its EXIF orientation; its content decides the format, not its name.

    CMYK and palettes are converted, 16-bit grey is scaled to 8 bits, transparent pixels are blended with white, and
    the first frame stands for an animation.

    Args:
        source: The encoded bytes, or a file.
        where: Names the image in the error; a file is named by its path.
        max_pixels: A larger JPEG is decoded at 1/2, 1/4 or 1/8 of its size, and ``info["full_size"]`` keeps the width
            and height that boxes in pixels refer to; another format is refused.
    Raises:
        BadSample: The image is missing, of no known format, too large, cut short or otherwise broken.
    """
    where = where or (str(source) if not isinstance(source, bytes) else "an image")
    with _faults(source, where):
        if not _on_demand.get():
            with _open(source) as image:
                return _decoded(image, where, max_pixels)
        file = io.BytesIO(source if isinstance(source, bytes) else Path(source).read_bytes())
        image = _open(file)
        if image.format not in ("JPEG", "MPO") or image.width * image.height > max_pixels:
            return _decoded(image, where, max_pixels)
        size = image.size[::-1] if _sideways(image) else image.size
        return JpegOnDemand(_Jpeg(file, image, where, size), (0, 0, *size))


@contextmanager
def decode_on_demand() -> Iterator[None]:
    """Within it :func:`load_image` gives a :class:`JpegOnDemand` for every JPEG of a size that may be decoded in full.

    What the header cannot tell, such as an image that is cut short, is raised when the pixels are asked for.
    """
    token = _on_demand.set(True)
    try:
        yield
    finally:
        _on_demand.reset(token)


class JpegOnDemand(Image.Image):
    """A JPEG, or a rectangle of it: to PIL an image like any other, decoded in full when its pixels are first used.

    For training there is a cheaper way: :meth:`expect` what will be cut out, of the image and of all rectangles of it
    that :meth:`crop` gave, and then :meth:`cut`. The file is decoded once, at 1/2, 1/4 or 1/8 of its size if that
    leaves everything expected as many pixels as it needs.
    """

    def __init__(self, jpeg: _Jpeg, box: tuple[int, int, int, int]) -> None:
        super().__init__()
        self._jpeg, self._box = jpeg, box
        self._mode, self._size = "RGB", (box[2] - box[0], box[3] - box[1])

    def load(self) -> Any:
        """Decode, as PIL's methods do before they touch a pixel. Raises :class:`BadSample`."""
        if self._im is None:
            self._im = self._jpeg.at(1).crop(self._box).im
        return super().load()

    def crop(self, box: tuple[float, float, float, float] | None = None) -> Image.Image:
        """As PIL's; a rectangle inside the image is cut out on demand."""
        if box is None or self._im is not None or not self._holds(box):
            return super().crop(box)
        return JpegOnDemand(self._jpeg, self._in_file(box))

    def expect(self, box: tuple[int, int, int, int], size: int, *, scaled: bool) -> None:
        """Say that ``box``, in pixels of this image, will be cut out and resized to ``size`` x ``size`` pixels.

        Args:
            scaled: Whether a fraction of the image's size will do that leaves the box ``size`` pixels a side or more.
        """
        shorter = min(box[2] - box[0], box[3] - box[1])
        fit = next((s for s in SHRINKS if shorter >= s * size), 1) if scaled else 1
        self._jpeg.shrink = min(self._jpeg.shrink, fit)

    def cut(self, box: tuple[int, int, int, int]) -> Image.Image:
        """The pixels of a box that was expected, to the nearest whole pixel of the scale at which they are decoded.

        Raises:
            BadSample: As :func:`load_image`.
        """
        whole = self._jpeg.at(self._jpeg.shrink)
        x0, y0, x1, y1 = self._in_file(box)
        across, down = (now / full for now, full in zip(whole.size, self._jpeg.size, strict=True))
        left, upper = min(round(x0 * across), whole.width - 1), min(round(y0 * down), whole.height - 1)
        return whole.crop((left, upper, max(round(x1 * across), left + 1), max(round(y1 * down), upper + 1)))

    def _holds(self, box: tuple[float, float, float, float]) -> bool:
        whole = all(float(v).is_integer() for v in box)
        return whole and 0 <= box[0] < box[2] <= self.width and 0 <= box[1] < box[3] <= self.height

    def _in_file(self, box: tuple[float, float, float, float]) -> tuple[int, int, int, int]:
        x, y = self._box[:2]
        return int(box[0]) + x, int(box[1]) + y, int(box[2]) + x, int(box[3]) + y


class _Jpeg:
    """An encoded JPEG, the finest decoding of it so far, and the fraction of its size that has been asked for."""

    def __init__(self, file: io.BytesIO, opened: Image.Image, where: str, size: tuple[int, int]) -> None:
        self.file, self.where, self.size = file, where, size
        self.shrink = SHRINKS[0]
        self._opened: Image.Image | None = opened
        self._decoded: tuple[int, Image.Image] | None = None

    def at(self, shrink: int) -> Image.Image:
        """Upright and RGB, at 1/shrink of its size or finer."""
        if self._decoded is None or self._decoded[0] > shrink:
            with _faults(self.file.getvalue(), self.where):
                image, self._opened = self._opened or _open(self.file), None
                if shrink > 1:
                    image.draft(None, (max(1, image.width // shrink), max(1, image.height // shrink)))
                _make_upright(image)
                self._decoded = shrink, image if image.mode == "RGB" else _to_rgb(image)
        return self._decoded[1]


def _formats() -> list[str]:
    if "HEIF" not in Image.OPEN:  # the plug-ins that PIL has not imported yet
        Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _open(source: bytes | Path | str | io.BytesIO) -> Image.Image:
    """Read the header."""
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats())


@contextmanager
def _faults(source: bytes | Path | str, where: str) -> Iterator[None]:
    """Whatever is wrong with the image becomes a BadSample; what PIL warns of is not passed on."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked here
            warnings.simplefilter("ignore", UserWarning)  # a line for every odd EXIF block would drown the rest
            yield
    except BadSample:
        raise
    except FileNotFoundError as error:
        raise BadSample("image file is missing", where) from error
    except PermissionError as error:
        raise BadSample("image file may not be read", where) from error
    except UnidentifiedImageError as error:
        raise BadSample(_unknown_format(source), where) from error
    except Image.DecompressionBombError as error:
        raise BadSample("image is too large", where) from error
    except Exception as error:  # decoders of untrusted bytes raise nearly anything (OSError, SyntaxError, struct.error)
        reason = "image is cut short" if "truncated" in str(error).lower() else "image is broken"
        raise BadSample(reason, where) from error


def _decoded(image: Image.Image, where: str, max_pixels: int) -> Image.Image:
    full_size = image.size
    if image.width * image.height > max_pixels:
        shrink = (max_pixels / (image.width * image.height)) ** 0.5
        # draft never goes below what it is asked for: ask for half, so that the result fits
        image.draft("RGB", (int(image.width * shrink / 2), int(image.height * shrink / 2)))
        if image.width * image.height > max_pixels:
            raise BadSample("image is too large", where)
    drafted = image.size != full_size
    sideways = _make_upright(image)
    rgb = _to_rgb(image)
    if drafted:
        rgb.info["full_size"] = full_size[::-1] if sideways else full_size
    return rgb


def _make_upright(image: Image.Image) -> bool:
    """Decode an image and turn it as its EXIF block says; whether that exchanged width and height."""
    image.load()  # on its own: an error here is the image's, one in its EXIF block is not
    sideways = _sideways(image)
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # a broken EXIF block says nothing about orientation, and the pixels are fine
        return False
    return sideways


def _sideways(image: Image.Image) -> bool:
    """Whether its EXIF block exchanges width and height."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    except Exception:  # a broken EXIF block
        return False


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, kept in 16 or 32 bits; convert() would clip it to white
        image = image.convert("I").point(lambda v: v * (1 / 257)).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _unknown_format(source: bytes | Path | str) -> str:
    if isinstance(source, bytes):
        head = source[:16]
    else:
        with open(source, "rb") as file:
            head = file.read(16)
    if head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"mif1", b"hevc"):
        return "image is HEIC (pip install pillow-heif and register its opener)"
    return "image is of no known format" if head else "image is empty"
