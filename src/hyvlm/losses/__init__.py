"""Loss rows: one value per row; they know no process, no method and no weight."""

from hyvlm.losses.contrastive import contrast_rows
from hyvlm.losses.distillation import distillation_rows
from hyvlm.losses.entailment import ConeHinge, HasCones, LeakyConeHinge
from hyvlm.losses.midpoint import HasMidpoint, token_midpoint, token_weights
from hyvlm.losses.stepwise import Matched, matched_rows
from hyvlm.losses.tiled import Search, contrast_totals
from hyvlm.losses.tiled_kernels import kernel_report
from hyvlm.losses.tiled_scores import Scores, angle_scores_of, leaves_of, scores_of
from hyvlm.losses.uncertainty import MEASURES, HasRadius, calibration_rows, entropy_rows, uncertainty

__all__ = [
    "MEASURES",
    "ConeHinge",
    "HasCones",
    "HasMidpoint",
    "HasRadius",
    "LeakyConeHinge",
    "Matched",
    "Scores",
    "Search",
    "angle_scores_of",
    "calibration_rows",
    "contrast_rows",
    "contrast_totals",
    "distillation_rows",
    "entropy_rows",
    "kernel_report",
    "leaves_of",
    "matched_rows",
    "scores_of",
    "token_midpoint",
    "token_weights",
    "uncertainty",
]
