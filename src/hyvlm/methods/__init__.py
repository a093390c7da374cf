"""Methods: one file a paper; importing this package registers them."""

from hyvlm.methods import (  # noqa: F401  (importing registers)
    argent,
    atmg,
    clip,
    hycoclip,
    hyfl,
    hyper3,
    meru,
    phyclip,
    uncha,
)
from hyvlm.methods.aligned import REDUCTIONS, AlignedViews
from hyvlm.methods.method import MAX_LOG_SCALE, OBJECTIVES, Objective, Scale
from hyvlm.methods.relations import (
    Calibration,
    Contrast,
    Entailment,
    Entropy,
    Term,
    calibrate,
    contrast,
    entail,
    entropy_of,
)

__all__ = [
    "MAX_LOG_SCALE",
    "OBJECTIVES",
    "REDUCTIONS",
    "AlignedViews",
    "Calibration",
    "Contrast",
    "Entailment",
    "Entropy",
    "Objective",
    "Scale",
    "Term",
    "calibrate",
    "contrast",
    "entail",
    "entropy_of",
]
