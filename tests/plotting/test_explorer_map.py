from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hyvlm.plotting.explorer_map import BUDGET, Group, Link, data_block, explorer, shortened
from hyvlm.plotting.page import page


def page_of(groups: list[Group], links: list[Link], path: Path) -> Path:
    body, style, script = explorer(groups, links, disk=True, root=(0, 0))
    path.write_text(page("map", f"{body}<script>{script}</script>", stylesheet=style), encoding="utf-8")
    return path


def test_ten_thousand_thumbnails_stay_under_thirty_megabytes_and_answer_at_once(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (50, 48, 48, 3), dtype=np.uint8)  # what JPEG can do least with
    pictures = [Image.fromarray(noise[i % 50]) for i in range(10_000)]
    places = rng.uniform(-0.65, 0.65, (10_000, 2))
    texts = [f"picture {i}" for i in range(10_000)]
    groups = [
        Group("image", "images", "#0072B2", "circle", places, texts, rng.uniform(0, 2, 10_000), pictures),
        Group("text", "texts", "#D55E00", "triangle", places / 2, [f"text {i} " * 12 for i in range(10_000)]),
    ]
    path = page_of(groups, [Link(0, 1, [(i, i) for i in range(10_000)])], tmp_path / "map.html")
    assert path.stat().st_size < 30e6
    started = time.monotonic()
    tab = open_page(path)
    tab.wait_for_selector(".stage[data-ready]")
    tab.locator(".legend input").nth(1).uncheck()
    box = tab.locator(".over").bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.wait_for_function("document.querySelector('.tip .picture').dataset.picture")
    first = time.monotonic() - started
    started = time.monotonic()
    for i in range(20):
        tab.mouse.move(box["x"] + box["width"] * (0.3 + 0.02 * i), box["y"] + box["height"] / 2)
    moves = (time.monotonic() - started) / 20
    tab.wait_for_selector(".stage[data-row]")
    row = int(tab.locator(".stage").get_attribute("data-row"))
    assert tab.locator(".tip .text").inner_text() == f"picture {row}"
    assert tab.problems == []
    print(f"{path.stat().st_size / 1e6:.1f} MB, first picture after {first:.2f} s, a move takes {1000 * moves:.0f} ms")


def test_each_point_shows_its_own_picture(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    """The second sheet begins at 1,024 pictures; a picture keeps its own form."""
    shades = [Image.new("RGB", (64, 32), (i % 256, i // 256 * 40, 120)) for i in range(1100)]
    places = np.stack([np.linspace(-0.9, 0.9, 1100), np.zeros(1100)], axis=1)
    group = Group("image", "images", "#0072B2", "circle", places, [str(i) for i in range(1100)], None, shades)
    tab = open_page(page_of([group], [], tmp_path / "map.html"))
    tab.wait_for_selector(".stage[data-ready]")
    box = tab.locator(".over").bounding_box()
    tab.mouse.move(box["x"] + 0.93 * box["width"], box["y"] + box["height"] / 2)
    tab.wait_for_selector(".stage[data-row]")
    row = int(tab.locator(".stage").get_attribute("data-row"))
    assert row > 1024
    tab.wait_for_function(f"document.querySelector('.tip .picture').dataset.picture === '{row}'")
    seen = tab.evaluate(
        "(() => { const c = document.querySelector('.tip .picture');"
        "return [c.width, c.height, ...c.getContext('2d').getImageData(c.width / 2, c.height / 2, 1, 1).data] })()"
    )
    assert seen[:2] == [128, 64]
    expected = np.array([row % 256, row // 256 * 40, 120])
    assert np.abs(np.array(seen[2:5]) - expected).max() < 12


def test_sheets_are_made_worse_until_they_fit(monkeypatch: Any) -> None:
    from hyvlm.plotting import explorer_map

    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(40)]
    places = rng.uniform(size=(40, 2))
    group = Group("image", "images", "#000", "circle", places, ["x"] * 40, None, pictures)
    large = explorer([group], disk=False)[0]
    monkeypatch.setattr(explorer_map, "BUDGET", 50_000)
    small = explorer([group], disk=False)[0]
    assert '"side":64' in large
    assert '"side":32' in small or '"side":48' in small
    assert len(small) < 60_000 < len(large) < BUDGET


def test_no_text_can_end_the_block_of_data() -> None:
    text = "</script><!-- & \u2028"
    block = data_block("d", {"text": text})
    assert block.count("<") == 2
    inner = block.partition(">")[2].rpartition("</script>")[0]
    assert json.loads(inner)["text"] == text


def test_long_texts_are_cut_and_white_space_is_single() -> None:
    assert shortened("a \n b") == "a b"
    assert shortened("half \ud800") == "half \\ud800"
    assert shortened("x" * 400) == "x" * 299 + "…"
