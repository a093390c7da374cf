from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from hyvlm.cli.main import main
from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation import Embedder
from hyvlm.geometry import Lorentz, ProductLorentz, Sphere
from hyvlm.models import Tokenizer, build_model, save_model
from hyvlm.plotting import report_map
from hyvlm.plotting.explored import Explored, explore
from hyvlm.plotting.relation_graph import RELATIONS, choose_examples, example, in_cone, relations
from hyvlm.plotting.report_map import place_map
from hyvlm.plotting.report_page import measure, report_page, write_report
from hyvlm.plotting.strips import walk_to_root
from hyvlm.types import BadSample, Part, Sample

HOSTILE = "</script><script>document.title='taken'</script> \"'& <img src=x onerror=alert(1)>"
CAPTIONS = [
    HOSTILE,
    "w" * 400,
    "\u0645\u0631\u0628\u0639 \u0623\u062d\u0645\u0631",
    "two squares",
    "two squares",
    "\u2028 half a pair \ud800",
]


class Pictures(SampleSet):
    """Eight images, two of which cannot be used; the others have two parts each."""

    name, split, fingerprint = "pictures", "test", "0"

    def __len__(self) -> int:
        return len(CAPTIONS) + 2

    def __getitem__(self, index: int) -> Sample:
        if index == 6:
            raise BadSample("image is broken", "6.png")
        image = Image.effect_mandelbrot((60, 40 + index), (-2, -1.5, 1 + 0.2 * index, 1.5), 20 + index).convert("RGB")
        texts = [" "] if index == 7 else [CAPTIONS[index]]
        halves = image.crop((0, 0, 30, 40)), image.crop((30, 0, 60, 40))
        parts = [Part(half, text) for half, text in zip(halves, ("left half", f"right {index % 2}"), strict=True)]
        return Sample(f"{index}<b>.png", image, texts, [*parts, Part(halves[0], "")])


def embedder_on(manifold: str, **settings: Any) -> Embedder:
    torch.manual_seed(0)
    shapes = {"width": 32, "depth": 1, "heads": 2}
    model = {"image": {"image_size": 32, "patch": 8, **shapes}, "text": {"context_length": 40, **shapes}, "dim": 16}
    config = {"model": model, "manifold": {"name": manifold, **settings}}
    return Embedder(build_model(config).eval(), Tokenizer(40))


@pytest.fixture
def explored(embedder: Embedder) -> Explored:
    return explore(embedder, Pictures())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of hostile texts under an untrained model."""
    one = embedder_on("lorentz")
    samples = Pictures()
    path = tmp_path_factory.mktemp("report") / "report.html"
    found = measure(one, explore(one, samples), name="<model>", samples=samples)
    path.write_text(report_page(found), encoding="utf-8")
    return path


def test_one_pass_gives_the_points_of_the_evaluation_and_counts_what_is_left_out(
    embedder: Embedder, explored: Explored
) -> None:
    assert explored.keys == [f"{i}<b>.png" for i in range(6)]
    assert explored.skipped == {"image is broken": 1, "no caption": 1, "part: no phrase": 6}
    assert explored.owner == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    same = embedder.images(Pictures(), parts=True)
    torch.testing.assert_close(explored.points["image"], same.points[:6])
    torch.testing.assert_close(
        explored.points["part_image"], same.part_points[[0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16]]
    )
    torch.testing.assert_close(explored.points["text"], embedder.texts(explored.captions))
    assert explored.part(3, 16).size == (12, 16)
    assert explored.whole(0, 30).size == (30, 20)


def test_points_that_are_not_finite_take_their_images_and_parts_with_them(embedder: Embedder) -> None:
    lift = embedder.model.lift_image
    embedder.model.lift_image = lambda features: lift(features).where(
        torch.arange(len(features))[:, None] != 1, torch.nan
    )
    found = explore(replace(embedder, batch_size=64), Pictures())
    assert found.keys == [f"{i}<b>.png" for i in (0, 2, 3, 4, 5)]
    assert found.owner == [0, 1, 1, 2, 2, 3, 3, 4, 4]  # the first image has lost a part, the second was taken out
    assert found.skipped["points that are not finite"] == 1
    assert found.skipped["part: points that are not finite"] == 3
    assert all(points.isfinite().all() for points in found.points.values())


def test_relations_agree_with_the_manifold_pair_by_pair(embedder: Embedder, explored: Explored) -> None:
    manifold = embedder.model.manifold
    assert isinstance(manifold, Lorentz)
    found = {(r.general, r.specific): r for r in relations(manifold, explored)}
    assert list(found) == list(RELATIONS)
    points = explored.points
    pairs = [(points["part_image"][i], points["image"][row]) for i, row in enumerate(explored.owner)]
    apart = sorted(manifold.distance(a, b).item() for a, b in pairs)
    held = [(manifold.exterior_angle(a, b) <= manifold.half_aperture(a)).item() for a, b in pairs]
    one = found["part_image", "image"]
    assert one.n == 12
    assert one.distance == pytest.approx(apart[5], rel=1e-5)  # torch's median is the lower of the two in the middle
    assert one.inside == pytest.approx(sum(held) / 12)
    assert one.nearer == pytest.approx(sum((manifold.radius(a) < manifold.radius(b)).item() for a, b in pairs) / 12)


def test_a_cone_holds_what_lies_farther_out_on_its_ray() -> None:
    near, far = torch.tensor([[0.5, 0.0]]), torch.tensor([[2.0, 0.1]])
    for manifold in (Lorentz(), ProductLorentz(factors=1)):
        assert in_cone(manifold, near, far).tolist() == [True]
        assert in_cone(manifold, far, near).tolist() == [False]
    assert in_cone(Sphere(), near, far) is None


def test_an_example_goes_from_the_general_to_the_specific(embedder: Embedder, explored: Explored) -> None:
    ((row, parts),) = choose_examples(explored, 1)
    nodes, edges = example(embedder.model.manifold, explored, row, parts)
    radii = [node.radius for node in nodes]
    assert radii == sorted(radii)
    assert {(nodes[e.general].view, nodes[e.specific].view) for e in edges} == set(RELATIONS)
    assert len(edges) == 7
    assert {node.text for node in nodes} >= {"left half", HOSTILE}


def test_a_strip_ends_at_the_root_and_never_shows_its_start(embedder: Embedder, explored: Explored) -> None:
    strips = walk_to_root(embedder.model, explored, 2)
    assert [strip.key for strip in strips] == ["0<b>.png", "3<b>.png"]
    for strip in strips:
        assert strip.traversal.steps[-1].name == "[ROOT]"
        assert strip.key not in {step.name.partition("\n")[0] for step in strip.traversal.steps}


def test_the_same_input_gives_the_same_bytes(embedder: Embedder, sphere: Embedder, explored: Explored) -> None:
    for one in (embedder, sphere):
        pages = [report_page(measure(one, explore(one, Pictures()), name="m", samples=Pictures())) for _ in range(2)]
        assert pages[0] == pages[1]


def test_a_sphere_has_a_map_by_tsne_without_radii_cones_and_root(
    sphere: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_map, "TSNE_POINTS", 24)
    found = measure(sphere, explore(sphere, Pictures()), name="clip", samples=Pictures())
    page = report_page(found)
    assert "t-SNE" in found.placed.note
    assert "4 of 6 images are shown" in found.placed.note
    assert '"radius":null' in page
    assert "has no root" in page
    assert "no radius" in page
    assert found.relations[0].inside is None


def test_a_product_counts_by_the_mean_over_its_factors() -> None:
    product = embedder_on("product", factors=2)
    found = measure(product, explore(product, Pictures()), name="product", samples=Pictures())
    manifold, points = product.model.manifold, found.explored.points
    margin = manifold.half_aperture(points["text"]) - manifold.exterior_angle(points["text"], points["image"])
    assert margin.shape == (6, 2)
    assert found.relations[3].inside == pytest.approx((margin.mean(-1) >= 0).double().mean().item())
    assert "t-SNE" in found.placed.note
    assert found.strips[0].traversal.steps[-1].name == "[ROOT]"
    assert {r.view for r in found.radii} == {"image", "text", "part_image", "part_text"}


def test_nothing_that_was_written_by_others_is_read_as_code(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    assert text.count("<script") == 2  # the data and the map's own
    assert "<img src=x" not in text
    assert "&lt;img src=x" in text
    assert "\\u003cimg src=x" in text
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", text)
    assert "http://" not in text
    assert "https://" not in text


def test_the_page_loads_alone_and_shows_what_is_pointed_at(written: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(written)
    page.wait_for_selector(".stage[data-ready]")
    assert page.title() == "What <model> makes of pictures (test)"
    page.locator(".over").focus()
    page.keyboard.press("ArrowRight")
    stage, tip = page.locator(".stage"), page.locator(".tip")
    assert tip.is_visible()
    seen = set()
    for _ in range(12):
        at = {name: stage.get_attribute(f"data-{name}") for name in ("group", "row", "x", "y")}
        seen.add((at["group"], at["row"]))
        said = tip.inner_text()
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        box = page.locator(".over").bounding_box()
        page.mouse.move(box["x"] + float(at["x"]), box["y"] + float(at["y"]))
        assert tip.inner_text() == said
        page.keyboard.press("Enter")  # on to what belongs to it
    assert len(seen) > 2
    assert page.problems == []


def test_pictures_are_shown_in_the_tip(written: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(written)
    page.locator(".over").focus()
    for i in (2, 3):  # only images are left
        page.locator(f".legend input[data-group='{i}']").uncheck()
    page.locator(".over").focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_function("document.querySelector('.tip .picture').dataset.picture")
    colours = page.evaluate(
        "(() => { const c = document.querySelector('.tip .picture');"
        "return new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size })()"
    )
    assert colours > 5
    assert page.locator(".tip").inner_text().startswith(("whole image", "part image"))
    assert page.locator(".spoken").inner_text().startswith(("whole image", "part image"))


def test_the_legend_hides_and_shows_groups(written: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(written)
    page.wait_for_selector(".stage[data-ready]")
    ink = (
        "(() => { const c = document.querySelector('.points');"
        "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.reduce((n, v) => n + (v < 128), 0) })()"
    )
    full = page.evaluate(ink)
    boxes = page.locator(".legend input")
    assert boxes.count() == 4
    boxes.first.focus()
    page.keyboard.press("Space")
    fewer = page.evaluate(ink)
    assert fewer != full
    page.keyboard.press("Space")
    assert page.evaluate(ink) == full
    for i in range(4):
        boxes.nth(i).uncheck()
    page.locator(".over").focus()
    page.keyboard.press("ArrowLeft")
    assert not page.locator(".tip").is_visible()
    assert page.problems == []


def test_the_map_is_reached_by_tab_and_zooms(written: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(written)
    page.wait_for_selector(".stage[data-ready]")
    for _ in range(5):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "over"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("+")
    assert "zoomed" in page.locator(".stage").get_attribute("class")
    assert page.locator(".tip").is_visible()
    page.keyboard.press("0")
    assert "zoomed" not in page.locator(".stage").get_attribute("class")
    page.locator("[data-zoom=in]").click()
    assert "zoomed" in page.locator(".stage").get_attribute("class")


def test_a_narrow_screen_scrolls_down_only_and_answers_a_tap(
    written: Path, open_page: Callable[..., Any], sticks_out: Callable[[Any], int]
) -> None:
    page = open_page(written, width=400, height=800, has_touch=True)
    page.wait_for_selector(".stage[data-ready]")
    assert sticks_out(page) <= 0
    page.locator(".over").focus()
    page.keyboard.press("ArrowRight")
    at = [float(page.locator(".stage").get_attribute(f"data-{name}")) for name in ("x", "y")]
    page.keyboard.press("Escape")
    page.locator(".over").tap(position={"x": at[0], "y": at[1]})
    assert page.locator(".tip").is_visible()
    tip, stage = page.locator(".tip").bounding_box(), page.locator(".stage").bounding_box()
    assert stage["x"] <= tip["x"]
    assert tip["x"] + tip["width"] <= stage["x"] + stage["width"] + 1
    assert sticks_out(page) <= 0
    assert page.problems == []


def test_the_command_writes_one_page_with_its_results(
    embedder: Embedder, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(embedder.model, tmp_path / "model")
    entry = {
        "task": "retrieval",
        "data": "coco",
        "split": "",
        "scores": {"recall@1": 12.345, "drop": None},
        "units": {"recall@1": "%"},
        "intervals_95": {"recall@1": [10, 14]},
        "n": 5,
        "model": embedder.model_fingerprint,
    }
    results = tmp_path / "mine.json"
    results.write_text(json.dumps({"format": 1, "results": [entry]}), encoding="utf-8")
    asked = ["report", str(model), "--data", str(table), "--num-workers", "0", "--out", str(tmp_path / "out")]
    assert main([*asked, "--results", str(results)]) == 0
    assert "report.html (0." in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "12.35" in page or "12.34" in page
    assert "10.00 to 14.00" in page
    assert "4 of 5 samples" in page
    assert "1 image is of no known format" in page
    assert "have no parts" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limit": 1}, "2 to 10,000 images, got a limit of 1"),
        ({"limit": 10_001}, "2 to 10,000 images"),
        ({"data": "folder:nowhere"}, "nowhere|pairs"),
        ({"captions": "lst"}, "Did you mean"),
        ({"results": ["none.json"]}, "no results at none.json"),
        ({"out": "captions.csv"}, "is a file"),
    ],
)
def test_what_cannot_be_reported_is_told_in_one_line(
    embedder: Embedder, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict, message: str
) -> None:
    monkeypatch.chdir(table.parent)
    asked = {"model": str(save_model(embedder.model, tmp_path / "m")), "data": str(table), "out": "out"} | change
    with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
        write_report(**asked, device="cpu")
    assert "\n" not in str(raised.value)
    assert not Path("out").exists()


def test_images_without_captions_and_points_that_coincide_are_told(embedder: Embedder, explored: Explored) -> None:
    class Silent(Pictures):
        def __getitem__(self, index: int) -> Sample:
            return replace(super().__getitem__(index), texts=[])

    with pytest.raises(ValueError, match="at least 2 images with captions, pictures gives 0: 7 no caption"):
        explore(embedder, Silent())
    same = {view: torch.ones_like(points) for view, points in explored.points.items()}
    with pytest.raises(ValueError, match="points of pictures coincide"):
        place_map(Lorentz(), replace(explored, points=same))
