from __future__ import annotations

import base64
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hyvlm.diagnostics.diagnosis import Diagnosis, ModelDiagnosis
from hyvlm.diagnostics.distortion import ApertureCurve, Box, RelationRatios, Surface
from hyvlm.diagnostics.gradients import CurvatureGradients, GradientCosines, TermGradient
from hyvlm.diagnostics.operating_point import OperatingPoint
from hyvlm.diagnostics.radii import radial_distribution
from hyvlm.diagnostics.readout import ReadoutAblation, ReadoutRow
from hyvlm.diagnostics.trajectories import Trajectories, Trajectory
from hyvlm.diagnostics.verdict import judge, no_verdict
from hyvlm.plotting.diagnosis_page import FIGURES, diagnosis_page, figures, write_report
from hyvlm.plotting.page import bullets, number, table

READOUT = ReadoutAblation(
    [
        ReadoutRow("classification", "scenes", "test", "acc1", "%", 1200, 45.0, 45.25, 0.25, 44.0),
        ReadoutRow("retrieval", "scenes", "test", "i2t_recall@1", "%", 500, 25.5, 24.9, -0.6, None),
        ReadoutRow("hierarchy", "flat <set>", "", "tie", "edges", 1200, 2.25, 2.5, 0.25, 2.0),
    ],
    {"order on scenes": "it has no <parts>"},
)


def model(name: str, **changed: object) -> ModelDiagnosis:
    """A hyperbolic model for which everything was measured."""
    course = {"c": [1.0, 0.5], "radius/text": [0.9, 0.7], "term/text ⊒ image": [0.1, 0.01]}
    found = ModelDiagnosis(
        name=name,
        fingerprint="0a1b",
        manifold="lorentz",
        curvature=[0.5],
        curvature_floor=0.1,
        objective="meru, by name",
        points={"image": 1200, "text": 1199},
        not_finite={"text": 1},
        ratios=[
            RelationRatios("text ⊒ image", "exterior_angle", 1199, 2, 1.01, 1.0234, 1.03),
            RelationRatios("text ⊒ image", "distance", 1199, 0, 1.001, 1.002, 1.003),
            RelationRatios("text ⊒ image", "aperture", 9, 9, math.nan, math.nan, math.nan),
        ],
        surfaces=[
            Surface("text ⊒ image", "distance", 0.5, 0.7, [0.6, 0.8], [1.0, 2.0], [[1, 1.1]] * 2, Box(0.6, 0.7, 1, 2))
        ],
        apertures=[ApertureCurve("text", 0.5, [0.1, 0.9], [1.57, 0.3], [1.57, 0.4], [1.0, 0.75])],
        radii=[radial_distribution("text", [0.5, 0.7, 0.75])],
        operating_points=[OperatingPoint("text", 1199, {"5%": 0.1, "50%": 0.25, "95%": 0.5}, 0.125, 7.5)],
        gradients=CurvatureGradients(
            [TermGradient("text ⊒ image", 0.2, 1.5, 0.5, 1.0)], False, 256, 4, ("norm: needs more",), None
        ),
        gradient_cosines=GradientCosines(["contrast", "entailment"], [[1, -0.5], [-0.5, 1]], [2.0, 1.0], 256, 4, ()),
        trajectories=Trajectories({k: Trajectory(k, [1, 10], v) for k, v in course.items()}, damaged=3),
        notes=["texts were <cut>"],
    )
    return replace(found, **changed)  # type: ignore[arg-type]


def diagnosis(subject: ModelDiagnosis, control: ModelDiagnosis | None = None) -> Diagnosis:
    verdict = judge(subject.ratios, READOUT)
    settings = {"captions": "last", "limit": None, "tasks": ["classification", "retrieval"]}
    return Diagnosis(
        "scenes", "test", "feed", 1200, 1203, {"not <readable>": 3}, subject, control, READOUT, verdict, settings, "9.9"
    )


def flat(name: str) -> ModelDiagnosis:
    """A control, which has no curvature."""
    points = [OperatingPoint("text", 1199, None, 0.25, 6.5)]
    empty = {"ratios": [], "surfaces": [], "apertures": [], "gradients": None, "notes": [], "not_finite": {}}
    empty["gradient_cosines"] = None
    return model(name, manifold="euclidean", curvature=[], curvature_floor=None, operating_points=points, **empty)


class Reader(HTMLParser):
    """Rows of cells, images and sentences of a page whose tags must close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.images: list[dict[str, str | None]] = []
        self.open: list[str] = []
        self.items: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in ("img", "meta"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag in ("li", "p", "h1", "h2"):
            self.items.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if {"li", "p", "h1", "h2"} & set(self.open):
            self.items[-1] += data


def test_the_page_holds_all_of_the_report_and_the_figures_lie_beside_it(tmp_path: Path) -> None:
    written = write_report(diagnosis(model("a <b>_$x$</b>"), flat("control & co")), tmp_path / "new")
    assert [path.name for path in written] == ["diagnosis.html", *(f"diagnosis-{name}.png" for name in FIGURES)]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in written)
    text = written[0].read_text(encoding="utf-8")
    page = Reader(text)
    assert [image["alt"] for image in page.images] == [heading for heading, _ in FIGURES.values()]
    for image, path in zip(page.images, written[1:], strict=True):
        kind, _, content = str(image["src"]).partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(content) == path.read_bytes()
        assert path.read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"https?:|<script|<link|@import|url\(", text)
    assert page.items[0] == "How hyperbolic is a <b>_$x$</b>?"
    assert page.items[1] == "Weakly hyperbolic:" + diagnosis(model("a")).verdict.sentence.partition(":")[2]
    assert page.items[2] == "Measured on 1,200 of 1,203 samples of scenes (test). Left out: 3 (not <readable>)."


@pytest.fixture
def compared() -> Reader:
    return Reader(diagnosis_page(diagnosis(model("meru"), flat("flat")), {}))


def test_tables_say_what_was_measured_of_the_model_and_its_control(compared: Reader) -> None:
    rows = compared.rows
    assert ["", "meru", "flat"] in rows
    assert ["curvature magnitude c", "0.50", "none"] in rows
    assert ["left out as not finite", "1 whole texts", "none"] in rows
    measured = [row for row in rows if "text ⊒ image" in row and len(row) == 7]
    assert measured == [
        ["distance", "text ⊒ image", "1,199", "0", "1.0010", "1.0020", "1.0030"],
        ["exterior angle", "text ⊒ image", "1,199", "2", "1.0100", "1.0234", "1.0300"],
        ["half-aperture", "text ⊒ image", "9", "9", "–", "–", "–"],
    ]
    assert ["meru", "whole texts", "1,199", "0.100", "0.250", "0.500", "12.5", "7.5"] in rows
    assert ["flat", "whole texts", "1,199", "–", "–", "–", "25.0", "6.5"] in rows
    assert ["text ⊒ image", "0.200", "1.5000", "+0.5", "100.0"] in rows


def test_the_read_out_has_the_difference_and_marks_the_largest(compared: Reader) -> None:
    head = ["task", "data", "metric", "n", "with", "without", "difference", "control"]
    assert compared.rows[compared.rows.index(head) + 1 :][:3] == [
        ["classification", "scenes (test)", "acc1, %", "1,200", "45.00", "45.25", "+0.25", "44.00"],
        ["retrieval", "scenes (test)", "i2t_recall@1, %", "500", "25.50", "24.90", "-0.60", "–"],
        ["hierarchy", "flat <set>", "tie, edges", "1,200", "2.2500", "2.5000", "+0.2500", "2.0000"],
    ]
    alone = ReadoutAblation([replace(row, control=None) for row in READOUT.rows], {})
    page = diagnosis_page(replace(diagnosis(model("meru")), readout=alone), {})
    assert re.findall(r"class=largest><td>(\w+)", page) == ["retrieval"]
    assert head[:-1] in Reader(page).rows


def test_what_was_left_out_is_said(compared: Reader) -> None:
    for line in (
        "Largest change: -0.60 points, retrieval i2t_recall@1 on scenes.",
        "order on scenes was not measured: it has no <parts>",
        "The curvature of this model is fixed; this is what would pull at it. "
        "Batches averaged: 4, of 256 samples each.",
        "left out: norm: needs more",
        "meru: left out 3 (damaged lines)",
        "meru: texts were <cut>",
        "Settings: captions last, tasks classification and retrieval.",
        "hyvlm 9.9; fingerprints: data feed, meru 0a1b, flat 0a1b.",
    ):
        assert line in compared.items


def test_a_product_has_the_range_of_its_curvatures_and_pulls_without_a_sign() -> None:
    product = model("phyclip", curvature=[0.1, 0.3])
    assert ["curvature magnitude c", "0.20 in the mean of 2 (0.10 to 0.30)"] in Reader(
        diagnosis_page(diagnosis(product), {})
    ).rows
    assert not figures(diagnosis(product))["gradients"].legends
    assert figures(diagnosis(model("meru")))["gradients"].legends


def test_a_model_without_curvature_has_a_page_that_says_so(tmp_path: Path) -> None:
    clip = ModelDiagnosis("clip", "0a", "sphere", [], None, None, {"image": 5}, notes=["a sphere has no radii"])
    nothing = ReadoutAblation([], {})
    found = replace(diagnosis(clip), skipped={}, readout=nothing, verdict=no_verdict("a <sphere> is curved: not so"))
    for name in ("diagnosis-radii.png", "diagnosis-mine.png"):
        (tmp_path / name).write_bytes(b"of an earlier report, and of somebody else")
    written = write_report(found, tmp_path)
    assert [path.name for path in written] == ["diagnosis.html"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diagnosis-mine.png", "diagnosis.html"]
    items = Reader(written[0].read_text(encoding="utf-8")).items
    assert items[1:3] == [
        "Cannot tell: a <sphere> is curved: not so",
        "Measured on 1,200 of 1,203 samples of scenes (test).",
    ]
    assert {"No task was read out.", "a sphere has no radii"} <= set(items)
    assert not any(heading in items for heading, _ in FIGURES.values())


def test_gradients_that_are_not_finite_are_dashes_without_a_figure(tmp_path: Path) -> None:
    pulls = CurvatureGradients([TermGradient("text ⊒ image", 0.2, 1.5, math.nan, None)], True, 4, 1, (), None)
    written = write_report(diagnosis(model("m", gradients=pulls)), tmp_path)
    assert "diagnosis-gradients.png" not in [path.name for path in written]
    rows = Reader(written[0].read_text(encoding="utf-8")).rows
    assert ["text ⊒ image", "0.200", "1.5000", "–", "–"] in rows


def test_the_floor_of_the_curvature_is_marked_where_it_is_known() -> None:
    marked, plain = (
        figures(diagnosis(model("m", curvature_floor=floor)))["trajectories"].axes[0] for floor in (0.1, None)
    )
    assert [text.get_text() for text in marked.texts] == ["floor"]
    assert not plain.texts


@pytest.mark.parametrize(("value", "shown"), [(None, "–"), (math.nan, "–"), (math.inf, "–"), (0.126, "0.13")])
def test_numbers_that_are_not_there_are_a_dash(value: float | None, shown: str) -> None:
    assert number(value, 2) == shown


def test_tables_and_lists_of_nothing_are_nothing() -> None:
    assert table(["a"], []) == bullets([]) == ""
    marked = table(["a", "b"], [["<", "1"], ["&", "2"]], numbers=1, marked=[1])
    assert "<tr><td>&lt;</td><td class=number>1</td></tr>" in marked
    assert "<tr class=largest><td>&amp;</td><td class=number>2</td></tr>" in marked
