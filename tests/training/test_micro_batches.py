"""Micro-batches give the loss and the gradients of the whole batch, in less memory."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from timm.layers import DropPath
from torch import Tensor, nn

from hyvlm.config import TrainConfig, load_config
from hyvlm.methods import OBJECTIVES
from hyvlm.training.checkpoint import checkpoint_folders
from hyvlm.training.micro_batches import MicroBatches, micro_batch_size, random_state
from hyvlm.training.train_step import TrainStep
from hyvlm.training.trainer import train
from hyvlm.types import Views

WORKER = Path(__file__).with_name("micro_batch_worker.py")
SIZE = 3
VARIANTS = {
    **{name: (f"{name}-tiny",) for name in OBJECTIVES},
    "uncha as in the paper": ("uncha-tiny", "objective.formulation=paper"),
    "hyper3, shuffled": ("hyper3-tiny", "objective.text_parents=shuffled"),
    "hyfl, flat": ("hyfl-euclid-tiny",),
}
#: Recipe, overrides, samples of the first of two processes (of 8), samples of a micro-batch.
JOBS = {
    **{name: (f"{name}-tiny", [], 5, 2) for name in ("uncha", "hyfl", "phyclip")},
    "none on one": ("hyper3-tiny", [], 8, 3),
    "per rank": ("hyfl-tiny", ["objective.reduction=per_rank"], 5, 4),
}


def load_worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("micro_batch_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


worker = load_worker()


def assert_same(
    found: dict[str, Tensor], expected: dict[str, Tensor], relative: float, of: float | None = None
) -> None:
    """Within ``relative`` of each tensor's largest entry, or of ``of``."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        largest = gradient.abs().max().item() if of is None else of
        error = (found[name] - gradient).abs().max().item()
        assert error <= relative * largest + 1e-15, (
            f"gradient of {name}: off by {error:.3g}, its largest is {largest:.3g}"
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_of_the_whole_batch(variant: str) -> None:
    step, batch = worker.tiny_step(*VARIANTS[variant]), worker.random_batch()
    expected = worker.whole(step, batch)
    gradients = worker.take_gradients(step)
    assert gradients.keys() == {name for name, p in step.named_parameters() if p.requires_grad}
    output = worker.in_pieces(step, batch, SIZE)
    assert_same(worker.take_gradients(step), gradients, 1e-9)
    assert output.total.item() == pytest.approx(expected.total.item(), rel=1e-12)
    for ours, theirs in ((output.terms, expected.terms), (output.stats, expected.stats)):
        assert ours.keys() == theirs.keys()
        assert all(ours[name].item() == pytest.approx(theirs[name].item(), rel=1e-10) for name in theirs)
    assert output.stat_shares.keys() == expected.stat_shares.keys()


@pytest.mark.parametrize("recipe", ["uncha-tiny", "hyfl-tiny"])
def test_gradients_in_float32(recipe: str) -> None:
    step, batch = worker.tiny_step(recipe, dtype=torch.float32), worker.random_batch()
    worker.whole(step, batch)
    expected = worker.take_gradients(step)
    worker.in_pieces(step, batch, SIZE)
    # The gradient of log_c is a sum of terms that cancel, so all are judged by the largest entry.
    assert_same(worker.take_gradients(step), expected, 1e-5, of=max(g.abs().max().item() for g in expected.values()))


def with_dropout(step: TrainStep) -> TrainStep:
    for block in step.model.image_tower.blocks:
        block.drop_path1 = DropPath(0.4)
    step.model.text_tower.ln_final = nn.Sequential(step.model.text_tower.ln_final, nn.Dropout(0.3))
    return step.train()


def one_graph(step: TrainStep, pieces: list[Any], whole: Any) -> None:
    """The gradients of pieces that are encoded one after the other, in one graph."""
    found = [step.encode(piece)[0] for piece in pieces]
    views = Views.single(
        **{view: torch.cat([f.points[view] for f in found]) for view in found[0].points},
        owner=whole.owner,
        query_owner=whole.query_owner,
        query_parent=whole.query_parent,
        query_weight=whole.query_weight,
        midpoints={name: torch.cat([f.midpoints[name] for f in found]) for name in found[0].midpoints},
        teacher=step.taught(whole),
    )
    step.compare(views, torch.tensor(0)).total.backward()


@pytest.mark.parametrize("recipe", ["uncha-tiny", "hyper3-tiny", "hyfl-tiny"])
def test_random_numbers_of_the_second_pass_are_those_of_the_first(recipe: str) -> None:
    step, batch = with_dropout(worker.tiny_step(recipe)), worker.random_batch()
    torch.manual_seed(1)
    one_graph(step, batch.split(SIZE), batch)
    expected, after = worker.take_gradients(step), random_state(torch.device("cpu"))
    torch.manual_seed(1)
    worker.in_pieces(step, batch, SIZE)
    assert_same(worker.take_gradients(step), expected, 1e-9)
    assert torch.equal(random_state(torch.device("cpu"))[0], after[0])  # the next step draws others
    worker.in_pieces(step, batch, SIZE)
    following = worker.take_gradients(step)
    assert not all(torch.allclose(following[name], expected[name]) for name in expected)


@pytest.mark.parametrize("recipe", ["uncha-tiny", "hyper3-tiny", "hyfl-tiny"])
def test_gradients_under_bfloat16_autocast_are_close(recipe: str) -> None:
    step, batch = worker.tiny_step(recipe, dtype=torch.float32), worker.random_batch()

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    with autocast():
        output = step(batch)
    output.total.backward()
    expected = worker.take_gradients(step)
    worker.in_pieces(step, batch, SIZE, autocast)
    found = worker.take_gradients(step)
    assert found.keys() == expected.keys()
    ours, theirs = (torch.cat([g.flatten() for g in gradients.values()]) for gradients in (found, expected))
    assert torch.linalg.vector_norm(ours - theirs) < 0.03 * torch.linalg.vector_norm(theirs)
    assert not torch.equal(ours, theirs)


def test_a_factor_of_the_total_reaches_every_gradient() -> None:
    step, batch = worker.tiny_step("hyper3-tiny"), worker.random_batch()
    worker.in_pieces(step, batch, SIZE)
    expected = worker.take_gradients(step)
    worker.in_pieces(step, batch, SIZE, factor=1024.0)
    assert_same(worker.take_gradients(step), {name: 1024.0 * g for name, g in expected.items()}, 1e-12)


def test_vectors_that_the_lift_bounds_are_counted_once() -> None:
    step, batch = worker.tiny_step("hyfl-tiny", dtype=torch.float32), worker.random_batch()
    with torch.no_grad():
        step.model.image_projection.weight.mul_(1e4)
    expected = int(step(batch).lift_bounded)
    assert expected >= len(batch.image)
    assert int(worker.in_pieces(step, batch, SIZE).lift_bounded) == expected


class Held:
    """Bytes that graphs hold for their backward pass, without parameters, and the most that there were."""

    def __init__(self, step: TrainStep) -> None:
        self.now = self.most = 0
        self.parameters = {p.data_ptr() for p in step.parameters()}

    def pack(self, tensor: Tensor) -> Kept | Tensor:
        return tensor if tensor.data_ptr() in self.parameters else Kept(tensor, self)


class Kept:
    """One saved tensor."""

    def __init__(self, tensor: Tensor, held: Held) -> None:
        self.tensor, self.held = tensor, held
        held.now += tensor.nbytes
        held.most = max(held.most, held.now)

    def __del__(self) -> None:
        self.held.now -= self.tensor.nbytes


@pytest.mark.parametrize("recipe", ["uncha-tiny", "hyfl-tiny", "hyper3-tiny"])
def test_memory_is_that_of_one_micro_batch(recipe: str) -> None:
    step = worker.tiny_step(recipe)

    def most(samples: int, size: int | None) -> int:
        """Beside the loss itself, which is computed before."""
        batch, held = worker.random_batch((1,) * samples, (1,) * samples), Held(step)
        hooks = torch.autograd.graph.saved_tensors_hooks(held.pack, lambda kept: getattr(kept, "tensor", kept))
        if size is None:
            with hooks:
                step.encode(batch)
            return held.most
        pieces = MicroBatches(step, batch, size, device=torch.device("cpu"), autocast=nullcontext)
        with hooks:
            views, bounded = pieces.encode()
        assert held.most == 0
        cached = [points.nbytes for points in (views.points | views.midpoints).values()]
        assert cached == [8 * 32 * samples] * len(cached)  # also of the tokens of a sample there is one point
        step.compare(views, bounded).total.backward()
        with hooks:
            pieces.backward()
        return held.most

    assert most(24, None) > 5 * most(4, None)
    assert most(24, 2) < 1.2 * most(2, None)


def test_a_batch_is_split_with_its_parts_and_queries() -> None:
    batch = worker.random_batch()
    pieces = batch.split(SIZE)
    assert [len(piece.image) for piece in pieces] == [3, 3, 2]
    assert [len(piece.owner) for piece in pieces] == [4, 0, 3]
    assert [len(piece.query_owner) for piece in pieces] == [7, 0, 7]
    for name in ("image", "text", "part_image", "part_text", "short_text", "query_text", "query_weight"):
        assert torch.equal(torch.cat([getattr(piece, name) for piece in pieces]), getattr(batch, name)), name
    assert [key for piece in pieces for key in piece.keys] == batch.keys
    wholes, queries = (0, 3, 6), (0, 7, 7)
    for name in ("owner", "query_owner"):
        counted = [getattr(piece, name) + start for piece, start in zip(pieces, wholes, strict=True)]
        assert torch.equal(torch.cat(counted), getattr(batch, name))
    parents = [
        torch.where(piece.query_parent < 0, -1, piece.query_parent + start)
        for piece, start in zip(pieces, queries, strict=True)
    ]
    assert torch.equal(torch.cat(parents), batch.query_parent)


def test_batches_that_cannot_be_split_and_those_that_need_not() -> None:
    batch = worker.random_batch()
    (same,) = batch.split(100)
    assert all(
        torch.equal(value, getattr(same, name)) for name, value in vars(batch).items() if isinstance(value, Tensor)
    )
    (empty,) = worker.random_batch((), ()).split(2)
    assert len(empty.image) == len(empty.owner) == 0
    with pytest.raises(ValueError, match="at least 1 sample, got 0"):
        batch.split(0)
    for name, what in (("owner", "parts"), ("query_owner", "queries")):
        with pytest.raises(ValueError, match=f"{what} must lie in the order of their samples"):
            dataclasses.replace(batch, **{name: getattr(batch, name).flip(0)}).split(2)


@pytest.mark.parametrize(
    ("size", "processes", "expected"), [(None, 1, None), (1, 1, 1), (9, 1, 9), (10, 1, None), (3, 3, 3), (4, 3, None)]
)
def test_a_micro_batch_no_smaller_than_the_share_of_a_process_is_none(
    size: int | None, processes: int, expected: int | None
) -> None:
    assert micro_batch_size(TrainConfig(steps=1, batch_size=10, micro_batch_size=size), processes) == expected


def test_a_micro_batch_has_a_sample() -> None:
    with pytest.raises(ValueError, match=r"train\.micro_batch_size must be positive, got 0"):
        load_config("clip-tiny", ["train.micro_batch_size=0"])


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Every job's results on both processes, from one launch."""
    folder = tmp_path_factory.mktemp("gloo")
    torch.save(list(JOBS.values()), folder / "jobs.pt")
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(number), "2", str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    results = [torch.load(folder / f"rank{number}.pt") for number in (0, 1)]
    return {name: list(pair) for name, pair in zip(JOBS, zip(*results, strict=True), strict=True)}


@pytest.mark.parametrize("name", JOBS)
def test_two_processes_in_micro_batches_equal_one_whole_batch(name: str, two_processes: dict[str, list[Any]]) -> None:
    recipe, overrides, _, _ = JOBS[name]
    for total, found, expected_total, expected in two_processes[name]:
        assert total.item() == pytest.approx(expected_total.item(), rel=1e-10)
        assert_same(found, expected, 1e-9)
    if not overrides:
        step = worker.tiny_step(recipe)
        alone = worker.whole(step, worker.random_batch())
        gradients = worker.take_gradients(step)
        for _, found, _, _ in two_processes[name]:
            assert_same(found, gradients, 1e-9)
        totals = sum(total.item() for total, *_ in two_processes[name])
        assert totals == pytest.approx(alone.total.item(), rel=1e-10)


RUN = ["data.workers=0", "train.batch_size=8", "train.save_every=2", "train.log_every=1", "eval=[]"]


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_in_micro_batches_has_the_losses_of_one_without_and_resumes(precision: str, tmp_path: Path) -> None:
    overrides = [*RUN, "data.train=scenes:20", "train.steps=4", f"train.precision={precision}"]
    expected = losses(train(load_config("hyper3-tiny", overrides), tmp_path / "whole"))
    config = load_config("hyper3-tiny", [*overrides, "train.micro_batch_size=3"])
    run = train(config, tmp_path / "pieces")
    assert losses(run) == pytest.approx(expected, rel=1e-4 if precision == "fp32" else 0.02)
    ended = losses(run)
    shutil.rmtree(checkpoint_folders(run)[-1])
    assert losses(train(config, run, resume=run)) == ended


def test_two_processes_train_in_micro_batches(tmp_path: Path) -> None:
    """torchrun with gloo on 9 samples in batches of 8: the last batch of an epoch leaves one process without any."""
    overrides = [*RUN, "data.train=scenes:9", "train.steps=4", "train.max_grad_norm=1.0"]
    expected = losses(train(load_config("uncha-tiny", overrides), tmp_path / "alone"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hyvlm"]
    command += ["train", "uncha-tiny", *overrides, "train.micro_batch_size=3", "--out", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(tmp_path / "two") == pytest.approx(expected, rel=1e-4)
