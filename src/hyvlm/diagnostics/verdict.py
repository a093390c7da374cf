"""One line on how hyperbolic a model is, from its distortion ratios and its read-out ablation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hyvlm.diagnostics.distortion import RelationRatios
from hyvlm.diagnostics.readout import ReadoutAblation

#: Quantities that a verdict needs, and how a sentence calls them.
SYMBOLS = {"distance": "r_d", "exterior_angle": "r_ext"}


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What "weakly hyperbolic" means.

    Attributes:
        tolerance: The 5-95 % range of every ratio lies within 1 plus or minus this.
        max_change: No read-out score moves by more than this, in points (of a hundred).

    Raises:
        ValueError: If one is negative or not finite.
    """

    tolerance: float = 0.05
    max_change: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {value}")


@dataclass(frozen=True)
class Range:
    """5 % and 95 % quantiles of one ratio over the pairs of the relation that strays furthest from 1."""

    relation: str
    low: float
    high: float


@dataclass(frozen=True)
class Change:
    """The read-out score that moved most, in points; ``points_per_sample`` is what one of its samples is worth."""

    task: str
    data: str
    metric: str
    points: float
    points_per_sample: float


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on; None where there is nothing to rest on."""

    distance: Range | None
    exterior_angle: Range | None
    readout: Change | None


@dataclass(frozen=True)
class Verdict:
    """Whether a model is weakly hyperbolic.

    Attributes:
        weakly_hyperbolic: None if that cannot be told: a piece of evidence is missing, and no other speaks against it.
        sentence: The verdict with its evidence, one line.
    """

    weakly_hyperbolic: bool | None
    sentence: str
    evidence: Evidence
    thresholds: Thresholds


def judge(ratios: Sequence[RelationRatios], readout: ReadoutAblation, thresholds: Thresholds | None = None) -> Verdict:
    """Weakly hyperbolic if ``r_d`` and ``r_ext`` stay near 1 and no score moves without the exponential map.

    One piece of evidence against is enough to deny it; to affirm it takes all three.

    Args:
        ratios: Of the model's own pairs, any quantities; apertures have no part in the verdict.
        thresholds: None takes the defaults.
    """
    limits = thresholds or Thresholds()
    ranges = {quantity: _widest(ratios, quantity) for quantity in SYMBOLS}
    change = _largest_change(readout)
    evidence = Evidence(ranges["distance"], ranges["exterior_angle"], change)
    agrees, against, missing = list[str](), list[str](), list[str]()
    for quantity, symbol in SYMBOLS.items():
        found = ranges[quantity]
        if found is None:
            missing.append(f"no pair gives {symbol}")
            continue
        text = f"{symbol} of {found.low:.3f} to {found.high:.3f} ({found.relation})"
        if _strays(found) <= limits.tolerance:
            agrees.append(f"{text} is within 1 ± {limits.tolerance:g}")
        else:
            against.append(f"{text} leaves 1 ± {limits.tolerance:g}")
    if change is None:
        missing.append(_why_no_score(readout))
    elif change.points == 0:
        agrees.append("without the map no score moves")
    elif abs(change.points) <= limits.max_change:
        agrees.append(f"{_describe(change, limits)}, at most {_points(limits.max_change)}")
    else:
        against.append(f"{_describe(change, limits)}, more than {_points(limits.max_change)}")
    if against:
        return Verdict(False, f"not weakly hyperbolic: {'; '.join(against)}", evidence, limits)
    if missing:
        known = f"; so far, {'; '.join(agrees)}" if agrees else ""
        return Verdict(None, f"cannot tell: {'; '.join(missing)}{known}", evidence, limits)
    return Verdict(True, f"weakly hyperbolic: {'; '.join(agrees)}", evidence, limits)


def no_verdict(reason: str, thresholds: Thresholds | None = None) -> Verdict:
    """The verdict on a model that the question does not apply to."""
    return Verdict(None, f"cannot tell: {reason}", Evidence(None, None, None), thresholds or Thresholds())


def _strays(found: Range) -> float:
    return max(abs(found.low - 1), abs(found.high - 1))


def _widest(ratios: Sequence[RelationRatios], quantity: str) -> Range | None:
    known = [Range(r.relation, r.low, r.high) for r in ratios if r.quantity == quantity and math.isfinite(r.low)]
    return max(known, key=_strays, default=None)


def _largest_change(readout: ReadoutAblation) -> Change | None:
    moved = [row for row in readout.rows if row.points is not None]
    row = max(moved, key=lambda row: abs(row.points or 0.0), default=None)
    if row is None or row.points is None:
        return None
    return Change(row.task, row.data, row.metric, row.points, 100 / row.n)


def _describe(change: Change, limits: Thresholds) -> str:
    worth = f", where one sample is worth {change.points_per_sample:.2f}"
    where = f"{change.task} {change.metric} on {change.data}{worth * (change.points_per_sample > limits.max_change)}"
    return f"without the map a score moves by {change.points:+.2f} points ({where})"


def _points(value: float) -> str:
    return f"{value:g} point" if value == 1 else f"{value:g} points"


def _why_no_score(readout: ReadoutAblation) -> str:
    if not readout.not_run:
        return "no read-out score was compared"
    return "no read-out score: " + "; ".join(f"{task}: {reason}" for task, reason in readout.not_run.items())
