"""Models as files: ``model.safetensors`` beside ``config.json``. Nothing that is loaded can run code."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import hyvlm
from hyvlm.models.convert import check_state_dict
from hyvlm.models.dual_encoder import DualEncoder, build_model
from hyvlm.models.openclip import OPEN_CLIP, load_open_clip
from hyvlm.models.presets import READOUTS
from hyvlm.models.tokenizer import Tokenizer
from hyvlm.registry import unknown

WEIGHTS, CONFIG = "model.safetensors", "config.json"
#: Suffixes of files that may hold weights of open_clip.
WEIGHT_FILES = (".pt", ".pth", ".bin", ".safetensors")


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: It cannot be written, as on a full disk; names the file.
    """
    try:
        save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def save_model(model: DualEncoder, folder: str | Path) -> Path:
    """Write the model's weights and configuration into ``folder``, which is made if need be.

    Each file is written under a temporary name and renamed, so that a reader never meets half a file.

    Returns:
        ``folder``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.detach().cpu() for key, value in model.state_dict().items()}
    config = json.dumps({"hyvlm_version": hyvlm.__version__, **model.config}, indent=2)
    part = ".partial"
    save_tensors(weights, folder / (WEIGHTS + part))
    (folder / (CONFIG + part)).write_text(config + "\n", encoding="utf-8")
    for name in (WEIGHTS, CONFIG):
        os.replace(folder / (name + part), folder / name)
    return folder


def load(
    path: str | Path, *, device: torch.device | str = "cpu", readout: str | None = None
) -> tuple[DualEncoder, Callable[[Image.Image], Tensor], Tokenizer]:
    """Rebuild a saved model, ready to encode.

    Args:
        path: A folder that :func:`save_model` wrote, or a run folder: then its newest complete ``checkpoints/step_N``.
            Or a text ``open_clip:NAME/WEIGHTS``: see :func:`hyvlm.models.openclip.load_open_clip`.
        device: Where the model goes.
        readout: What ranks pairs, "trained" or "published" (:class:`~hyvlm.models.presets.ModelConfig`); None leaves it
            as saved.
    Returns:
        The model (eval mode, float32); its preprocessing, a PIL image to uint8 ``(3, H, W)``, by the ``resize`` of its
        configuration (squashed to a square where that is left to the task); its tokenizer.
    Raises:
        FileNotFoundError: If there is no model at ``path``.
        ConnectionError: If weights of open_clip cannot be fetched.
        ValueError: If a file is cut short or not what its name says, weights and configuration do not fit, or there is
            no such read-out.
    """
    from hyvlm.data.transforms import eval_transform

    if str(path).startswith(OPEN_CLIP):
        model = load_open_clip(str(path))
    else:
        folder = find_model(path)
        model = build_model(_read_config(folder / CONFIG))
        load_state(model, folder / WEIGHTS)
    if readout is not None:
        if readout not in READOUTS:
            raise ValueError(unknown("readout", readout, list(READOUTS)))
        model.config["model"]["readout"] = readout
    preprocess = eval_transform(model.image_tower.image_size, model.resize or "squash")
    return model.eval().to(device), preprocess, Tokenizer(model.text_tower.context_length)


def find_model(path: str | Path) -> Path:
    """The folder with ``model.safetensors`` and ``config.json`` that ``path`` leads to.

    ``path`` may be that folder, its weights file, a run folder, its ``checkpoints`` folder or ``checkpoints/latest`` (a
    link, or a file that holds a folder's name). Of several steps the newest complete one is taken.

    Raises:
        FileNotFoundError: If it leads to none.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no model at '{path}': there is no such file or folder")
    if path.name == WEIGHTS:
        path = path.parent
    if path.is_file():
        if path.name != "latest":
            hint = f"; weights of open_clip are {OPEN_CLIP}NAME/{path}" if path.suffix in WEIGHT_FILES else ""
            raise FileNotFoundError(
                f"'{path}' is not a model: expected {WEIGHTS}, or a folder with it and {CONFIG}{hint}"
            )
        path = path.parent / path.read_text(encoding="utf-8").strip()
    steps = [
        p for root in (path, path / "checkpoints") for p in root.glob("step_*") if re.fullmatch(r"step_\d+", p.name)
    ]
    newest_first = sorted(steps, key=lambda p: int(p.name.removeprefix("step_")), reverse=True)
    for folder in (path, *newest_first):
        if (folder / WEIGHTS).is_file() and (folder / CONFIG).is_file():
            return folder
    raise FileNotFoundError(f"no model in '{path}': expected {WEIGHTS} and {CONFIG}, there or in checkpoints/step_N")


def load_state(model: DualEncoder, file: str | Path) -> None:
    """Copy the weights in a safetensors file into ``model``, which must have been built from their configuration.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is cut short, or does not fit the model; one line that names the first key at fault.
    """
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"no weights at '{file}'")
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"'{file}' is cut short or not a safetensors file: {error}") from error
    check_state_dict(model, weights, f"'{file}'")
    model.load_state_dict(weights)


def fingerprint(model: DualEncoder) -> str:
    """16 hexadecimal digits that change with any weight or setting: the key of the model's cached embeddings."""
    digest = hashlib.sha256(json.dumps(model.config, sort_keys=True).encode())
    for key, value in sorted(model.state_dict().items()):
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"'{path}' is not a JSON file: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"'{path}' must hold the sections 'model' and 'manifold', got a {type(config).__name__}")
    return config
