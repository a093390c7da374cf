"""MERU: a caption is more general than its image."""

from __future__ import annotations

from hyvlm.losses import ConeHinge
from hyvlm.methods.method import OBJECTIVES, Objective, Scale
from hyvlm.methods.relations import contrast, entail


@OBJECTIVES.register("meru")
def meru(
    *, entail_weight: float = 0.2, eta: float = 1.0, temperature: float = 0.07, reduction: str = "global"
) -> Objective:
    """Image and text contrast, and images in the cones of their captions (Desai et al. 2023)."""
    return Objective(
        contrast("image -> text", "text -> image", weight=0.5),
        entail(ConeHinge(eta=eta), "text ⊒ image", weight=entail_weight),
        scales={"global": Scale(init_temperature=temperature)},
        reduction=reduction,
    )
