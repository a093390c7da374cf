"""ATMG: an image and a text agree by the angle between them, not by how near they are (Ramasinghe et al. 2024)."""

from __future__ import annotations

from hyvlm.methods.method import OBJECTIVES, Objective, Scale
from hyvlm.methods.relations import contrast


@OBJECTIVES.register("atmg")
def atmg(*, temperature: float = 0.07, reduction: str = "global") -> Objective:
    """Image and text contrast by exterior angles, half of each direction; nothing is ordered (Ramasinghe et al. 2024).

    A text finds its image by the smallest angle at the text, an image its text by the largest angle at the image.

    Args:
        temperature: Initial value.
        reduction: See :class:`~hyvlm.methods.Objective`.
    """
    return Objective(
        contrast("image -> text", "text -> image", weight=0.5, similarity="exterior_angle"),
        scales={"global": Scale(init_temperature=temperature)},
        reduction=reduction,
    )
