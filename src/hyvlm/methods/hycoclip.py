"""HyCoCLIP: a part is more general than its whole, a text more general than its image."""

from __future__ import annotations

from hyvlm.losses import ConeHinge
from hyvlm.methods.method import OBJECTIVES, Objective, Scale
from hyvlm.methods.relations import contrast, entail


@OBJECTIVES.register("hycoclip")
def hycoclip(
    *,
    entail_weight: float = 0.1,
    eta_inter: float = 0.7,
    eta_intra: float = 1.2,
    temperature: float = 0.07,
    reduction: str = "global",
) -> Objective:
    """Whole and part views, aligned and ordered (Pal et al. 2025).

    ``entail_weight`` is per relation: the released 0.2 multiplies half the sum of the four, which is the same 0.1.
    """
    inter, intra = ConeHinge(eta=eta_inter), ConeHinge(eta=eta_intra)
    return Objective(
        contrast("image -> text", "text -> image", "part_image -> text", "part_text -> image", weight=0.25),
        entail(inter, "text ⊒ image", "part_text ⊒ part_image", weight=entail_weight),
        entail(intra, "part_image ⊒ image", "part_text ⊒ text", weight=entail_weight),
        scales={"global": Scale(init_temperature=temperature)},
        reduction=reduction,
    )
