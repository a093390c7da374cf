"""Strips of traversals: what is in them, and that nothing lies over its neighbour."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from PIL import Image

from hyvlm.plotting.traversal import WIDTH, Strip, traversal_strips, wrap
from hyvlm.retrieval.traverse import ROOT, Step, Traversal

PICTURE = Image.new("RGB", (60, 30), "green")


def traversal(names: list[str], *, root: bool = True, radius: float | None = 1.0) -> Traversal:
    def at(t: float) -> float | None:
        return None if radius is None else radius * (1 - t)

    shares = [i / len(names) for i in range(len(names))]
    steps = [
        Step(t, at(t), i, name, "image" if i % 3 == 2 else "text", 0.0, 0.1)
        for i, (t, name) in enumerate(zip(shares, names, strict=True))
    ]
    if root:
        steps.append(Step(1.0, 0.0, None, ROOT, "root", None, 0.0))
    return Traversal(steps, 50, 0, "geodesic", True, radius, at(1.0))


def written(figure: Figure) -> list[str]:
    return [" ".join(text.get_text().split()) for ax in figure.axes for text in ax.texts]


def test_a_strip_says_what_was_met_from_the_start_to_the_root() -> None:
    figure = traversal_strips([Strip(traversal(["a red ball", "a ball", "key.jpg"]), PICTURE, pictures={2: PICTURE})])
    texts = written(figure)
    order = [texts.index(name) for name in ("start", "a red ball", "a ball", "key.jpg", ROOT)]
    assert order == sorted(order)
    assert {"1.00", "0.67", "0.33", "0.00", "radius"} <= set(texts)
    assert len(figure.axes[0].images) == 2


def test_strips_side_by_side_have_one_height_and_their_titles() -> None:
    short = Strip(traversal(["a"], root=False, radius=None), "from <here>", "to $1 and $2", title="CLIP")
    long = Strip(traversal([f"text {i}" for i in range(30)]), "a dog", title="UNCHA")
    figure = traversal_strips([short, long])
    assert len(figure.axes) == 2
    assert figure.get_size_inches()[0] == pytest.approx(2 * WIDTH)
    assert {"CLIP", "UNCHA", "from <here>", "to $1 and $2", "share of the way", "text 29"} <= set(written(figure))
    alone = traversal_strips([Strip(long.traversal, "a dog")])
    assert alone.get_size_inches()[1] < figure.get_size_inches()[1]  # no room for a title
    with pytest.raises(ValueError, match="no traversal to draw"):
        traversal_strips([])


@pytest.mark.parametrize("count", [0, 1, 30])
@pytest.mark.parametrize("name", ["x", "Красный мяч на зелёной траве", "كرة حمراء", "A long caption. " * 30, "y" * 300])
def test_entries_keep_apart_and_inside(name: str, count: int) -> None:
    names = [f"{name} {i}" for i in range(count)]
    figure = traversal_strips([Strip(traversal(names), name, pictures={2: PICTURE}), Strip(traversal(names), PICTURE)])
    figure.canvas.draw()
    for ax in figure.axes:
        boxes = [t.get_window_extent() for t in ax.texts if t.get_fontsize() == 8]
        assert len(boxes) == count + 2
        for upper, lower in pairwise(boxes):
            assert upper.y0 >= lower.y1
        inside = ax.get_window_extent()
        for box in boxes:
            assert inside.y0 <= box.y0 < box.y1 <= inside.y1
            if not name.startswith("y"):
                assert box.x1 <= inside.x1


def test_lines_break_at_words_and_where_there_are_none_anywhere() -> None:
    assert wrap("a red ball on the grass", 10, 4) == ["a red ball", "on the", "grass"]
    assert wrap("a red ball on the grass", 10, 2) == ["a red ball", "on the …"]
    assert wrap("abcdefghijkl", 5, 4) == ["abcde", "fghij", "kl"]
    assert wrap("红色的球放在草地上", 8, 4) == ["红色的球", "放在草地", "上"]
    assert wrap("e\u0301" * 8, 8, 1) == ["e\u0301" * 8]
    assert wrap("  ", 8, 4) == []
