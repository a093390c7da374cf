"""One process of a two-process gloo run, also imported by the test for its one-process reference.

``python gloo_worker.py RANK WORLD FOLDER`` reads ``FOLDER/jobs.pt``, runs every job on this process's share under
DistributedDataParallel and writes ``FOLDER/rank{RANK}.pt``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hyvlm.geometry import MANIFOLDS
from hyvlm.losses import tiled
from hyvlm.methods import OBJECTIVES
from hyvlm.training.distributed import gather_views, sum_over_ranks, world_size
from hyvlm.types import GROUP_OF_VIEW, LossOutput, Tokens, Views

#: Settings of the manifolds that have no default: three factors of two dimensions.
SETTINGS = {"product": {"factors": 3}, "flat_product": {"factors": 3}}


class TinyModel(nn.Module):
    """Linear encoders, a manifold and an objective, all of whose parameters learn together."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.manifold = MANIFOLDS[job["manifold"]](**SETTINGS.get(job["manifold"], {}))
        self.objective = OBJECTIVES[job["objective"]](**job["options"])
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.objective.prepare(len(job["encoders"][0]), len(job["encoders"][1]))
        image, text = job["encoders"]
        self.image_encoder = nn.Parameter(image.clone())
        self.text_encoder = nn.Parameter(text.clone())
        with torch.no_grad():
            for name, value in job["parameters"].items():
                self.get_parameter(name).copy_(value)
        self.to(job["dtype"])

    def forward(self, inputs: dict[str, Tensor], owners: dict[str, Tensor]) -> LossOutput:
        points = {
            name: self.manifold.lift(x @ (self.image_encoder if "image" in name else self.text_encoder))
            for name, x in inputs.items()
            if name in self.objective.views
        }
        if "query_image" in self.objective.views:
            patches = inputs["image"].unsqueeze(1) * torch.tensor([[1.0], [-0.4], [0.7]]).to(inputs["image"])
            pooled = self.objective.query_pooling(inputs["query_text"], patches, owners["query_owner"])
            points["query_image"] = self.manifold.lift(pooled @ self.image_encoder)
        tokens = {view: tokens_of(points[view]) for view in self.objective.token_views}
        teacher = {view: inputs[view].detach() for view in self.objective.teacher_views}
        self.seen = gather_views(Views.single(**points, **owners, tokens=tokens, teacher=teacher))
        return self.objective(self.manifold, self.seen)


def tokens_of(points: Tensor) -> Tokens:
    """Three tokens a row, between the origin and its point; the last does not count where a coordinate is negative."""
    values = points.unsqueeze(1) * torch.tensor([[0.3], [0.5], [0.9]]).to(points)
    last = points[:, 0] > 0
    return Tokens(values, torch.stack([torch.ones_like(last), torch.ones_like(last), last], 1))


def share_of(job: dict[str, Any], ranks: list[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Features, as leaves, and owners of the given ranks' samples; owners and parents count from the first of them."""
    first = sum(job["wholes"][: ranks[0]])
    last = first + sum(job["wholes"][rank] for rank in ranks)
    of = {"part": job["owner"], "query": job.get("query_owner", torch.empty(0, dtype=torch.long))}
    mine = {group: (owner >= first) & (owner < last) for group, owner in of.items()}
    mine["whole"] = torch.arange(sum(job["wholes"])) < last
    mine["whole"][:first] = False
    inputs = {
        name: x[mine[GROUP_OF_VIEW[name]]].to(job["dtype"]).clone().requires_grad_()
        for name, x in job["inputs"].items()
    }
    owners = {"owner": of["part"][mine["part"]] - first, "query_owner": of["query"][mine["query"]] - first}
    if "query_parent" in job:
        parent = job["query_parent"][mine["query"]]
        owners["query_parent"] = torch.where(parent < 0, -1, parent - int((of["query"] < first).sum()))
        owners["query_weight"] = job["query_weight"][mine["query"]]
    return inputs, owners


def run(job: dict[str, Any], ranks: list[int], *, distributed: bool) -> dict[str, Any]:
    """Loss and gradients of one job; ``distributed`` wraps the model and multiplies the total as a trainer does."""
    model = TinyModel(job)
    inputs, owners = share_of(job, ranks)
    wrapped = DistributedDataParallel(model) if distributed else model
    with mock.patch.object(tiled, "FROM", job.get("panels_from", tiled.FROM)):
        output: LossOutput = wrapped(inputs, owners)
    (output.total * world_size()).backward()
    used = {name: x.grad / world_size() for name, x in inputs.items() if name in model.objective.views}
    return {
        "own_total": output.total.detach(),
        "scalars": sum_over_ranks({"total": output.total, **output.terms, **output.stat_shares}),
        "stats": output.stats,
        "parameters": {name: p.grad for name, p in model.named_parameters() if p.requires_grad},
        "inputs": used,
        "points": {name: points.detach() for name, points in model.seen.points.items()},
        "owner": model.seen.owner,
        "query_parent": model.seen.query_parent,
        "query_weight": model.seen.query_weight,
        "local": model.seen.local,
    }


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    jobs = torch.load(folder / "jobs.pt", weights_only=False)
    torch.save([run(job, [rank], distributed=True) for job in jobs], folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
