from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from PIL import Image

from hyvlm.diagnostics.distortion import ApertureCurve, Box, RelationRatios, Surface
from hyvlm.plotting.distortion_figures import aperture_figure, curvature, heat_maps, ratio_ranges, relation_label

ANGLES = [math.pi * (k + 0.5) / 4 for k in range(4)]


def surface(relation: str, quantity: str = "distance", *, top: float = 1.02, r1: float = 0.5) -> Surface:
    values = [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, top, 1.0, 1.0]]
    return Surface(relation, quantity, 0.1, r1, [0.4, 0.5, 0.6], ANGLES, values, Box(0.45, 0.55, 1.0, 1.5))  # type: ignore[arg-type]


def curve(view: str, c: float = 0.1) -> ApertureCurve:
    """K = 0.1, so that the flat cone is a half-space up to 0.2 / sqrt(c), about 0.632."""
    r1 = np.linspace(0.6, 0.66, 121)
    hyperbolic = np.arcsin(np.minimum(1, 0.2 / np.sinh(math.sqrt(c) * r1)))
    flat = np.arcsin(np.minimum(1, 0.2 / (math.sqrt(c) * r1)))
    return ApertureCurve(view, c, r1.tolist(), hyperbolic.tolist(), flat.tolist(), (hyperbolic / flat).tolist())


def saved(figure: Figure, folder: Path) -> Image.Image:
    figure.savefig(folder / "figure.png")
    return Image.open(folder / "figure.png")


def written(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def panels(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>" and ax.get_visible()]


def bars(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.axes if ax.get_label() == "<colorbar>"]


def test_models_are_columns_and_relations_rows(tmp_path: Path) -> None:
    models = {
        "meru": [surface("image -> text")],
        "hycoclip": [surface("part_text ⊒ text", "exterior_angle"), surface("image -> text", r1=0.25)],
    }
    figure = heat_maps(models)
    meru, hycoclip, absent, angle = panels(figure)
    assert (written(meru), written(hycoclip)) == (["meru"], ["hycoclip"])
    assert written(absent)[0] == "not in the loss"
    assert meru.get_ylabel().split("\n") == ["image → text", "", "r₂"]
    assert absent.get_ylabel().startswith("part text ⊒ text")
    assert hycoclip.get_title(loc="left") == "c = 0.10, r₁ = 0.25"
    assert [label.get_text() for label in angle.get_xticklabels()] == ["0", "π/2", "π"]
    assert angle.get_xticks().tolist() == [0, math.pi / 2, math.pi]
    assert [bar.get_ylabel() for bar in bars(figure)] == ["ratio of distances", "ratio of exterior angles"]
    assert saved(figure, tmp_path).width > 500


def test_the_box_and_the_ratios_are_where_they_were_measured() -> None:
    (ax,) = panels(heat_maps({"m": [surface("image -> text")]}))
    (box,) = ax.patches
    assert (*box.get_xy(), box.get_width(), box.get_height()) == pytest.approx((1.0, 0.45, 0.5, 0.1))
    assert box.get_linestyle() != "solid"
    (mesh,) = (c for c in ax.collections if isinstance(c, QuadMesh))
    assert np.asarray(mesh.get_array()).tolist() == surface("image -> text").values
    row, column = np.unravel_index(np.asarray(mesh.get_array()).argmax(), (3, 4))
    corners = mesh.get_coordinates()[row : row + 2, column : column + 2].reshape(-1, 2)
    assert corners[:, 0].min() < ANGLES[1] < corners[:, 0].max()
    assert corners[:, 1].min() < 0.6 < corners[:, 1].max()


def test_one_is_white_whatever_the_range_and_a_quantity_has_one_scale() -> None:
    figure = heat_maps({"a": [surface("image -> text", top=1.3)], "b": [surface("image -> text", top=0.95)]})
    meshes = [c for ax in panels(figure) for c in ax.collections if isinstance(c, QuadMesh)]
    for mesh in meshes:
        assert min(mesh.cmap(mesh.norm(1.0))[:3]) > 0.95
        red, _, blue, _ = mesh.cmap(mesh.norm(1.3))
        assert red > blue
    assert bars(figure)[0].get_ylim() == pytest.approx((0.95, 1.3))
    assert [tick.get_text() for tick in bars(figure)[0].get_yticklabels()][::4] == ["0.95", "1.30"]


@settings(max_examples=10, deadline=None)
@given(st.floats(-9, -1))
def test_the_ticks_of_a_colour_bar_differ_however_small_its_range(exponent: float) -> None:
    (bar,) = bars(heat_maps({"m": [surface("image -> text", top=1 + 10**exponent)]}))
    labels = [tick.get_text() for tick in bar.get_yticklabels()]
    assert len(set(labels)) == 5


def test_one_model_has_its_relations_side_by_side_below_its_name() -> None:
    surfaces = [surface(f"{view} -> text") for view in ("image", "part_image", "part_text", "text", "query_text")]
    figure = heat_maps({"a_b$c$": [*surfaces, surface("text ⊒ image", "exterior_angle")]})
    assert figure.get_suptitle() == "a_b$c$"
    assert [written(ax)[0] for ax in panels(figure)] == [relation_label(s.relation) for s in surfaces] + [
        "text ⊒ image"
    ]
    assert len({ax.get_position().y0 for ax in panels(figure)[:4]}) == 1


def test_ratios_that_are_not_numbers_are_left_grey_but_not_all_of_them() -> None:
    values = [[math.nan] * 4, [1.0, 1.1, 1.0, 1.0], [1.0] * 4]
    (ax,) = panels(heat_maps({"m": [replace(surface("image -> text"), values=values)]}))
    (mesh,) = (c for c in ax.collections if isinstance(c, QuadMesh))
    assert np.ma.getmaskarray(np.ma.masked_invalid(mesh.get_array())).sum() == 4
    with pytest.raises(ValueError, match="no ratio of distances is a finite number"):
        heat_maps({"m": [replace(surface("image -> text"), values=[[math.nan] * 4] * 3)]})
    with pytest.raises(ValueError, match="no distortion surface"):
        heat_maps({"m": []})


def test_the_dip_of_the_apertures_is_marked_and_the_clamped_interval_shaded(tmp_path: Path) -> None:
    figure = aperture_figure({"m_$1$": [curve("part_image")]})
    ratio, both = figure.axes
    assert ratio.get_title(loc="left") == "m_$1$: part images, c = 0.10"
    assert written(ratio) == [f"{min(curve('part_image').ratio):.2f}"]
    (shade,) = ratio.patches
    opens_at, flat_opens_at = math.asinh(0.2) / math.sqrt(0.1), 0.2 / math.sqrt(0.1)
    assert shade.get_x() == pytest.approx(opens_at, abs=6e-4)
    assert shade.get_x() + shade.get_width() == pytest.approx(flat_opens_at, abs=6e-4)
    assert [label.get_text() for label in both.get_yticklabels()][:2] == ["π/2", "7π/16"]
    assert both.get_yticks()[:2].tolist() == [math.pi / 2, 7 * math.pi / 16]
    assert [line.get_label() for line in both.lines] == ["hyperbolic", "Euclidean"]
    assert saved(figure, tmp_path).width > 500


def test_cones_that_are_always_open_have_nothing_to_mark() -> None:
    open_ = [math.pi / 2] * 3
    figure = aperture_figure({"m": [ApertureCurve("text", 0.1, [0.1, 0.2, 0.3], open_, open_, [1.0] * 3)]})
    ratio, both = figure.axes
    assert not written(ratio)
    assert not ratio.patches
    assert both.get_ylim()[0] < math.pi / 2 < both.get_ylim()[1]
    with pytest.raises(ValueError, match="no aperture curve"):
        aperture_figure({"m": []})


def test_narrow_apertures_have_ticks_around_them() -> None:
    narrow = ApertureCurve("text", 1.0, [1.0, 2.0, 3.0], [0.5, 0.3, 0.2], [0.6, 0.4, 0.3], [0.83, 0.75, 0.66])
    _, both = aperture_figure({"m": [narrow]}).axes
    assert both.get_yticks().min() <= 0.2
    assert [label.get_text() for label in both.get_yticklabels()] == ["π/2", "3π/8", "π/4", "π/8", "0"]


def test_ranges_are_drawn_against_the_tolerance(tmp_path: Path) -> None:
    ratios = [
        RelationRatios("part_text ⊒ text", "exterior_angle", 9, 0, 1.1, 1.2, 1.3),
        RelationRatios("image -> text", "distance", 9, 0, 0.99, 1.0, 1.01),
        RelationRatios("image -> image", "distance", 9, 9, math.nan, math.nan, math.nan),
    ]
    figure = ratio_ranges(ratios, tolerance=0.02)
    (ax,) = figure.axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["distance: image → text", "exterior angle: part text ⊒ text"]
    (band,) = ax.patches
    assert (band.get_x(), band.get_width()) == pytest.approx((0.98, 0.04))
    assert tuple(ax.lines[1].get_xdata()) == (0.99, 1.01)
    assert list(ax.lines[2].get_xdata()) == [1.0]
    assert "1 ± 0.02" in ax.get_xlabel()
    assert saved(figure, tmp_path).width > 500
    with pytest.raises(ValueError, match="no relation with a ratio"):
        ratio_ranges(ratios[2:])


@pytest.mark.parametrize(("c", "shown"), [(0.1, "0.10"), (0.0987, "0.10"), (1.0, "1.00"), (0.0123, "0.012")])
def test_small_curvatures_keep_two_digits(c: float, shown: str) -> None:
    assert curvature(c) == shown


def test_drawing_leaves_the_settings_alone() -> None:
    before = dict(rcParams)
    heat_maps({"m": [surface("image -> text")]})
    assert dict(rcParams) == before
