"""Pictures of parts and wholes, of small models on scenes and on a set without parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hyvlm.data import open_data
from hyvlm.diagnostics.gradients import GradientCosines
from hyvlm.diagnostics.radii import radial_distribution
from hyvlm.diagnostics.separation import separation
from hyvlm.evaluation import Embedder
from hyvlm.geometry import Lorentz
from hyvlm.losses import uncertainty
from hyvlm.models import Tokenizer, save_model
from hyvlm.plotting.checkpoints import Checkpoints
from hyvlm.plotting.embedding_map import GROUPS, STARS
from hyvlm.plotting.part_figures import Crop, Moment, cosine_figure, crop_sheet, distances_figure, uncertainty_scatter
from hyvlm.plotting.pictures import draw
from hyvlm.plotting.request import PICTURES, Request

HYPERBOLIC = ("crops", "uncertainty", "radii", "distances")


@pytest.fixture
def scenes(embedder: Embedder) -> Request:
    return Request({"ours": embedder}, open_data("scenes", split="val"), limit=6)


@pytest.mark.parametrize("kind", [*HYPERBOLIC, "parts"])
def test_pictures_are_drawn_with_parts_or_random_crops(
    kind: str, scenes: Request, table: Path, embedder: Embedder
) -> None:
    without = Request({"a": embedder, "b": embedder}, open_data(str(table)), captions="last", limit=5)
    for request, said in ((scenes, "part images"), (without, "random crops")):
        if kind == "parts" and request is without:
            request = replace(request, embedders={"a": embedder})
        figure = PICTURES[kind](request)["png"]
        if kind != "crops":  # whose many axes take seconds
            figure.draw_without_rendering()
        words = " ".join(text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text")))
        if kind in ("uncertainty", "distances"):
            assert said in words
        if kind == "parts":
            assert ("part texts" in words) == (request is scenes)


@pytest.mark.parametrize("kind", HYPERBOLIC)
def test_models_without_an_origin_are_refused(kind: str, scenes: Request, sphere: Embedder) -> None:
    with pytest.raises(ValueError, match="points of a Sphere have none"):
        PICTURES[kind](replace(scenes, embedders={"clip": sphere}))


def test_crops_lie_in_the_order_of_their_uncertainty(scenes: Request, embedder: Embedder) -> None:
    figure = PICTURES["crops"](scenes)["png"]
    titles = [ax.get_title() for sub in figure.subfigs[1:] for ax in sub.axes if ax.get_title()]
    values = [float(title.split()[1]) for title in titles]
    norms = [float(title.split()[3]) for title in titles]
    assert len(values) == 24
    assert values == sorted(values)
    assert norms == sorted(norms, reverse=True)
    expected = uncertainty(torch.tensor([[norms[0], 0.0]]), Lorentz())
    assert values[0] == pytest.approx(float(expected), abs=5e-4)
    with pytest.raises(ValueError, match="no crop"):
        crop_sheet(Image.new("RGB", (4, 4)), {"ours": []})


def test_the_map_of_parts_names_those_of_the_chosen_image(scenes: Request) -> None:
    figure = PICTURES["parts"](replace(scenes, sample=1))["png"]
    ax = figure.axes[0]
    phrases = [part.text for part in scenes.samples[1].parts]
    written = [text.get_text() for text in ax.texts]
    assert sorted(written[1:]) == sorted(phrases)
    labels = {collection.get_label().split(" (")[0] for collection in ax.collections}
    groups = ("image", "whole_text", "part_image", "part_text")
    stars = [STARS[name][2] for name in ("own_image", "own_text", "own_part_image", "own_part_text")]
    assert labels == {*(GROUPS[name][1] for name in groups), *stars, "the model's origin"}
    reach = ax.get_xlim()[1] / 1.02
    assert ax.get_xlabel() == (f"shown is the disk up to radius {reach:.2f}" if reach < 1 else "")


def test_a_run_stands_for_all_its_checkpoints_in_their_order(embedder: Embedder, tmp_path: Path) -> None:
    for step in (900, 10, 2000):
        save_model(embedder.model, tmp_path / "run" / "checkpoints" / f"step_{step:07d}")
    (tmp_path / "run" / "checkpoints" / "step_x").mkdir()
    found = Checkpoints([str(tmp_path / "run")], torch.device("cpu"), 2)
    assert list(found) == ["10", "900", "2000"]
    assert isinstance(found["900"].tokenizer, Tokenizer)
    single = [str(tmp_path / "run" / "checkpoints" / f"step_{step:07d}") for step in (900, 10)]
    assert list(Checkpoints(single, torch.device("cpu"), 2)) == single
    files = draw("distances", [str(tmp_path / "run")], "scenes", tmp_path, limit=6, split="val", device="cpu")
    assert [path.name for path in files] == ["distances-0.json", "distances-0.png"]
    rows = json.loads(files[0].read_text())
    assert [row["checkpoint"] for row in rows] == ["10", "900", "2000"]
    assert len({(row["mmd"], row["w1"], row["w2"], row["bandwidth"]) for row in rows}) == 1  # the same weights
    assert 0 < rows[0]["w1"] <= rows[0]["w2"]


def moment(name: str, shift: float) -> Moment:
    radii = np.random.default_rng(0).normal(1, 0.1, 60)
    whole, part = radial_distribution("image", radii + shift), radial_distribution("part_image", radii)
    return Moment(name, whole, part, separation(radii + shift, radii, bandwidth=0.1))


def test_distances_are_drawn_at_their_steps_and_densities_of_four() -> None:
    figure = distances_figure([moment(str(10 * 4**i), 0.1 * i) for i in range(6)])
    above, below = figure.subfigs
    assert [ax.get_title(loc="left") for ax in above.axes] == ["step 10", "step 160", "step 640", "step 10,240"]
    line = below.axes[1].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), [10 * 4**i for i in range(6)])
    np.testing.assert_allclose(line.get_ydata(), [0.1 * i for i in range(6)], atol=1e-12)
    named = distances_figure([moment("first", 0.0), moment("second", 0.2)]).subfigs[1].axes[0]
    assert [text.get_text() for text in named.get_xticklabels()] == ["first", "second"]
    for draw_nothing in (distances_figure, cosine_figure, uncertainty_scatter):
        with pytest.raises(ValueError, match="there is no"):
            draw_nothing({})


def test_cosines_are_written_into_their_fields() -> None:
    found = GradientCosines(["contrast", "entail"], [[1.0, -0.25], [-0.25, None]], [1.0, 0.0], 8, 1, ())
    ax = cosine_figure({"ours": found}).axes[0]
    assert [text.get_text() for text in ax.texts] == ["+1.00", "-0.25", "-0.25", "none"]
    assert Crop(Image.new("RGB", (2, 2)), 0.1, 1.0).norm == 1
