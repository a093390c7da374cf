"""CLIP: images and captions find each other by cosine."""

from __future__ import annotations

from hyvlm.methods.method import OBJECTIVES, Objective, Scale
from hyvlm.methods.relations import contrast


@OBJECTIVES.register("clip")
def clip(*, parts: bool = False, temperature: float = 0.07, reduction: str = "global") -> Objective:
    """Image and text contrast, half of each direction (Radford et al. 2021).

    Args:
        parts: Contrast parts with their phrases as well, among themselves: CLIP on grounded data.
        temperature: Initial value.
        reduction: See :class:`~hyvlm.methods.Objective`.
    """
    return Objective(
        contrast("image -> text", "text -> image", weight=0.5),
        contrast("part_image -> part_text", "part_text -> part_image", weight=0.5) if parts else [],
        scales={"global": Scale(init_temperature=temperature)},
        reduction=reduction,
    )
