"""Loss rows: one value per row; they know no process, no method and no weight."""

from hyvlm.losses.contrastive import contrast_rows
from hyvlm.losses.distillation import distillation_rows
from hyvlm.losses.entailment import ConeHinge, HasCones, LeakyConeHinge
from hyvlm.losses.midpoint import HasMidpoint, token_midpoint, token_weights
from hyvlm.losses.uncertainty import MEASURES, HasRadius, calibration_rows, entropy_rows, uncertainty

__all__ = [
    "MEASURES",
    "ConeHinge",
    "HasCones",
    "HasMidpoint",
    "HasRadius",
    "LeakyConeHinge",
    "calibration_rows",
    "contrast_rows",
    "distillation_rows",
    "entropy_rows",
    "token_midpoint",
    "token_weights",
    "uncertainty",
]
