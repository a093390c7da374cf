from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from hyvlm.diagnostics.gradients import TermGradient
from hyvlm.diagnostics.operating_point import OperatingPoint
from hyvlm.diagnostics.radii import radial_distribution
from hyvlm.diagnostics.trajectories import Trajectory
from hyvlm.plotting.figures import COLOURS
from hyvlm.plotting.training_figures import (
    gradient_figure,
    logged_rows,
    operating_point_figure,
    radial_figure,
    trajectory_figure,
)

STEPS = [1, 10, 100]
EXTENT = {"5%": 0.1, "50%": 0.2, "95%": 0.4}


def course(**values: list[float]) -> dict[str, Trajectory]:
    return {name: Trajectory(name, STEPS[: len(found)], found) for name, found in values.items()}


def saved(figure: Figure, folder: Path) -> Image.Image:
    figure.savefig(folder / "figure.png")
    return Image.open(folder / "figure.png")


def key(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_a_control_is_dashed_in_the_colours_of_its_model(tmp_path: Path) -> None:
    radii = np.random.default_rng(0).normal(1.0, 0.1, 50)
    views = [radial_distribution(view, radii + i) for i, view in enumerate(("text", "image"))]
    figure = radial_figure({"meru": views, "other": views[:1]}, {"meru": views})
    meru, other = (ax for ax in figure.axes if ax.get_visible())
    assert [to_hex(line.get_color()) for line in meru.lines] == [COLOURS["text"].lower(), COLOURS["image"].lower()] * 2
    assert [line.get_linestyle() for line in meru.lines] == ["-", "-", "--", "--"]
    assert [line.get_linestyle() for line in other.lines] == ["-"]
    assert np.trapezoid(meru.lines[0].get_ydata(), meru.lines[0].get_xdata()) == pytest.approx(1, abs=0.01)
    assert key(figure) == ["whole images", "whole texts", "model", "control"]
    assert saved(figure, tmp_path).width > 500


def test_equal_radii_are_a_line_where_they_are() -> None:
    figure = radial_figure({"m": [radial_distribution("text", [0.5, 0.5, 0.5])]})
    assert figure.axes[0].lines[0].get_xdata() == [0.5, 0.5]
    assert key(figure) == ["whole texts"]
    with pytest.raises(ValueError, match="no radial distribution"):
        radial_figure({"m": []})


def test_a_control_of_no_model_is_an_error() -> None:
    with pytest.raises(ValueError, match="control 'b' is of no model here: they are a"):
        trajectory_figure({"a": course(c=[1.0])}, {"b": course(c=[1.0])})


def test_trajectories_have_a_row_a_quantity_and_a_column_a_model(tmp_path: Path) -> None:
    meru = course(**{"c": [1.0, 0.5, 0.1], "radius/image": [1.0, 0.6, 0.5], "term/text ⊒ image": [1.0, 0.1, 0.01]})
    control = course(**{"radius/image": [1.0, 0.7, 0.5], "term/text ⊒ image": [1.0, 0.2, 0.02]})
    phyclip = course(**{"c/mean": [1.0, 0.5, 0.2], "c/min": [1.0, 0.4, 0.1], "c/max": [1.0, 0.6, 0.3]})
    figure = trajectory_figure({"meru": meru, "phyclip": phyclip}, {"meru": control}, floors={"meru": 0.1})
    grid = np.array(figure.axes).reshape(3, 2)
    assert [ax.get_ylabel() for ax in grid[:, 0]] == ["curvature c", "mean radius,\nunits of length", "entailment loss"]
    assert [ax.get_title(loc="left") for ax in grid[0]] == ["meru", "phyclip"]
    assert all(ax.get_xscale() == "log" for ax in grid.ravel())
    assert [ax.get_yscale() for ax in grid[:, 0]] == ["linear", "linear", "log"]
    curve, floor = grid[0, 0].lines
    assert (list(curve.get_ydata()), list(floor.get_ydata())) == ([1.0, 0.5, 0.1], [0.1, 0.1])
    assert len(grid[0, 1].lines) == 1
    band = grid[0, 1].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.1, 1.0)
    assert [line.get_linestyle() for line in grid[1, 0].lines] == ["-", "--"]
    assert [text.get_text() for text in grid[1, 1].texts] == ["none"]
    assert key(figure) == ["whole images", "model", "control"]
    assert saved(figure, tmp_path).width > 500


def test_losses_are_means_over_the_terms_of_a_kind() -> None:
    names = {
        "term/image -> text": [4.0, 2.0, 0.0],
        "term/part_text -> image": [2.0, 0.0],
        "term/distillation text -> image": [90.0, 90.0, 90.0],
        "term/text ⊒ image": [1.0, 0.0, 0.25],
        "term/tokens of image ⊒ image": [3.0, 0.0, 0.75],
        "term/calibration text ⊒ image": [90.0, 90.0, 90.0],
        "term/norm": [90.0, 90.0, 90.0],
    }
    contrast, entailment = trajectory_figure({"m": course(**names)}).axes[:2]
    assert contrast.get_title(loc="left") == "contrastive loss"
    assert list(contrast.lines[0].get_ydata()) == [3.0, 1.0, 0.0]
    assert entailment.lines[0].get_ydata()[[0, 2]].tolist() == [2.0, 0.5]
    assert math.isnan(entailment.lines[0].get_ydata()[1])  # 0 has no place on a logarithmic axis


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")
def test_losses_that_are_zero_throughout_and_single_steps_can_be_drawn(tmp_path: Path) -> None:
    logged = course(**{"term/text ⊒ image": [0.0, 0.0, 0.0], "term/image -> text": [1.0]})
    figure = trajectory_figure({"m": logged})
    assert figure.axes[1].get_yscale() == "linear"
    assert figure.axes[0].lines[0].get_marker() == "o"
    assert saved(figure, tmp_path).width > 300


def test_temperatures_are_named_where_there_are_several() -> None:
    one, two = {"temperature/global": [0.07, 0.05, 0.01]}, {"temperature/local": [0.06, 0.05, 0.02]}
    alone = trajectory_figure({"m": course(**one)}, {"m": course(**one)}).axes[0]
    assert alone.get_legend() is None
    both = trajectory_figure({"m": course(**one, **two)}).axes[0]
    assert [text.get_text() for text in both.get_legend().get_texts()] == ["global", "local"]


def test_rows_can_be_chosen_and_must_be_logged() -> None:
    logged = course(c=[1.0], loss=[2.0])
    assert logged_rows([logged, {}]) == ["curvature"]
    with pytest.raises(ValueError, match="there is no row 'loss': choose from curvature, radius"):
        trajectory_figure({"m": logged}, rows=["loss"])
    with pytest.raises(ValueError, match="none of radius was logged"):
        trajectory_figure({"m": logged}, rows=["radius"])


def test_operating_points_span_their_quantiles(tmp_path: Path) -> None:
    points = [
        OperatingPoint("text", 9, EXTENT, 1.0, 3.0),
        OperatingPoint("image", 9, {k: 10 * v for k, v in EXTENT.items()}, 0.0, 3.0),
    ]
    figure = operating_point_figure({"a_$b$": points, "flat": [OperatingPoint("text", 9, None, 1.0, 3.0)]})
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["whole texts", "whole images"]
    assert [tuple(line.get_xdata()) for line in ax.lines[::2][:2]] == [(0.1, 0.4), (1.0, 4.0)]
    assert ax.get_xscale() == "log"
    assert ax.get_xlim()[0] <= 0.1
    assert ax.get_xlim()[1] >= 4
    assert saved(figure, tmp_path).width > 500
    several = operating_point_figure({"a_$b$": points[:1], "c": points[:1]}).axes[0]
    assert [label.get_text() for label in several.get_yticklabels()] == ["a_$b$: whole texts", "c: whole texts"]
    with pytest.raises(ValueError, match="no model has a curvature"):
        operating_point_figure({"flat": [OperatingPoint("text", 9, None, 1.0, 3.0)]})


def test_shares_of_the_gradient_tell_which_way_a_term_pulls(tmp_path: Path) -> None:
    terms = [
        TermGradient("image -> text", 0.5, 4.0, -0.2, 0.25),
        TermGradient("text ⊒ image", 0.1, 1.0, 3.0, 0.75),
        TermGradient("norm", 0.1, 1.0, 0.0, None),
    ]
    figure = gradient_figure(terms)
    (ax,) = figure.axes
    assert [bar.get_width() for bar in ax.patches] == [25.0, 75.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["image → text", "text ⊒ image"]
    raises, lowers = (to_hex(patch.get_facecolor()) for patch in figure.legends[0].get_patches())
    assert [to_hex(bar.get_facecolor()) for bar in ax.patches] == [raises, lowers]
    assert key(figure) == ["raises c", "lowers c"]
    unsigned = gradient_figure(terms, signed=False)
    assert not unsigned.legends
    assert len({bar.get_facecolor() for bar in unsigned.axes[0].patches}) == 1
    assert saved(figure, tmp_path).width > 500
    with pytest.raises(ValueError, match="no share of the curvature's gradient"):
        gradient_figure(terms[2:])
