"""One batch to one loss: towers, lift, gather over processes, objective."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hyvlm.geometry import Lorentz, ProductLorentz, Sphere
from hyvlm.methods.method import Objective
from hyvlm.models.dual_encoder import DualEncoder
from hyvlm.training.distributed import gather_views
from hyvlm.types import Batch, LossOutput, Tokens, Views


class TrainStep(nn.Module):
    """Model and objective as one module, so that every learning parameter sits under one data-parallel wrapper.

    Args:
        teacher: The Euclidean model that the objective distills from, if it names ``teacher_views``; it is frozen.
    Raises:
        ValueError: The objective needs a teacher and there is none, or not a Euclidean one; or it needs what the
            model's manifold does not have.
    """

    def __init__(self, model: DualEncoder, objective: Objective, teacher: DualEncoder | None = None) -> None:
        super().__init__()
        objective.check_manifold(model.manifold)
        self.model = model
        self.objective = objective
        if not objective.teacher_views:
            teacher = None
        elif teacher is None:
            raise ValueError(
                "the objective distills from the model that it starts from: name one in model.init "
                "(or leave distillation out with objective.distill_weight=0)"
            )
        elif not isinstance(teacher.manifold, Sphere):
            raise ValueError(
                f"the starting model lives on a {type(teacher.manifold).__name__} manifold, not on CLIP's sphere: "
                "there is no Euclidean teacher; leave distillation out with objective.distill_weight=0"
            )
        self.teacher = teacher if teacher is None else teacher.eval().requires_grad_(False)

    def forward(self, batch: Batch) -> LossOutput:
        """This process's share of the loss of the global batch; see :class:`LossOutput`."""
        points: dict[str, Tensor] = {}
        tokens: dict[str, Tokens] = {}
        lift_bounded = torch.zeros((), dtype=torch.long, device=batch.image.device)
        for view in self.objective.views:
            is_image = view.endswith("image")
            if view in self.objective.token_views:
                encode = self.model.encode_image_tokens if is_image else self.model.encode_text_tokens
                points[view], tokens[view] = encode(getattr(batch, view))
            else:
                points[view] = (self.model.encode_image if is_image else self.model.encode_text)(getattr(batch, view))
            if isinstance(self.model.manifold, Lorentz | ProductLorentz):
                lift_bounded += self.model.manifold.bounded
        views = Views.single(**points, owner=batch.owner, tokens=tokens, teacher=self.taught(batch))
        output = self.objective(self.model.manifold, gather_views(views))
        output.lift_bounded = lift_bounded
        return output

    @torch.no_grad()
    def taught(self, batch: Batch) -> dict[str, Tensor]:
        """What the teacher makes of its views; texts longer than its context lose their end, not their end token."""
        features = {}
        for view in self.objective.teacher_views:
            assert self.teacher is not None
            rows = getattr(batch, view)
            if view.endswith("image"):
                features[view] = self.teacher.image_features(rows)
            else:
                features[view] = self.teacher.text_features(cut_tokens(rows, self.teacher.text_tower.context_length))
        return features

    @torch.no_grad()
    def constrain_(self) -> dict[str, float]:
        """Bring the learnable scalars back inside their bounds; returns the ones that were outside, by name."""
        scalars = {n: p for n, p in self.named_parameters() if "log_" in n}
        before = {n: p.clone() for n, p in scalars.items()}
        self.model.constrain_()
        self.objective.constrain_()
        return {n: float(p.exp().mean()) for n, p in scalars.items() if not torch.equal(before[n], p)}


def cut_tokens(tokens: Tensor, length: int) -> Tensor:
    """Ids ``(B, L)`` cut to ``length`` columns; a row that is cut keeps its end token (its largest id) in the last."""
    if tokens.shape[1] <= length:
        return tokens
    cut = tokens[:, :length].clone()
    end = tokens.max(1).values
    lost = cut.max(1).values < end
    cut[lost, -1] = end[lost]
    return cut
