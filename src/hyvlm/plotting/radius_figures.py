"""Histograms of radii, one small picture a view on a common axis, for pages that lay them out by their width."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from hyvlm.geometry import Manifold
from hyvlm.losses import HasRadius
from hyvlm.plotting.figures import COLOURS, INK, NAMES, style


def radius_pictures(manifold: Manifold, points: Mapping[str, Tensor], *, bins: int = 48) -> dict[str, bytes]:
    """PNG files by view; none on a manifold without an origin.

    Args:
        points: View to points ``(n, D)``, finite.
        bins: Bins over the common range.
    """
    if not isinstance(manifold, HasRadius) or not points:
        return {}
    with torch.no_grad():
        radii = {view: manifold.radius(rows).double().numpy() for view, rows in points.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(radii.values())), bins=bins)
    return {view: _png(_histogram(view, values, edges)) for view, values in radii.items()}


def _histogram(view: str, values: np.ndarray, edges: np.ndarray) -> Figure:
    share = 100 * np.histogram(values, edges)[0] / len(values)
    median = float(np.median(values))
    with style():
        figure = Figure(figsize=(3.6, 1.75), layout="constrained")
        ax = figure.subplots()
        ax.stairs(share, edges, fill=True, color=COLOURS[view], alpha=0.45)
        ax.stairs(share, edges, color=COLOURS[view], linewidth=1.2)
        ax.axvline(median, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        ax.set_title(f"{NAMES[view]}, median {median:.2f}")
        ax.set(xlim=(edges[0], edges[-1]), ylim=(0, None), xlabel="radius", ylabel="share, %")
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    return buffer.getvalue()
