"""Checkpoints: a folder ``step_N`` that appears whole or not at all. Safetensors and JSON only, nothing is unpickled.

``model.safetensors`` and ``config.json`` rebuild the model (:func:`hyvlm.load` reads the same folder),
``objective.safetensors`` holds what only training needs, ``state.safetensors`` the optimizer (by parameter name) and
every process's random state, ``state.json`` the step.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hyvlm.models.dual_encoder import DualEncoder
from hyvlm.models.pretrained import load_state, save_model, save_tensors

PREFIX = "step_"
UNFINISHED = ".writing-"


@dataclass
class State:
    """What a resumed run needs besides the weights."""

    step: int
    world_size: int
    optimizer: dict[str, dict[str, Tensor]]
    rng: list[Tensor]


def checkpoint_folders(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted(p for p in (run / "checkpoints").glob(f"{PREFIX}*") if (p / "state.json").is_file())


def find_checkpoint(path: Path) -> Path:
    """``path`` if it is a checkpoint, else the newest checkpoint of the run folder ``path``.

    Raises:
        FileNotFoundError: Neither is there.
    """
    if (path / "state.json").is_file():
        return path
    folders = checkpoint_folders(path)
    if not folders:
        raise FileNotFoundError(f"no checkpoint to resume from in {path}: expected {path}/checkpoints/{PREFIX}N/")
    return folders[-1]


def optimizer_by_name(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Optimizer state by parameter name, so that it fits another objective's parameters too."""
    return {name: dict(optimizer.state[p]) for name, p in module.named_parameters() if p in optimizer.state}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, module: nn.Module, saved: dict[str, dict[str, Tensor]]
) -> list[str]:
    """Put saved state back; returns the learning parameters that had none and start afresh."""
    fresh = []
    for name, parameter in module.named_parameters():
        if name in saved:
            device = parameter.device
            optimizer.state[parameter] = {k: v if k == "step" else v.to(device) for k, v in saved[name].items()}
        elif parameter.requires_grad:
            fresh.append(name)
    return fresh


def save_checkpoint(run: Path, model: DualEncoder, objective: nn.Module, state: State, *, keep: int) -> Path:
    """Write ``run/checkpoints/step_N`` and, once it is complete, remove all but the newest ``keep`` checkpoints."""
    folder = run / "checkpoints" / f"{PREFIX}{state.step:07d}"
    unfinished = folder.with_name(UNFINISHED + folder.name)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    save_model(model, unfinished)
    save_tensors(objective.state_dict(), unfinished / "objective.safetensors")
    tensors = {f"rng/{rank}": rng for rank, rng in enumerate(state.rng)}
    tensors |= {f"optimizer/{n}/{k}": v for n, entry in state.optimizer.items() for k, v in entry.items()}
    save_tensors(tensors, unfinished / "state.safetensors")
    (unfinished / "state.json").write_text(json.dumps({"step": state.step, "world_size": state.world_size}))
    for file in unfinished.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)
    for old in checkpoint_folders(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def load_checkpoint(folder: Path, model: DualEncoder, objective: nn.Module) -> State:
    """Load weights into ``model`` and ``objective`` and return the rest.

    Parameters of an objective that the checkpoint was not trained with keep their initial values.

    Raises:
        ValueError: A damaged file, or weights of another shape.
    """
    load_state(model, folder / "model.safetensors")
    own = objective.state_dict()
    try:
        saved = load_file(folder / "objective.safetensors")
        tensors = load_file(folder / "state.safetensors")
        numbers = json.loads((folder / "state.json").read_text())
        step, world_size = int(numbers["step"]), int(numbers["world_size"])
        rng = [tensors[f"rng/{rank}"] for rank in range(world_size)]
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"checkpoint {folder} is damaged ({error}); resume from an older one") from error
    objective.load_state_dict(own | {k: v for k, v in saved.items() if k in own and own[k].shape == v.shape})
    optimizer: dict[str, dict[str, Tensor]] = {}
    for key in (k for k in tensors if k.startswith("optimizer/")):
        name, _, entry = key.removeprefix("optimizer/").rpartition("/")
        optimizer.setdefault(name, {})[entry] = tensors[key]
    return State(step, world_size, optimizer, rng)
