"""Reading a model without its exponential map: one pass over the images, the right points, rows that can be checked."""

from collections.abc import Sequence

import pytest
import torch
from PIL import Image
from torch import Tensor

from hyvlm.data.catalog import SampleSet, open_data
from hyvlm.diagnostics.readout import ReadoutRow, has_map, plan_readout, readout_ablation, without_map
from hyvlm.diagnostics.subset import spread
from hyvlm.evaluation import TASKS, Embedder, EvalSpec
from hyvlm.models import DualEncoder, Tokenizer, build_model
from hyvlm.types import Sample

IMAGE = {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2}
TEXT = {"width": 16, "depth": 1, "heads": 2}
#: Tangent vectors at c = 1. Flat, B is closer to the first image than A is (1.9 and 2); curved, it is further (2.63).
FIRST, A = (2.0, 0.0), (4.0, 0.0)
B = (1.0975, 1.6720)
POINT_OF_SHADE = {0: FIRST, 255: B}
POINT_OF_TEXT = {"a": A, "b": B}


class TwoImages(SampleSet):
    """A black image with caption "a", a white one with caption "b"."""

    name, split, fingerprint = "two", "test", "two"

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Sample:
        return Sample(str(index), Image.new("RGB", (16, 16), (255 * index,) * 3), texts=["ab"[index]])


def tiny(manifold: str = "lorentz", dim: int = 8, **settings: object) -> DualEncoder:
    torch.manual_seed(0)
    config = {"model": {"image": IMAGE, "text": TEXT, "dim": dim}, "manifold": {"name": manifold, **settings}}
    return build_model(config).eval()


def by_hand() -> tuple[DualEncoder, dict[str, int]]:
    """A model whose tangent vectors are those above, and counts of what passed through its towers."""
    model, passed, tokenizer = tiny(dim=2), {"images": 0, "texts": 0}, Tokenizer()
    with torch.no_grad():
        model.image_log_scale.zero_()
        model.text_log_scale.zero_()
    texts = {tuple(tokenizer([text])[0].tolist()): point for text, point in POINT_OF_TEXT.items()}

    def image_features(pixels: Tensor) -> Tensor:
        passed["images"] += len(pixels)
        return torch.tensor([POINT_OF_SHADE[int(image.max())] for image in pixels])

    def text_features(tokens: Tensor) -> Tensor:
        passed["texts"] += len(tokens)
        return torch.tensor([texts[tuple(row.tolist())] for row in tokens])

    model.image_features, model.text_features = image_features, text_features
    return model, passed


def embedder(model: DualEncoder) -> Embedder:
    return Embedder(model, Tokenizer(), batch_size=16, show_progress=False)


def row(unit: str, with_map: float, without: float, metric: str = "acc1") -> ReadoutRow:
    return ReadoutRow("t", "d", "s", metric, unit, 10, with_map, without, without - with_map, None)


@pytest.mark.parametrize(
    ("manifold", "settings"), [("lorentz", {}), ("lorentz", {"c": 4.0}), ("product", {"factors": 4}), ("euclidean", {})]
)
def test_points_without_the_map_are_those_that_the_flat_model_gives(manifold: str, settings: dict) -> None:
    model, samples = tiny(manifold, **settings), open_data("scenes:5", split="train")
    bare, flat = without_map(embedder(model)), embedder(model.flat())
    for images in (lambda e: e.images(samples, parts=True), lambda e: e.images(samples, resize="crop")):
        found, expected = images(bare), images(flat)
        torch.testing.assert_close(found.points, expected.points, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(found.part_points, expected.part_points, atol=2e-6, rtol=1e-5)
        assert found.part_owner.tolist() == expected.part_owner.tolist()
    names, prompts = ["cube", "ball"], ["a {}.", "the {}."]
    torch.testing.assert_close(bare.texts(names), flat.texts(names), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(
        bare.class_points(names, prompts), flat.class_points(names, prompts), atol=2e-6, rtol=1e-5
    )
    assert has_map(model) == (manifold != "euclidean")
    assert not has_map(bare.model)


def test_a_score_that_hangs_on_the_curvature_moves_and_the_towers_work_once() -> None:
    model, passed = by_hand()
    plan = plan_readout([EvalSpec("retrieval", TwoImages())], model)
    found = readout_ablation(embedder(model), plan)
    moved = {r.metric: (r.with_map, r.without_map, r.difference) for r in found.rows if r.difference}
    assert moved == {"i2t_recall@1": (100.0, 50.0, -50.0)}  # the first image takes B for its caption
    assert found.largest_change is not None
    assert found.largest_change.metric == "i2t_recall@1"
    assert {(r.task, r.data, r.split, r.unit, r.n) for r in found.rows} == {("retrieval", "two", "test", "%", 2)}
    assert passed == {"images": 2, "texts": 2}


def test_a_control_is_read_as_it_is() -> None:
    model, _ = by_hand()
    plan = plan_readout([EvalSpec("retrieval", TwoImages())], model)
    found = readout_ablation(embedder(model), plan, control=embedder(model.flat()))
    assert [r.control for r in found.rows] == [r.without_map for r in found.rows]


def test_radii_do_not_depend_on_the_map() -> None:
    model = tiny("lorentz")
    plan = plan_readout([EvalSpec("order", "scenes:5", split="train")], model)
    radii = [r for r in readout_ablation(embedder(model), plan).rows if r.metric.startswith("mean_radius")]
    assert len(radii) == 4
    assert all(abs(r.difference or 0) < 1e-6 and r.points is None for r in radii)


def specs_of(tasks: Sequence[str]) -> list[EvalSpec]:
    own = {
        "hard-negatives": {"negatives": "generate"},
        "perturbed-retrieval": {"seeds": 1},
        "perturbed-ranks": {"seeds": 1},
    }
    data = {"part-matching": ("scenes-parts", None), "multi-object": ("scenes-objects:40", None)}
    return [EvalSpec(task, *data.get(task, ("scenes:5", "train")), **own.get(task, {})) for task in tasks]


@pytest.mark.parametrize("manifold", ["lorentz", "product"])
def test_every_task_can_be_read_both_ways(manifold: str) -> None:
    model = tiny(manifold, **({"factors": 4} if manifold == "product" else {}))
    tasks = [task for task in TASKS if task != "blip-vqa"]  # which needs a model that is not here
    found = readout_ablation(embedder(model), plan_readout(specs_of(tasks), model, limit=40))
    assert found.not_run == {}
    assert list(dict.fromkeys(r.task for r in found.rows)) == tasks
    both = [r for r in found.rows if r.with_map is not None and r.without_map is not None]
    assert len(both) > 40
    assert all(r.difference == r.without_map - r.with_map for r in both)


def test_what_cannot_be_served_is_listed_or_an_error() -> None:
    model, data = tiny("lorentz"), TwoImages()
    specs = [EvalSpec(task, data) for task in ("classification", "retrieval", "order")]
    plan = plan_readout(specs, model, must_run=False)
    found = readout_ablation(embedder(model), plan, control=embedder(tiny("sphere")))
    assert {r.task for r in found.rows} == {"retrieval"}
    assert "has no class names" in found.not_run["classification on two"]
    assert "order on two" in found.not_run  # known once it runs: no sample has a part
    with pytest.raises(ValueError, match="two has no class names"):
        plan_readout(specs, model)
    with pytest.raises(ValueError, match="unknown task 'retreival'"):
        plan_readout([EvalSpec("retreival", data)], model, must_run=False)


def test_a_control_that_cannot_do_a_task_leaves_its_column_empty() -> None:
    model = tiny("lorentz")
    plan = plan_readout([EvalSpec("order", "scenes:5", split="train")], model)
    found = readout_ablation(embedder(model), plan, control=embedder(tiny("sphere")))
    assert found.rows
    assert all(r.control is None for r in found.rows)
    assert "Sphere have no radius" in found.not_run["order on scenes:5 (control)"]


def test_a_model_without_a_map_has_one_column() -> None:
    for manifold in ("sphere", "euclidean"):
        model = tiny(manifold)
        found = readout_ablation(embedder(model), plan_readout([EvalSpec("retrieval", TwoImages())], model))
        assert all(r.with_map is not None and r.without_map is None and r.difference is None for r in found.rows)
        assert found.largest_change is None
    with pytest.raises(ValueError, match="Sphere has no exponential map"):
        without_map(embedder(tiny("sphere")))


def test_differences_are_points_where_the_metric_is_a_share() -> None:
    assert row("%", 40.0, 41.5).points == pytest.approx(1.5)
    assert row("points", -2.0, -1.0).points == pytest.approx(1.0)
    assert row("", 0.5, 0.48).points == pytest.approx(-2.0)
    assert row("", 7.0, 7.5).points is None  # a mean rank
    assert row("edges", 3.0, 4.0).points is None
    assert row("%", 10.0, 60.0, metric="drop_shuffled").points is None
    assert row("%", 10.0, 60.0, metric="auroc_inner").points is None  # not the same function without the map
    assert row("%", 10.0, 60.0, metric="auroc_distance").points == pytest.approx(50.0)


def test_a_limit_keeps_samples_at_even_distances() -> None:
    samples = open_data("scenes:9", split="train")
    few = spread(samples, 3)
    assert [few[i].key for i in range(len(few))] == [samples[i].key for i in (0, 3, 6)]
    assert (few.name, few.split, few.classes) == (samples.name, samples.split, samples.classes)
    assert few.fingerprint != spread(samples, 4).fingerprint
    assert spread(samples, None) is samples
    assert spread(samples, 9) is samples
    with pytest.raises(ValueError, match="at least 2 samples, got a limit of 1"):
        spread(samples, 1)
