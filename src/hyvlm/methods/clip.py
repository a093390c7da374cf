"""CLIP: images and captions find each other by cosine."""

from __future__ import annotations

from hyvlm.methods.method import OBJECTIVES, Objective, Scale
from hyvlm.methods.relations import contrast


@OBJECTIVES.register("clip")
def clip(*, temperature: float = 0.07, reduction: str = "global") -> Objective:
    """Image and text contrast, half of each direction (Radford et al. 2021)."""
    return Objective(
        contrast("image -> text", "text -> image", weight=0.5),
        scales={"global": Scale(init_temperature=temperature)},
        reduction=reduction,
    )
