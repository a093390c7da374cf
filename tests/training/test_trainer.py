"""Whole runs on a handful of scenes: what they leave behind, and that stopping and resuming changes nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

import hyvlm
from hyvlm.config import load_config
from hyvlm.data.sets.scenes import describe_scene, render
from hyvlm.training.checkpoint import UNFINISHED, checkpoint_folders
from hyvlm.training.trainer import Trainer, train

SMALL = [
    "data.train=scenes:20",
    "data.workers=0",
    "train.batch_size=8",
    "train.steps=4",
    "train.save_every=2",
    "train.log_every=1",
    "eval=[]",
]


def config(*overrides, recipe="uncha-tiny"):
    return load_config(recipe, [*SMALL, *overrides])


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def losses(run):
    return [row["loss"] for row in rows(run) if "loss" in row]


@pytest.mark.parametrize("recipe", ["clip-tiny", "meru-tiny", "hycoclip-tiny", "uncha-tiny", "hyper3-tiny"])
def test_a_run_leaves_everything_that_is_needed_to_use_it(recipe, tmp_path):
    run = train(config(recipe=recipe), tmp_path / "run")
    assert load_config(str(run / "config.yaml")) == config(recipe=recipe)
    assert [p.name for p in checkpoint_folders(run)] == ["step_0000002", "step_0000004"]
    last = rows(run)[-1]
    assert last["step"] == 4
    assert last["epoch"] == pytest.approx(4 / 3)
    for key in ("loss", "lr", "samples_per_s", "memory_mb", "term/image -> text", "temperature/global"):
        assert last[key] > 0 or key == "lr", key
    if recipe != "clip-tiny":
        assert {"c", "radius/image", "radius/text", "saturated/text", "image_scale", "text_scale"} <= set(last)
    assert any((run / "tensorboard").iterdir())
    model, _, tokenizer = hyvlm.load(run)
    with torch.no_grad():
        assert model.encode_text(tokenizer(["a red metal cube"])).isfinite().all()


def test_evaluation_during_and_after_training(tmp_path):
    evaluation = "eval=[{task: retrieval, data: scenes, split: val}]"
    run = train(config(evaluation, "train.steps=2", "train.eval_every=1"), tmp_path / "run")
    assert any("eval/retrieval/scenes/t2i_recall@1" in row for row in rows(run) if row["step"] == 1)
    (result,) = json.loads((run / "results.json").read_text(encoding="utf-8"))["results"]
    assert result["n"] == result["total"] == 500


def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path):
    whole = train(config("train.steps=6"), tmp_path / "whole")
    stopped = train(config("train.steps=6"), tmp_path / "stopped", resume=None)
    for folder in checkpoint_folders(stopped)[1:]:  # as if it had been killed after step 4's checkpoint
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    resumed = train(config("train.steps=6"), tmp_path / "stopped", resume=tmp_path / "stopped")
    assert losses(resumed) == losses(whole)
    assert [row["step"] for row in rows(resumed)] == [1, 2, 3, 4, 5, 6]
    final = [hyvlm.load(run)[0].state_dict() for run in (whole, resumed)]
    assert all(torch.equal(final[0][key], final[1][key]) for key in final[0])


def test_a_run_that_was_killed_in_its_first_save_starts_again(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / f"{UNFINISHED}step_0000002").mkdir(parents=True)
    (run / "checkpoints" / f"{UNFINISHED}step_0000002" / "state.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="no checkpoint to resume from"):
        train(config("train.steps=2"), run, resume=run)
    train(config("train.steps=2"), run)
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_0000002"]


def test_a_logged_line_that_was_cut_short_is_dropped(tmp_path):
    run = train(config("train.steps=2"), tmp_path / "run")
    whole = losses(run)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 3, "los')
    assert losses(train(config("train.steps=3"), run, resume=run))[:2] == whole
    assert [row["step"] for row in rows(run)] == [1, 2, 3]


def test_a_checkpoint_that_was_cut_short_is_not_one(tmp_path):
    run = train(config("train.steps=2"), tmp_path / "run")
    (run / "checkpoints" / f"{UNFINISHED}step_0000004").mkdir()
    (run / "checkpoints" / "step_0000003").mkdir()  # without a state: not complete
    assert [p.name for p in checkpoint_folders(run)] == ["step_0000002"]
    state = run / "checkpoints" / "step_0000002" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        train(config(), run, resume=run)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"step": 2}', '{"step": null, "world_size": 1}', "[1"])
def test_a_checkpoint_whose_state_is_another_is_damaged(content, tmp_path):
    run = train(config("train.steps=2"), tmp_path / "run")
    (run / "checkpoints" / "step_0000002" / "state.json").write_text(content)
    with pytest.raises(ValueError, match=r"step_0000002 is damaged \(.*resume from an older one"):
        train(config(), run, resume=run)


def test_resume_with_another_objective_keeps_weights_and_optimizer(tmp_path, capfd):
    first = train(config(recipe="meru-tiny"), tmp_path / "meru")
    second = train(config("train.steps=6", recipe="uncha-tiny"), tmp_path / "uncha", resume=first)
    said = " ".join(capfd.readouterr().err.split())
    assert "starts afresh" in said
    assert "log_scale.local" in said
    assert "image_tower" not in said
    assert [row["step"] for row in rows(second)] == [5, 6]


def test_query_pooling_learns_in_training_and_is_no_part_of_the_model(tmp_path):
    run = train(config(recipe="hyper3-tiny"), tmp_path / "run")
    saved = load_file(checkpoint_folders(run)[-1] / "objective.safetensors")
    pooling = {key for key in saved if key.startswith("query_pooling.")}
    assert pooling
    model, _, _ = hyvlm.load(run)
    assert not any("pooling" in key for key in model.state_dict())
    resumed = train(config("train.steps=6", recipe="hyper3-tiny"), run, resume=run)
    after = load_file(checkpoint_folders(resumed)[-1] / "objective.safetensors")
    assert all(not torch.equal(saved[key], after[key]) for key in pooling)
    without = ["objective.image_text_weight=0", "objective.visual_weight=0", "objective.text_weight=0"]
    base = train(config(*without, recipe="hyper3-tiny"), tmp_path / "base")
    assert not any("pooling" in key for key in load_file(checkpoint_folders(base)[-1] / "objective.safetensors"))
    train(config("train.steps=6", recipe="hyper3-tiny"), tmp_path / "ablation", resume=base)


def test_an_interrupt_leaves_a_checkpoint_of_a_whole_step(tmp_path):
    """SIGINT to a real process: exit code 130, and the resumed run equals one that was never stopped."""
    overrides = [*SMALL, "train.steps=400", "train.save_every=1000"]
    run = tmp_path / "run"
    command = [sys.executable, "-m", "hyvlm", "train", "clip-tiny", *overrides, "--out", str(run)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (run / "metrics.jsonl").is_file():
        time.sleep(0.1)
    while time.monotonic() < deadline and not rows(run):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    (checkpoint,) = checkpoint_folders(run)
    step = int(checkpoint.name.removeprefix("step_"))
    assert f"saved step {step}" in said
    saved = losses(run)
    steps = [f"train.steps={step + 2}"]
    resumed = train(load_config("clip-tiny", [*SMALL, *steps]), run, resume=run)
    assert losses(resumed)[: len(saved)] == saved
    assert len(losses(resumed)) == step + 2


def test_a_resumed_run_says_which_settings_changed(tmp_path, capfd):
    run = train(config("train.steps=2"), tmp_path / "run")
    train(config("train.steps=3", "data.parts.max=1"), run, resume=run)
    said = capfd.readouterr().err
    assert "train.steps: 2 -> 3" in said
    assert "data.parts.max: 5 -> 1" in said
    assert "train.seed" not in said
    train(config("train.steps=4", "objective.alpha=0.2"), run, resume=run)
    assert "objective.alpha: default -> 0.2" in capfd.readouterr().err


def test_skipped_samples_are_named_once_and_counted(tmp_path, capfd):
    for i in range(4):
        scene, _ = render(describe_scene(i))
        scene.save(tmp_path / f"{i}.jpg")
    (tmp_path / "2.jpg").write_bytes(b"not an image")
    rows_of_table = "".join(f"{i}.jpg,picture {i}\n" for i in range(4))
    (tmp_path / "table.csv").write_text("image,caption\n" + rows_of_table)
    run = train(
        config(f"data.train='{tmp_path / 'table.csv'}'", "data.split=null", "train.batch_size=4", recipe="meru-tiny"),
        tmp_path / "run",
    )
    last = rows(run)[-1]
    (reason,) = [key for key in last if key.startswith("skipped/")]
    assert last[reason] == 4  # once an epoch
    assert last["texts_cut"] == last["lift_bounded"] == 0
    assert capfd.readouterr().err.count("warning: skipped") == 1


@pytest.mark.parametrize(
    ("settings", "counts", "said"),
    [
        ([], {"without_part": 0, "without_query": 0}, ()),
        (["data.queries.cap=1"], {"without_part": 0, "without_query": 24}, ("query that counts",)),
        (
            ["data.parts.max=0", "data.queries.cap=1"],
            {"without_part": 24, "without_query": 24},
            ("has a part", "query that counts"),
        ),
        (["objective={name: meru}", "data.parts.max=0"], {}, ()),
    ],
)
def test_a_set_without_what_relations_look_at_is_counted_and_said_once(settings, counts, said, tmp_path, capfd):
    run = train(config("data.train=scenes:24", "train.steps=3", *settings, recipe="hyper3-tiny"), tmp_path / "run")
    assert {key: value for key, value in rows(run)[-1].items() if key.startswith("without_")} == counts
    warnings = [line for line in capfd.readouterr().err.splitlines() if "warning: no sample of scenes:24" in line]
    assert len(warnings) == len(said)
    assert all(what in line for what, line in zip(said, warnings, strict=True))


@pytest.mark.parametrize("recipe", ["uncha-tiny", "hycoclip-tiny"])
def test_a_method_with_parts_trains_without_any(recipe, tmp_path):
    run = train(config("data.parts={max: 0, choice: first}", recipe=recipe), tmp_path / "run")
    assert rows(run)[-1]["term/part_image -> text"] == 0
    assert rows(run)[-1]["term/image -> text"] > 0


def test_a_set_without_one_usable_sample_stops_the_run(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(b"not an image")
    (tmp_path / "table.csv").write_text("image,caption\n0.jpg,a\n1.jpg,b\n2.jpg,c\n")
    with pytest.raises(ValueError, match=r"no sample of .* could be used: 3 image is of no known format"):
        train(config(f"data.train='{tmp_path / 'table.csv'}'", "data.split=null", recipe="meru-tiny"), tmp_path / "run")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{task: retreival, data: scenes}", "'retrieval'"),
        ("{task: retrieval, data: 'coco:/nowhere'}", "/nowhere"),
        ("{task: classification, data: scenes, templates: plane}", "'plain'"),
        ("{task: retrieval, data: scenes, split: trian}", "'train'"),
    ],
)
def test_a_wrong_evaluation_is_found_before_the_first_step(entry, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(config(f"eval=[{entry}]"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_in_the_way_of_the_run_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=r"cannot be a folder: .* is a file"):
            train(config(), out)


def test_a_taken_folder_and_a_finished_run_are_refused(tmp_path):
    run = train(config("train.steps=2"), tmp_path / "run")
    with pytest.raises(ValueError, match="--resume"):
        train(config("train.steps=2"), run)
    with pytest.raises(ValueError, match=r"train\.steps"):
        train(config("train.steps=2"), run, resume=run)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        train(config(), tmp_path / "other", resume=tmp_path / "nothing")
    other = train(config("train.steps=3"), tmp_path / "other")
    before = rows(other)
    with pytest.raises(ValueError, match=r"other already holds a run; continue it with --resume latest"):
        train(config("train.steps=4"), other, resume=run)
    assert rows(other) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can run float16")
def test_float16_is_refused_on_a_cpu(tmp_path):
    with pytest.raises(ValueError, match="fp16 needs a GPU"):
        train(config("train.precision=fp16"), tmp_path / "run")


def test_bfloat16_towers_keep_float32_losses_close(tmp_path):
    exact = train(config("train.steps=2"), tmp_path / "fp32")
    rounded = train(config("train.steps=2", "train.precision=bf16"), tmp_path / "bf16")
    assert losses(rounded) != losses(exact)
    assert losses(rounded) == pytest.approx(losses(exact), rel=0.02)


def test_a_scalar_at_its_bound_is_reported_once(tmp_path, capfd):
    train(config("manifold.bounds=[0.999999, 1.000001]", "train.lr=0.1", "train.warmup_steps=0"), tmp_path / "run")
    assert capfd.readouterr().err.count("log_c reached its bound") == 1


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(FloatingPointError, match="not finite at step"):
        train(config("train.lr=1e30", "train.warmup_steps=0", recipe="clip-tiny"), tmp_path / "run")


def test_gradient_clipping_changes_the_run(tmp_path):
    free = train(config("train.lr=0.01", "train.warmup_steps=0", "train.eps=0.1"), tmp_path / "free")
    held = train(
        config("train.lr=0.01", "train.warmup_steps=0", "train.eps=0.1", "train.max_grad_norm=1e-3"), tmp_path / "held"
    )
    assert losses(free)[0] == losses(held)[0]
    assert losses(free)[-1] != losses(held)[-1]


def test_two_processes_train_as_one(tmp_path):
    """torchrun with gloo on 9 samples in batches of 8: the last batch of an epoch leaves one process without any."""
    overrides = [*SMALL, "data.train=scenes:9"]
    alone = train(load_config("uncha-tiny", overrides), tmp_path / "alone")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hyvlm"]
    command += ["train", "uncha-tiny", *overrides, "--out", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(tmp_path / "two") == pytest.approx(losses(alone), rel=1e-4)
    assert losses(tmp_path / "two")[0] == pytest.approx(losses(alone)[0], rel=1e-6)


@pytest.mark.parametrize(
    ("recipe", "score", "trained"),
    [("atmg-tiny", "distance", "exterior_angle"), ("uncha-tiny", "exterior_angle", "distance")],
)
def test_a_model_must_rank_by_what_it_is_trained_on(tmp_path, recipe, score, trained):
    with pytest.raises(ValueError, match=f"model.score is {score}, but the objective's contrast compares by {trained}"):
        train(config(f"model.score={score}", recipe=recipe), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_compiling_reaches_the_towers_and_no_setting_of_the_model(tmp_path):
    plain, compiled = (Trainer(config(f"train.compile={on}"), tmp_path / on).module.model for on in ("false", "true"))
    assert [m.image_tower.compiled and m.text_tower.compiled for m in (plain, compiled)] == [False, True]
    assert list(plain.state_dict()) == list(compiled.state_dict())
    assert plain.config == compiled.config
