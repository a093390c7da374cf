from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from hyvlm.integrations.grid import image_grid

RED, BLUE = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))


def test_rows_are_prompts_and_columns_models(tmp_path: Path) -> None:
    BLUE.save(tmp_path / "blue.png")
    figure = image_grid({"SDXL": [RED, RED], "α = 1": [tmp_path / "blue.png"] * 2}, ["costs $5 or $6", "a dog"])
    axes = figure.axes
    assert [ax.get_title() for ax in axes] == ["", "SDXL", "α = 1", "", "", ""]
    shown = [ax.get_images()[0].get_array()[0, 0].tolist() for ax in axes if ax.get_images()]
    assert shown == [[255, 0, 0], [0, 0, 255]] * 2
    figure.savefig(tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 0


def test_a_long_prompt_is_cut() -> None:
    figure = image_grid({"SDXL": [RED]}, ["a very long prompt " * 100])
    text = figure.axes[0].texts[0].get_text()
    assert text.endswith("…")
    assert text.count("\n") < 12


@pytest.mark.parametrize(
    ("columns", "prompts", "message"),
    [({}, ["a"], "at least one"), ({"SDXL": []}, [], "at least one"), ({"SDXL": [RED]}, ["a", "b"], "1 images for 2")],
)
def test_what_makes_no_grid_is_refused(columns, prompts, message) -> None:
    with pytest.raises(ValueError, match=message):
        image_grid(columns, prompts)
