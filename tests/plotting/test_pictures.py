from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image

from hyvlm.data import open_data
from hyvlm.data.sentences import PERTURBATIONS
from hyvlm.evaluation import Embedder
from hyvlm.evaluation.tasks.perturbed_ranks import perturbed_ranks
from hyvlm.evaluation.tasks.perturbed_retrieval import perturb_all
from hyvlm.geometry import Lorentz, Sphere
from hyvlm.models import save_model
from hyvlm.plotting import caption_pictures
from hyvlm.plotting.caption_pictures import first_found, midpoints, perturbed_captions
from hyvlm.plotting.embedding_map import embedding_map, place
from hyvlm.plotting.figures import missing_letters
from hyvlm.plotting.gather import Entry, Gathered
from hyvlm.plotting.pictures import draw, short_names
from hyvlm.plotting.rank_bars import RankPanel, rank_bars
from hyvlm.plotting.request import PICTURES, Request
from hyvlm.plotting.retrieval_page import RIGHT, WORDS, WRONG, Found, Query, retrieval_figure, wrapped


@pytest.fixture
def request_(embedder: Embedder, sphere: Embedder, table: Path) -> Request:
    return Request({"ours": embedder, "clip": sphere}, open_data(str(table)), captions="last")


def test_gathering_reads_the_chosen_sample_first_and_counts_what_it_passes_over(
    request_: Request, embedder: Embedder, capsys: pytest.CaptureFixture[str]
) -> None:
    gathered = replace(request_, sample=2).gather()
    assert [entry.index for entry in gathered.entries] == [2, 0, 1, 4]
    assert gathered.skipped.total() == 1
    assert "1 samples were passed over" in capsys.readouterr().err
    assert max(gathered.entries[3].image.size) == 384  # a small copy
    # the same points as the evaluation's, which takes other batches
    points = embedder.images(request_.samples).points
    torch.testing.assert_close(gathered.points["ours"], points[[2, 0, 1, 3]])
    assert [entry.index for entry in replace(request_, limit=3).gather().entries] == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample": 3}, "sample 3 of .* cannot be drawn"),
        ({"sample": 5}, "samples 0 to 4"),
        ({"sample": -1}, "samples 0 to 4"),
        ({"limit": 1}, "at least 2 images"),
        ({"captions": "all"}, "one caption an image"),
        ({"captions": "lasst"}, "Did you mean"),
    ],
)
def test_what_cannot_be_gathered_is_told(request_: Request, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(request_, **change).gather()


NEEDS_MORE = {"segmentation", "crops", "uncertainty", "radii", "distances"}  # masks, or a model with an origin


@pytest.mark.parametrize("kind", sorted(set(PICTURES) - NEEDS_MORE))
def test_every_picture_is_drawn_for_saved_models(
    kind: str, embedder: Embedder, sphere: Embedder, table: Path, tmp_path: Path
) -> None:
    models = [str(save_model(one.model, tmp_path / name)) for name, one in (("ours", embedder), ("clip", sphere))]
    files = draw(kind, models, str(table), tmp_path / "out", captions="last", device="cpu")
    expected = ["tokens-0.html", "tokens-0.png"] if kind == "tokens" else [f"{kind}-0.png"]
    assert [file.name for file in files] == expected
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == expected  # no draft is left
    assert Image.open(files[-1]).width > 500


def test_wrong_names_are_told_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown picture 'mapp'"):
        draw("mapp", ["x"], "scenes", tmp_path)
    with pytest.raises(ValueError, match="at least one model"):
        draw("map", [], "scenes", tmp_path)
    with pytest.raises(FileNotFoundError):
        draw("map", [str(tmp_path / "none")], "scenes", tmp_path)


def test_models_are_called_by_the_last_part_of_their_path() -> None:
    assert short_names(["runs/a", "open_clip:ViT-B-16/laion2b/"]) == ["a", "laion2b"]
    assert short_names(["runs/1/a", "runs/2/a"]) == ["runs/1/a", "runs/2/a"]
    with pytest.raises(ValueError, match="each model once"):
        short_names(["a", "a"])


def test_perturbed_captions_are_those_of_the_task(request_: Request, embedder: Embedder) -> None:
    """The ranks drawn for an image are among those that the task computes for it."""
    gathered = replace(request_, sample=1).gather()
    texts = perturbed_captions(gathered, 0)
    assert len(set(texts)) == len(texts) > 10
    assert gathered.captions[0] not in texts
    points = embedder.texts([*gathered.captions, *texts])
    panels = caption_pictures._panels("ours", embedder, gathered.points["ours"][:1], points, len(gathered.captions))
    task = perturbed_ranks(embedder, request_.samples, captions="last").ranks
    for panel, reading in zip(panels.values(), ("score", "entailment"), strict=True):
        expected = {int(rank) for how in PERTURBATIONS for rank in task[reading][how][:, 1]}
        assert set(panel.ranks().tolist()) <= expected
    drawn = {
        text
        for how in PERTURBATIONS
        for seed in range(5)
        for text in perturb_all(["", gathered.captions[0]], how, seed)[1:]
    }
    assert set(texts) == drawn - {gathered.captions[0]}


def test_ranks_and_bars() -> None:
    panel = RankPanel(np.array([0.1, 0.9, 0.5, 0.7]), 1, np.array([1.0, 0.7, 0.6, 0.0]), "cosine")
    assert panel.ranks().tolist() == [1, 3, 3, 5]  # an equal one stands before
    figure = rank_bars({"a": panel, "b": panel})
    assert len(figure.axes) == 2
    bars = figure.axes[0].patches[0].get_data().values
    assert bars.tolist() == [0.9, 0.7, 0.5, 0.1]
    markers = figure.axes[0].collections[1].get_offsets()
    assert markers[:, 0].tolist() == [1, 3, 3, 5]
    assert figure.axes[0].get_xlim() == (0.5, 5.5)  # the last one, behind four bars, is seen
    many = rank_bars({"a $\\bad{$ name": replace(panel, scores=np.arange(20.0))})
    many.canvas.draw()  # the name is no formula
    ticks = many.axes[0].get_xticks()
    assert (ticks == ticks.round()).all()  # a rank is a whole number
    assert "mean rank 3.0, variance 2.0" in figure.axes[0].get_title(loc="right")
    with pytest.raises(ValueError, match="finite"):
        rank_bars({"a": replace(panel, perturbed=np.array([np.nan]))})
    with pytest.raises(ValueError, match="needs captions"):
        rank_bars({})


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_must_be_positive_for_every_picture(request_: Request, temperature: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        replace(request_, temperature=temperature)


def test_characters_without_a_glyph_are_named_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = Figure()
    figure.text(0, 0, "\U0010fffd \U0010fffe dog", parse_math=False)  # private use: no font has them
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with missing_letters():
            warnings.warn("another", stacklevel=1)
            figure.savefig(tmp_path / "x.png")
            figure.savefig(tmp_path / "y.png")
    assert [str(warning.message) for warning in warned] == ["another"]
    assert "no font here has 2 of the characters, such as \U0010fffd" in capsys.readouterr().err
    with missing_letters():
        Figure().savefig(tmp_path / "z.png")
    assert capsys.readouterr().err == ""


def test_a_caption_that_nothing_changes_has_no_ranks(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caption_pictures, "perturb", lambda text, how, seed: text)
    with pytest.raises(ValueError, match="no perturbation changes"):
        PICTURES["ranks"](request_)
    (figure,) = PICTURES["retrieval"](request_).values()
    assert any("unchanged by: two random sentences" in " ".join(text.get_text().split()) for text in figure.texts)


def test_an_image_as_good_as_the_right_one_counts_as_better(embedder: Embedder) -> None:
    same = embedder.texts(["x"])
    entries = [Entry(i, Image.new("RGB", (4, 4), (i, 0, 0)), "x") for i in range(3)]
    tied = Gathered(entries, {"m": same.expand(3, -1)}, skipped={})
    (found,) = first_found(embedder, tied, "m", ["x"])
    assert (found.rank, found.of) == (3, 3)
    assert found.image is entries[1].image
    alone = Gathered(entries, {"m": torch.cat([same, -same, -same])}, skipped={})
    (found,) = first_found(embedder, alone, "m", ["x"])
    assert found.rank == 1
    assert found.image is entries[0].image


@pytest.mark.parametrize(
    "text", ["a dog runs " * 60, "WWW MMM " * 60, "W" * 700, "x" * 300 + " a " + "y" * 300, "", "a"]
)
@pytest.mark.parametrize("inches", [1.0, 5.2])
def test_text_stays_in_its_column_whatever_its_letters(text: str, inches: float) -> None:
    lines = wrapped(text, inches, WORDS)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    for dpi in (100, 150, 300):
        figure = Figure(dpi=dpi)
        widths = [figure.text(0, 0, line, fontproperties=WORDS).get_window_extent().width / dpi for line in lines]
        assert max(widths) <= 1.05 * inches  # hinting; the column has a margin


def test_many_unchanged_versions_are_named_beside_the_caption_alone() -> None:
    image = Image.new("RGB", (30, 20))
    name = "original caption   (unchanged by: two random sentences, shuffled sentences, word dropout, p = 0.5)"
    figure = retrieval_figure(image, [Query(name, "x", {"a": Found(image, 1, 9)})])
    column = figure.axes[-1].get_window_extent().x0
    written = [text for text in figure.texts if text.get_text().startswith(("original", "x"))]
    assert max(text.get_window_extent().x1 for text in written) < column
    assert written[0].get_window_extent().y0 > written[1].get_window_extent().y1


def test_frames_tell_right_from_wrong() -> None:
    image = Image.new("RGB", (30, 20))
    found = {"a": Found(image, 1, 9), "b": Found(image, 4, 9)}
    figure = retrieval_figure(image, [Query("original", "words $x$ " * 80, found), Query("shuffled", "", found)])
    labels = [ax.get_xlabel() for ax in figure.axes]
    assert labels == ["", *["right", "wrong, truth at rank 4"] * 2]
    colours = [ax.spines["left"].get_edgecolor() for ax in figure.axes]
    assert colours[1:] == [to_rgba(RIGHT), to_rgba(WRONG)] * 2
    boxes = [ax.get_position() for ax in figure.axes]
    assert min(box.y0 for box in boxes) >= 0
    assert boxes[3].y1 < boxes[1].y0  # rows do not overlap
    with pytest.raises(ValueError, match="no query"):
        retrieval_figure(image, [])


def test_the_map_is_by_horopca_in_the_disk_or_by_tsne() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = {
        "image": torch.randn(12, 6, generator=generator),
        "text": torch.randn(20, 6, generator=generator),
        "perturbed": torch.randn(3, 6, generator=generator),
    }
    disk = place(Lorentz(c=2.0), groups)
    assert disk.disk
    assert "HoroPCA" in disk.note
    assert all((np.linalg.norm(places, axis=1) < 1).all() for places in disk.places.values())
    drawn = place(Lorentz(c=2.0), groups, sample=20)
    assert "fitted on 20 of 35 points" in drawn.note
    plane = place(Sphere(), {name: Sphere().lift(points) for name, points in groups.items()})
    assert not plane.disk
    assert plane.root is None
    assert {name: len(places) for name, places in plane.places.items()} == {"image": 12, "text": 20, "perturbed": 3}
    figure = embedding_map({"ours": disk, "clip": plane})
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["images (12)", "long texts (20)", "the model's origin", "perturbed captions (3)"]
    for few in ({"image": torch.ones(2, 3)}, {"image": torch.ones(4, 3)}):
        with pytest.raises(ValueError):
            place(Lorentz(), few)
    with pytest.raises(ValueError, match="no model"):
        embedding_map({})


def test_midpoints_do_not_depend_on_the_batch(embedder: Embedder) -> None:
    captions = ["a dog", "a much longer text about a dog that runs", "cat"]
    images = embedder.texts(["one", "two", "three"])
    alone = torch.cat([midpoints(embedder, [c], images[i : i + 1], 0.07) for i, c in enumerate(captions)])
    torch.testing.assert_close(midpoints(embedder, captions, images, 0.07), alone, rtol=1e-4, atol=1e-6)
