import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hyvlm.data.boxes import cut_part
from hyvlm.data.images import load_image
from hyvlm.types import BadSample


def reason_of(source: bytes | Path, **settings: int) -> str:
    with pytest.raises(BadSample, match="here") as caught:
        load_image(source, "here", **settings)
    return caught.value.reason


def near(image: Image.Image, colour: tuple[int, int, int], at: tuple[int, int] = (0, 0), by: int = 3) -> bool:
    return image.mode == "RGB" and bool(np.abs(np.subtract(image.getpixel(at), colour)).max() <= by)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_content_decides_the_format_not_the_name(form, encoded, tmp_path):
    path = tmp_path / "picture.jpg"
    path.write_bytes(encoded("blue", form=form))
    assert near(load_image(path), (0, 0, 255))


def test_cmyk_jpeg_keeps_its_colours(encoded):
    cmyk = Image.new("RGB", (16, 16), (200, 30, 60)).convert("CMYK")
    assert near(load_image(encoded(cmyk)), (200, 30, 60), by=12)


def test_palette_with_transparency_shows_white_where_it_is_transparent(encoded):
    image = Image.new("P", (8, 8), 0)
    image.putpalette([0, 0, 0, 250, 0, 0])
    image.putpixel((3, 3), 1)
    decoded = load_image(encoded(image, form="PNG", transparency=0))
    assert near(decoded, (255, 255, 255))
    assert near(decoded, (250, 0, 0), (3, 3))


@pytest.mark.parametrize(("mode", "colour"), [("RGBA", (0, 0, 0, 0)), ("LA", (0, 0))])
def test_alpha_is_blended_with_white(mode, colour, encoded):
    assert near(load_image(encoded(Image.new(mode, (8, 8), colour), form="PNG")), (255, 255, 255))


def test_half_transparent_black_is_grey(encoded):
    assert near(load_image(encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 128)), form="PNG")), (127, 127, 127))


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled_not_clipped(form, encoded):
    ramp = np.array([[0, 1000, 32768, 65535]], dtype=np.uint16)
    decoded = np.asarray(load_image(encoded(Image.fromarray(ramp), form=form)))
    assert np.abs(decoded[0, :, 0].astype(int) - [0, 4, 128, 255]).max() <= 1


def test_one_bit_and_grey_become_rgb(encoded):
    assert near(load_image(encoded(Image.new("1", (5, 5), 1), form="PNG")), (255, 255, 255))
    assert near(load_image(encoded(Image.new("L", (5, 5), 77), form="PNG")), (77, 77, 77))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(orientation, encoded):
    upright = Image.new("RGB", (32, 16), "black")
    upright.paste((255, 0, 0), (0, 0, 16, 8))  # red in the upper left corner, whatever the orientation
    inverse = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the PIL transpose that orientation asks to be undone
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(inverse[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = load_image(encoded(stored, form="PNG", exif=exif))
    assert decoded.size == (32, 16)
    assert near(decoded, (255, 0, 0))
    assert near(decoded, (0, 0, 0), (31, 15))


def test_broken_exif_does_not_cost_the_image(encoded):
    data = encoded("red", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert near(load_image(data), (254, 0, 0))


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (3, 1), (1, 300), (5000, 3)])
def test_tiny_and_thin_images_are_fine(size, encoded):
    assert load_image(encoded(size=size, form="PNG")).size == size


def test_a_jpeg_cut_anywhere_is_a_bad_sample(encoded):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise)
    assert reason_of(data[: len(data) // 2]) == "image is cut short"
    for cut in (1, 3, 10, 100, len(data) - 200):
        with pytest.raises(BadSample):
            load_image(data[:cut])


def test_other_broken_files_say_why(encoded, tmp_path):
    png = bytearray(encoded(form="PNG"))
    png[60:64] = b"\0\0\0\0"
    assert reason_of(bytes(png)) in ("image is broken", "image is cut short")
    assert reason_of(b"just text, named .jpg by mistake") == "image is of no known format"
    assert reason_of(b"") == "image is empty"
    assert reason_of(tmp_path / "gone.jpg") == "image file is missing"
    assert "pillow-heif" in reason_of(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")


def test_a_file_is_named_by_its_path(tmp_path):
    path = tmp_path / "number 50.jpg"
    path.write_text("text")
    with pytest.raises(BadSample, match=r"number 50\.jpg: image is of no known format"):
        load_image(path)


def test_large_images_are_refused_or_read_smaller(encoded):
    jpeg, png = encoded(size=(800, 400)), encoded(size=(800, 400), form="PNG")
    small = load_image(jpeg, max_pixels=100_000)
    assert small.size == (400, 200)
    assert reason_of(png, max_pixels=100_000) == "image is too large"
    assert load_image(png, max_pixels=320_000).size == (800, 400)


@pytest.mark.parametrize("orientation", [1, 6])
def test_boxes_in_pixels_fit_an_image_that_was_read_smaller(orientation, encoded):
    upright = Image.new("RGB", (800, 400), "black")
    upright.paste((0, 255, 0), (400, 200, 800, 400))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright.transpose(Image.Transpose.ROTATE_90) if orientation == 6 else upright
    image = load_image(encoded(stored, exif=exif), max_pixels=100_000)
    assert image.size == (400, 200)
    part = cut_part(image, [416, 216, 800, 400], "a field", "here")
    assert part.image.size == (192, 92)
    assert near(part.image, (0, 255, 0), by=6)


def test_formats_that_may_run_programs_are_not_decoded():
    assert reason_of(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n") == "image is of no known format"


def test_a_decompression_bomb_is_refused_before_it_is_decoded():
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 20_000, 10_000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )
    assert reason_of(bomb) == "image is too large"


def test_a_bad_sample_survives_pickling():
    import pickle

    bad = pickle.loads(pickle.dumps(BadSample("image is broken", "sample 'k17'")))
    assert (bad.reason, bad.where, str(bad)) == ("image is broken", "sample 'k17'", "sample 'k17': image is broken")


def test_the_first_frame_stands_for_an_animation():
    frames = [Image.new("RGB", (8, 8), c) for c in ("red", "lime")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    assert near(load_image(buffer.getvalue()), (255, 0, 0))
