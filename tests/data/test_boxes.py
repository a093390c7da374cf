import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hyvlm.data.boxes import boxes_are_normalised, cut_part, overlap, to_pixels
from hyvlm.types import BadSample

SIZE = (100, 50)


@pytest.mark.parametrize(
    ("box", "normalised", "expected"),
    [
        ([10, 20, 30, 40], False, (10, 20, 30, 40)),
        ([0.1, 0.2, 0.5, 1.0], True, (10, 10, 50, 50)),
        ([0, 0, 1, 1], True, (0, 0, 100, 50)),
        ([10.2, 20.7, 10.3, 20.8], False, (10, 20, 11, 21)),  # thinner than a pixel: the pixel it lies in
        ([-5, -5, 200, 200], False, (0, 0, 100, 50)),  # clipped
        ([-0.001, 0, 1.0001, 1], True, (0, 0, 100, 50)),
    ],
)
def test_boxes_become_whole_pixels_inside_the_image(box, normalised, expected):
    assert to_pixels(box, SIZE, "here", normalised=normalised) == expected


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ([10, 10, 10, 20], "without area"),
        ([20, 10, 10, 20], "without area"),
        ([10, 20, 20, 20], "without area"),
        ([100, 0, 120, 10], "outside the image"),
        ([0, 50, 10, 60], "outside the image"),
        ([-9, 0, 0, 10], "outside the image"),
        ([1, 2, 3], "not four numbers"),
        ([1, 2, math.nan, 4], "not four numbers"),
        ([1, 2, "3", 4], "not four numbers"),
    ],
)
def test_unusable_boxes_say_why_and_where(box, reason):
    with pytest.raises(BadSample, match=f"part 0 of 'k17': box.*{reason}"):
        to_pixels(box, SIZE, "part 0 of 'k17'")


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), st.booleans())
@settings(derandomize=True, max_examples=200, deadline=None)
def test_a_box_lies_in_the_image_or_is_refused(box, normalised):
    try:
        x0, y0, x1, y1 = to_pixels(box, SIZE, "here", normalised=normalised)
    except BadSample:
        return
    assert 0 <= x0 < x1 <= SIZE[0]
    assert 0 <= y0 < y1 <= SIZE[1]


def test_a_part_is_cut_where_the_box_says():
    image = Image.new("RGB", SIZE, "black")
    image.paste((0, 255, 0), (50, 25, 100, 50))
    part = cut_part(image, [0.5, 0.5, 1.0, 1.0], " a green field ", "here", normalised=True)
    assert part.text == "a green field"
    assert part.image.getcolors() == [(50 * 25, (0, 255, 0))]


@pytest.mark.parametrize("phrase", ["", "  ", None, 7])
def test_a_part_needs_a_phrase(phrase):
    with pytest.raises(BadSample, match="empty phrase"):
        cut_part(Image.new("RGB", SIZE), [0, 0, 5, 5], phrase, "here")


def test_overlap_is_intersection_over_union():
    assert overlap([0, 0, 2, 2], [1, 1, 3, 3]) == pytest.approx(1 / 7)
    assert overlap([0, 0, 2, 2], [0, 0, 2, 2]) == 1
    assert overlap([0, 0, 1, 1], [1, 0, 2, 1]) == 0
    assert overlap([0, 0, 0, 0], [0, 0, 0, 0]) == 0


def test_a_file_is_normalised_or_in_pixels_as_a_whole():
    share, pixel, both = ("row 2", [0.1, 0.2, 0.6, 0.9]), ("row 3", [10, 20, 60, 90]), ("row 4", [0, 0, 1, 1])
    assert boxes_are_normalised([]) is None
    assert boxes_are_normalised([both, share]) is True
    assert boxes_are_normalised([both, pixel]) is False
    with pytest.raises(ValueError, match=r"normalised.*row 2 but pixels at row 3"):
        boxes_are_normalised([share, pixel])
    with pytest.raises(ValueError, match=r'pixels or normalised.*row 4.*"unit"'):
        boxes_are_normalised([both])
