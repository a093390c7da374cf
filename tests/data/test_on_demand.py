"""Training's way to the pixels of a JPEG: decoded once, and no finer than its crops need."""

import io

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, JpegImagePlugin

from hyvlm.data.boxes import cut_part
from hyvlm.data.catalog import SampleSet
from hyvlm.data.images import JpegOnDemand, decode_on_demand, load_image
from hyvlm.data.transforms import Cut, train_transform
from hyvlm.data.views import Item, TrainViews
from hyvlm.types import BadSample, Part, Sample

WIDE = (643, 481)  # divisible by none of the fractions
CROP = {"name": "crop", "scale": [0.8, 1.0]}


def picture(size: tuple[int, int] = WIDE) -> Image.Image:
    """Smooth colours that say where a pixel is."""
    y, x = np.indices(size[::-1])
    red, green = x * 255 // size[0], y * 255 // size[1]
    return Image.fromarray(np.stack([red, green, 128 + 60 * np.sin(x / 40)], -1).astype(np.uint8))


@pytest.fixture(scope="module")
def jpeg(encoded) -> bytes:
    return encoded(picture(), quality=95)


def on_demand(data: bytes) -> JpegOnDemand:
    with decode_on_demand():
        image = load_image(data, "here")
    assert isinstance(image, JpegOnDemand)
    return image


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Sizes at which JPEGs are decoded, one entry each time."""
    sizes = []
    load = JpegImagePlugin.JpegImageFile.load

    def counted(self):
        if self._im is None:
            sizes.append(self.size)
        return load(self)

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", counted)
    return sizes


def test_outside_training_an_image_is_decoded_at_once_and_in_full(jpeg, decodings):
    image = load_image(jpeg)
    assert not isinstance(image, JpegOnDemand)
    assert decodings == [WIDE]


def test_to_pil_it_is_the_image_itself(jpeg, decodings):
    image = on_demand(jpeg)
    assert image.size == WIDE
    assert image.mode == "RGB"
    assert decodings == []
    expected = load_image(jpeg)
    assert np.array_equal(image, expected)
    assert np.array_equal(on_demand(jpeg).resize((50, 40)), expected.resize((50, 40)))
    assert np.array_equal(on_demand(jpeg).crop((-5, 0, 20, 30)), expected.crop((-5, 0, 20, 30)))
    assert np.array_equal(on_demand(jpeg).crop((9, 8, 99, 98)).crop((1, 2, 30, 40)), expected.crop((10, 10, 39, 48)))


def test_a_crop_of_pixels_that_were_changed_shows_the_change(jpeg):
    image = on_demand(jpeg)
    image.paste((255, 255, 255), (0, 0, 50, 50))
    assert image.crop((10, 10, 20, 20)).getcolors() == [(100, (255, 255, 255))]


@pytest.mark.parametrize(("size", "shrink"), [(241, 1), (240, 2), (121, 2), (120, 4), (61, 4), (60, 8), (5, 8)])
def test_the_crop_keeps_the_pixels_that_it_needs(size, shrink, jpeg, decodings):
    train_transform({"name": "none"}, size)(on_demand(jpeg))
    assert decodings == [tuple(-(-side // shrink) for side in WIDE)]


def test_decoding_in_full_can_be_asked_for(jpeg, decodings):
    pixels = train_transform({"name": "none"}, 60, decode="full")(on_demand(jpeg))
    assert decodings == [WIDE]
    assert torch.equal(pixels, train_transform({"name": "none"}, 60)(load_image(jpeg)))
    with pytest.raises(ValueError, match="unknown way to decode 'half'"):
        train_transform({"name": "none"}, 60, decode="half")


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
def test_fractions_show_the_same_place_of_the_upright_image(orientation, encoded):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    data = encoded(picture(), quality=95, exif=exif)
    assert on_demand(data).size == load_image(data).size
    image, box = on_demand(data), (120, 80, 440, 400)
    image.expect(box, 80, scaled=True)
    found = Cut(image, box, 80).pixels().float()
    expected = Cut(load_image(data), box, 80).pixels().float()
    assert (found - expected).abs().mean() < 1.5
    assert (found - expected).abs().max() < 12


def test_a_box_at_the_border_or_thinner_than_a_pixel_of_the_fraction_is_not_empty(jpeg):
    image = on_demand(jpeg)
    image.expect((0, 0, *WIDE), 60, scaled=True)
    for box in [(642, 480, 643, 481), (0, 0, 1, 481), (639, 470, 643, 474)]:
        assert min(image.cut(box).size) >= 1
        assert np.abs(np.subtract(image.cut(box).getpixel((0, 0)), picture().getpixel(box[:2]))[:2]).max() < 8


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_other_formats_are_decoded_at_once(form, encoded):
    with decode_on_demand():
        assert not isinstance(load_image(encoded(form=form)), JpegOnDemand)


def test_too_large_a_jpeg_is_bounded_as_everywhere(jpeg):
    with decode_on_demand():
        image = load_image(jpeg, max_pixels=10_000)
    assert image.width * image.height <= 10_000
    assert image.info["full_size"] == WIDE


class Given(SampleSet):
    """One sample, made anew at each visit."""

    name, split, fingerprint = "given", "train", "given"

    def __init__(self, make) -> None:
        self.make = make

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Sample:
        return self.make()


def visit(make, tokenizer, **settings):
    settings = {"image_size": 60, "augment": CROP, "parts": {"max": 5, "choice": "first"}, **settings}
    return TrainViews(Given(make), tokenizer, **settings)[0, 0]


def boxed(data: bytes, *boxes: list[float]) -> Sample:
    image = load_image(data, "here")
    return Sample("k", image, ["a caption"], [cut_part(image, box, "a part", "there") for box in boxes])


def test_an_image_and_its_parts_are_decoded_once_as_finely_as_the_smallest_needs(jpeg, tokenizer, decodings):
    assert isinstance(visit(lambda: boxed(jpeg), tokenizer), Item)
    assert isinstance(visit(lambda: boxed(jpeg, [0, 0, 300, 300], [9, 9, 409, 409]), tokenizer), Item)
    assert isinstance(visit(lambda: boxed(jpeg, [0, 0, 300, 300], [9, 9, 89, 89]), tokenizer), Item)
    assert decodings == [(161, 121), (161, 121), WIDE]


def test_the_same_boxes_whether_scaled_or_in_full(jpeg, tokenizer):
    items = [visit(lambda: boxed(jpeg, [40, 60, 440, 460]), tokenizer, decode=how) for how in ("scaled", "full")]
    for scaled, full in ((i.image.float(), j.image.float()) for i, j in [items]):
        assert 0 < (scaled - full).abs().mean() < 1.5
    assert 0 < (items[0].part_image.float() - items[1].part_image.float()).abs().mean() < 1.5


def test_what_the_header_does_not_tell_is_told_at_the_pixels(jpeg, tokenizer):
    short = jpeg[: len(jpeg) // 2]
    bad = visit(lambda: boxed(short), tokenizer)
    assert isinstance(bad, BadSample)
    assert str(bad) == "here: image is cut short"
    with pytest.raises(BadSample, match="cut short"):
        visit(lambda: boxed(short), tokenizer, strict=True)


def test_a_part_that_turns_out_broken_is_replaced(jpeg, encoded, tokenizer):
    def sample() -> Sample:
        files = [jpeg, jpeg[: len(jpeg) // 2], encoded("lime", size=(90, 90)), encoded("red", size=(90, 90))]
        whole, *parts = (load_image(data, f"file {k}") for k, data in enumerate(files))
        return Sample("k", whole, ["a caption"], [Part(part, "a part") for part in parts])

    item = visit(sample, tokenizer, parts={"max": 2, "choice": "first"})
    assert [str(bad) for bad in item.dropped] == ["file 1: image is cut short"]
    assert [p[:, 30, 30].argmax().item() for p in item.part_image] == [1, 0]
    assert len(item.part_text) == 2


def test_a_missing_file_is_told_when_it_is_opened(tmp_path):
    with decode_on_demand(), pytest.raises(BadSample, match="image file is missing"):
        load_image(tmp_path / "none.jpg")
    path = tmp_path / "a.jpg"
    picture().save(path)
    with decode_on_demand():
        image = load_image(path)
    path.unlink()
    assert np.array_equal(image, load_image(_saved(picture())))


def _saved(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG")
    return file.getvalue()
