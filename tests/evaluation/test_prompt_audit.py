from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from hyvlm.evaluation import EvalSpec, evaluate, prompt_audit_table, results_table
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.prompts import read_templates
from hyvlm.evaluation.report import read_results
from hyvlm.evaluation.tasks.prompt_audit import PromptAudit

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
#: The bare names are right, behind "food" the two classes are exchanged.
UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "a photo of a red.": [1, 0, 0], "a photo of a green.": [0, 1, 0]}
POINTS = UNIT | {
    f"{prefix} : {name}.": [0, 1, 0] if name == "red" else [0.2, 0, 0]
    for prefix in ("food", "food porn")
    for name in ("red", "green")
}
TEMPLATES = "official:food101,photo"


@pytest.fixture
def samples(listed, image_of):
    items = [image_of(RED, labels=[0]), image_of(RED, labels=[0]), image_of(GREEN, labels=[1]), image_of(BLUE)]
    return listed(items, classes=["red", "green"])


def shown(what) -> str:
    text = io.StringIO()
    Console(file=text, width=120).print(what)
    return text.getvalue()


def test_prompts_as_the_paper_prints_them() -> None:
    assert read_templates("official:food101") == ("food : {}.", "food porn : {}.")
    assert read_templates("official:cub") == (
        "bird pics : {}.",
        "birding : {}.",
        "birds : {}.",
        "bird photography : {}.",
    )
    assert read_templates("official:flowers102") == ("flowers : {}.",)
    assert read_templates("photo") == ("a photo of a {}.",)


def test_regimes_side_by_side_by_hand(stub, tokenizer, samples) -> None:
    """Behind "food" a red image scores 0 to its class and 0.2 to the other: all wrong; the photo prompt is right."""
    model = stub(POINTS)
    outcome = PromptAudit(templates=TEMPLATES).run(Embedder(model, tokenizer), samples)
    assert outcome.scores == pytest.approx(
        {
            "mean_per_class_recall_official:food101": 0,
            "mean_per_class_recall_photo": 100,
            "difference_photo": 100,
        }
    )
    assert outcome.units["difference_photo"] == "points"
    assert (outcome.n, outcome.total, outcome.skipped) == (3, 4, {"not exactly one label": 1})
    facts = outcome.details["regimes"]["official:food101"]
    assert (facts["acc1"], facts["templates_count"]) == (0, 2)
    assert model.images_seen == 4  # once, whatever the number of prompt sets
    assert samples.reads == 4


def test_the_difference_is_to_the_first_regime(stub, tokenizer, samples) -> None:
    settings = PromptAudit(templates=" photo , official:food101, name")
    outcome = settings.run(Embedder(stub(POINTS), tokenizer), samples)
    assert settings.regimes == ["photo", "official:food101", "name"]
    assert {k: v for k, v in outcome.scores.items() if "difference" in k} == pytest.approx(
        {"difference_official:food101": -100, "difference_name": 0}
    )


def test_the_tables_show_the_comparison(stub, tokenizer, samples, listed, image_of, tmp_path) -> None:
    model = stub(POINTS)
    others = listed([image_of(RED, labels=[0])], classes=["red", "green"], fingerprint="others")
    others.name = "others"
    specs = [EvalSpec("prompt-audit", data, templates=TEMPLATES) for data in (samples, others)]
    results = evaluate(model, tokenizer, [*specs, EvalSpec("classification", samples)], out=tmp_path)
    assert re.search(r"difference_photo +100\.000 points", shown(results_table(results)))
    rows = shown(prompt_audit_table(read_results(tmp_path), {results[0].model: "stub"})).splitlines()
    cells = [[cell.strip() for cell in row.strip("│┃").replace("┃", "│").split("│")] for row in rows]
    assert cells[1] == ["model", "data", "official", "photo", "difference"]
    assert cells[3:6] == [
        ["stub", "listed (test)", "0.00", "100.00", "+100.00"],
        ["stub", "others (test)", "0.00", "100.00", "+100.00"],
        ["stub", "average", "0.00", "100.00", "+100.00"],
    ]


def test_tables_that_cannot_be_made() -> None:
    def entry(*regimes: str) -> dict[str, object]:
        facts = {regime: {"mean_per_class_recall": 1.0} for regime in regimes}
        return {"task": "prompt-audit", "model": "m", "data": "d", "split": "", "details": {"regimes": facts}}

    with pytest.raises(ValueError, match="no result of the task 'prompt-audit' to print"):
        prompt_audit_table([{"task": "retrieval"}])
    with pytest.raises(ValueError, match="d compares name, photo, not official, photo"):
        prompt_audit_table([entry("official:cub", "photo"), entry("name", "photo")])
    assert "official:food101" in shown(prompt_audit_table([entry("official:cub", "official:food101")]))


@pytest.mark.parametrize("templates", ["photo", "photo,photo", "", "photo,", ",photo"])
def test_one_prompt_set_is_no_audit(templates) -> None:
    with pytest.raises(ValueError, match=r"compares two or more prompt sets, such as templates=official:cub,photo"):
        PromptAudit(templates=templates)


def test_unknown_sets_and_sets_without_classes(stub, tokenizer, samples, listed, image_of) -> None:
    model = stub(POINTS)
    with pytest.raises(ValueError, match=r"unknown prompt set 'official'\. Did you mean 'official:"):
        evaluate(model, tokenizer, [EvalSpec("prompt-audit", samples, templates="official,photo")])
    with pytest.raises(ValueError, match="has no class names"):
        evaluate(model, tokenizer, [EvalSpec("prompt-audit", listed([image_of(RED)]))])
    assert model.images_seen == 0
