"""How the quantities of a run moved while it trained (*How Hyperbolic Are Hyperbolic VLMs?*, Figs. 1, 5 and 9)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: What is followed: the curvature (of a product its mean, least and largest), the scales, and all of these groups.
FOLLOWED = ("c", "c/mean", "c/min", "c/max", "loss", "image_scale", "text_scale")
FOLLOWED_GROUPS = ("temperature/", "radius/", "saturated/", "term/")


@dataclass(frozen=True)
class Trajectory:
    """A logged quantity at increasing steps: ``values[i]`` is that of ``steps[i]``."""

    name: str
    steps: list[int]
    values: list[float]


@dataclass(frozen=True)
class Trajectories:
    """The logged quantities of a run.

    Attributes:
        by_name: Name in ``metrics.jsonl`` to trajectory: "c", "temperature/global", "radius/text", "loss", ...
        repeated: Steps left out because the run was resumed from before them: a line whose step is not after those
            above it replaces all that they say from its own step on.
        damaged: Lines left out because they are no logged step, as one that a kill cut short.
        not_finite: Values left out because they are NaN or infinite.
        thinned: Steps of a long run left out to save room, see :func:`read_trajectories`.
    """

    by_name: dict[str, Trajectory]
    repeated: int = 0
    damaged: int = 0
    not_finite: int = 0
    thinned: int = 0


def read_trajectories(run: str | Path, *, at_most: int = 2000) -> Trajectories:
    """What ``metrics.jsonl`` of the run folder ``run`` says of curvature, temperatures, radii and losses, step by step.

    Args:
        at_most: Of how many logged steps; of more, the first, the last and some at geometric distances between them
            are taken, as all that happens to a curvature happens early.
    Raises:
        FileNotFoundError: There is no such file.
        ValueError: None of its lines is a logged step; ``at_most`` is below 2.
    """
    if at_most < 2:
        raise ValueError(f"a trajectory needs at least 2 steps, got at_most={at_most}")
    path = Path(run) / "metrics.jsonl"
    if not path.is_file():
        raise FileNotFoundError(f"{run} has no metrics.jsonl: trajectories are read from a run folder")
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    by_step: dict[int, dict[str, Any]] = {}
    repeated = damaged = 0
    for line in lines:
        row = _row(line)
        if row is None:
            damaged += 1
            continue
        step = row.pop("step")
        while by_step and ((last := next(reversed(by_step))) > step or (last == step and by_step[last].keys() & row)):
            del by_step[last]
            repeated += 1
        by_step.setdefault(step, {}).update(row)  # scores of a step have a line of their own
    if not by_step:
        raise ValueError(f"{path} holds no logged step: " + (f"{damaged} damaged lines" if damaged else "it is empty"))
    steps = list(by_step)
    if len(steps) > at_most:
        steps = [steps[int(place)] for place in np.unique(np.geomspace(1, len(steps), at_most).round()) - 1]
    numbers = [(name, step, v) for step in steps for name, v in by_step[step].items() if _followed(name, v)]
    by_name: dict[str, Trajectory] = {}
    for name, step, value in numbers:
        if math.isfinite(value):
            found = by_name.setdefault(name, Trajectory(name, [], []))
            found.steps.append(step)
            found.values.append(float(value))
    not_finite = sum(not math.isfinite(value) for _, _, value in numbers)
    return Trajectories(by_name, repeated, damaged, not_finite, len(by_step) - len(steps))


def _row(line: str) -> dict[str, Any] | None:
    """A logged step; None if the line is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    step = row.get("step") if isinstance(row, dict) else None
    return row if isinstance(step, int) and not isinstance(step, bool) and step > 0 else None


def _followed(name: str, value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (name in FOLLOWED or name.startswith(FOLLOWED_GROUPS))
