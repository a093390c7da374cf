"""Runs that begin as another model: what they take over, their teacher, and that they resume exactly."""

import json
import shutil

import pytest
import torch

import hyvlm
from hyvlm.config import load_config
from hyvlm.training.checkpoint import checkpoint_folders
from hyvlm.training.dry_run import dry_run
from hyvlm.training.train_step import cut_tokens
from hyvlm.training.trainer import START, Trainer, train

SMALL = [
    "data.train=scenes-long:24",
    "data.workers=0",
    "train.batch_size=8",
    "train.save_every=2",
    "train.log_every=1",
    "eval=[]",
]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A CLIP of 77 tokens that has seen two steps."""
    return train(load_config("clip-long-tiny", [*SMALL, "train.steps=2"]), tmp_path_factory.mktemp("clip") / "run")


def config(start, *overrides, recipe="hyfl-tiny"):
    return load_config(recipe, [*SMALL, f"model.init={start}", "train.steps=4", *overrides])


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_run_begins_as_its_start_with_longer_positions(clip, tmp_path):
    start, _, _ = hyvlm.load(clip)
    trainer = Trainer(config(clip), tmp_path / "run")
    model, teacher = trainer.module.model, trainer.module.teacher
    assert trainer.tokenizer.context_length == model.text_tower.context_length == 248
    assert teacher.text_tower.context_length == 77
    assert torch.equal(model.text_tower.positional_embedding[:20], start.text_tower.positional_embedding[:20])
    for key, value in start.image_tower.state_dict().items():
        assert torch.equal(model.image_tower.state_dict()[key], value)
        assert torch.equal(teacher.image_tower.state_dict()[key], value)
    scales = model.image_log_scale, model.text_log_scale
    assert all(scale.item() == pytest.approx(-0.5 * torch.tensor(128.0).log().item()) for scale in scales)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_the_teacher_stays_as_it_was_and_is_kept_with_the_run(clip, tmp_path):
    run = train(config(clip), tmp_path / "run")
    expected = hyvlm.load(clip)[0].state_dict()
    for key, value in hyvlm.load(run / START)[0].state_dict().items():
        assert torch.equal(value, expected[key])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[-1]["term/distillation short_text -> image"] > 0
    assert 0 <= rows[-1]["saturated/tokens of text"] <= 1
    assert rows[-1]["temperature/global"] == pytest.approx(0.07)
    model, _, tokenizer = hyvlm.load(run)
    with torch.no_grad():
        assert model.encode_text(tokenizer(["word " * 300])).isfinite().all()


def test_a_resumed_run_needs_its_own_folder_alone(clip, tmp_path):
    start = shutil.copytree(clip, tmp_path / "start")
    whole = train(config(start), tmp_path / "whole")
    stopped = train(config(start), tmp_path / "stopped")
    shutil.rmtree(checkpoint_folders(stopped)[-1])
    shutil.rmtree(start)
    resumed = train(config(start), stopped, resume=stopped)
    assert losses(resumed) == losses(whole)
    final = [hyvlm.load(run)[0].state_dict() for run in (whole, resumed)]
    assert all(torch.equal(final[0][key], final[1][key]) for key in final[0])


def test_another_start_does_not_change_the_teacher_of_a_resumed_run(clip, tmp_path, capfd):
    run = train(config(clip), tmp_path / "run")
    shutil.rmtree(checkpoint_folders(run)[-1])
    train(config("elsewhere"), run, resume=run)
    assert f"-> elsewhere (not read: the run began as {run / START})" in " ".join(capfd.readouterr().err.split())
    shutil.rmtree(checkpoint_folders(run)[-1])
    shutil.rmtree(run / START)
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        train(config("elsewhere"), run, resume=run)
    train(config(clip), run, resume=run)
    assert f"{run / START} is missing" in " ".join(capfd.readouterr().err.split())
    assert (run / START).is_dir()


@pytest.mark.parametrize(("caption", "count"), [("first", 32), ("last", 0)])
def test_texts_without_a_shorter_one_are_counted_and_said(caption, count, clip, tmp_path, capfd):
    run = train(config(clip, f"data.caption={caption}"), tmp_path / "run")
    last = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["short_is_whole"] == count
    assert ("has a shorter one" in capfd.readouterr().err) == bool(count)


def test_a_hyperbolic_start_is_no_teacher_but_a_start(clip, tmp_path):
    settings = ["manifold={name: lorentz, c: 2.0}", "objective={name: meru}", "train.steps=2"]
    meru = train(load_config("clip-long-tiny", [*SMALL, *settings]), tmp_path / "meru")
    with pytest.raises(ValueError, match=r"lives on a Lorentz manifold.*objective\.distill_weight=0"):
        Trainer(config(meru), tmp_path / "run")
    trainer = Trainer(config(meru, "objective.distill_weight=0"), tmp_path / "run")
    assert trainer.module.teacher is None
    assert trainer.module.model.manifold.c.item() == pytest.approx(hyvlm.load(meru)[0].manifold.c.item())


def test_the_plain_long_text_contrast_starts_from_the_same_model(clip, tmp_path):
    overrides = ["objective={name: clip}", "manifold={name: sphere}", "train.steps=2"]
    run = train(config(clip, *overrides), tmp_path / "run")
    assert hyvlm.load(run)[0].text_tower.context_length == 248


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.init=/nowhere/at/all"], "/nowhere/at/all"),
        (["model.init=open_clip:ViT-B-17"], "unknown open_clip model 'ViT-B-17'. Did you mean"),
        (["model.init=open_clip:ViT-B-16/laion9"], "laion9"),
        (["model.dim=64"], "unknown setting beside model.init 'model.dim'"),
        (["model.text.width=64"], "unknown setting beside model.init 'model.text.width'"),
        (["model.text.context_length=1"], "model.text.context_length must be"),
        (["model={preset: tiny}"], "the objective distills from the model that it starts from"),
        (["data.short_text=first_word"], "unknown data.short_text 'first_word'"),
        (["model.init=null"], "model.init names a model, .* got None"),
        (["model.init={a: 1}"], "model.init names a model, .* got {'a': 1}"),
        (["model.text=3"], "model.text must be a section"),
        (["model.text=null"], "model.text must be a section"),
        (["data.image_size=50"], "data.image_size must be a multiple of the model's patch, 8 pixels, got 50"),
        (["objective={name: uncha}", "data.part_size=50"], "data.part_size must be a multiple"),
        (["manifold={name: sphere}"], "'tokens of text ⊒ text' needs entailment cones, .*: set its weight to 0"),
        (["manifold={name: sphere}", "objective.entail_weight=0"], "needs a radius, which Sphere does not have"),
    ],
)
def test_a_start_that_cannot_be(clip, tmp_path, overrides, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Trainer(config(clip, *overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_cost_of_a_run_is_measured_and_nothing_written(clip, tmp_path):
    cost = dry_run(config(clip), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert cost["parameters_frozen"] > 0
    assert cost["epochs"] == pytest.approx(4 * 8 / 24)
    assert cost["flops_total"] == cost["flops_per_sample"] * 4 * 8
    without = dry_run(config(clip, "objective.distill_weight=0", "objective.short_weight=0"), tmp_path / "run")
    assert 0 < without["flops_per_sample"] < cost["flops_per_sample"]
    assert without["parameters_frozen"] == 1  # the temperature


def test_cut_tokens_keep_their_end():
    tokens = torch.tensor([[9, 1, 2, 3, 10], [9, 1, 10, 0, 0], [9, 10, 0, 0, 0]])
    assert cut_tokens(tokens, 3).tolist() == [[9, 1, 10], [9, 1, 10], [9, 10, 0]]
    assert cut_tokens(tokens, 5) is tokens


def test_score_and_readout_may_change_beside_a_starting_model(clip, tmp_path):
    scoring = ["model.score=exterior_angle", "model.readout=published"]
    changes = ["objective={name: atmg}", "manifold={name: lorentz, c: 0.1, learn: false}", *scoring]
    model, _, _ = hyvlm.load(train(config(clip, *changes, "train.steps=1"), tmp_path / "run"))
    assert model.by_angle
    assert not model.as_trained
    assert not hyvlm.load(clip)[0].by_angle
