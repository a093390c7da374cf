import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyvlm.data import open_data
from hyvlm.data.crops import AREA, ASPECT, RandomCrops, random_boxes


@given(st.integers(1, 900), st.integers(1, 900), st.integers(0, 99))
def test_boxes_lie_inside_and_are_not_empty(width: int, height: int, seed: int) -> None:
    for x0, y0, x1, y1 in random_boxes(width, height, 4, seed=seed):
        assert 0 <= x0 < x1 <= width
        assert 0 <= y0 < y1 <= height


def test_boxes_fill_their_ranges_and_are_drawn_by_the_seed() -> None:
    boxes = random_boxes(1000, 1000, 500, seed=(0, 3))
    areas = [(x1 - x0) * (y1 - y0) / 1e6 for x0, y0, x1, y1 in boxes]
    aspects = [(x1 - x0) / (y1 - y0) for x0, y0, x1, y1 in boxes]
    assert (min(areas), max(areas)) == pytest.approx(AREA, abs=0.01)
    assert (min(aspects), max(aspects)) == pytest.approx(ASPECT, abs=0.02)
    assert random_boxes(1000, 1000, 500, seed=(0, 3)) == boxes
    assert random_boxes(1000, 1000, 500, seed=(1, 3)) != boxes
    with pytest.raises(ValueError, match="at least 1 random crop, got 0"):
        random_boxes(9, 9, 0, seed=0)


def test_crops_take_the_place_of_parts() -> None:
    scenes = open_data("scenes", split="val")
    cut = RandomCrops(scenes, 6, seed=1)
    sample = cut[2]
    assert (len(cut), sample.key, sample.texts) == (len(scenes), scenes[2].key, scenes[2].texts)
    assert [part.text for part in sample.parts] == [""] * 6
    assert [part.image.tobytes() for part in cut[2].parts] == [part.image.tobytes() for part in sample.parts]
    boxes = random_boxes(*sample.picture.size, 6, seed=(1, 2))
    assert sample.parts[5].image.tobytes() == sample.picture.crop(boxes[5]).tobytes()
    assert len({s.fingerprint for s in (scenes, cut, RandomCrops(scenes, 6), RandomCrops(scenes, 5, seed=1))}) == 4
