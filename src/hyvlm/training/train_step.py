"""One batch to one loss: towers, lift, gather over processes, objective."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

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
        views, lift_bounded = self.encode(batch)
        return self.compare(dataclasses.replace(views, teacher=self.taught(batch)), lift_bounded)

    def compare(self, views: Views, lift_bounded: Tensor) -> LossOutput:
        """The loss of this process's views among those of all; every process calls it."""
        output: LossOutput = self.objective(self.model.manifold, gather_views(views))
        output.lift_bounded = lift_bounded
        return output

    def encode(self, batch: Batch) -> tuple[Views, Tensor]:
        """This process's views, without a teacher's features, and how many vectors the lift bounded.

        Tokens are condensed to midpoints, so each row depends on its own sample alone.
        """
        model, objective = self.model, self.objective
        pooling = objective.query_pooling if "query_image" in objective.views else None
        points: dict[str, Tensor] = {}
        tokens: dict[str, Tokens] = {}
        bounded = torch.zeros((), dtype=torch.long, device=batch.image.device)
        patches = torch.empty(0)
        outputs = self.text_outputs(batch)
        for view in objective.views:
            is_image = view.endswith("image")
            rows: Tensor = getattr(batch, view, batch.query_text)  # no pixels belong to query_image
            if view == "query_image":  # what the query sees in its image, through the image's projection and scale
                assert pooling is not None
                query = pooling(outputs["query_text"], patches, batch.query_owner)
                points[view] = model.lift_image(model.image_projection(query))
            elif view in outputs:
                points[view] = model.lift_text(model.text_projection(outputs[view]))
            elif view == "image" and pooling is not None:
                pooled, patches = model.image_outputs(rows)
                points[view] = model.lift_image(model.image_projection(pooled))
            elif view in objective.token_views:
                points[view], tokens[view] = (model.encode_image_tokens if is_image else model.encode_text_tokens)(rows)
            else:
                points[view] = model.encode_image(rows)
            if isinstance(model.manifold, Lorentz | ProductLorentz):
                bounded += model.manifold.bounded
        views = Views.single(
            **points,
            owner=batch.owner,
            query_owner=batch.query_owner,
            query_parent=batch.query_parent,
            query_weight=batch.query_weight,
            tokens=tokens,
            midpoints={},
            teacher={},
        )
        return self.objective.condense(model.manifold, views) if tokens else views, bounded

    def text_outputs(self, batch: Batch) -> dict[str, Tensor]:
        """What the text tower makes of every view of texts, in one pass; of views whose tokens are needed, nothing."""
        views = [
            view for view in self.objective.views if view.endswith("text") and view not in self.objective.token_views
        ]
        if "query_image" in self.objective.views and "query_text" not in views:
            views.append("query_text")
        if not views:
            return {}
        texts = [getattr(batch, view) for view in views]
        longest = max(rows.shape[1] for rows in texts)
        together = torch.cat([pad(rows, (0, longest - rows.shape[1])) for rows in texts])
        return dict(zip(views, self.model.text_outputs(together).split([len(rows) for rows in texts]), strict=True))

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


def check_finite(output: LossOutput, step: int) -> None:
    """Raise FloatingPointError, naming the terms at fault, if the loss of this step is not finite."""
    if not torch.isfinite(output.total):
        terms = ", ".join(f"{k}={v:.4g}" for k, v in output.terms.items() if not torch.isfinite(v))
        raise FloatingPointError(f"loss is not finite at step {step}: {terms or 'no single term is'}")


def cut_tokens(tokens: Tensor, length: int) -> Tensor:
    """Ids ``(B, L)`` cut to ``length`` columns; a row that is cut keeps its end token (its largest id) in the last."""
    if tokens.shape[1] <= length:
        return tokens
    cut = tokens[:, :length].clone()
    end = tokens.max(1).values
    lost = cut.max(1).values < end
    cut[lost, -1] = end[lost]
    return cut
