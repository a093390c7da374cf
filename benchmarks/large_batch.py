"""A batch of 32,768 on one machine, in micro-batches: ``python benchmarks/large_batch.py``.

Whole training steps (towers, loss, backward, AdamW) with the tiny towers, float32: one of 4,096 samples at once and in
micro-batches, which takes turns for time and fresh processes for memory, and one of 32,768 in micro-batches. Writes
``results/large_batch.json``. ``one RECIPE SAMPLES MICRO_BATCH`` prints time and peak memory of a single step (a
micro-batch of 0 is the whole batch), of any recipe and size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from _runner import Row, alternate, in_fresh_process, peak_mb, row, seconds, write_rows
from gpu import loss_work, random_batch, read

from hyvlm.training.micro_batches import MicroBatches
from hyvlm.training.optim import build_optimizer
from hyvlm.training.train_step import TrainStep
from hyvlm.training.trainer import build_objective, new_model

#: Wholes alone, and wholes with two parts each; how many of them at once fit into 24 GiB without micro-batches.
COMPARED = {"meru-tiny": 4096, "uncha-tiny": 2048}
SAMPLES, MICRO_BATCH, ROUNDS = 32_768, 256, 3


def step_work(recipe: str, samples: int) -> Callable[[int], None]:
    """A whole training step in micro-batches of a size, or at once (0)."""
    config = read(recipe)
    step = TrainStep(new_model(config), build_objective(config))
    optimizer = build_optimizer(step.named_parameters(), config.train)
    batch = random_batch(config, samples, "cpu")

    def work(size: int) -> None:
        if size:
            pieces = MicroBatches(step, batch, size, device=torch.device("cpu"), autocast=nullcontext)
            pieces.loss().total.backward()
            pieces.backward()
        else:
            step(batch).total.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.constrain_()

    return work


def one(recipe: str, samples: int, size: int) -> dict[str, float]:
    """One step, and its memory above what model and batch hold; what is compiled or tried out once is so before."""
    step_work(recipe, 8)(4)
    loss_work(recipe.removesuffix("-tiny"), 256, "cpu", dim=8)()
    work = step_work(recipe, samples)
    before = peak_mb()
    taken = seconds(lambda: work(size))
    return {"seconds": taken, "peak_mb": peak_mb() - before, "before_mb": before}


def compared(recipe: str, samples: int) -> Row:
    """Micro-batches beside the whole batch."""
    work = step_work(recipe, samples)
    times = alternate({"ours": lambda: work(MICRO_BATCH), "plain": lambda: work(0)}, ROUNDS)
    ours, plain = (in_fresh_process(__file__, "one", recipe, str(samples), str(size)) for size in (MICRO_BATCH, 0))
    return row(
        f"step of {recipe} in micro-batches of {MICRO_BATCH}",
        f"{samples:,} samples",
        times,
        peak_mb=ours["peak_mb"],
        plain_peak_mb=plain["peak_mb"],
        asked="the memory of one micro-batch and the points, for one more forward pass",
    )


def large(recipe: str) -> Row:
    """The large batch, which fits in micro-batches alone."""
    found = in_fresh_process(__file__, "one", recipe, str(SAMPLES), str(MICRO_BATCH))
    return Row(
        f"step of {recipe} in micro-batches of {MICRO_BATCH}",
        f"{SAMPLES:,} samples",
        found["seconds"],
        peak_mb=found["peak_mb"],
        rounds=1,
        asked="fits into 24 GiB",
    )


def main() -> None:
    rows = [compared(recipe, samples) for recipe, samples in COMPARED.items()]
    write_rows(Path(__file__).stem, [*rows, *(large(recipe) for recipe in COMPARED)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(one(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    else:
        main()
