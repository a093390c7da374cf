"""UNCHA: how well a part stands for its whole sets the temperature of its contrast (UNCHA, Section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hyvlm.losses import LeakyConeHinge
from hyvlm.methods.aligned import OverRows
from hyvlm.methods.method import OBJECTIVES, Objective, Scale
from hyvlm.methods.relations import Contrast, calibrate, check_measure, contrast, entail, entropy_of
from hyvlm.registry import unknown


@dataclass(frozen=True, kw_only=True)
class Formulation:
    """Where the released code and the paper differ.

    Attributes:
        half: Factor of each direction of contrast, of each entailment relation, and of calibration without its entropy.
        exclude_positive: The positive is left out of the denominator (Eq. 8).
        over_rows: Contrast is the mean or the sum of its rows.
        local_temperature: Initial temperature of part_image <-> part_text.
        calibration_eps: Added to ``exp(u)``.
        entropy_eps: Added to the probability inside the logarithm.
    """

    half: float
    exclude_positive: bool
    over_rows: OverRows
    local_temperature: float
    calibration_eps: float
    entropy_eps: float


FORMULATIONS = {
    "released": Formulation(
        half=0.5,
        exclude_positive=False,
        over_rows="mean",
        local_temperature=0.05,
        calibration_eps=1e-6,
        entropy_eps=1e-8,
    ),
    "paper": Formulation(
        half=1.0,
        exclude_positive=True,
        over_rows="sum",
        local_temperature=0.07,
        calibration_eps=0.0,
        entropy_eps=0.0,
    ),
}


@OBJECTIVES.register("uncha")
def uncha(
    *,
    uncertainty_temperature: bool = True,
    calibration: bool = True,
    entropy: bool = True,
    uncertainty: str = "norm",
    alpha: float = 0.1,
    eta_inter: float = 0.7,
    eta_intra: float = 1.2,
    entail_weight: float = 0.2,
    intra_weight: float = 0.5,
    calibration_weight: float = 10.0,
    temperature: float = 0.07,
    local_temperature: float | None = None,
    global_local_temperature: float = 0.06,
    formulation: str = "released",
    reduction: str = "global",
) -> Objective:
    """Uncertainty-guided compositional alignment.

    Args:
        uncertainty_temperature: Raise the temperature of each part that looks for a whole by ``exp(u / 2)``, Eq. 10
            (off: "w/o contrastive" of Table 4).
        calibration: Calibrate the uncertainty of parts, Eq. 15, entropy included (off: "w/o uncertainty").
        entropy: Add the entropy of the uncertainties to the calibration, Eq. 16 (off: "w/o entropy").
        uncertainty: A function of the space "norm", Eq. 7, or of the "radius", Eq. S.24 (Table S.6).
        alpha: Slope inside the cone, Eq. 14.
        eta_inter, eta_intra: Factors of the half-aperture between and within modalities.
        entail_weight: Weight of entailment and calibration, Eq. 18.
        intra_weight: Weight of entailment within a modality, ``lambda_1`` of Eq. 17 (Table S.11).
        calibration_weight: ``lambda_2`` of Eq. 17 (Table S.11).
        temperature, local_temperature, global_local_temperature: Initial values for whole and whole, part and part
            (None: 0.05 released, 0.07 paper), part and whole.
        formulation: "released" (what the published weights were trained with) or "paper" (Eqs. 8-18 as printed).
        reduction: See :class:`~hyvlm.methods.Objective`.
    Raises:
        ValueError: Unknown formulation, uncertainty or reduction; a value outside its range.
    """
    if formulation not in FORMULATIONS:
        raise ValueError(unknown("formulation", formulation, FORMULATIONS))
    check_measure(uncertainty)
    form = FORMULATIONS[formulation]
    inter, intra = LeakyConeHinge(eta=eta_inter, alpha=alpha), LeakyConeHinge(eta=eta_intra, alpha=alpha)
    within = ("part_image ⊒ image", "part_text ⊒ text")
    calibrated = entail_weight * calibration_weight
    return Objective(
        contrast_groups(form, tempered_by=uncertainty if uncertainty_temperature else None),
        entail(inter, "text ⊒ image", "part_text ⊒ part_image", weight=entail_weight * form.half),
        entail(intra, *within, weight=entail_weight * form.half * intra_weight),
        calibrate(intra, *within, weight=calibrated * form.half, measure=uncertainty, eps=form.calibration_eps)
        if calibration
        else [],
        entropy_of("part_image", "part_text", weight=calibrated, measure=uncertainty, eps=form.entropy_eps)
        if calibration and entropy
        else [],
        scales=initial_scales(form, temperature, local_temperature, global_local_temperature),
        reduction=reduction,
    )


def contrast_groups(form: Formulation, *, tempered_by: str | None, reduction: str | None = None) -> list[Contrast]:
    """Wholes with wholes, parts with parts, parts with wholes; ``reduction`` is that of the groups with parts."""
    pair = partial(contrast, weight=form.half, exclude_positive=form.exclude_positive, over_rows=form.over_rows)
    return [
        *pair("image -> text", "text -> image", scale="global"),
        *pair("part_image -> part_text", "part_text -> part_image", scale="local", reduction=reduction),
        *pair(
            "part_image -> text",
            "part_text -> image",
            scale="global_local",
            owner_repeated=True,
            tempered_by=tempered_by,
            reduction=reduction,
        ),
    ]


def initial_scales(
    form: Formulation, temperature: float, local_temperature: float | None, global_local_temperature: float
) -> dict[str, Scale]:
    """One for each of the :func:`contrast_groups`."""
    return {
        "global": Scale(init_temperature=temperature),
        "local": Scale(init_temperature=form.local_temperature if local_temperature is None else local_temperature),
        "global_local": Scale(init_temperature=global_local_temperature),
    }
