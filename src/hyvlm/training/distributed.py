"""Points of every process, gathered once between model and objective, with exact gradients.

Each process computes the loss of its own rows against the candidates of all, and the sum over processes is the loss of
the global batch. The backward pass of the gather sums over processes what each of them finds for a point, so after it
every process holds the exact gradient of the global loss with respect to its own points.

DistributedDataParallel then *averages* parameter gradients over processes, where the global loss needs their sum: the
trainer multiplies the total by :func:`world_size` before ``backward``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hyvlm.types import GROUP_OF_VIEW, Views


def world_size() -> int:
    """Number of processes; 1 without a process group."""
    return dist.get_world_size() if _initialised() else 1


def rank() -> int:
    """Number of this process; 0 without a process group."""
    return dist.get_rank() if _initialised() else 0


def gather_views(local: Views) -> Views:
    """The views of the global batch from each process's own, in rank order. A collective: every process calls it.

    Processes may hold different numbers of wholes, parts and queries, also none at all; each still gives the same
    views, with ``(0, D)`` tensors where it has no rows. Without a process group this is the identity.

    Args:
        local: :meth:`hyvlm.types.Views.single` of this process's share of the batch.
    Returns:
        Views with the points (and a teacher's features) of all processes, owners that count wholes and parents that
        count queries over all of them, ``local`` slices of this process's rows, and its own tokens and midpoints.
        Differentiable; see the module's first lines on gradients.
    """
    if world_size() == 1:
        return local
    groups = list(local.owner)
    device = next(iter(local.points.values())).device
    counts = _all_counts([len(local.owner[group]) for group in groups], device)  # [rank][group]
    of_group = {group: [row[i] for row in counts] for i, group in enumerate(groups)}
    starts = {group: sum(n[: rank()]) for group, n in of_group.items()}

    views = list(local.points)
    sizes = [[row[groups.index(GROUP_OF_VIEW[view])] for view in views] for row in counts]  # [rank][view]
    everything = _GatherRows.apply(torch.cat([local.points[view] for view in views]), [sum(row) for row in sizes])
    pieces = everything.split([n for row in sizes for n in row])  # rank by rank, view by view
    owners = torch.cat([local.owner[group] + starts["whole"] for group in groups])
    owner_pieces = _gather_rows(owners, [sum(row) for row in counts]).split([n for row in counts for n in row])
    queries = of_group.get("query", [0] * world_size())
    parent = torch.where(local.query_parent < 0, -1, local.query_parent + starts.get("query", 0))
    return Views(
        points={view: torch.cat(pieces[i :: len(views)]) for i, view in enumerate(views)},
        owner={group: torch.cat(owner_pieces[i :: len(groups)]) for i, group in enumerate(groups)},
        local={group: slice(start, start + len(local.owner[group])) for group, start in starts.items()},
        world_size=world_size(),
        tokens=local.tokens,
        midpoints=local.midpoints,
        teacher={view: _gather_rows(f, of_group[GROUP_OF_VIEW[view]]) for view, f in sorted(local.teacher.items())},
        query_parent=_gather_rows(parent, queries),
        query_weight=_gather_rows(local.query_weight, queries),
    )


def sum_over_ranks(scalars: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """Each scalar summed over processes, detached; a collective with the same keys in the same order everywhere.

    An objective's ``terms`` and ``total`` are shares, so their sums are the values of the global batch.
    """
    values = {key: torch.as_tensor(value).detach() for key, value in scalars.items()}
    if world_size() == 1 or not values:
        return values
    device = next((v.device for v in scalars.values() if isinstance(v, Tensor)), torch.device("cpu"))
    total = torch.stack([value.to(device, torch.float64) for value in values.values()])
    dist.all_reduce(total)
    return dict(zip(values, total.unbind(), strict=True))


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up over processes, in place, the gradients of parameters that learn; a collective. One without counts as 0.

    What DistributedDataParallel does during ``backward``, for gradients that were collected without it; it averages.
    """
    if world_size() == 1:
        return
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)


class _GatherRows(torch.autograd.Function):
    """Rows of all processes in rank order; backward sums the gradient over processes and returns this one's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int]) -> Tensor:
        ctx.start, ctx.length = sum(counts[: rank()]), len(rows)
        return _gather_rows(rows, counts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.narrow(0, ctx.start, ctx.length), None


def _gather_rows(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Rows of all processes in rank order; they travel padded to the longest share, since gloo gathers equal shapes."""
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    shares = [torch.empty_like(padded) for _ in counts]
    if max(counts) > 0:
        dist.all_gather(shares, padded)
    return torch.cat([share[:n] for share, n in zip(shares, counts, strict=True)])


def _all_counts(counts: Sequence[int], device: torch.device) -> list[list[int]]:
    mine = torch.tensor(counts, device=device)
    shares = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(shares, mine)
    return torch.stack(shares).tolist()


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()
