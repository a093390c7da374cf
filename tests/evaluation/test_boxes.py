"""Classification of the insides of boxes, from a folder in COCO format to the result."""

import json
from collections import Counter

import pytest
from PIL import Image

from hyvlm.data import open_data
from hyvlm.evaluation import TASKS
from hyvlm.evaluation.embed import Embedder

UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1], "a": [0, 0, 0], "b": [0, 0, 0], "c": [0, 0, 0]}


@pytest.fixture
def coco(tmp_path):
    """A picture, red on the left and green on the right: a wide, a one-pixel and a wrong box; a crowd; two faults."""
    picture = Image.new("RGB", (40, 20), (255, 0, 0))
    picture.paste((0, 255, 0), (20, 0, 40, 20))
    (tmp_path / "images").mkdir()
    picture.save(tmp_path / "images" / "1.png")
    boxes = [(0, [0, 0, 20, 20], 0), (1, [30, 5, 1, 1], 0), (2, [20, 0, 20, 20], 0), (0, [0, 0, 40, 20], 1)]
    boxes += [(0, [60, 0, 5, 5], 0), (0, [5, 5, 0, 5], 0)]
    document = {
        "images": [{"id": 1, "file_name": "1.png"}],
        "annotations": [{"image_id": 1, "category_id": c, "bbox": b, "iscrowd": w} for c, b, w in boxes],
        "categories": [{"id": i, "name": name} for i, name in enumerate(UNIT)],
    }
    (tmp_path / "instances.json").write_text(json.dumps(document))
    return tmp_path


def test_every_box_is_scored_or_counted(coco, stub, tokenizer) -> None:
    samples = open_data(f"coco:{coco}", content="classes")
    task = TASKS["boxes"](templates="name")
    task.check(stub(UNIT), samples)
    outcome = task.run(Embedder(stub(UNIT), tokenizer), samples)
    assert outcome.scores["acc1"] == pytest.approx(200 / 3)
    assert outcome.scores["acc5"] == pytest.approx(
        200 / 3
    )  # "blue" ties with three others below "green" and with "red"
    assert (outcome.n, outcome.total) == (3, 6)
    assert outcome.skipped == Counter(
        {"box of a crowd": 1, "box outside the image": 1, "box without area (x0 >= x1 or y0 >= y1)": 1}
    )


def test_a_long_box_is_seen_to_its_ends(coco, stub, tokenizer) -> None:
    """A box over both halves, one pixel high: squashed it is half red, half green; its centre says nothing of it."""
    document = json.loads((coco / "instances.json").read_text())
    document["annotations"] = [{"image_id": 1, "category_id": 0, "bbox": [0, 3, 26, 1]}]
    (coco / "instances.json").write_text(json.dumps(document))
    samples = open_data(f"coco:{coco}", content="classes")
    scores = {
        resize: TASKS["boxes"](templates="name", resize=resize).run(Embedder(stub(UNIT), tokenizer), samples)
        for resize in ("squash", "crop")
    }
    assert scores["squash"].scores["acc1"] == 100
    points = [Embedder(stub(UNIT), tokenizer).images(samples, resize=r).points[0, 1].item() for r in ("squash", "crop")]
    assert points == pytest.approx([6 / 26, 0.0], abs=0.02)


def test_the_published_setting_is_the_default() -> None:
    task = TASKS["boxes"]()
    assert (task.content, task.resize, task.templates) == ("classes", "squash", "openai")
