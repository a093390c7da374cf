from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import rcParams
from matplotlib.figure import Figure
from PIL import Image

from hyvlm.plotting import Placed, loss_curves, pair_distances, part_gallery, radius_distribution


def saved(figure: Figure, folder: Path) -> Image.Image:
    figure.savefig(folder / "figure.png")
    return Image.open(folder / "figure.png")


def test_radius_distribution_shows_every_view_and_its_median(tmp_path: Path) -> None:
    radius = {"image": torch.tensor([2.0, 3.0, 4.0]), "part_image": np.array([1.0]), "part_text": [0.5, torch.nan]}
    figure = radius_distribution(radius, before={"image": [7.0]})
    images, texts = figure.axes
    assert [t.get_text() for t in images.get_legend().get_texts()] == [
        "whole images, median 3.00",
        "before training, median 7.00",
        "part images, median 1.00",
    ]
    assert [t.get_text() for t in texts.get_legend().get_texts()] == ["part texts, median 0.50"]
    assert texts.get_xlabel().startswith("hyperbolic radius, units of length")
    assert saved(figure, tmp_path).width > 500


def test_the_shares_of_a_view_add_up_to_all_of_it() -> None:
    figure = radius_distribution({"image": np.linspace(0, 1, 101), "text": np.linspace(5, 6, 7)}, bins=10)
    for ax in figure.axes:
        assert ax.patches[0].get_data().values.sum() == pytest.approx(100)


def test_equal_radii_can_be_drawn(tmp_path: Path) -> None:
    assert saved(radius_distribution({"image": np.ones(5)}), tmp_path).height > 100


def test_pair_distances_name_both_groups(tmp_path: Path) -> None:
    figure = pair_distances(torch.tensor([1.0, 2.0]), torch.tensor([4.0]))
    labels = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert labels == ["own text, median 1.50", "another image's text, median 4.00"]
    assert "units of length" in figure.axes[0].get_xlabel()
    assert saved(figure, tmp_path).width > 500


def test_loss_curves_have_a_panel_per_term(tmp_path: Path) -> None:
    rows = [{"step": s, "loss": 3.0 - s, "term/a": float(s), "lr": 0.1} for s in range(3)]
    rows.append({"step": 3, "loss": 1.0, "term/a": None, "term/b": 2.0})
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in [*rows, {"step": 3, "eval/retrieval": 1.0}]) + "\n")
    figure = loss_curves(file, smooth=0)
    assert [ax.get_title(loc="left") for ax in figure.axes if ax.get_visible()] == ["total loss", "a", "b"]
    logged, smoothed = figure.axes[0].lines
    assert logged.get_ydata().tolist() == smoothed.get_ydata().tolist() == [3, 2, 1, 1]
    assert figure.axes[1].lines[0].get_xdata().tolist() == [0, 1, 2]
    assert saved(figure, tmp_path).width > 300


def test_smoothing_keeps_a_constant_and_the_first_value() -> None:
    rows = [{"step": s, "loss": value} for s, value in enumerate([2.0, 2.0, 2.0, 12.0])]
    smoothed = loss_curves(rows, smooth=0.5).axes[0].lines[1].get_ydata()
    assert smoothed[:3] == pytest.approx([2, 2, 2])
    assert smoothed[3] == pytest.approx((0.25 * 2 + 0.125 * 2 + 0.0625 * 2 + 0.5 * 12) / (1 - 0.5**4))


def test_gallery_orders_parts_by_radius(tmp_path: Path) -> None:
    def placed(radius: float, caption: str) -> Placed:
        return Placed(Image.new("RGB", (8, 8), (int(20 * radius), 0, 0)), radius, caption)

    figure = part_gallery([(placed(3, "all"), [placed(2, "b"), placed(1, "a")]), (placed(4, "alone"), [])])
    labels = [ax.get_xlabel() for ax in figure.axes]
    assert labels == ["all\nradius 3.00", "a\nradius 1.00", "b\nradius 2.00", "alone\nradius 4.00", "", ""]
    assert saved(figure, tmp_path).width > 100


def test_figures_leave_the_settings_of_matplotlib_alone() -> None:
    before = dict(rcParams)
    pair_distances([1.0, 2.0], [3.0])
    assert dict(rcParams) == before


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: radius_distribution({"image": [float("nan")]}), "no view with a finite radius"),
        (lambda: pair_distances([], [1.0]), "both matched and unmatched"),
        (lambda: loss_curves([{"step": 1}]), "no logged loss"),
        (lambda: part_gallery([]), "at least one image"),
    ],
)
def test_nothing_to_draw_is_an_error(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        loss_curves(tmp_path / "metrics.jsonl")
