"""What a diagnosis holds: plain numbers, ready for JSON and for figures."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyvlm.diagnostics.distortion import ApertureCurve, RelationRatios, Surface
from hyvlm.diagnostics.gradients import CurvatureGradients, GradientCosines
from hyvlm.diagnostics.operating_point import OperatingPoint
from hyvlm.diagnostics.radii import RadialDistribution
from hyvlm.diagnostics.readout import ReadoutAblation
from hyvlm.diagnostics.trajectories import Trajectories
from hyvlm.diagnostics.verdict import Verdict
from hyvlm.files import write_text


@dataclass(frozen=True)
class ModelDiagnosis:
    """What the points of one model say. A part that does not apply to it is empty, and ``notes`` say why.

    Attributes:
        name: What the caller called it.
        fingerprint: Of its weights and settings.
        manifold: Class of its manifold, lower case ("lorentz", "productlorentz", "euclidean", "sphere", ...).
        curvature: ``c``, one value per factor; none where the space is flat or a sphere.
        curvature_floor: The least ``c`` that training allows; None where ``c`` does not learn or has no bound.
        objective: Whose relations were measured, and where that is known from; None if nothing was.
        points: How many points each view has.
        not_finite: How many points of each view were left out because they hold NaN or infinity; views without any
            are not listed.
        ratios, surfaces, apertures: Distortion ratios of the model's own pairs; heat maps of ``r_d`` and ``r_ext``
            (Figs. 3, 6, 7); the two half-apertures (Fig. 4).
        radii: Distribution of the radii, one a view (Figs. 2, 8).
        operating_points: ``sqrt(c) |x_space|``, saturation and effective rank, one a view.
        gradients: Share of every loss term in the gradient of the curvature; None where there is no curvature.
        gradient_cosines: Whether the kinds of loss terms pull at the points alike (UNCHA, Fig. S.8a); None as above.
        trajectories: Course of training (Figs. 1, 5, 9); None unless the model belongs to a run folder.
        notes: What could not be measured, and why.
    """

    name: str
    fingerprint: str
    manifold: str
    curvature: list[float]
    curvature_floor: float | None
    objective: str | None
    points: dict[str, int]
    not_finite: dict[str, int] = field(default_factory=dict)
    ratios: list[RelationRatios] = field(default_factory=list)
    surfaces: list[Surface] = field(default_factory=list)
    apertures: list[ApertureCurve] = field(default_factory=list)
    radii: list[RadialDistribution] = field(default_factory=list)
    operating_points: list[OperatingPoint] = field(default_factory=list)
    gradients: CurvatureGradients | None = None
    gradient_cosines: GradientCosines | None = None
    trajectories: Trajectories | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """How hyperbolic a model is on a data set.

    Attributes:
        data, split, data_fingerprint: Which samples gave the points.
        samples, total: Samples that gave points, of how many.
        skipped: Samples and parts left out, by reason.
        model: The model in question.
        control: The model it is held against, if there is one.
        readout: Scores of tasks with and without the exponential map, and the control's.
        verdict: One line, its evidence and its thresholds.
        settings: What else the numbers depend on.
        library: Version of hyvlm.
    """

    data: str
    split: str
    data_fingerprint: str
    samples: int
    total: int
    skipped: dict[str, int]
    model: ModelDiagnosis
    control: ModelDiagnosis | None
    readout: ReadoutAblation
    verdict: Verdict
    settings: dict[str, Any]
    library: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that is not finite is null."""
        plain = json_safe(dataclasses.asdict(self))
        assert isinstance(plain, dict)
        return plain

    def write(self, out: str | Path) -> Path:
        """Write ``diagnosis.json`` into the folder ``out``, which is made if need be; returns its path."""
        path = Path(out) / "diagnosis.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n")
        return path


def json_safe(value: object) -> object:
    """``value`` with every NaN or infinity in nested mappings and sequences as None."""
    if isinstance(value, Mapping):
        return {str(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
