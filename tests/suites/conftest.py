"""Two tiny models, and a suite of one's own on the built-in scenes and a small COCO folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from hyvlm.models.dual_encoder import build_model
from hyvlm.models.pretrained import save_model

SUITE = """
title: A suite for tests
data:
  scenes-6: {folder: null, open: "scenes:6", split: train}
  photos: {folder: coco, open: coco}
  gone: {}
tables:
  - name: Table A
    title: Classes and pairs
    task: classification
    data: scenes-6
    columns:
      - {group: Classes, head: acc1, metric: acc1, settings: {templates: plain}}
      - {group: Classes, head: per class, metric: mean_per_class_recall, settings: {templates: plain}}
      - {group: Classes, head: TIE, task: hierarchy, metric: tie, lower: true, settings: {templates: plain}}
      - {group: Pairs, head: scenes, task: retrieval, metric: "t2i_recall@1"}
  - name: Table B
    title: With and without
    kind: readings
    task: retrieval
    metric: "t2i_recall@5"
    columns: [{head: scenes, data: scenes-6}, {head: photos, data: photos}, {head: gone, data: gone}]
"""


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a saved untrained model on the manifold of that name."""
    home, made = tmp_path_factory.mktemp("models"), dict[str, Path]()

    def folder(manifold: str) -> Path:
        if manifold not in made:
            torch.manual_seed(len(made))
            image = {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2}
            text = {"width": 16, "depth": 1, "heads": 2}
            config = {"model": {"image": image, "text": text, "dim": 8}, "manifold": {"name": manifold}}
            made[manifold] = save_model(build_model(config), home / manifold)
        return made[manifold]

    return folder


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    """A data root with the folder ``coco``: a flat one of eight images with a caption and a box each."""
    folder = tmp_path / "data" / "coco"
    (folder / "images").mkdir(parents=True)
    images, captions, boxes = [], [], []
    for i in range(8):
        Image.new("RGB", (24, 16), (30 * i, 255 - 30 * i, 90)).save(folder / "images" / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png"})
        captions.append({"id": i, "image_id": i, "caption": f"picture number {i}"})
        boxes.append({"id": i, "image_id": i, "category_id": i % 2, "bbox": [1, 1, 12, 12], "iscrowd": 0})
    categories = [{"id": 0, "name": "dog"}, {"id": 1, "name": "cat"}]
    (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
    instances = {"images": images, "annotations": boxes, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(instances))
    return folder.parent
