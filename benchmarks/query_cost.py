"""What queries cost: ``GOMP_SPINCOUNT=1000 python benchmarks/query_cost.py OUT.json [RECIPE ...]``.

A training step of Hyper3-CLIP against one of UNCHA on the same samples of the built-in scenes with the same parts, and
the encoding of images and texts by the two trained models. Both take turns in one process; the numbers are medians.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from hyvlm.config import load_config
from hyvlm.files import write_text
from hyvlm.training.trainer import Trainer
from hyvlm.types import Batch

#: Recipe of Hyper3-CLIP to the one of UNCHA that it is compared with, and samples of a batch.
PAIRS = {"hyper3-tiny": ("uncha-tiny", 32), "hyper3-vit-b-16": ("uncha-vit-b-16", 4)}
ROUNDS = 9


def trainer(recipe: str, batch_size: int) -> Trainer:
    """A run that is not started, over the same samples, captions and parts for both recipes."""
    data = ["data.train=scenes", "data.split=train", "data.workers=0", "data.caption=random", "eval=[]"]
    parts = ["data.parts={max: 5, choice: random}", f"train.batch_size={batch_size}", "train.precision=fp32"]
    return Trainer(load_config(recipe, [*data, *parts]), Path("unused"))


def batches(run: Trainer, size: int) -> list[Batch]:
    """The first batches of a run."""
    from hyvlm.data.sampler import train_loader

    return list(train_loader(run.views, batch_size=size, steps=3))


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(recipe: str) -> dict[str, float]:
    """Medians of both, and their ratio, for a training step and for encoding."""
    other, size = PAIRS[recipe]
    runs = {recipe: trainer(recipe, size), other: trainer(other, size)}
    given = {name: batches(run, size) for name, run in runs.items()}
    times: dict[str, list[float]] = {f"{what} {name}": [] for what in ("step", "encode") for name in runs}
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            batch = given[name][number % 3]
            step = seconds(lambda run=run, batch=batch: run.optimize(batch))
            model = run.module.model.eval()
            with torch.no_grad():
                encode = seconds(lambda m=model, b=batch: (m.encode_image(b.image), m.encode_text(b.text)))
            model.train()
            if number:  # the first of each warms up
                times[f"step {name}"].append(step)
                times[f"encode {name}"].append(encode)
    result = {name: statistics.median(values) for name, values in times.items()}
    for what in ("step", "encode"):
        ratios = [a / b for a, b in zip(times[f"{what} {recipe}"], times[f"{what} {other}"], strict=True)]
        result[f"{what} ratio"] = statistics.median(ratios)
    result["queries_per_image"] = sum(len(b.query_owner) for b in given[recipe]) / (3 * size)
    return result


def main(out: Path, recipes: list[str]) -> None:
    results = {recipe: compare(recipe) for recipe in recipes}
    machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    text = json.dumps({**machine, **results}, indent=2)
    write_text(out, text + "\n")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(PAIRS))
