"""Models as files: ``model.safetensors`` beside ``config.json``. Nothing that is loaded can run code."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
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
from hyvlm.models.hub import CONFIG, RELEASED, WEIGHTS, fetch, on_hub
from hyvlm.models.openclip import OPEN_CLIP, load_open_clip
from hyvlm.models.presets import READOUTS
from hyvlm.models.released import LAYOUTS, read_released
from hyvlm.models.tokenizer import Tokenizer
from hyvlm.models.weight_files import WEIGHT_FILES
from hyvlm.registry import unknown


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
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    readout: str | None = None,
    layout: str | None = None,
) -> tuple[DualEncoder, Callable[[Image.Image], Tensor], Tokenizer]:
    """Rebuild a saved model, ready to encode.

    Args:
        path: A folder that :func:`save_model` wrote, or a run folder: then its newest complete ``checkpoints/step_N``.
            Or a file of weights that MERU, ATMG, HyCoCLIP, UNCHA, PHyCLIP, Hyper3-CLIP or open_clip released: see
            :func:`hyvlm.models.released.read_released`; what of it was used is said on stderr. Or the name of a
            released model or a repository of the hub: see :func:`hyvlm.models.hub.on_hub`. Or a text
            ``open_clip:NAME/WEIGHTS``: see :func:`hyvlm.models.openclip.load_open_clip`.
        device: Where the model goes.
        readout: What ranks pairs, "trained" or "published" (:class:`~hyvlm.models.presets.ModelConfig`); None leaves it
            as saved.
        layout: Of a file of released weights, one of :data:`hyvlm.models.released.LAYOUTS`; None detects it. ATMG's,
            with MERU's keys, must be said.
    Returns:
        The model (eval mode, float32); its preprocessing, a PIL image to uint8 ``(3, H, W)``, by the ``resize`` of its
        configuration (squashed to a square where that is left to the task); its tokenizer.
    Raises:
        FileNotFoundError: If there is no model at ``path``.
        ConnectionError: If weights of open_clip or of the hub cannot be fetched.
        ValueError: If a file is cut short or not what its name says, weights and configuration do not fit, or there is
            no such read-out.
    """
    from hyvlm.data.transforms import eval_transform

    model, report = _read(path, layout)
    if report:
        print(f"hyvlm: {report}", file=sys.stderr)
    if readout is not None:
        if readout not in READOUTS:
            raise ValueError(unknown("readout", readout, list(READOUTS)))
        model.config["model"]["readout"] = readout
    preprocess = eval_transform(model.image_tower.image_size, model.resize or "squash")
    return model.eval().to(device), preprocess, Tokenizer(model.text_tower.context_length)


def _read(path: str | Path, layout: str | None, **heads: int | None) -> tuple[DualEncoder, str]:
    """The model, and what is to be said of weights that others released ("" for all other models)."""
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(unknown("layout", layout, list(LAYOUTS)))
    place = None if Path(path).exists() else on_hub(str(path))
    path = fetch(place) if place else path
    file = foreign_file(path)
    if file is not None:
        model, imported = read_released(file, layout=layout or (place and place.layout) or None, **heads)
        return model, f"{imported}{place.terms if place else ''}"
    asked = [f"{key}={value}" for key, value in {"layout": layout, **heads}.items() if value is not None]
    if asked:
        raise ValueError(f"{', '.join(asked)} is for a file of released weights, not for '{path}'")
    if str(path).startswith(OPEN_CLIP):
        return load_open_clip(str(path)), ""
    folder = find_model(path)
    model = build_model(_read_config(folder / CONFIG))
    load_state(model, folder / WEIGHTS)
    return model, ""


def foreign_file(path: str | Path) -> Path | None:
    """The file of weights that ``path`` is, or holds as a folder of the hub does, if it is not one of ours.

    Ours has a ``config.json`` with a section ``manifold`` beside it; a damaged one counts as ours.
    """
    path = Path(path)
    file = path / WEIGHTS if (path / WEIGHTS).is_file() else path
    if not file.is_file() or file.suffix not in WEIGHT_FILES:
        return None
    config = file.with_name(CONFIG)
    if file.name != WEIGHTS or not config.is_file():
        return file
    try:
        sections = json.loads(config.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        return None
    return file if isinstance(sections, dict) and "manifold" not in sections else None


def convert(
    source: str | Path,
    out: str | Path,
    *,
    layout: str | None = None,
    image_heads: int | None = None,
    text_heads: int | None = None,
) -> tuple[Path, str]:
    """Write any model that :func:`load` takes as a folder of ``model.safetensors`` and ``config.json``.

    Args:
        source: As for :func:`load`.
        out: A folder that is new or empty, or holds this same model; it appears whole or not at all.
        layout, image_heads, text_heads: As for :func:`hyvlm.models.released.read_released`.
    Returns:
        ``out``, and what of a released file was used ("" for other models).
    Raises:
        ValueError: ``out`` holds something else; or as :func:`load`.
        FileNotFoundError, ConnectionError: As :func:`load`.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"the folder for the model, '{out}', is a file")
    model, report = _read(source, layout, image_heads=image_heads, text_heads=text_heads)
    if out.exists() and any(out.iterdir()):
        found = _saved_fingerprint(out)
        if found != fingerprint(model):
            holds = "another model" if found else "other files"
            raise ValueError(f"'{out}' holds {holds}, which is not overwritten; name a new folder")
        return out, report
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        save_model(model, draft)
        if out.exists():
            out.rmdir()
        os.replace(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out, report


def _saved_fingerprint(folder: Path) -> str | None:
    """That of the model in ``folder`` itself; None if there is none that can be read."""
    try:
        model = build_model(_read_config(folder / CONFIG))
        load_state(model, folder / WEIGHTS)
    except (OSError, ValueError):
        return None
    return fingerprint(model)


def own_folder(path: str | Path) -> Path | None:
    """The folder of a model of ours that ``path`` leads to (:func:`find_model`); None for released weights, the name of
    a model on the hub or one of open_clip.

    Raises:
        FileNotFoundError: If it leads to no model.
    """
    named = str(path).startswith(OPEN_CLIP) or (not Path(path).exists() and on_hub(str(path)))
    return None if named or foreign_file(path) else find_model(path).resolve()


def find_model(path: str | Path) -> Path:
    """The folder with ``model.safetensors`` and ``config.json`` that ``path`` leads to.

    ``path`` may be that folder, its weights file, a run folder, its ``checkpoints`` folder or ``checkpoints/latest`` (a
    link, or a file that holds a folder's name). Of several steps the newest complete one is taken.

    Raises:
        FileNotFoundError: If it leads to none.
    """
    path = Path(path)
    if not path.exists():
        is_name = "/" not in str(path) and path.suffix not in WEIGHT_FILES
        nor = f", and {unknown('released model', str(path), list(RELEASED))}" if is_name else ""
        raise FileNotFoundError(f"no model at '{path}': there is no such file or folder{nor}")
    if path.name == WEIGHTS:
        path = path.parent
    if path.is_file():
        if path.name != "latest":
            raise FileNotFoundError(
                f"'{path}' is not a model: expected a folder with {WEIGHTS} and {CONFIG}, or a file of released "
                f"weights ({', '.join(WEIGHT_FILES)})"
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
