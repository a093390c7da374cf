"""Drawn images side by side: a row a prompt, a column a model or an alpha (HyFL-CLIP, Figs. 5 and S8 to S10)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from hyvlm.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL = 1.7  # inches
LINE = 34  # characters of a prompt on one line
LINES = 11


def image_grid(columns: Mapping[str, Sequence[Image.Image | str | Path]], prompts: Sequence[str]) -> Figure:
    """A matplotlib figure: each row a prompt, cut after some ten lines, and its image in every column.

    Args:
        columns: Title to images (or their files), in the order of ``prompts``.
    Raises:
        ValueError: No column, no prompt, or a column with more or fewer images than prompts.
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("drawing figures", "matplotlib", "plots") from error
    if not columns or not prompts:
        raise ValueError("a grid needs at least one prompt and one column of images")
    for title, images in columns.items():
        if len(images) != len(prompts):
            raise ValueError(f"column {title!r} has {len(images)} images for {len(prompts)} prompts")
    figure = Figure(figsize=(CELL * (len(columns) + 1.35), CELL * len(prompts) + 0.3), layout="constrained")
    widths = {"width_ratios": [1.35, *[1] * len(columns)]}
    cells = figure.subplots(len(prompts), len(columns) + 1, squeeze=False, gridspec_kw=widths)
    for row, (line, prompt) in enumerate(zip(cells, prompts, strict=True)):
        text = textwrap.fill(prompt, LINE, max_lines=LINES, placeholder=" …")
        line[0].text(
            0.0, 0.5, text.replace("$", r"\$"), va="center", ha="left", fontsize=8, transform=line[0].transAxes
        )
        for ax, (title, images) in zip(line[1:], columns.items(), strict=True):
            image = images[row]
            ax.imshow(image if isinstance(image, Image.Image) else Image.open(image).convert("RGB"))
            if row == 0:
                ax.set_title(title, fontsize=9)
        for ax in line:
            ax.set_axis_off()
    return figure
