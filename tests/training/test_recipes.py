"""Three steps of the recipes for the built-in scenes that no other test trains."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import hyvlm
from hyvlm.config import load_config, recipe_names
from hyvlm.training.trainer import train

SMALL = [
    "data.workers=0",
    "train.batch_size=4",
    "train.steps=3",
    "train.warmup_steps=1",
    "train.log_every=1",
    "eval=[]",
]
NEW = ("argent", "phyclip", "atmg")
RECIPES = [name for name in recipe_names() if name.endswith("-tiny") and ("euclid" in name or name.startswith(NEW))]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the fine-tuning recipes begin as."""
    config = load_config("clip-long-tiny", [*SMALL, "data.train=scenes-long:8", "train.steps=1"])
    return train(config, tmp_path_factory.mktemp("clip") / "run")


@pytest.mark.parametrize("recipe", RECIPES)
def test_three_steps(recipe: str, clip: Path, tmp_path: Path) -> None:
    start = [f"model.init={clip}", "data.train=scenes-long:8"] if recipe.startswith("hyfl") else ["data.train=scenes:8"]
    run = train(load_config(recipe, [*SMALL, *start]), tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [row["loss"] for row in rows]
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))
    assert any(key == "c" or key.startswith("c/") for key in rows[-1]) == ("euclid" not in recipe)
    model, _, tokenizer = hyvlm.load(run)
    with torch.no_grad():
        images = model.encode_image(torch.zeros(2, 3, 48, 48, dtype=torch.uint8))
        texts = model.encode_text(tokenizer(["a red metal cube", "a tree"]))
        assert model.score(images, texts).isfinite().all()
