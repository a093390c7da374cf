"""A large batch in the memory of a small one, with its exact gradients (GradCache, Gao et al. 2021).

The loss sees a sample through its points alone. So a batch passes the towers micro-batch by micro-batch, first without
a graph, to cache the points. The loss of all of them gives the gradient at every point, and what objective and manifold
learn from it directly. Then every micro-batch passes the towers once more, with a graph, and carries the gradients of
its points on into the parameters. That costs one more forward pass. Random numbers (dropout, stochastic depth) are
those of the first pass again, so that the second one differentiates the very points that the loss saw.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from hyvlm.config import TrainConfig
from hyvlm.training.distributed import sum_gradients
from hyvlm.training.train_step import TrainStep
from hyvlm.types import Batch, LossOutput, Views


def micro_batch_size(config: TrainConfig, processes: int) -> int | None:
    """``train.micro_batch_size``, or None where it is no smaller than a process's share of the batch.

    The answer is that of every process, also of one whose samples could not be read: all must take the same path.
    """
    size = config.micro_batch_size
    return size if size is not None and size < math.ceil(config.batch_size / processes) else None


class MicroBatches:
    """One step on this process's share of a batch: :meth:`loss`, then ``backward`` of its total, then :meth:`backward`.

    The total is this process's share, not multiplied by the number of processes: gradients are added up over them once,
    at the end, which no data-parallel wrapper has part in. Between the steps stay the cached points alone, and whatever
    factor the total was scaled by reaches all parameters.

    Args:
        step: The model and its objective, without a data-parallel wrapper.
        batch: On any device; micro-batches move to ``device`` one by one.
        size: Samples of a micro-batch; it has their parts and queries, too.
        autocast: Gives the context of mixed precision that the towers run in.
    """

    def __init__(
        self,
        step: TrainStep,
        batch: Batch,
        size: int,
        *,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.step, self.batch, self.device, self.autocast = step, batch, device, autocast
        self.pieces = batch.split(size)
        self.random: list[list[Tensor]] = []
        self.points: dict[str, Tensor] = {}
        self.lengths: dict[str, list[int]] = {}

    @torch.no_grad()
    def encode(self) -> tuple[Views, Tensor]:
        """The views of the batch, of points without a past, and how many vectors the lift bounded."""
        found: list[Views] = []
        bounded = torch.zeros((), dtype=torch.long, device=self.device)
        for piece in self.pieces:
            self.random.append(random_state(self.device))
            on_device = piece.to(self.device)
            with self.autocast():  # entered anew: its cached casts of weights are without a graph here
                views, of_piece = self.step.encode(on_device)
                found.append(dataclasses.replace(views, teacher=self.step.taught(on_device)))
            bounded += of_piece
        for name in points_of(found[0]):
            rows = [points_of(views)[name] for views in found]
            self.points[name] = torch.cat(rows).requires_grad_()
            self.lengths[name] = [len(r) for r in rows]
        views = Views.single(
            **{view: self.points[view] for view in found[0].points},
            owner=self.batch.owner.to(self.device),
            query_owner=self.batch.query_owner.to(self.device),
            query_parent=self.batch.query_parent.to(self.device),
            query_weight=self.batch.query_weight.to(self.device),
            tokens={},
            midpoints={name: self.points[name] for name in found[0].midpoints},
            teacher={view: torch.cat([views.teacher[view] for views in found]) for view in found[0].teacher},
        )
        return views, bounded

    def loss(self) -> LossOutput:
        """This process's share of the loss of the global batch; see :class:`LossOutput`."""
        return self.step.compare(*self.encode())

    def backward(self) -> None:
        """Carry the gradients of the points into the parameters, and add all up over processes."""
        after = random_state(self.device)
        gradients = {
            name: points.grad.split(self.lengths[name])
            for name, points in self.points.items()
            if points.grad is not None
        }
        for i, piece in enumerate(self.pieces):
            set_random_state(self.random[i], self.device)
            with self.autocast():
                points = points_of(self.step.encode(piece.to(self.device))[0])
            learning = [name for name in gradients if points[name].requires_grad]
            if learning:
                torch.autograd.backward([points[name] for name in learning], [gradients[name][i] for name in learning])
        set_random_state(after, self.device)
        sum_gradients(self.step.parameters())


def points_of(views: Views) -> dict[str, Tensor]:
    """All that the loss sees of the samples and that learns, by view or relation; one row for each row of its group."""
    return views.points | views.midpoints


def random_state(device: torch.device) -> list[Tensor]:
    """What the next random numbers on the CPU and on ``device`` depend on."""
    states = [torch.get_rng_state()]
    return states if device.type == "cpu" else [*states, torch.get_device_module(device).get_rng_state()]


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    """Go back to what :func:`random_state` found."""
    torch.set_rng_state(states[0])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[1])
