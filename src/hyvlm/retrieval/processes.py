"""Several processes of one command (``torchrun``), which share a folder and little else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

#: How long a process waits for the others at most. One that dies is noticed at once: its connection closes.
PATIENCE = timedelta(hours=2)


class Processes:
    """This process among those that torchrun started; one alone without torchrun.

    Attributes:
        rank, world: Which one it is, and how many there are.
    """

    def __init__(self) -> None:
        self.rank, self.world = 0, 1
        if dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks and joins."""
        return self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do something in every process, and go on only if it went well in all of them.

        Raises:
            ValueError, OSError, ImportError: What the first process that failed raised, there; the others leave with
                exit code 2 and without a word, so that an error is said once.
        """
        failed: Exception | None = None
        try:
            yield
        except (ValueError, OSError, ImportError) as error:
            failed = error
        if self.world > 1:
            all_failed: list[bool] = [False] * self.world
            dist.all_gather_object(all_failed, failed is not None)
            if any(all_failed) and all_failed.index(True) != self.rank:
                raise SystemExit(2)
        if failed is not None:
            raise failed


@contextmanager
def processes() -> Iterator[Processes]:
    """Join those that torchrun started, over gloo, for as long as the block lasts."""
    started = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if started:
        dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Processes()
    finally:
        if started:
            dist.destroy_process_group()
