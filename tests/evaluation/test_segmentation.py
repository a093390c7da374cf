from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import jaccard_score
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate
from torchmetrics.functional.classification import multiclass_jaccard_index

from hyvlm.data import open_data
from hyvlm.evaluation import Embedder, EvalSpec, dense, evaluate
from hyvlm.evaluation.dense import (
    BACKGROUNDS,
    DensePoints,
    class_queries,
    dense_points,
    extrapolate,
    read_background,
    window_starts,
)
from hyvlm.evaluation.tasks.segmentation import FACTORS, HELD_OUT, Segmentation, confusion, intersection_over_union
from hyvlm.evaluation.tasks.segmentation import halves as halves_of
from hyvlm.geometry import Euclidean, Manifold, Sphere
from hyvlm.models import DualEncoder, Tokenizer, build_model
from hyvlm.models.dense import dense_image_features
from hyvlm.types import BadSample, Sample

CLASSES = ("background", "red", "green")


# Metrics -------------------------------------------------------------------------------------------------------------


def random_case(seed: int, classes: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(classes, 20, 30, generator=generator)
    target = torch.randint(classes - 1, (20, 30), generator=generator)  # the last class is in no mask
    target[torch.rand(20, 30, generator=generator) < 0.2] = 255
    return scores, target


@pytest.mark.parametrize("seed", range(3))
def test_iou_is_that_of_torchmetrics_and_sklearn(seed: int) -> None:
    scores, target = random_case(seed)
    matrix, tied = confusion(scores, target)
    iou = intersection_over_union(matrix)
    theirs = multiclass_jaccard_index(scores[None], target[None], 6, average="none", ignore_index=255)
    torch.testing.assert_close(iou.float(), theirs)
    counted = target != 255
    labels = scores.argmax(0)[counted].numpy()
    np.testing.assert_allclose(iou, jaccard_score(target[counted].numpy(), labels, average=None))
    assert tied == 0
    assert matrix.sum() == counted.sum()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_confusion_counts_each_scored_pixel_once_and_is_no_better_than_the_argmax(seed: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(3, (classes, 4, 5), generator=generator).float()  # many ties
    target = torch.randint(classes, (4, 5), generator=generator)
    matrix, tied = confusion(scores, target)
    assert matrix.sum(1).tolist() == target.flatten().bincount(minlength=classes).tolist()
    own = scores.gather(0, target[None])[0]
    others = torch.stack([scores[[k for k in range(classes) if k != t], i, j].max()
                          for (i, j), t in np.ndenumerate(target.numpy())]).view(4, 5)  # fmt: skip
    assert matrix.diag().sum() == (own > others).sum()
    assert tied == (own == others).sum()


def test_a_tie_is_wrong_and_counted() -> None:
    matrix, tied = confusion(torch.ones(2, 1, 3), torch.tensor([[0, 1, 255]]))
    assert matrix.tolist() == [[0, 1], [1, 0]]
    assert tied == 2


def test_a_class_that_is_nowhere_has_no_iou_and_one_that_is_only_predicted_has_none_right() -> None:
    iou = intersection_over_union(torch.tensor([[3, 1, 0], [0, 0, 0], [0, 0, 0]]))
    assert iou[:2].tolist() == [0.75, 0]
    assert iou[2].isnan()


# Windows and pixels --------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 64))
def test_windows_cover_the_image_and_stay_inside(length: int, window: int) -> None:
    length = max(length, window)
    starts = window_starts(length, window, max(1, window // 2))
    covered = {at for start in starts for at in range(start, start + window)}
    assert covered == set(range(length))
    assert len(set(starts)) == len(starts)


def small_model(manifold: str = "lorentz", **more: object) -> DualEncoder:
    torch.manual_seed(0)
    model = {
        "image": {"image_size": 32, "patch": 8, "width": 32, "depth": 2, "heads": 2},
        "text": {"context_length": 40, "width": 32, "depth": 1, "heads": 2},
        "dim": 16,
    }
    return build_model({"model": model, "manifold": {"name": manifold, **more}}).eval()


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@torch.no_grad()
def test_one_window_of_the_models_own_size_is_the_interpolated_score_of_its_patches() -> None:
    model = small_model()
    image, queries = noise(32, 32), model.lift_text(torch.randn(3, 16))
    found = dense_points(Embedder(model, Tokenizer(40)), image, side=32, resize_by="crop").scores(
        model, queries, (50, 70)
    )
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    points = model.lift_image(dense_image_features(model, pixels)[0])
    by_patch = model.class_score(points, queries).T.view(1, 3, 4, 4)
    expected = interpolate(interpolate(by_patch, (32, 32), mode="bilinear"), (50, 70), mode="bilinear")[0]
    torch.testing.assert_close(found, expected)


def test_overlapping_windows_are_averaged() -> None:
    """Three windows of one patch each: every pixel has the mean score of the windows that show it."""
    model = SimpleNamespace(class_score=lambda points, queries: points @ queries.T)
    points = torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1, 1)
    dense_of = DensePoints(points, [(0, 0), (0, 2), (0, 3)], window=4, size=(4, 7))
    found = dense_of.scores(model, torch.tensor([[1.0], [10.0]]), (4, 7))
    expected = torch.tensor([1, 1, 3 / 2, 7 / 3, 3, 3, 4])
    torch.testing.assert_close(found, torch.stack([expected, 10 * expected])[:, None].expand(2, 4, 7))


@torch.no_grad()
@pytest.mark.parametrize(
    ("size", "resize_by", "expected"),
    [((64, 32), "crop", (48, 96)), ((30, 50), "crop", (80, 48)), ((64, 32), "squash", (48, 48)),
     ((900, 9), "crop", (48, 288))],
)  # fmt: skip
def test_images_keep_their_aspect_unless_they_are_squashed(size, resize_by, expected) -> None:
    found = dense_points(Embedder(small_model(), Tokenizer(40)), noise(*size), side=48, resize_by=resize_by)
    assert (found.size, found.window) == (expected, 32)
    assert found.points.shape[1:] == (4, 4, 16)


# Extrapolation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manifold", "more"),
    [("lorentz", {}), ("lorentz", {"c": 0.1}), ("euclidean", {}), ("product", {"factors": 4}),
     ("flat_product", {"factors": 4})],
)  # fmt: skip
def test_extrapolation_multiplies_the_radius_and_keeps_the_direction(manifold: str, more: dict) -> None:
    model = small_model(manifold, **more)
    points = model.lift_text(torch.randn(5, 16))
    moved = extrapolate(model, points, 2.5)
    torch.testing.assert_close(model.manifold.radius(moved), 2.5 * model.manifold.radius(points))
    blocks = more.get("factors", 1)
    before, after = (x.unflatten(-1, (blocks, -1)) for x in (points, moved))
    torch.testing.assert_close(torch.cosine_similarity(before, after, dim=-1), torch.ones(5, blocks))
    assert extrapolate(model, points, 1) is points


def test_what_cannot_be_extrapolated_is_told() -> None:
    with pytest.raises(ValueError, match="sphere has no origin"):
        extrapolate(small_model("sphere"), torch.ones(1, 16), 2)
    with pytest.raises(ValueError, match="positive"):
        extrapolate(small_model(), torch.ones(1, 16), -1)
    assert extrapolate(small_model(), small_model().lift_text(torch.ones(1, 16)), 1e6).isfinite().all()


# The task, on pictures whose patches are the points of their colours -------------------------------------------------


@pytest.fixture
def colours(stub, monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.nn.Module]:
    """A model of 8-pixel windows and 2-pixel patches; a patch is its mean colour, the score minus the distance."""

    def build(points: dict[str, list[float]], manifold: Manifold | None = None) -> torch.nn.Module:
        model = stub(points, manifold or Sphere())
        model.class_score = lambda images, classes: -torch.cdist(images, classes)
        model.lift_image = lambda features: features
        model.image_tower = SimpleNamespace(patch=2)
        return model

    def features(model: torch.nn.Module, pixels: Tensor) -> Tensor:
        return avg_pool2d(pixels.float() / 255, 2).flatten(2).mT

    monkeypatch.setattr(dense, "dense_image_features", features)
    return build


POINTS = {"background": [0.0, 0, 0], "red": [1.0, 0, 0], "green": [0.0, 1, 0]}


def halves(left: int, right: int, *, ignored: int = 0, key: str = "halves") -> Sample:
    """16 x 8 pixels, whose halves show and are labelled so; the first columns may be ignored."""
    labels = np.full((8, 16), left, dtype=np.uint8)
    labels[:, 8:] = right
    palette = (255 * np.array([POINTS[name] for name in CLASSES])).astype(np.uint8)
    image = Image.fromarray(palette[labels])
    labels[:, :ignored] = 255
    return Sample(key, image, mask=Image.fromarray(labels))


def run(model: torch.nn.Module, tokenizer, samples, **more):
    task = Segmentation(**{"templates": "name", "background": "name", "image_size": 8, **more})
    task.check(model, samples)
    return task.run(Embedder(model, tokenizer), samples)


def test_two_halves_are_told_apart(colours, listed, tokenizer) -> None:
    samples = listed([halves(0, 1), halves(2, 0, ignored=3)], classes=CLASSES)
    outcome = run(colours(POINTS), tokenizer, samples)
    assert outcome.scores == {"mean_iou": 100, "pixel_accuracy": 100}
    assert (outcome.n, outcome.total, outcome.ties) == (2, 2, {"pixels": 0})
    assert outcome.details["iou_percent"] == {"0 background": 100, "1 red": 100, "2 green": 100}
    assert outcome.details["pixels"] == 2 * 8 * 16 - 3 * 8
    assert outcome.details["extrapolation"] == 1
    assert outcome.details["mean_iou_held_out_percent"] == {}
    assert (outcome.details["side"], outcome.details["window"], outcome.details["stride"]) == (8, 8, 4)


def test_wrong_labels_count_as_they_should(colours, listed, tokenizer) -> None:
    """64 pixels of background and 64 of red, all labelled red: IoU of red 1/2, of background 0, green nowhere."""
    sample = halves(0, 1)
    sample.mask = Image.new("L", (16, 8), 1)
    outcome = run(colours(POINTS), tokenizer, listed([sample], classes=CLASSES))
    assert outcome.scores == {"mean_iou": 25, "pixel_accuracy": 50}
    assert outcome.details["iou_percent"] == {"0 background": 0, "1 red": 50}
    notes = " ".join(outcome.notes)
    assert "1 classes are in no mask but were predicted" in notes
    assert "1 classes are in no mask and were never predicted" in notes
    assert "everywhere would score 100.00% over 1 classes" in notes


def test_any_name_of_the_background_stands_for_it(colours, listed, tokenizer, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("nothing\n\nnight\n", encoding="utf-8")
    points = {"nothing": [9.0, 9, 9], "night": [0.0, 0, 0.1], "red": [1.0, 0, 0], "green": [0.0, 1, 0]}
    outcome = run(colours(points), tokenizer, listed([halves(0, 1)], classes=CLASSES), background=str(names))
    assert outcome.scores["mean_iou"] == 100
    assert outcome.details["background_names"] == ["nothing", "night"]
    assert outcome.details["names"] == 4


def test_a_class_of_another_name_is_not_replaced(stub, tokenizer) -> None:
    model = stub({"sky": [0, 0, 1], "background": [0, 1, 0]})
    queries = class_queries(Embedder(model, tokenizer), ("sky", "background"), templates="name", background="scenery")
    assert queries.names == ["sky", "background"]


@given(st.integers(0, 40), st.integers(0, 100))
def test_halves_are_two_and_have_every_image_once(count: int, seed: int) -> None:
    first, second = halves_of(count, seed)
    assert sorted([*first, *second]) == list(range(count))
    assert 0 <= len(first) - len(second) <= 1
    assert (first, second) == halves_of(count, seed)


def test_the_extrapolation_is_chosen_on_one_half_and_printed(colours, listed, tokenizer) -> None:
    """From (1, 0, 0) the text "red" is the nearest only once it is moved to 3 times its distance from the origin."""
    points = {"background": [0.5, 0.3, 0], "red": [0.19, 0, 0], "green": [0.0, 9, 0]}
    samples = listed([halves(1, 1, key=str(i)) for i in range(5)], classes=CLASSES)
    model = colours(points, Euclidean())
    outcome = run(model, tokenizer, samples)
    assert outcome.details["extrapolation"] == 3
    assert outcome.details["mean_iou_held_out_percent"] == {f"{f:g}": 100 * (f >= 3) for f in FACTORS}
    assert outcome.scores["pixel_accuracy"] == 100
    assert (outcome.n, outcome.total, outcome.skipped) == (2, 5, {HELD_OUT: 3})
    assert "extrapolation 3, chosen on 3 other images: mean IoU 100.00% there, 0.00% without" in outcome.notes
    fixed = run(model, tokenizer, samples, extrapolation="1")
    assert (fixed.n, fixed.scores["pixel_accuracy"], fixed.skipped) == (5, 0, {})


def test_what_cannot_be_scored_is_counted(colours, listed, tokenizer) -> None:
    bare = halves(0, 1)
    bare.mask = None
    items = [bare, halves(0, 1, ignored=16), BadSample("image is broken", "x.jpg"), halves(0, 1)]
    outcome = run(colours(POINTS), tokenizer, listed(items, classes=CLASSES))
    assert (outcome.n, outcome.total) == (1, 4)
    assert outcome.skipped == Counter({"no mask": 1, "empty mask: every pixel is ignored": 1, "image is broken": 1})
    assert len(outcome.skipped_examples) == 3
    with pytest.raises(ValueError, match="none of 1 images of listed could be segmented: 1 no mask"):
        run(colours(POINTS), tokenizer, listed(items[:1], classes=CLASSES))


def test_a_label_beyond_the_classes_is_an_error(colours, listed, tokenizer) -> None:
    sample = halves(0, 1)
    sample.mask = Image.new("L", (16, 8), 3)
    with pytest.raises(ValueError, match="label 3, but the 3 classes are 0 to 2"):
        run(colours(POINTS), tokenizer, listed([sample], classes=CLASSES))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"extrapolation": "far"}, "'auto' or a positive number"),
        ({"extrapolation": "0"}, "positive number"),
        ({"extrapolation": "2"}, "sphere has no origin"),
        ({"background": "scenry"}, "Did you mean 'scenery'"),
        ({"resize": "fit"}, "'squash' or 'crop'"),
        ({"image_size": 3}, "multiple of the model's patch"),
        ({"templates": "phto"}, "Did you mean 'photo'"),
    ],
)
def test_wrong_settings_are_told(colours, listed, tokenizer, more: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(colours(POINTS), tokenizer, listed([halves(0, 1)], classes=CLASSES), **more)


def test_sets_that_cannot_be_measured_are_told(colours, listed, tokenizer) -> None:
    with pytest.raises(ValueError, match="fewer than two classes"):
        run(colours(POINTS), tokenizer, listed([halves(0, 0)], classes=("background",)))
    with pytest.raises(ValueError, match="needs two or more"):
        run(colours(POINTS, Euclidean()), tokenizer, listed([halves(0, 1)], classes=CLASSES))


def test_lists_of_backgrounds(tmp_path: Path) -> None:
    assert read_background("name") == ("background",)
    assert len(set(BACKGROUNDS["scenery"])) == 26
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_background(str(tmp_path / "none.txt"))
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no name in this file"):
        read_background(str(tmp_path / "empty.txt"))


# Whole models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifold", ["sphere", "lorentz", "euclidean"])
def test_saved_settings_say_the_size_that_was_used(manifold: str, listed) -> None:
    samples = listed([Sample(str(i), noise(40, 30, i), mask=Image.fromarray(np.full((30, 40), i % 3, np.uint8)))
                      for i in range(4)], classes=CLASSES)  # fmt: skip
    spec = EvalSpec(task="segmentation", data=samples, background="name")
    (result,) = evaluate(small_model(manifold), Tokenizer(40), [spec], show_progress=False)
    assert result.settings["image_size"] == result.outcome.details["side"] == 48
    assert result.outcome.n == (4 if manifold == "sphere" else 2)
    assert 0 <= result.outcome.scores["mean_iou"] <= 100


@pytest.mark.skipif("HYVLM_TEST_DATA" not in os.environ, reason="needs real photographs")
def test_real_masks() -> None:
    samples = open_data(f"voc:{Path(os.environ['HYVLM_TEST_DATA']) / 'voc-mini'}", content="masks")
    spec = EvalSpec(task="segmentation", data=samples, image_size=32, extrapolation="1")
    (result,) = evaluate(small_model(), Tokenizer(40), [spec], show_progress=False)
    outcome = result.outcome
    assert outcome.n == 76
    shares = list(outcome.details["pixels_percent"].values())
    assert (len(shares), sum(shares)) == (21, pytest.approx(100))
    assert shares[0] > 50  # background
    assert 0 < outcome.scores["mean_iou"] < 15  # an untrained model
