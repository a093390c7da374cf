"""Small models and a data set of five captioned pictures, one of which is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from hyvlm.evaluation import Embedder
from hyvlm.models import DualEncoder, Tokenizer, build_model

CAPTIONS = [
    "A red square. It fills the picture. Nothing else <is> there. The colour is even.",
    "A green square. It is as green as grass. No one is near.",
    "A blue square. It shines & glows.",
    "A broken file.",
    "A grey square.",
]
COLOURS = [(200, 30, 30), (30, 200, 30), (30, 30, 200), (0, 0, 0), (128, 128, 128)]
SIZES = [(40, 40), (64, 32), (32, 64), (8, 8), (600, 300)]


def small_model(manifold: str) -> DualEncoder:
    torch.manual_seed(0)
    model = {
        "image": {"image_size": 32, "patch": 8, "width": 32, "depth": 1, "heads": 2},
        "text": {"context_length": 40, "width": 32, "depth": 1, "heads": 2},
        "dim": 16,
    }
    return build_model({"model": model, "manifold": {"name": manifold}}).eval()


@pytest.fixture
def embedder() -> Embedder:
    return Embedder(small_model("lorentz"), Tokenizer(40), batch_size=2)


@pytest.fixture
def sphere() -> Embedder:
    return Embedder(small_model("sphere"), Tokenizer(40), batch_size=2)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A CSV of five pictures, the fourth of which cannot be read."""
    rows = ["image,caption"]
    for i, (caption, colour, size) in enumerate(zip(CAPTIONS, COLOURS, SIZES, strict=True)):
        Image.new("RGB", size, colour).save(tmp_path / f"{i}.png")
        rows.append(f'{i}.png,"{caption}"')
    (tmp_path / "3.png").write_bytes(b"not a picture")
    (tmp_path / "captions.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path / "captions.csv"
