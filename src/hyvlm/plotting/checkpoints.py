"""The checkpoints of a run as models, one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

import hyvlm
from hyvlm.evaluation.embed import Embedder


class Checkpoints(Mapping[str, Embedder]):
    """Models by their steps, or by their paths, of which only the one asked for last is held.

    Args:
        models: One run folder, which stands for all its checkpoints, or models in the order of training.
    Raises:
        FileNotFoundError: There is no such folder.
    """

    def __init__(self, models: Sequence[str], device: torch.device, batch_size: int) -> None:
        self._device, self._batch_size = device, batch_size
        folder = Path(models[0]) / "checkpoints"
        steps = [path for path in folder.glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
        if len(models) == 1 and steps:
            self._paths = {str(int(path.name[5:])): str(path) for path in sorted(steps, key=lambda p: int(p.name[5:]))}
        else:
            self._paths = {model: model for model in models}

    def __getitem__(self, name: str) -> Embedder:
        model, _, tokenizer = hyvlm.load(self._paths[name], device=self._device)
        return Embedder(model, tokenizer, batch_size=self._batch_size)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
