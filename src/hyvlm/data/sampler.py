"""Which samples a step sees: one global order, shared out over ranks, that any step can be resumed from."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from hyvlm.data.collate import Collate
from hyvlm.data.views import TrainViews
from hyvlm.types import Batch


class GlobalBatches(Sampler[list[tuple[int, int]]]):
    """Batches of ``(epoch, index)`` for one rank, step by step.

    An epoch is a permutation of all samples, drawn from ``(seed, epoch)`` and cut into global batches of
    ``batch_size``; its last batch is smaller. Step ``k`` therefore holds the same samples whatever the number of ranks,
    of which each takes a contiguous, equal share (equal up to one sample; at the tail some get none, and still take
    part in the step). No sample comes twice in an epoch and none is lost. Ranks and steps need no state: the batches
    from ``start_step`` on are those of a run that was never stopped.

    Args:
        n: Number of samples.
        batch_size: Samples of a global batch, over all ranks.
        seed: Seed of the order.
        rank, world_size: This process and how many there are.
        start_step: First step to yield.
        steps: Steps of the whole run, at which to stop; None goes on for ever.
        shuffle: False keeps the set's own order in every epoch.
    Raises:
        ValueError: No samples, or numbers out of range.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start_step: int = 0,
        steps: int | None = None,
        shuffle: bool = True,
    ) -> None:
        if n < 1:
            raise ValueError("the training set holds no samples")
        if batch_size < 1:
            raise ValueError(f"batch_size is the size of the global batch, at least 1, got {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is outside a world of {world_size} processes")
        if start_step < 0 or (steps is not None and steps < start_step):
            raise ValueError(f"the run goes from start_step {start_step} to steps {steps}, which lies before it")
        self.n, self.batch_size, self.seed, self.shuffle = n, batch_size, seed, shuffle
        self.rank, self.world_size = rank, world_size
        self.start_step, self.steps = start_step, steps
        self.steps_per_epoch = -(-n // batch_size)

    def order(self, epoch: int) -> torch.Tensor:
        """The permutation ``(n,)`` of ``epoch``."""
        if not self.shuffle:
            return torch.arange(self.n)
        (state,) = np.random.SeedSequence((self.seed, epoch)).generate_state(1, np.uint64)
        return torch.randperm(self.n, generator=torch.Generator().manual_seed(int(state) >> 1))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        step, current = self.start_step, -1
        while self.steps is None or step < self.steps:
            epoch, batch = divmod(step, self.steps_per_epoch)
            if epoch != current:
                current, order = epoch, self.order(epoch)
            mine = order[batch * self.batch_size : (batch + 1) * self.batch_size].tensor_split(self.world_size)[
                self.rank
            ]
            yield [(epoch, index) for index in mine.tolist()]
            step += 1

    def __len__(self) -> int:
        if self.steps is None:
            raise TypeError("without a number of steps the batches have no end")
        return self.steps - self.start_step


def train_loader(
    views: TrainViews,
    batch_size: int,
    *,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    start_step: int = 0,
    steps: int | None = None,
    workers: int = 0,
    prefetch: int = 4,
) -> DataLoader[Batch]:
    """A loader of this rank's :class:`hyvlm.types.Batch` for every step from ``start_step`` on.

    One iterator serves the whole run: epochs follow one another without a pause, and worker processes stay. It is
    already shared out over ranks: do not hand it to anything that shards loaders again.

    Args:
        views: The training views.
        batch_size: Samples of a global batch.
        workers: Loader processes of this rank, with one thread each; 0 loads in this process.
        prefetch: Batches that each worker prepares ahead.

    The others are those of :class:`GlobalBatches`.
    """
    batches = GlobalBatches(
        len(views),
        batch_size,
        seed=seed,
        rank=rank,
        world_size=world_size,
        start_step=start_step,
        steps=steps,
    )
    return DataLoader(
        views,  # type: ignore[arg-type]
        batch_sampler=batches,
        collate_fn=Collate(views.image_size, views.part_size),
        num_workers=workers,
        worker_init_fn=_prepare_worker,
        prefetch_factor=prefetch if workers else None,
        pin_memory=torch.cuda.is_available(),
    )


def _prepare_worker(worker: int) -> None:
    """One thread; and Ctrl-C, which a terminal sends to every process, is for the main process to answer."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
