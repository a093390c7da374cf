"""From the bytes of any image file to an upright RGB image of bounded size, or a ``BadSample`` that says why not."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from hyvlm.types import BadSample

#: Larger images are read at a fraction of their size (JPEG) or refused. 8192 x 8192 pixels are 200 MB as RGB.
MAX_PIXELS = 2**26
#: What is decoded; other formats that PIL knows may run programs (EPS) or are no photographs.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
#: File suffixes that are taken for images; what a file really is, its content decides.
IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")


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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked here
            warnings.simplefilter("ignore", UserWarning)  # a line for every odd EXIF block would drown the rest
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats()) as image:
                full_size = image.size
                if image.width * image.height > max_pixels:
                    shrink = (max_pixels / (image.width * image.height)) ** 0.5
                    # draft never goes below what it is asked for: ask for half, so that the result fits
                    image.draft("RGB", (int(image.width * shrink / 2), int(image.height * shrink / 2)))
                    if image.width * image.height > max_pixels:
                        raise BadSample("image is too large", where)
                drafted = image.size != full_size
                image.load()  # on its own: an error here is the image's, one in its EXIF block is not
                turned = _make_upright(image)
                rgb = _to_rgb(image)
        if drafted:
            rgb.info["full_size"] = full_size[::-1] if turned else full_size
        return rgb
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


def _formats() -> list[str]:
    if "HEIF" not in Image.OPEN:  # the plug-ins that PIL has not imported yet
        Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _make_upright(image: Image.Image) -> bool:
    """Turn a loaded image as its EXIF block says; whether that exchanged width and height."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # a broken EXIF block says nothing about orientation, and the pixels are fine
        return False
    return orientation in (5, 6, 7, 8)


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
