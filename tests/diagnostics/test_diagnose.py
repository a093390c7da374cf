"""The whole diagnosis of tiny models on a few scenes: what it holds, what it leaves out, and what it says of it."""

import json
from pathlib import Path

import pytest
import torch

import hyvlm
from hyvlm.config import load_config, to_yaml
from hyvlm.data.catalog import open_data
from hyvlm.diagnostics.diagnose import diagnose
from hyvlm.diagnostics.diagnosis import json_safe
from hyvlm.diagnostics.verdict import Thresholds
from hyvlm.evaluation import EvalSpec
from hyvlm.models import Tokenizer, build_model, save_model

IMAGE = {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2}
TEXT = {"width": 16, "depth": 1, "heads": 2}
DATA = {"data": "scenes:8", "split": "train", "captions": "last"}


def saved(folder: Path, manifold: str = "lorentz", *, damage: str | None = None, **settings: object) -> str:
    """A saved model; ``damage`` is a word without finite embedding."""
    torch.manual_seed(0)
    config = {"model": {"image": IMAGE, "text": TEXT, "dim": 8}, "manifold": {"name": manifold, **settings}}
    model = build_model(config)
    if damage is not None:
        with torch.no_grad():
            model.text_tower.token_embedding.weight[Tokenizer()([damage])[0, 1]] = float("nan")
    return str(save_model(model, folder))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    kinds = {"lorentz": {}, "nearly": {"c": 1e-3, "bounds": [1e-4, 1.0]}, "product": {"factors": 4}, "euclidean": {}}
    found = {name: saved(root / name, "lorentz" if name == "nearly" else name, **kinds[name]) for name in kinds}
    return {**found, "sphere": saved(root / "sphere", "sphere")}


def test_a_model_and_its_control_in_one_value(models: dict[str, str], tmp_path: Path) -> None:
    found = diagnose(models["lorentz"], **DATA, control=models["euclidean"])
    model, control = found.model, found.control
    assert control is not None
    assert (model.name, control.name) == ("lorentz", "euclidean")
    assert (found.samples, found.total) == (8, 8)
    assert model.curvature == [1.0]
    assert model.curvature_floor == 0.1
    views = {"image", "text", "part_image", "part_text"}
    assert {r.view for r in model.radii} == {p.view for p in model.operating_points} == set(model.points) == views
    assert {(r.relation, r.quantity) for r in model.ratios} >= {
        ("text ⊒ image", "distance"),
        ("text ⊒ image", "exterior_angle"),
        ("part_image ⊒ image", "aperture"),
        ("part_text -> image", "distance"),
    }
    assert all(1 <= r.low <= r.high for r in model.ratios if r.quantity == "distance")
    assert [(s.relation, s.quantity) for s in model.surfaces] == [
        (r.relation, r.quantity) for r in model.ratios if r.quantity != "aperture"
    ]
    assert {a.view for a in model.apertures} == {"text", "part_text", "part_image"}
    assert model.gradients is not None
    assert sum(t.share or 0 for t in model.gradients.terms) == pytest.approx(1)
    assert {r.task for r in found.readout.rows} == {"classification", "retrieval", "hierarchy"}
    assert all(r.control is not None and r.without_map is not None for r in found.readout.rows)
    assert (control.ratios, control.surfaces, control.apertures, control.curvature) == ([], [], [], [])
    assert [(r.view, r.mean) for r in control.radii] == [(r.view, pytest.approx(r.mean)) for r in model.radii]
    plain = json.loads(found.write(tmp_path / "out").read_text(encoding="utf-8"))
    assert plain == found.to_dict()
    assert plain["verdict"]["thresholds"] == {"tolerance": 0.05, "max_change": 1.0}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["diagnosis.json"]


def test_a_space_that_is_nearly_flat_is_found_so_and_a_curved_one_not(models: dict[str, str]) -> None:
    flat = diagnose(models["nearly"], **DATA)
    assert flat.verdict.weakly_hyperbolic is True
    assert all(r.points in (None, 0.0) for r in flat.readout.rows)
    curved = diagnose(models["lorentz"], **DATA, thresholds=Thresholds(tolerance=1e-3))
    assert curved.verdict.weakly_hyperbolic is False
    assert "1 ± 0.001" in curved.verdict.sentence


def test_a_product_has_a_curvature_a_factor(models: dict[str, str]) -> None:
    found = diagnose(models["product"], **DATA, tasks=["retrieval"], objective="hycoclip")
    assert found.model.manifold == "productlorentz"
    assert found.model.curvature == [1.0] * 4
    assert found.model.objective is not None
    assert "hycoclip" in found.model.objective
    assert next(r for r in found.model.ratios if r.relation == "text ⊒ image").n == 8 * 4


def test_both_quantities_of_the_text_and_its_image_are_measured_whatever_the_objective(models: dict[str, str]) -> None:
    found = diagnose(models["lorentz"], **DATA, tasks=["retrieval"], objective="clip")
    assert {r.quantity for r in found.model.ratios} == {"distance", "exterior_angle"}
    assert found.verdict.evidence.exterior_angle is not None


@pytest.mark.parametrize(
    ("kind", "applies", "radii"),
    [
        ("euclidean", "scores, radii, saturation and effective rank apply", 4),
        ("sphere", "scores and effective rank", 0),
    ],
)
def test_a_model_without_a_map_is_told_what_applies(
    models: dict[str, str], kind: str, applies: str, radii: int
) -> None:
    found = diagnose(models[kind], **DATA)
    assert found.verdict.weakly_hyperbolic is None
    assert applies in found.verdict.sentence
    assert found.verdict.sentence.removeprefix("cannot tell: ") in found.model.notes
    assert len(found.model.radii) == radii
    assert len(found.model.operating_points) == 4
    assert found.model.ratios == []
    assert found.model.gradients is None
    assert all(r.with_map is not None and r.without_map is None for r in found.readout.rows)


def test_a_run_folder_gives_objective_part_size_and_trajectories(tmp_path: Path, models: dict[str, str]) -> None:
    run = tmp_path / "run"
    model, _, _ = hyvlm.load(models["lorentz"])
    save_model(model, run / "checkpoints" / "step_0000002")
    config = load_config("meru-tiny", ["data.part_size=8", "objective.entail_weight=0.3"])
    (run / "config.yaml").write_text(to_yaml(config))
    lines = [{"step": step, "loss": 3.0 - step, "c": 1 - 0.1 * step} for step in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = diagnose(run, **DATA, tasks=["retrieval"])
    assert found.model.trajectories is not None
    assert found.model.trajectories.by_name["c"].values == pytest.approx([0.9, 0.8])
    assert found.model.objective is not None
    assert "meru" in found.model.objective
    assert found.model.gradients is not None
    assert {t.term: t.weight for t in found.model.gradients.terms}["text ⊒ image"] == 0.3
    other = diagnose(models["lorentz"], **DATA, tasks=["retrieval"], part_size=8)
    means = {r.view: r.mean for r in found.model.radii}
    assert means["part_image"] == pytest.approx({r.view: r.mean for r in other.model.radii}["part_image"])
    (run / "metrics.jsonl").unlink()
    assert any("no trajectories" in note for note in diagnose(run, **DATA, tasks=["retrieval"]).model.notes)


def test_points_that_are_not_finite_are_counted_and_left_out(tmp_path: Path) -> None:
    samples = open_data("scenes:8", split="train")
    captions = [samples[i].texts[-1].lower() for i in range(8)]
    words = {word for caption in captions for word in caption.replace(",", " ").split()}
    shares = {word: sum(word in c.replace(",", " ").split() for c in captions) for word in words}
    word = next(word for word, share in sorted(shares.items()) if 1 <= share <= 4)
    found = diagnose(saved(tmp_path / "model", damage=word), **DATA)
    assert found.model.not_finite["text"] == shares[word]
    assert found.samples == 8 - shares[word]
    assert found.skipped["points that are not finite"] == shares[word]
    assert "retrieval on scenes:8" in found.readout.not_run
    assert found.verdict.weakly_hyperbolic is not True
    json.dumps(found.to_dict(), allow_nan=False)


def test_what_is_wrong_with_the_points_of_a_control_names_the_control(models: dict[str, str], tmp_path: Path) -> None:
    broken = saved(tmp_path / "broken", damage="")  # the token that ends every text
    with pytest.raises(ValueError, match=r"^broken: a diagnosis needs at least 2 usable samples, scenes:8 gives 0: "):
        diagnose(models["lorentz"], control=broken, **DATA)


def test_a_limit_holds_for_points_and_tasks(models: dict[str, str]) -> None:
    found = diagnose(models["lorentz"], **{**DATA, "data": "scenes:40"}, limit=6)
    assert found.samples == 6
    assert {r.n for r in found.readout.rows} == {6}


def test_tasks_may_bring_their_own_data_and_settings(models: dict[str, str]) -> None:
    own = EvalSpec("retrieval", "scenes:5", split="train", captions="joined")
    found = diagnose(models["lorentz"], **DATA, tasks=["classification=scenes:6", own])
    assert list(dict.fromkeys((r.task, r.data) for r in found.readout.rows)) == [
        ("classification", "scenes:6"),
        ("retrieval", "scenes:5"),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "hycolcip"}, "unknown objective 'hycolcip'. Did you mean 'hycoclip'"),
        ({"captions": "frist"}, "unknown choice of captions 'frist'"),
        ({"captions": "all"}, "one caption"),
        ({"tasks": ["retreival"]}, "unknown task 'retreival'"),
        ({"tasks": "retreival"}, "unknown task 'retreival'"),
        ({"data": "scenez"}, "unknown dataset 'scenez'"),
        ({"split": "tset"}, "tset"),
        ({"readout": "publised"}, "unknown readout 'publised'"),
        ({"limit": 1}, "at least 2 samples"),
        ({"data": "scenes:1"}, "at least 2 usable samples, scenes:1 gives 1"),
        ({"control": "nowhere"}, "no model at 'nowhere'"),
        ({"tasks": ["retrieval=scenez"]}, "unknown dataset 'scenez'"),
    ],
)
def test_what_is_wrong_is_one_line(models: dict[str, str], changes: dict, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        diagnose(models["lorentz"], **{**DATA, **changes})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_without_captions_are_refused(models: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    with pytest.raises(ValueError, match="folder"):
        diagnose(models["lorentz"], f"folder:{tmp_path}")


def test_numbers_that_are_not_finite_are_null() -> None:
    plain = json_safe({"a": [float("nan"), 1.0], "b": (float("inf"), {"c": "x"}), 3: None})
    assert plain == {"a": [None, 1.0], "b": [None, {"c": "x"}], "3": None}
