"""Maps of a model's points in two dimensions: HoroPCA in the Poincare disk, or t-SNE (HyFL-CLIP, Figs. 4, S1, S2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from sklearn.manifold import TSNE
from torch import Tensor

from hyvlm.geometry import Lorentz, Manifold
from hyvlm.plotting.figures import COLOURS, INK, PALE, style
from hyvlm.plotting.horopca import horopca

#: Group name to colour, size of its dots, and how it is called; drawn in this order.
GROUPS = {
    "image": (COLOURS["image"], "images"),
    "short_text": (COLOURS["part_text"], "short texts"),
    "text": (COLOURS["text"], "long texts"),
    "midpoint": ("#009E73", "token midpoints"),
    "whole_text": (COLOURS["text"], "whole texts"),
    "part_image": (COLOURS["part_image"], "part images"),
    "part_text": (COLOURS["part_text"], "part texts"),
}
#: Points that are shown one by one, as stars.
STARS = {
    "perturbed": ("#CC79A7", 70, "perturbed captions"),
    "own_text": ("#F0E442", 190, "its caption"),
    "own_image": ("#56B4E9", 190, "the chosen image"),
    "own_part_text": (COLOURS["part_text"], 70, "texts of its parts"),
    "own_part_image": ("#009E73", 70, "its parts"),
}


@dataclass(frozen=True)
class Layout:
    """Points in two dimensions.

    Attributes:
        places: Group name to ``(n, 2)``.
        disk: They lie in the unit Poincare disk.
        note: How they came there.
        root: ``(2,)``, where the model's own origin lies, on Lorentz manifolds.
        labels: Group name to what is written beside each of its places.
        reach: How much of the disk is shown, as a radius; 1 is all of it.
    """

    places: dict[str, np.ndarray]
    disk: bool
    note: str
    root: np.ndarray | None = None
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reach: float = 1.0


def place(manifold: Manifold, groups: Mapping[str, Tensor], *, sample: int = 2000, seed: int = 0) -> Layout:
    """Points to two dimensions: on the Lorentz manifold by HoroPCA, on others by t-SNE of their distances.

    Args:
        groups: Group name to points ``(n, D)``; all are placed together.
        sample: Points that HoroPCA is fitted on, at the most.
        seed: Of that draw, and of t-SNE's start.
    Raises:
        ValueError: If there are fewer than 3 points, or all coincide.
    """
    points = torch.cat(list(groups.values())).detach()
    if len(points) < 3:
        raise ValueError(f"a map needs at least 3 points, got {len(points)}")
    sizes = [len(group) for group in groups.values()]
    if isinstance(manifold, Lorentz):
        c = float(manifold.c.detach())
        points = points.cpu()  # in float64, which some accelerators lack
        fit = horopca(points, c, sample=sample, seed=seed)
        flat = fit.disk(points)
        root = fit.disk(points.new_zeros(1, points.shape[1]))[0].numpy()
        note = f"HoroPCA, {100 * fit.explained:.0f} % of the variance of distances"
        if fit.measured_on < len(points):
            note += f", fitted on {fit.measured_on:,} of {len(points):,} points"
        return Layout(_split(flat.numpy(), groups, sizes), True, note, root)
    with torch.no_grad():
        distances = manifold.pairwise_distance(points, points)
    symmetric = ((distances + distances.T) / 2).fill_diagonal_(0).cpu().numpy()
    perplexity = min(30.0, (len(points) - 1) / 3)
    tsne = TSNE(metric="precomputed", init="random", perplexity=perplexity, random_state=seed)
    return Layout(_split(tsne.fit_transform(symmetric), groups, sizes), False, f"t-SNE, perplexity {perplexity:.0f}")


def _split(flat: np.ndarray, groups: Mapping[str, Tensor], sizes: Sequence[int]) -> dict[str, np.ndarray]:
    return dict(zip(groups, np.split(flat, np.cumsum(sizes)[:-1]), strict=True))


def embedding_map(layouts: Mapping[str, Layout]) -> Figure:
    """Maps side by side, one a model.

    Args:
        layouts: Model name to its layout. Groups are those of ``GROUPS`` (dots) and ``STARS``.
    """
    if not layouts:
        raise ValueError("there is no model to draw a map of")
    with style():
        figure = Figure(figsize=(4.3 * len(layouts), 5.3 if len(layouts) > 1 else 5.7), layout="constrained")
        shown: dict[str, Artist] = {}
        for ax, (name, layout) in zip(figure.subplots(1, len(layouts), squeeze=False)[0], layouts.items(), strict=True):
            _frame(ax, layout)
            ax.set_title(f"{name}\n", weight="bold", parse_math=False)
            ax.text(0, 1.015, layout.note, transform=ax.transAxes, fontsize=7.5, color=INK)
            _dots(ax, layout)
            handles, labels = ax.get_legend_handles_labels()
            shown |= dict(zip(labels, handles, strict=True))
        columns = min(4, 2 * len(layouts))
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=columns, handletextpad=0.3)
        further = max(0, -(-len(shown) // columns) - 4) + any(layout.reach < 1 for layout in layouts.values())
        figure.set_figheight(figure.get_figheight() + 0.22 * further)  # lines of text below the maps
    return figure


def _frame(ax: Axes, layout: Layout) -> None:
    ax.grid(visible=False)
    ax.set(xticks=[], yticks=[], aspect="equal" if layout.disk else "auto")
    if layout.disk:
        ax.add_patch(Circle((0, 0), 1, facecolor="#FAFAFA", edgecolor=PALE, linewidth=0.8, zorder=0))
        ax.set(xlim=(-1.02 * layout.reach, 1.02 * layout.reach), ylim=(-1.02 * layout.reach, 1.02 * layout.reach))
        ax.spines[:].set_visible(False)
        if layout.reach < 1:
            ax.set_xlabel(f"shown is the disk up to radius {layout.reach:.2f}", fontsize=7.5)
    else:
        ax.set_box_aspect(1)
        ax.spines[:].set_visible(True)


def _dots(ax: Axes, layout: Layout) -> None:
    most = max((len(layout.places[g]) for g in GROUPS if g in layout.places), default=1)
    size = float(np.clip(2500 / most, 3, 22))
    for group, (colour, label) in GROUPS.items():
        if group in layout.places:
            x, y = layout.places[group].T
            ax.scatter(x, y, s=size, color=colour, alpha=0.55, linewidths=0, label=f"{label} ({len(x):,})")
    if layout.root is not None:
        x, y = layout.root
        ax.scatter(x, y, s=45, marker="+", color=INK, linewidths=1.3, label="the model's origin", zorder=4)
    for group, (colour, area, label) in STARS.items():
        if group in layout.places:
            x, y = layout.places[group].T
            label = f"{label} ({len(x)})" if group == "perturbed" else label
            _write(ax, layout.places[group], layout.labels.get(group, ()))
            ax.scatter(x, y, s=area, marker="*", color=colour, edgecolors=INK, linewidths=0.7, label=label, zorder=5)


def _write(ax: Axes, places: np.ndarray, texts: Sequence[str]) -> None:
    """Texts in the corner that the places lie toward, that of the highest place first, each with a line to it."""
    if not texts:
        return
    left, low = places.mean(0) < np.mean([ax.get_xlim(), ax.get_ylim()], axis=1)
    first = 0.02 + 0.035 * (len(texts) - 1) if low else 0.96
    for line, (place_, text) in enumerate(sorted(zip(places, texts, strict=True), key=lambda pair: -pair[0][1])):
        ax.annotate(
            text,
            place_,
            (0.01 if left else 0.99, first - 0.035 * line),
            textcoords="axes fraction",
            ha="left" if left else "right",
            fontsize=6.5,
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": PALE, "linewidth": 0.6, "relpos": (float(left), 0.5)},
        )
