"""Loss, step and memory on one CUDA device, at most 8 minutes: ``python benchmarks/gpu.py OUT.json [--seconds 480]``.

Losses run on ready features at growing batches; steps are whole training steps of ``uncha-vit-s-16`` and
``uncha-vit-b-16`` on random pixels and texts, in float32 and bf16, with and without torch.compile. A size that does not
fit, or for which no time is left, is reported as such. On a CPU everything runs at toy sizes, to see that it is right;
such numbers say nothing of a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _reporting import where
from _runner import seconds

from hyvlm.config import Config, load_config
from hyvlm.files import write_text
from hyvlm.models.dual_encoder import build_manifold
from hyvlm.models.towers import compile_blocks
from hyvlm.training.optim import build_optimizer
from hyvlm.training.train_step import TrainStep
from hyvlm.training.trainer import build_objective, new_model
from hyvlm.types import Batch, Views

#: Methods whose loss is measured, at these batches; parts an image of the methods that have parts.
LOSSES = ("meru", "hycoclip", "uncha")
BATCHES, TOY_BATCHES, PARTS, DIM = (768, 4096, 16384, 32768), (32,), 2, 512
#: Recipe to samples of a step.
STEPS, TOY_STEPS = {"uncha-vit-s-16": 256, "uncha-vit-b-16": 128}, {"uncha-tiny": 4}
ROUNDS = 3


class Clock:
    """Seconds that are left of the budget."""

    def __init__(self, budget: float) -> None:
        self.end = time.monotonic() + budget

    def left(self) -> float:
        return self.end - time.monotonic()


def measured(work: Callable[[], object], device: str, clock: Clock) -> dict[str, Any]:
    """Median seconds and peak memory of a few calls, or why there are none."""
    if clock.left() < 20:
        return {"not_run": "no time was left"}
    try:
        work()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = [seconds(work) for _ in range(ROUNDS)]
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"not_run": "out of memory"}
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    return {"seconds": statistics.median(times), "peak_mb": peak}


def read(recipe: str) -> Config:
    """A recipe; its data are not opened."""
    return load_config(recipe, ["data.train=scenes"])


def loss_work(method: str, batch: int, device: str, *, dim: int = DIM, parts: int = PARTS) -> Callable[[], object]:
    """Forward and backward of a method's loss on random features ``dim`` wide, with as many parts an image."""
    config = read(f"{method}-vit-s-16")
    manifold, objective = build_manifold(config.manifold).to(device), build_objective(config).to(device)
    generator = torch.Generator(device).manual_seed(0)

    def features(n: int) -> torch.Tensor:
        return (torch.randn(n, dim, device=device, generator=generator) / dim**0.5).requires_grad_()

    leaves = {"image": features(batch), "text": features(batch)}
    owner = None
    if "part_image" in objective.views:
        owner = torch.arange(batch, device=device).repeat_interleave(parts)
        leaves |= {"part_image": features(batch * parts), "part_text": features(batch * parts)}

    def work() -> None:
        points = {view: manifold.lift(leaf) for view, leaf in leaves.items()}
        objective(manifold, Views.single(**points, owner=owner)).total.backward()

    return work


def random_batch(config: Config, size: int, device: str) -> Batch:
    """Pixels and texts of a step with two parts an image; captions of 12 to 20 tokens, phrases of 3 to 6."""
    generator = torch.Generator().manual_seed(0)

    def pixels(n: int, side: int) -> torch.Tensor:
        return torch.randint(0, 256, (n, 3, side, side), generator=generator, dtype=torch.uint8)

    def texts(n: int, low: int, high: int) -> torch.Tensor:
        lengths = torch.randint(low, high + 1, (n,), generator=generator)
        ids = torch.randint(1, 49406, (n, high), generator=generator)
        ids[torch.arange(n), lengths - 1] = 49407
        return ids.masked_fill(torch.arange(high) >= lengths[:, None], 0)

    side = config.data.image_size
    part_side = config.data.part_size or side
    return Batch(
        image=pixels(size, side),
        text=texts(size, 12, 20),
        part_image=pixels(size * PARTS, part_side),
        part_text=texts(size * PARTS, 3, 6),
        owner=torch.arange(size).repeat_interleave(PARTS),
        keys=[str(i) for i in range(size)],
    ).to(device)


def step_work(recipe: str, size: int, device: str, *, bf16: bool, compiled: bool) -> Callable[[], object]:
    """A whole training step: towers, loss, backward, optimizer."""
    config = read(recipe)
    model = new_model(config)
    step = TrainStep(model, build_objective(config)).to(device)
    if compiled:
        compile_blocks(model)
    optimizer = build_optimizer(step.named_parameters(), config.train)
    batch = random_batch(config, size, device)

    def work() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            output = step(batch)
        output.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.constrain_()

    return work


def main(out: Path, budget: float) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    clock = Clock(budget)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu: toy sizes, to see that it runs"
    report: dict[str, Any] = {**where(), "device": name, "parts": PARTS, "losses": {}, "steps": {}}
    for batch in BATCHES if device == "cuda" else TOY_BATCHES:
        for method in LOSSES:
            report["losses"][f"{method}, {batch}"] = measured(loss_work(method, batch, device), device, clock)
    for recipe, size in (STEPS if device == "cuda" else TOY_STEPS).items():
        for bf16 in (False, True):
            for compiled in (False, True) if device == "cuda" else (False,):
                label = f"{recipe}, {size} images, {'bf16' if bf16 else 'float32'}{', compiled' if compiled else ''}"
                if clock.left() < 20:
                    report["steps"][label] = {"not_run": "no time was left"}
                    continue
                work = step_work(recipe, size, device, bf16=bf16, compiled=compiled)
                report["steps"][label] = measured(work, device, clock)
    write_text(out, json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=480)
    given = parser.parse_args()
    main(given.out, given.seconds)
