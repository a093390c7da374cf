"""PHyCLIP: HyCoCLIP's relations in a product of hyperbolic factors (Yoshikawa and Matsubara 2026).

What makes it is the manifold: distances are means over the factors, and so are the hinges of the factors' own cones.
"""

from __future__ import annotations

from hyvlm.methods.hycoclip import hycoclip
from hyvlm.methods.meru import meru
from hyvlm.methods.method import OBJECTIVES, Objective


@OBJECTIVES.register("phyclip")
def phyclip(
    *,
    parts: bool = True,
    entail_weight: float = 0.1,
    eta_inter: float = 0.7,
    eta_intra: float = 1.2,
    temperature: float = 0.07,
    reduction: str = "global",
) -> Objective:
    """Whole and part views, aligned and ordered in a product of factors (Yoshikawa and Matsubara 2026).

    Args:
        parts: Whether the data have parts. Without them the released code halves neither contrast nor entailment: two
            directions at 0.5 each, and one entailment relation at twice ``entail_weight``.
        entail_weight: Per relation, as in :func:`~hyvlm.methods.hycoclip.hycoclip`.
        eta_inter, eta_intra: Factors of the half-aperture between and within modalities.
        temperature: Initial value, one for all factors.
        reduction: See :class:`~hyvlm.methods.Objective`.
    Raises:
        ValueError: Unknown reduction, or a value outside its range.
    """
    if not parts:
        return meru(entail_weight=2 * entail_weight, eta=eta_inter, temperature=temperature, reduction=reduction)
    return hycoclip(
        entail_weight=entail_weight,
        eta_inter=eta_inter,
        eta_intra=eta_intra,
        temperature=temperature,
        reduction=reduction,
    )
