"""How far apart the radii of wholes and of parts are, as distributions (UNCHA, Fig. S.10)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import pdist
from scipy.stats import wasserstein_distance

#: Values at even ranks that a bandwidth is taken from, at the most; rows of a kernel that are held at once.
SAMPLE = 2000
ROWS = 1000


@dataclass(frozen=True)
class Separation:
    """Of two distributions of radii.

    Attributes:
        mmd: Maximum mean discrepancy with a Gaussian kernel, between 0 and the square root of 2.
        w1, w2: Wasserstein distances, in units of length.
        bandwidth: Standard deviation of the kernel, in units of length.
    """

    mmd: float
    w1: float
    w2: float
    bandwidth: float


def separation(wholes: ArrayLike, parts: ArrayLike, *, bandwidth: float | None = None) -> Separation:
    """How far apart the radii of wholes ``(N,)`` and parts ``(M,)`` are.

    Args:
        bandwidth: Of the kernel; None is the median distance of two radii of either kind. To compare several models, or
            the checkpoints of a run, give all of them one bandwidth.
    Raises:
        ValueError: No radius of a kind, one that is not finite, or a bandwidth that is not positive.
    """
    a, b = _finite(wholes, "wholes"), _finite(parts, "parts")
    width = median_distance(np.concatenate([a, b])) if bandwidth is None else bandwidth
    return Separation(mmd(a, b, bandwidth=width), float(wasserstein_distance(a, b)), wasserstein2(a, b), width)


def median_distance(values: ArrayLike) -> float:
    """The median distance of two of the values, the usual bandwidth of a kernel; 1 if most of them are equal."""
    ordered = np.sort(np.asarray(values, dtype=float).ravel())
    at = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), SAMPLE)).round().astype(int))
    return float(np.median(pdist(ordered[at, None]))) or 1.0


def mmd(a: NDArray[np.float64], b: NDArray[np.float64], *, bandwidth: float) -> float:
    """Maximum mean discrepancy of samples ``(N,)`` and ``(M,)`` under ``exp(-(x - y)^2 / (2 bandwidth^2))``.

    It is that of the empirical distributions (Gretton et al. 2012, Eq. 5), so it is 0 for equal samples only.
    """
    if not bandwidth > 0:
        raise ValueError(f"the bandwidth of a kernel must be positive, got {bandwidth}")
    squared = _mean_kernel(a, a, bandwidth) + _mean_kernel(b, b, bandwidth) - 2 * _mean_kernel(a, b, bandwidth)
    return float(np.sqrt(max(squared, 0.0)))  # rounding may leave less than 0


def _mean_kernel(a: NDArray[np.float64], b: NDArray[np.float64], bandwidth: float) -> float:
    starts = range(0, len(a), ROWS)
    sums = [np.exp(-(((a[i : i + ROWS, None] - b) / bandwidth) ** 2) / 2).sum() for i in starts]
    return float(sum(sums) / (len(a) * len(b)))


def wasserstein2(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """2-Wasserstein distance of samples on a line: the L2 distance of their quantile functions, exactly."""
    levels = np.union1d(np.arange(1, len(a) + 1) / len(a), np.arange(1, len(b) + 1) / len(b))
    widths = np.diff(levels, prepend=0.0)
    middle = levels - widths / 2
    of_a, of_b = (np.sort(v)[np.minimum((middle * len(v)).astype(int), len(v) - 1)] for v in (a, b))
    return float(np.sqrt((widths * (of_a - of_b) ** 2).sum()))


def _finite(values: ArrayLike, what: str) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=float).ravel()
    if not len(found) or not np.isfinite(found).all():
        bad = int((~np.isfinite(found)).sum())
        raise ValueError(f"distances of distributions need finite radii of {what}: {bad} of {len(found)} are not")
    return found
