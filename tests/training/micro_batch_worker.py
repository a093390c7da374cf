"""Steps of tiny models on random batches, whole and in micro-batches; also one process of a two-process gloo run.

``python micro_batch_worker.py RANK WORLD FOLDER`` runs every job of ``FOLDER/jobs.pt`` on this process's share and
writes ``FOLDER/rank{RANK}.pt``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hyvlm.config import load_config
from hyvlm.training.distributed import world_size
from hyvlm.training.micro_batches import MicroBatches
from hyvlm.training.train_step import TrainStep
from hyvlm.training.trainer import build_objective, new_model
from hyvlm.types import Batch, LossOutput

SMALL = [f"model.{tower}.{key}" for tower in ("image", "text") for key in ("width=32", "depth=2", "heads=4")]
PARTS = (0, 3, 1, 0, 0, 0, 2, 1)  # by threes the second micro-batch has none, and the last is smaller
QUERIES = (3, 0, 4, 0, 0, 0, 2, 5)


def tiny_step(recipe: str, *overrides: str, dtype: torch.dtype = torch.float64) -> TrainStep:
    """A step of a recipe with towers of width 32; the same at every call."""
    config = load_config(recipe, list(overrides))
    start = None
    if "init" in config.model:
        start = new_model(load_config("clip-long-tiny", [*SMALL, "model.dim=32"]))
    else:
        config = load_config(recipe, [*SMALL, "model.dim=32", *overrides])
    model, objective = new_model(config, start), build_objective(config)
    objective.prepare(model.image_projection.in_features, model.text_projection.in_features)
    return TrainStep(model, objective, start).to(dtype)


def random_batch(parts: Sequence[int] = PARTS, queries: Sequence[int] = QUERIES) -> Batch:
    """One sample for each entry, with so many parts and queries; query 2 of a sample hangs below query 1, and so on."""
    generator = torch.Generator().manual_seed(len(parts))

    def pixels(n: int, side: int) -> Tensor:
        return torch.randint(0, 256, (n, 3, side, side), generator=generator, dtype=torch.uint8)

    def texts(n: int, longest: int) -> Tensor:
        ids = torch.randint(1, 49406, (n, longest), generator=generator)
        ids[:, 0] = 49406
        end = torch.randint(1, longest, (n, 1), generator=generator)
        place = torch.arange(longest)
        return ids.masked_fill(place > end, 0).masked_fill(place == end, 49407)

    samples = torch.arange(len(parts))
    query = torch.arange(sum(queries))
    root = torch.cat([torch.arange(n) == 0 for n in queries]) if queries else query.bool()
    return Batch(
        image=pixels(len(parts), 32),
        text=texts(len(parts), 12),
        part_image=pixels(sum(parts), 16),
        part_text=texts(sum(parts), 5),
        owner=samples.repeat_interleave(torch.tensor(parts, dtype=torch.long)),
        keys=[str(i) for i in range(len(parts))],
        short_text=texts(len(parts), 6),
        query_text=texts(sum(queries), 7),
        query_owner=samples.repeat_interleave(torch.tensor(queries, dtype=torch.long)),
        query_parent=torch.where(root, -1, query - 1),
        query_weight=1 - 0.25 * (query % 3),
    )


def whole(step: TrainStep, batch: Batch) -> LossOutput:
    """Loss and gradients of a batch at once, as the trainer takes them; several processes share a wrapper."""
    wrapped = DistributedDataParallel(step) if world_size() > 1 else step
    output: LossOutput = wrapped(batch)
    (output.total * world_size()).backward()
    return output


def in_pieces(
    step: TrainStep,
    batch: Batch,
    size: int,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    factor: float = 1.0,
) -> LossOutput:
    """The same in micro-batches; ``factor`` scales the total as mixed precision does."""
    wrapped = DistributedDataParallel(step) if world_size() > 1 else None  # the trainer has one: it must keep out
    pieces = MicroBatches(step, batch, size, device=torch.device("cpu"), autocast=autocast)
    output = pieces.loss()
    (output.total * factor).backward()
    pieces.backward()
    del wrapped
    return output


def take_gradients(step: TrainStep) -> dict[str, Tensor]:
    """The gradients by name, which then are gone from the step."""
    gradients = {name: p.grad.clone() for name, p in step.named_parameters() if p.grad is not None}
    step.zero_grad()
    return gradients


def share_of(first: int, rank: int) -> Batch:
    """The first ``first`` samples of the random batch, or the others."""
    pieces = random_batch().split(first)
    return pieces[rank] if rank < len(pieces) else random_batch((), ())


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    results = []
    for recipe, overrides, first, size in torch.load(folder / "jobs.pt"):
        step, batch = tiny_step(recipe, *overrides), share_of(first, rank)
        total = in_pieces(step, batch, size).total.detach()
        found = take_gradients(step)
        expected_total = whole(step, batch).total.detach()
        results.append((total, found, expected_total, take_gradients(step)))
    torch.save(results, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
