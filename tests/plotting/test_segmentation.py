from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from hyvlm.cli.main import main
from hyvlm.data import open_data
from hyvlm.evaluation import Embedder
from hyvlm.models import save_model
from hyvlm.plotting import pixel_pictures
from hyvlm.plotting.pictures import draw
from hyvlm.plotting.pixel_pictures import pixel_scores
from hyvlm.plotting.request import Request
from hyvlm.plotting.segmentation import segmentation_figure, similarity_figure, voc_colour

CLASSES = ("background", "cat", "dog")


@pytest.mark.parametrize(
    ("label", "colour"),
    [(0, (0, 0, 0)), (1, (128, 0, 0)), (2, (0, 128, 0)), (15, (192, 128, 128)), (20, (0, 64, 128)),
     (255, (224, 224, 192))],
)  # fmt: skip
def test_colours_are_those_of_vocs_palette(label: int, colour: tuple[int, int, int]) -> None:
    assert voc_colour(label) == tuple(c / 255 for c in colour)


def test_maps_lie_over_the_image_in_the_colours_of_the_legend() -> None:
    labels = np.zeros((40, 60), dtype=int)
    labels[:, 20:40], labels[:, 40:], labels[39, 59] = 2, 255, 1
    figure = segmentation_figure(Image.new("RGB", (60, 40), "white"), CLASSES, {"ours": labels})
    titles = [ax.get_title("left") for ax in figure.axes]
    assert titles == ["image", "ours"]
    shown = figure.axes[1].images[0].get_array()
    np.testing.assert_allclose(shown[5, 5], 1)  # background: the image itself
    np.testing.assert_allclose(shown[5, 30], 0.4 + 0.6 * np.array(voc_colour(2)))
    np.testing.assert_allclose(shown[5, 50], 1)  # ignored: white
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["cat", "dog"]
    assert to_rgb(legend.get_patches()[1].get_facecolor()) == voc_colour(2)
    (name,) = figure.axes[1].texts  # one pixel of "cat" is too small to be named in the image
    assert name.get_text() == "dog"
    assert 20 < name.get_position()[0] < 40


def test_names_at_an_edge_turn_inward() -> None:
    labels = np.zeros((40, 60), dtype=int)
    labels[:, :4], labels[:, 56:] = 1, 2
    figure = segmentation_figure(Image.new("RGB", (60, 40)), CLASSES, {"ours": labels})
    assert [text.get_ha() for text in figure.axes[1].texts] == ["left", "right"]


def test_similarity_is_scaled_in_every_panel_and_brightest_where_it_is_highest() -> None:
    scores = np.linspace(-3, -1, 40 * 60).reshape(40, 60)
    flat = np.full((40, 60), 0.25)
    figure = similarity_figure(Image.new("RGB", (60, 40)), {"a dog": {"one": scores, "two": flat}})
    assert [ax.get_title("left") for ax in figure.axes[:3]] == ['"a dog"', "one   (-3 to -1)", "two   (0.25 to 0.25)"]
    brightness = np.asarray(figure.axes[1].images[0].get_array()).sum(-1)
    assert brightness[-1, -1] == brightness.max() > brightness[0, 0] == brightness.min()
    assert np.ptp(np.asarray(figure.axes[2].images[0].get_array()).sum(-1)) == 0


def test_what_cannot_be_drawn_is_told() -> None:
    image = Image.new("RGB", (60, 40))
    with pytest.raises(ValueError, match="no map"):
        segmentation_figure(image, CLASSES, {})
    with pytest.raises(ValueError, match=r"ours: a map of \(60, 40\)"):
        segmentation_figure(image, CLASSES, {"ours": np.zeros((60, 40), dtype=int)})
    with pytest.raises(ValueError, match="finite"):
        similarity_figure(image, {"a dog": {"one": np.full((40, 60), np.nan)}})


@pytest.fixture
def request_(embedder: Embedder, sphere: Embedder) -> Request:
    return Request({"ours": embedder, "clip": sphere}, open_data("scenes", content="masks"), sample=3, extrapolation=2)


def test_a_picture_of_masks_has_the_annotation_and_the_best_class_of_each_model(request_: Request) -> None:
    request_ = replace(request_, background="name", templates="name")
    figure = pixel_pictures.segmentation(request_)["png"]
    assert [ax.get_title("left") for ax in figure.axes] == ["image", "annotated", "ours", "clip"]
    embedder, sample = request_.embedders["ours"], request_.samples[3]
    points = embedder.class_points(request_.samples.classes, ["{}"])
    scores = pixel_scores(request_, embedder, sample.picture, points, (128, 128))
    shown = {request_.samples.classes[label] for label in scores.argmax(0).unique()} - {"background"}
    assert shown <= {text.get_text() for text in figure.legends[0].get_texts()}


def test_extrapolation_moves_the_texts_of_models_with_an_origin_alone(request_: Request) -> None:
    image = request_.samples[3].picture
    for name, embedder in request_.embedders.items():
        points = embedder.class_points(["a cube"], ["{}"])
        one, two = (
            pixel_scores(replace(request_, extrapolation=f), embedder, image, points, (32, 32)) for f in (1.0, 2.0)
        )
        assert torch.equal(one, two) == (name == "clip")


@pytest.mark.parametrize("sample", [-1, 500])
def test_a_sample_that_is_not_there_is_told(request_: Request, sample: int) -> None:
    with pytest.raises(ValueError, match="samples 0 to 499"):
        pixel_pictures.segmentation(replace(request_, sample=sample))
    with pytest.raises(ValueError, match="extrapolation must be"):
        replace(request_, extrapolation=0)


def test_both_pictures_by_command(
    embedder: Embedder, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = str(save_model(embedder.model, tmp_path / "ours")), tmp_path / "out"
    written = draw("segmentation", [model], "scenes", out, sample=1, background="name", device="cpu")
    assert [path.name for path in written] == ["segmentation-1.png"]
    command = ["plot", "similarity", model, "--data", str(table), "--text", "a dog", "--text", "a cat"]
    assert main([*command, "--out", str(out), "--device", "cpu"]) == 0
    assert "similarity-0.png" in capsys.readouterr().out
    assert Image.open(out / "similarity-0.png").height > 2 * 3.0 * 150  # a row for each text
    assert main(["plot", "segmentation", model, "--data", str(table), "--out", str(out)]) == 2
    assert "masks" in capsys.readouterr().err
