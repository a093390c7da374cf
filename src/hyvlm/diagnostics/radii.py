"""How far from the origin the points of each view lie (*How Hyperbolic Are Hyperbolic VLMs?*, Figs. 2 and 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import gaussian_kde
from torch import Tensor

from hyvlm.geometry import Manifold
from hyvlm.losses import HasRadius

#: The quantiles that are reported of anything measured on points, by name.
QUANTILES = {"1%": 0.01, "5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95, "99%": 0.99}
#: Radii at which a density is given.
GRID = 256


@dataclass(frozen=True)
class RadialDistribution:
    """Distances of a view's points from the origin, in units of length.

    Attributes:
        count: How many points.
        mode: Where the density is highest.
        mean: Mean radius.
        quantiles: Those of :data:`QUANTILES`, by name.
        grid, density: A Gaussian kernel density (Scott's bandwidth) at increasing radii; it has no density, and both
            are empty, where all radii are equal.
    """

    view: str
    count: int
    mode: float
    mean: float
    quantiles: dict[str, float]
    grid: list[float]
    density: list[float]


def mode(values: Tensor | ArrayLike) -> float:
    """Where the Gaussian kernel density (Scott's bandwidth) of ``values`` is highest; their value if all are equal.

    Raises:
        ValueError: Fewer than two values, or one that is not finite.
    """
    found = _finite(values, "values")
    density = _density(found)
    return float(found[0]) if density is None else _highest(density, _grid(found, density))


def quantiles(values: Tensor | ArrayLike) -> dict[str, float]:
    """The :data:`QUANTILES` of all ``values``, whatever their shape, by name."""
    found = np.quantile(_array(values), list(QUANTILES.values()))
    return dict(zip(QUANTILES, found.tolist(), strict=True))


def radial_distribution(view: str, radii: Tensor | ArrayLike) -> RadialDistribution:
    """What :class:`RadialDistribution` says of the radii ``(N,)`` of a view.

    Raises:
        ValueError: Fewer than two radii, or one that is not finite.
    """
    found = _finite(radii, f"radii of {view}")
    density = _density(found)
    grid = np.empty(0) if density is None else _grid(found, density)
    return RadialDistribution(
        view=view,
        count=len(found),
        mode=float(found[0]) if density is None else _highest(density, grid),
        mean=float(found.mean()),
        quantiles=quantiles(found),
        grid=grid.tolist(),
        density=[] if density is None else density(grid).tolist(),
    )


def radial_distributions(manifold: Manifold, points: Mapping[str, Tensor]) -> list[RadialDistribution]:
    """The radial distribution of every view's points ``(N, D)``; none on a manifold without an origin (the sphere).

    The radius in a product is its own distance from the origin: the mean of the factors' radii (metric "l1").

    Raises:
        ValueError: A view with fewer than two points, or with one that is not finite.
    """
    if not isinstance(manifold, HasRadius):
        return []
    return [radial_distribution(view, manifold.radius(rows)) for view, rows in points.items()]


def _array(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    return torch.as_tensor(values).detach().double().cpu().numpy().ravel()


def _finite(values: Tensor | ArrayLike, what: str) -> NDArray[np.float64]:
    found = _array(values)
    if len(found) < 2:
        raise ValueError(f"a distribution needs at least 2 {what}, got {len(found)}")
    if bad := int((~np.isfinite(found)).sum()):
        raise ValueError(f"{bad} of {len(found)} {what} are not finite: take them out first")
    return found


def _density(values: NDArray[np.float64]) -> gaussian_kde | None:
    """Their kernel density; None where they are equal but for rounding, and so have none."""
    if np.ptp(values) <= 1e-6 * np.abs(values).max():
        return None
    return gaussian_kde(values)


def _grid(values: NDArray[np.float64], density: gaussian_kde) -> NDArray[np.float64]:
    """:data:`GRID` places from three bandwidths below the values, but not below 0, to three above them."""
    margin = 3 * float(np.sqrt(density.covariance[0, 0]))
    low = float(values.min())
    return np.linspace(max(low - margin, min(low, 0.0)), values.max() + margin, GRID)


def _highest(density: gaussian_kde, grid: NDArray[np.float64]) -> float:
    top = int(density(grid).argmax())
    around = grid[max(top - 1, 0)], grid[min(top + 1, len(grid) - 1)]
    return float(minimize_scalar(lambda at: -density(at)[0], bounds=around, method="bounded").x)
