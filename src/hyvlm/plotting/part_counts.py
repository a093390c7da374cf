"""How many parts the samples of a data set have, with the tail, and what each cap keeps (Hyper3-CLIP, Fig. 2, left)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from hyvlm.data.stats import PartStatistics
from hyvlm.plotting.figures import COLOURS, INK, style

#: From this ratio of the most to the least common number of parts on, shares are drawn on a logarithmic axis.
LOG_FROM = 20
#: With more caps than this, the lines of the right panel have no markers.
MOST_POINTS = 30
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2, "handlelength": 1.4}


def part_counts_figure(stats: PartStatistics, *, cap: int | None = None) -> Figure:
    """Left: the share of samples with each number of parts. Right: what is left under each cap.

    Args:
        stats: Of :func:`hyvlm.data.stats.scan_parts`.
        cap: Is marked in both panels, with its shares.
    Raises:
        ValueError: The cap is below 1.
    """
    if cap is not None and cap < 1:
        raise ValueError(f"a cap keeps 1 part or more, got {cap}")
    with style():
        figure = Figure(figsize=(7.6, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        _histogram(left, stats, cap)
        _caps(right, stats, cap)
        left.set_xlim(min(0.4, min(stats.histogram) - 0.6), max(stats.max, cap or 0) + 0.6)
        left.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        summary = f"{stats.samples:,} samples, {stats.parts:,} parts: mean {stats.mean:.2f}, most {stats.max}"
        figure.suptitle(summary, fontsize=9, color=INK)
    return figure


def _histogram(ax: Axes, stats: PartStatistics, cap: int | None) -> None:
    parts = np.array(list(stats.histogram))
    share = np.array([100 * stats.share(k) for k in parts.tolist()])
    tail = share.max() > LOG_FROM * share.min()
    floor = (
        10 ** np.floor(np.log10(share.min()) - 0.2) if tail else 0.0
    )  # so that the least common has a bar to be seen
    cut = np.zeros(len(parts), dtype=bool) if cap is None else parts > cap
    for rows, colour, label in (
        (~cut, COLOURS["image"], "samples left whole"),
        (cut, COLOURS["part_image"], f"samples cut to {cap}"),
    ):
        if rows.any():
            ax.bar(parts[rows], share[rows] - floor, bottom=floor, width=0.8, color=colour, label=label)
    if tail:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: np.format_float_positional(value, 6, trim="-")))
    ax.set(ylim=(floor, None), xlabel="parts of a sample", ylabel="share of samples, %")
    ax.grid(visible=False, axis="x")
    if cap is not None:
        ax.legend(**_ABOVE)


def _caps(ax: Axes, stats: PartStatistics, cap: int | None) -> None:
    caps = range(1, max(stats.max, cap or 0) + 1)
    for name, share, colour, marker in (
        ("samples left whole", stats.whole, COLOURS["image"], "o"),
        ("parts kept", stats.retained, COLOURS["part_text"], "s"),
    ):
        label = name if cap is None else f"{name}, {100 * share(cap):.2f} % at {cap}"
        shares = [100 * share(k) for k in caps]
        points = marker if len(caps) <= MOST_POINTS else None
        ax.plot(caps, shares, color=colour, marker=points, markersize=3.5, linewidth=1.4, label=label)
    if cap is not None:
        ax.axvline(cap, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set(ylim=(0, 103), xlabel="cap on the parts of a sample", ylabel="share left, %")
    ax.legend(**_ABOVE)
