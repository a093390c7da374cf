"""Which pairs of views an objective measures, and how the objective of a saved model is found."""

from pathlib import Path

import pytest
import torch

from hyvlm.config import load_config, to_yaml
from hyvlm.diagnostics.relations import Pair, objective_of, relations_of, run_of
from hyvlm.methods import OBJECTIVES
from hyvlm.models import build_model
from hyvlm.training.checkpoint import State, save_checkpoint
from hyvlm.types import Views

WHOLES, ALL = ("image", "text"), ("image", "text", "part_image", "part_text")
ANGLE, CONE, EVERYTHING = (
    ("exterior_angle",),
    ("exterior_angle", "aperture"),
    ("distance", "exterior_angle", "aperture"),
)
D = ("distance",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("clip", {"image -> text": D}),
        ("meru", {"text ⊒ image": EVERYTHING}),
        (
            "hycoclip",
            {
                "text ⊒ image": EVERYTHING,
                "part_text ⊒ part_image": CONE,
                "part_image ⊒ image": CONE,
                "part_text ⊒ text": CONE,
                "part_image -> text": D,
                "part_text -> image": D,
            },
        ),
        (
            "argent",  # no cones; distances weigh the angles within a modality (last rows of Fig. 6)
            {
                "text ⊒ image": ("distance", "exterior_angle"),
                "part_text ⊒ part_image": ANGLE,
                "part_image ⊒ image": ("distance", "exterior_angle"),
                "part_text ⊒ text": ("distance", "exterior_angle"),
                "part_image -> text": D,
                "part_text -> image": D,
            },
        ),
        (
            "uncha",
            {
                "text ⊒ image": EVERYTHING,
                "part_text ⊒ part_image": EVERYTHING,
                "part_image ⊒ image": CONE,
                "part_text ⊒ text": CONE,
                "part_image -> text": D,
                "part_text -> image": D,
            },
        ),
        ("atmg", {"image -> text": ANGLE, "text -> image": ANGLE}),
    ],
)
def test_every_relation_is_listed_once_with_what_it_measures(name: str, expected: dict[str, tuple[str, ...]]) -> None:
    found = relations_of(OBJECTIVES[name](), ALL)
    assert {pair.name: pair.quantities for pair in found.pairs} == expected
    assert len(found.pairs) == len(expected)


def test_terms_that_relate_no_two_views_are_left_out_with_the_reason() -> None:
    assert relations_of(OBJECTIVES["argent"](), ALL).left_out == ("norm: relates no two views",)
    assert relations_of(OBJECTIVES["hycoclip"](), ALL).left_out == ()


def test_terms_whose_views_are_missing_are_left_out_with_the_reason() -> None:
    found = relations_of(OBJECTIVES["hycoclip"](), WHOLES)
    assert [pair.name for pair in found.pairs] == ["text ⊒ image"]
    assert "part_text ⊒ part_image: needs points of part_text, part_image, which are not collected" in found.left_out
    assert len(found.left_out) == 5


def test_queries_tokens_and_teachers_are_not_at_hand() -> None:
    queries = relations_of(OBJECTIVES["hyper3"](), ALL)
    assert len(queries.pairs) == 6
    lost = "query_text ⊒ parent query_text: needs points of query_text, which are not collected"
    assert lost in queries.left_out
    tokens = relations_of(OBJECTIVES["hyfl"](), WHOLES)
    assert [pair.name for pair in tokens.pairs] == ["image -> text"]
    assert any(reason.startswith("tokens of image ⊒ image: needs single tokens") for reason in tokens.left_out)
    assert any("needs a teacher's features" in reason for reason in tokens.left_out)


def test_parts_meet_the_wholes_that_own_them() -> None:
    image, text = torch.arange(6.0).reshape(3, 2), torch.arange(6.0).reshape(3, 2) + 100
    part = torch.arange(8.0).reshape(4, 2) + 50
    owner = torch.tensor([2, 0, 0, 1])
    views = Views.single(image, text, part, -part, owner)
    general, specific = Pair("part_image", "text", D).rows(views)
    assert torch.equal(general, part)
    assert torch.equal(specific, text[owner])
    general, specific = Pair("text", "image", D).rows(views)
    assert torch.equal(general, text)
    assert torch.equal(specific, image)
    general, specific = Pair("part_text", "part_image", D).rows(views)
    assert torch.equal(general, -part)
    assert torch.equal(specific, part)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of UNCHA with settings of its own, saved after its temperatures have moved."""
    config = load_config("uncha-tiny", ["objective.alpha=0.3", "data.train=scenes", "train.steps=1"])
    torch.manual_seed(0)
    model = build_model({"model": config.model, "manifold": config.manifold, "image_size": 32})
    objective = OBJECTIVES["uncha"](alpha=0.3)
    with torch.no_grad():
        objective.log_scale["global"].fill_(4.0)
    folder = tmp_path / "my run"
    folder.mkdir()
    save_checkpoint(folder, model, objective, State(1, 1, {}, [torch.get_rng_state()]), keep=1)
    (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    return folder


def test_a_checkpoint_brings_its_own_objective_and_temperatures(run: Path) -> None:
    step = run / "checkpoints" / "step_0000001"
    for path in (run, run / "checkpoints", step, step / "model.safetensors"):
        assert run_of(path) == run
        found = objective_of(path)
        assert found.source == "uncha, which trained my run"
        assert found.trained
        assert found.objective.log_scale["global"].item() == 4.0
        losses = {term.loss.alpha for term in found.objective.terms if hasattr(term, "loss")}
        assert losses == {0.3}
    assert objective_of(run, name="uncha").trained


def test_another_objective_can_be_asked_for(run: Path) -> None:
    found = objective_of(run, name="meru")
    assert (found.source, found.trained, len(found.objective.terms)) == ("meru, as asked for", False, 3)


def test_without_a_run_the_objective_is_assumed_and_said_to_be(run: Path) -> None:
    (run / "config.yaml").unlink()
    assert run_of(run) is None
    for parts, name in ((False, "meru"), (True, "hycoclip")):
        found = objective_of(run, parts=parts)
        assert found.source == f"{name}, assumed: the run that trained the model is not known"
        assert not found.trained
        assert relations_of(found.objective, ALL) == relations_of(OBJECTIVES[name](), ALL)
    assert run_of("open_clip:ViT-B-32/openai") is None


def test_bad_names_paths_and_files_are_one_sentence(run: Path) -> None:
    with pytest.raises(ValueError, match="unknown objective 'mero'"):
        objective_of(run, name="mero")
    with pytest.raises(FileNotFoundError, match="no model at"):
        objective_of(run / "nothing")
    file = run / "checkpoints" / "step_0000001" / "objective.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(ValueError, match="cut short"):
        objective_of(run)
    file.unlink()
    assert not objective_of(run).trained
