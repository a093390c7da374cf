"""What a run would cost, found out by one small step: parameters, FLOPs, how often each sample is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hyvlm.config import Config
from hyvlm.data.sampler import train_loader
from hyvlm.training.trainer import Trainer

#: Samples that pass through forward and backward; towers cost the same per sample whatever the batch.
SAMPLES = 16


def dry_run(config: Config, out: Path) -> dict[str, Any]:
    """Check a run without training: build it, open its data, measure the first samples of its first epoch.

    Nothing is written. FLOPs count multiplications and additions of matrix products and convolutions, forward and
    backward, at the texts' real lengths; a frozen teacher's forward counts, and so does the second one of micro-batches
    (``train.micro_batch_size``). The score matrices of a large batch, which grow with its square, are counted at the
    size of the small one: below 1% of the towers for the usual models.

    Args:
        out: The run folder that the run would write to.
    Raises:
        ValueError, FileNotFoundError: What :func:`hyvlm.training.trainer.train` would raise before its first step.
    """
    trainer = Trainer(config, out)
    count = min(SAMPLES, config.train.batch_size)
    (batch,) = train_loader(trainer.views, batch_size=count, seed=config.train.seed, steps=1)
    if not len(batch.image):
        raise ValueError(f"none of the first {count} samples of {trainer.samples.name} could be used: {batch.skipped}")
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # the counter does not know the CPU's fused attention
        trainer.backpropagate(batch)
    per_sample = counter.get_total_flops() / len(batch.image)
    seen = config.train.steps * config.train.batch_size
    parameters = {True: 0, False: 0}
    for parameter in trainer.module.parameters():
        parameters[parameter.requires_grad] += parameter.numel()
    return {
        "parameters_learning": parameters[True],
        "parameters_frozen": parameters[False],
        "samples": len(trainer.samples),
        "steps": config.train.steps,
        "batch_size": config.train.batch_size,
        "epochs": seen / len(trainer.samples),
        "measured_samples": len(batch.image),
        "longest_text_tokens": batch.text.shape[1],
        "flops_per_sample": per_sample,
        "flops_total": per_sample * seen,
    }
