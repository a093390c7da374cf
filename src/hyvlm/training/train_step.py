"""One batch to one loss: towers, lift, gather over processes, objective."""

from __future__ import annotations

import torch
from torch import nn

from hyvlm.geometry import Lorentz, ProductLorentz
from hyvlm.methods.method import Objective
from hyvlm.models.dual_encoder import DualEncoder
from hyvlm.training.distributed import gather_views
from hyvlm.types import Batch, LossOutput, Views


class TrainStep(nn.Module):
    """Model and objective as one module, so that every learning parameter sits under one data-parallel wrapper."""

    def __init__(self, model: DualEncoder, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch) -> LossOutput:
        """This process's share of the loss of the global batch; see :class:`LossOutput`."""
        encode = {"image": self.model.encode_image, "text": self.model.encode_text}
        points = {}
        lift_bounded = torch.zeros((), dtype=torch.long, device=batch.image.device)
        for view in self.objective.views:
            points[view] = encode[view.removeprefix("part_")](getattr(batch, view))
            if isinstance(self.model.manifold, Lorentz | ProductLorentz):
                lift_bounded += self.model.manifold.bounded
        output = self.objective(self.model.manifold, gather_views(Views.single(**points, owner=batch.owner)))
        output.lift_bounded = lift_bounded
        return output

    @torch.no_grad()
    def constrain_(self) -> dict[str, float]:
        """Bring the learnable scalars back inside their bounds; returns the ones that were outside, by name."""
        scalars = {n: p for n, p in self.named_parameters() if "log_" in n}
        before = {n: p.clone() for n, p in scalars.items()}
        self.model.constrain_()
        self.objective.constrain_()
        return {n: float(p.exp().mean()) for n, p in scalars.items() if not torch.equal(before[n], p)}
