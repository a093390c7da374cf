"""Tiny models of every manifold, and clustered points on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from torch import Tensor

from hyvlm.models import DualEncoder, build_model, save_model
from hyvlm.retrieval.collection import FORMAT, MANIFEST, describe_model
from hyvlm.retrieval.forms import form_of

#: Sections of a configuration that make another score or manifold each.
MODELS: dict[str, dict[str, Any]] = {
    "lorentz": {"manifold": {"name": "lorentz", "c": 1.0}},
    "nearly flat": {"manifold": {"name": "lorentz", "c": 1e-6, "bounds": None}},
    "euclidean": {"manifold": {"name": "euclidean"}},
    "sphere": {"manifold": {"name": "sphere"}},
    "product l1": {"manifold": {"name": "product", "factors": 2, "c": [0.5, 2.0]}},
    "product l2": {"manifold": {"name": "product", "factors": 2, "c": [0.5, 2.0], "metric": "l2"}},
    "product as published": {
        "manifold": {"name": "product", "factors": 2, "c": [0.5, 2.0]},
        "model": {"readout": "published"},
    },
    "flat product": {"manifold": {"name": "flat_product", "factors": 2}},
    "angle": {"manifold": {"name": "lorentz"}, "model": {"score": "exterior_angle"}},
    "angle as published": {
        "manifold": {"name": "lorentz"},
        "model": {"score": "exterior_angle", "readout": "published"},
    },
}
DIM = 8


def tiny(name: str, dim: int = DIM) -> DualEncoder:
    """An untrained model whose score is that of ``MODELS[name]``."""
    torch.manual_seed(0)
    image = {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2}
    text = {"width": 16, "depth": 1, "heads": 2}
    section = MODELS[name]
    model = {"image": image, "text": text, "dim": dim, **section.get("model", {})}
    return build_model({"model": model, "manifold": section["manifold"]}).eval()


def has_inner_form(model: DualEncoder) -> bool:
    """Whether the score of images for texts is an inner product."""
    return form_of(model, "image", "text") is not None


def clustered(model: DualEncoder, count: int, *, seed: int = 0, clusters: int = 20, scale: float = 1.0) -> Tensor:
    """Points ``(count, D)`` in clusters."""
    draws = torch.Generator().manual_seed(seed)
    dim = model.dim
    centres = torch.randn(clusters, dim, generator=torch.Generator().manual_seed(99)) / dim**0.5
    at = torch.randint(clusters, (count,), generator=draws)
    features = centres[at] + 0.3 * torch.randn(count, dim, generator=draws) / dim**0.5
    return model.manifold.lift(scale * features).detach()


def write_collection(folder: Path, model: DualEncoder, **groups: Tensor) -> Path:
    """A collection of given points, ``images=`` and ``texts=``, with made-up keys and texts; the model is beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = save_model(model, folder / "model")
    model_info = {"path": str(path), **describe_model(model)}
    manifest: dict[str, Any] = {"format": FORMAT, "hyvlm_version": "0", "model": model_info, "dtype": "float32"}
    manifest["groups"] = {}
    for name, points in groups.items():
        np.save(folder / f"{name}.npy", points.numpy())
        radius = getattr(model.manifold, "radius", lambda x: torch.full((len(x),), torch.nan))(points).tolist()
        numbers = list(range(len(points)))
        columns = {
            "key": [f"{name[:-1]}-{i}" for i in numbers],
            "index": numbers,
            "radius": pyarrow.array([None if r != r else r for r in radius], pyarrow.float32()),
        }
        if name == "texts":
            columns["text"] = [f"caption {i}" for i in numbers]
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
        source = {"spec": "made up", "split": None, "fingerprint": "0"}
        manifest["groups"][name] = {"count": len(points), "total": len(points), "skipped": {}, "examples": []}
        manifest["groups"][name]["source"] = source
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder
