from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure
from PIL import Image

from hyvlm.data.stats import PartStatistics, part_statistics
from hyvlm.plotting.part_counts import part_counts_figure

TAIL = PartStatistics({0: 10, 1: 400, 2: 380, 5: 20, 20: 1})


def saved(figure: Figure, folder: Path) -> Image.Image:
    figure.savefig(folder / "figure.png")
    return Image.open(folder / "figure.png")


def labels(figure: Figure, panel: int) -> list[str]:
    legend = figure.axes[panel].get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


def test_both_panels_show_the_numbers(tmp_path: Path) -> None:
    figure = part_counts_figure(TAIL, cap=5)
    left, right = figure.axes
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_y() + bar.get_height() for bar in left.patches}
    assert bars == pytest.approx({k: 100 * TAIL.share(k) for k in TAIL.histogram})
    assert left.get_yscale() == "log"
    assert left.get_ylim()[0] < 100 * TAIL.share(20)  # the tail is seen
    whole, kept, mark = right.lines
    assert kept.get_xdata().tolist() == list(range(1, 21))
    assert kept.get_ydata() == pytest.approx([100 * TAIL.retained(cap) for cap in range(1, 21)])
    assert whole.get_ydata() == pytest.approx([100 * TAIL.whole(cap) for cap in range(1, 21)])
    assert mark.get_xdata() == [5, 5]
    assert figure.get_suptitle() == "811 samples, 1,280 parts: mean 1.58, most 20"
    assert labels(figure, 0) == ["samples left whole", "samples cut to 5"]
    assert labels(figure, 1) == ["samples left whole, 99.88 % at 5", "parts kept, 98.83 % at 5"]
    assert saved(figure, tmp_path).width > 500


def test_without_a_cap_none_is_marked() -> None:
    figure = part_counts_figure(TAIL)
    assert labels(figure, 0) == []
    assert labels(figure, 1) == ["samples left whole", "parts kept"]
    assert len(figure.axes[1].lines) == 2


@pytest.mark.parametrize("stats", [part_statistics([1]), part_statistics([2, 3, 4]), part_statistics(range(90))])
def test_numbers_that_differ_little_stand_on_an_axis_from_zero(stats: PartStatistics, tmp_path: Path) -> None:
    figure = part_counts_figure(stats, cap=stats.max + 2)
    assert figure.axes[0].get_yscale() == "linear"
    assert figure.axes[0].get_ylim()[0] == 0
    assert labels(figure, 0) == ["samples left whole"]
    low, high = figure.axes[1].get_xlim()
    assert low < 1
    assert stats.max + 2 < high
    ticks = figure.axes[0].get_xticks()
    assert np.array_equal(ticks, np.round(ticks))
    assert saved(figure, tmp_path).height > 200


def test_a_cap_below_one_is_told() -> None:
    with pytest.raises(ValueError, match="1 part or more, got 0"):
        part_counts_figure(TAIL, cap=0)


def test_the_settings_of_matplotlib_stay() -> None:
    before = dict(rcParams)
    part_counts_figure(TAIL, cap=2)
    assert dict(rcParams) == before
