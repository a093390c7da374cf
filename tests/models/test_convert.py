import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hyvlm.models import DualEncoder, build_model
from hyvlm.models.convert import KEY_MAPS, check_state_dict

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "checkpoints"
SOURCES = ["clip", "meru", "hycoclip", "uncha"]


def uniform(name: str, count: int) -> np.ndarray:
    """Numbers in [0, 1) that depend on a name and an index alone: the fill rule of the reference checkpoints."""
    low = np.uint64(0xFFFFFFFF)
    z = (np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(zlib.crc32(name.encode()))) & low
    for shift, factor in ((16, 2246822507), (13, 3266489909)):
        z = ((z ^ (z >> np.uint64(shift))) * np.uint64(factor)) & low
    return (z ^ (z >> np.uint64(16))).astype(np.float64) / 2.0**32


def weight(key: str, shape: list[int], manifest: dict[str, Any]) -> Tensor:
    if not shape:
        return torch.tensor(manifest["scalars"][key])
    if key in ("pixel_mean", "pixel_std"):
        return torch.tensor(manifest[key]).view(shape)
    if key == "textual.attn_mask":
        return torch.ones(shape, dtype=torch.bool).triu(1)
    values = (2 * uniform(key, int(np.prod(shape))) - 1) * (0.2 if len(shape) >= 2 else 0.05)
    owner = key.split(".")[-2] if "." in key else ""
    if key.endswith("weight") and ("norm" in owner or "ln_" in owner):
        values = values + 1
    return torch.from_numpy(values.reshape(shape).astype(np.float32))


def read_manifest(source: str) -> dict[str, Any]:
    return json.loads((CHECKPOINTS / f"tiny_{source}_manifest.json").read_text())


def load_reference(source: str) -> tuple[DualEncoder, dict[str, Any]]:
    """A model with the reference weights of a source."""
    manifest = read_manifest(source)
    released = {key: weight(key, shape, manifest) for key, shape, _, _ in manifest["state_dict"]}
    vit, manifold = manifest["config"]["vit"], "sphere" if source == "clip" else "lorentz"
    image = {"image_size": vit["image_size"], "patch": vit["patch_size"], "width": vit["embed_dim"]}
    image |= {"depth": vit["depth"], "heads": vit["num_heads"]}
    text = {"width": 64, "depth": 2, "heads": 1}  # L2_W64
    config = {"image": image, "text": text, "dim": manifest["config"]["embed_dim"]}
    model = build_model({"model": config, "manifold": {"name": manifold}})
    converted = KEY_MAPS[source](released)
    check_state_dict(model, converted, source)
    model.load_state_dict(converted)
    return model.eval(), manifest


def test_the_fill_rule() -> None:
    expected = [0.49461432779207826, 0.060030067106708884, 0.038478732807561755]
    assert uniform("visual.cls_token", 3).tolist() == expected


def encode(model: DualEncoder, manifest: dict[str, Any], source: str) -> dict[str, Tensor]:
    pixels = uniform(manifest["image_tag"], int(np.prod(manifest["image_shape"]))).astype(np.float32)
    pixels = torch.from_numpy(pixels).view(manifest["image_shape"]).to(model.pixel_mean.dtype)
    tokens = torch.zeros(len(manifest["tokens"]), 77, dtype=torch.long)
    for row, ids in zip(tokens, manifest["tokens"], strict=True):
        row[: len(ids)] = torch.tensor(ids)[:77]
        if len(ids) > 77 and source != "uncha":  # the released UNCHA loses the end token
            row[-1] = 49407
    trunk = model.image_tower((pixels - model.pixel_mean) / model.pixel_std)
    image, text = model.image_features(pixels), model.text_features(tokens)
    return {
        "image_trunk": trunk,
        "image_features": image,
        "text_features": text,
        "image_embeddings": model.lift_image(image),
        "text_embeddings": model.lift_text(text),
    }


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_reference_weights_give_the_reference_embeddings(source: str, dtype: torch.dtype, tolerance: float) -> None:
    """Released encoders on weights from the fill rule; `golden/checkpoints`."""
    model, manifest = load_reference(source)
    with torch.no_grad():
        found = encode(model.to(dtype), manifest, source)
    golden = np.load(CHECKPOINTS / f"tiny_{source}_expected.npz")
    assert set(found) == set(golden)
    for name, value in found.items():
        expected = torch.from_numpy(golden[name])
        largest = expected.abs().max().item()
        torch.testing.assert_close(value.double(), expected, rtol=0, atol=tolerance * largest, msg=f"{source} {name}")


@pytest.mark.parametrize("source", SOURCES)
def test_every_key_of_a_table_occurs_in_the_source(source: str) -> None:
    keys = [key for key, *_ in read_manifest(source)["state_dict"]]
    table = KEY_MAPS[source]
    for entry in (*table.rename, *table.drop):
        assert any(key == entry or (entry.endswith(".") and key.startswith(entry)) for key in keys), entry
    assert all(table.drop.values())


def test_an_unknown_key_is_not_taken_silently() -> None:
    with pytest.raises(ValueError, match="unknown key 'visual_alpha'"):
        KEY_MAPS["clip"]({"visual_alpha": torch.zeros(())})
