"""Where perturbed captions stand among all captions of a data set, for one image (HyFL-CLIP, Fig. S3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hyvlm.plotting.figures import INK, PALE, style

#: Bluish green and vermilion of Okabe and Ito.
ALL, PERTURBED = "#009E73", "#D55E00"


@dataclass(frozen=True)
class RankPanel:
    """One measure of how well captions fit an image.

    Attributes:
        scores: ``(N,)``, of all captions of the data set; higher fits better.
        own: Which of them is the image's own.
        perturbed: ``(P,)``, of the perturbed captions.
        measure: What the scores are, with their unit.
    """

    scores: np.ndarray
    own: int
    perturbed: np.ndarray
    measure: str

    def ranks(self) -> np.ndarray:
        """``(P,)`` ranks of the perturbed captions, each alone among the N captions: 1 plus how many fit as well."""
        ordered = np.sort(self.scores)
        return 1 + len(ordered) - np.searchsorted(ordered, self.perturbed, side="left")


def rank_bars(panels: Mapping[str, RankPanel]) -> Figure:
    """Bars: the scores of all captions from the best to the worst. Markers: the perturbed captions at their ranks.

    Args:
        panels: Title to panel, drawn from top to bottom.
    Raises:
        ValueError: If there is nothing to draw, or a score is not finite.
    """
    for title, panel in panels.items():
        if not (np.isfinite(panel.scores).all() and np.isfinite(panel.perturbed).all()):
            raise ValueError(f"{title}: every score must be a finite number")
    if not panels or any(not len(panel.perturbed) or not len(panel.scores) for panel in panels.values()):
        raise ValueError("a rank distribution needs captions and perturbed captions")
    with style():
        figure = Figure(figsize=(6.8, 2.0 * len(panels) + 0.3), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for ax, (title, panel) in zip(axes, panels.items(), strict=True):
            ordered, ranks = np.sort(panel.scores)[::-1], panel.ranks()
            low = min(ordered[-1], panel.perturbed.min())
            span = max(ordered[0], panel.perturbed.max()) - low or 1.0
            floor = low - 0.06 * span
            edges = np.arange(len(ordered) + 1) + 0.5
            ax.stairs(ordered, edges, baseline=floor, fill=True, color=ALL, alpha=0.5, linewidth=0)
            ax.vlines(ranks, floor, panel.perturbed, color=PERTURBED, linewidth=0.9)
            ax.scatter(ranks, panel.perturbed, s=16, color=PERTURBED, edgecolors="white", linewidths=0.5, zorder=4)
            own = panel.scores[panel.own]
            own_rank = 1 + int((panel.scores > own).sum())
            ax.scatter(own_rank, own, s=110, marker="*", color="#F0E442", edgecolors=INK, linewidths=0.8, zorder=5)
            last = max(len(ordered), int(ranks.max()))  # what all captions surpass has a place behind their bars
            ax.set(xlim=(0.5, last + 0.5), ylim=(floor, low + 1.12 * span), ylabel=panel.measure)
            ax.locator_params(axis="y", nbins=4)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            ax.set_title(title, weight="bold", parse_math=False)  # names are no formulas
            summary = f"perturbed: mean rank {ranks.mean():,.1f}, variance {ranks.var():,.1f}"
            ax.set_title(summary, loc="right", fontsize=8, color=INK)
            ax.grid(visible=False, axis="x")
        axes[-1].set_xlabel("rank of a caption, 1 fits best")
        handles = [axes[0].patches[0], *axes[0].collections[1:3]]
        labels = [
            f"all {len(panel.scores):,} captions",
            f"{len(panel.perturbed)} perturbed captions",
            "the image's own",
        ]
        figure.legend(handles, labels, loc="outside lower center", ncols=3, labelcolor=INK, edgecolor=PALE)
    return figure
