"""AdamW with the lineage's parameter groups, and linear warm-up followed by a cosine to zero."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from hyvlm.config import TrainConfig


def is_learnable_scalar(name: str) -> bool:
    """Whether a parameter is a curvature, temperature or projection scale: they are stored as logarithms, ``log_*``."""
    return "log_" in name


def decayed(name: str, parameter: nn.Parameter, config: TrainConfig) -> bool:
    """Whether weight decay acts: on matrices always, on temperatures never, on all else if asked."""
    if is_learnable_scalar(name):
        return (
            config.decay_scalars and "log_scale." not in name
        )  # a temperature is an entry of the objective's log_scale
    return parameter.ndim > 1 or config.decay_gains_and_biases


def build_optimizer(named: Iterable[tuple[str, nn.Parameter]], config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over the ``named`` parameters that learn.

    The released runs of the MERU lineage decayed gains and biases through a slip (``gain_bias_decay = 0.0`` is falsy);
    ``train.decay_gains_and_biases`` reproduces that. PHyCLIP decays its curvatures and projection scales as well
    (their logarithms: it pulls both toward 1), by ``train.decay_scalars``.
    """
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in named:
        if parameter.requires_grad:
            groups[decayed(name, parameter, config)].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": config.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of step 0, 1, ...: linear up to ``lr`` over ``warmup_steps``, then half a cosine to zero at ``steps``.

    A function of the step alone, so a resumed run needs no scheduler state to continue exactly.
    """
    warmup = min(config.warmup_steps, config.steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, config.steps - warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
