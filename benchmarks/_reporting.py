"""What the benchmarks' reports share: where numbers were taken, and intervals of paired differences."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from scipy import stats

import hyvlm
from hyvlm.geometry.matmul import processor


def where() -> dict[str, Any]:
    """The machine and the versions, as reports keep them."""
    return {
        "machine": {"processor": processor(), "cores": os.cpu_count()},
        "versions": {"hyvlm": hyvlm.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def mean_and_half_width(values: Sequence[float]) -> dict[str, float]:
    """Mean and half-width of the 95 % t interval of two values or more."""
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": statistics.fmean(values), "half_width_95": float(half)}
