"""The training loop: ``train(config, out)`` leaves a run folder that evaluates, resumes and explains itself."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, gather_object

import hyvlm
from hyvlm.config import Config, DataConfig, build, load_config, to_dict, to_yaml
from hyvlm.data.catalog import open_data
from hyvlm.data.sampler import train_loader
from hyvlm.data.views import TrainViews
from hyvlm.evaluation.runner import EvalSpec, check_specs, evaluate
from hyvlm.files import check_folder, write_text
from hyvlm.methods.method import OBJECTIVES, Objective
from hyvlm.methods.relations import Contrast
from hyvlm.models import DualEncoder, Tokenizer, build_model, fine_tuned_from, save_model, start_model
from hyvlm.models.towers import compile_blocks
from hyvlm.registry import unknown
from hyvlm.training.checkpoint import (
    State,
    checkpoint_folders,
    find_checkpoint,
    load_checkpoint,
    optimizer_by_name,
    restore_optimizer,
    save_checkpoint,
)
from hyvlm.training.distributed import sum_over_ranks
from hyvlm.training.interrupt import Interrupt, deferred_interrupt
from hyvlm.training.metrics_log import MetricsLog, console, peak_memory_mb
from hyvlm.training.micro_batches import MicroBatches, micro_batch_size
from hyvlm.training.optim import build_optimizer, learning_rate
from hyvlm.training.tally import LACKING, Tally
from hyvlm.training.train_step import TrainStep, check_finite
from hyvlm.types import Batch, LossOutput, reasons

#: Where a run that fine-tunes keeps the model that it started from.
START = "start"


def build_objective(config: Config) -> Objective:
    """The objective that a config names."""
    return build(OBJECTIVES, config.objective, "objective")


def new_model(config: Config, start: DualEncoder | None = None) -> DualEncoder:
    """The model that a run begins with; what is random in it is a function of ``train.seed``.

    Args:
        start: The model that ``model.init`` names, already loaded; without it a run that names one loads it.
    Raises:
        ValueError: A section that describes no model, or other keys beside ``model.init`` than ``score``, ``readout``
            and the text tower's ``context_length`` and ``keep_positions``.
    """
    torch.manual_seed(config.train.seed)
    if "init" not in config.model:
        return build_model({"model": config.model, "manifold": config.manifold, "image_size": config.data.image_size})
    text = config.model.get("text", {})
    if not isinstance(text, Mapping):
        raise ValueError(f"model.text must be a section with context_length and keep_positions, got {text!r}")
    scoring = {key: config.model[key] for key in ("score", "readout") if key in config.model}
    others = [f"model.{key}" for key in config.model if key not in ("init", "text", *scoring)]
    known = ["model.text.context_length", "model.text.keep_positions", "model.score", "model.readout"]
    for key in [*others, *(f"model.text.{key}" for key in text)]:
        if key not in known:
            raise ValueError(f"{unknown('setting beside model.init', key, known)}; the rest is the starting model's")
    return fine_tuned_from(start or start_model(config.model["init"]), config.manifold, **scoring, **text)


def check_score(model: DualEncoder, objective: Objective) -> None:
    """Raise ValueError unless the model ranks by what its objective's contrast compares by."""
    trained = {term.similarity for term in objective.terms if isinstance(term, Contrast)} or {"distance"}
    score = model.config["model"]["score"]
    if trained != {score}:
        raise ValueError(
            f"model.score is {score}, but the objective's contrast compares by {' and '.join(sorted(trained))}: "
            "the model would not rank as it was trained"
        )


def check_sizes(data: DataConfig, patch: int, views: Sequence[str]) -> None:
    """Raise ValueError if images of a size that the views need do not divide into patches of ``patch`` pixels."""
    parts = any(view.startswith("part_") for view in views)
    for key, size in {"image_size": data.image_size, **({"part_size": data.part_size} if parts else {})}.items():
        if size % patch:
            raise ValueError(f"data.{key} must be a multiple of the model's patch, {patch} pixels, got {size}")


def train(config: Config, out: Path, *, resume: Path | None = None) -> Path:
    """Train as ``config`` says and return the run folder ``out``.

    The folder holds ``config.yaml``, ``metrics.jsonl``, ``tensorboard/``, ``checkpoints/step_N/`` and, where the config
    lists evaluations, ``results.json``. Under torchrun every process calls this; ``batch_size`` is of all together.

    Args:
        resume: A checkpoint, or a run folder whose newest one is meant. The optimizer and the schedule continue; if the
            config names another objective, what it shares with the old one continues and the rest starts afresh.
    Raises:
        ValueError: A config that cannot run; ``out`` already holds another run.
        FileNotFoundError: Data or checkpoint missing.
        FloatingPointError: The loss is not finite.
    """
    return Trainer(config, out, resume=resume).run()


def changed_settings(path: Path, config: Config) -> list[str]:
    """Settings of ``config`` that differ from the run's own ``config.yaml``, as ``key: old -> new``."""
    if not path.is_file():
        return []
    old, new = flatten(to_dict(load_config(str(path)))), flatten(to_dict(config))
    values = {key: (old.get(key, "default"), new.get(key, "default")) for key in old | new}
    return [f"{key}: {before} -> {now}" for key, (before, now) in values.items() if before != now]


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


class Trainer:
    """One run: what :func:`train` builds, and the loop over it."""

    def __init__(self, config: Config, out: Path, *, resume: Path | None = None) -> None:
        self.config, self.out = config, out
        check_folder(out, "the run folder")
        checkpoint = find_checkpoint(resume) if resume else None
        own = checkpoint is not None and checkpoint.resolve().parent == (out / "checkpoints").resolve()
        if not own and checkpoint_folders(out):
            raise ValueError(
                f"{out} already holds a run; continue it with --resume latest or choose another folder with --out"
            )
        if config.train.precision == "fp16" and not torch.accelerator.is_available():
            raise ValueError("train.precision=fp16 needs a GPU; on a CPU use fp32 or bf16")
        precision = "no" if config.train.precision == "fp32" else config.train.precision
        AcceleratorState._reset_state()  # else the precision of this process's first run would stay
        # The main process evaluates alone: the others must be willing to wait for it.
        patience = InitProcessGroupKwargs(timeout=timedelta(hours=6))
        on_cpu = not torch.accelerator.is_available()
        self.accelerator = Accelerator(mixed_precision=precision, cpu=on_cpu, kwargs_handlers=[patience])
        self.start = self.starting_model(checkpoint)
        model = new_model(config, self.start)
        objective = build_objective(config)
        check_score(model, objective)
        objective.prepare(model.image_projection.in_features, model.text_projection.in_features)
        self.module = TrainStep(model, objective, self.start)
        if config.train.compile:
            compile_blocks(self.module)
        self.state = State(step=0, world_size=self.accelerator.num_processes, optimizer={}, rng=[])
        if checkpoint:
            self.state = load_checkpoint(checkpoint, model, self.module.objective)
        optimizer = build_optimizer(self.module.named_parameters(), config.train)
        self.step_module, self.optimizer = self.accelerator.prepare(self.module, optimizer)
        self.module = self.accelerator.unwrap_model(self.step_module)
        if checkpoint:
            self.restore(checkpoint)

        self.tokenizer = Tokenizer(model.text_tower.context_length)
        self.samples = open_data(config.data.train, split=config.data.split)
        data = config.data
        check_sizes(data, model.image_tower.patch, self.module.objective.views)
        if data.split is None and self.samples.split.startswith(("val", "test")):
            raise ValueError(f"{data.train} opens its {self.samples.split} split unless told; say data.split=train")
        self.views = TrainViews(
            self.samples,
            self.tokenizer,
            views=self.module.objective.views,
            image_size=data.image_size,
            part_size=data.part_size,
            augment=data.augment,
            parts=vars(data.parts),
            caption=data.caption,
            short_text=data.short_text,
            queries=vars(data.queries),
            decode=data.decode,
            seed=config.train.seed,
        )
        self.specs = [EvalSpec(**vars(entry)) for entry in config.eval]
        check_specs(self.module.model, self.specs)
        self.used = 0
        self.tally = Tally(self.module.objective.views)
        self.warned: set[str] = set()

    def starting_model(self, checkpoint: Path | None) -> DualEncoder | None:
        """The model that ``model.init`` names; a resumed run has kept its own copy, the teacher of its distillation."""
        if "init" not in self.config.model:
            return None
        init = self.config.model["init"]
        if checkpoint is None:
            return start_model(init)
        kept = checkpoint.parent.parent / START
        if not kept.is_dir():
            self.say(f"warning: {kept} is missing, so the starting model is read anew from {init}")
            return start_model(init)
        return start_model(str(kept))

    def restore(self, checkpoint: Path) -> None:
        """Put the optimizer and the random state of a checkpoint back, and say what changed since."""
        fresh = restore_optimizer(self.optimizer.optimizer, self.module, self.state.optimizer)
        if self.state.world_size == self.accelerator.num_processes:
            torch.set_rng_state(self.state.rng[self.accelerator.process_index])
        step = self.state.step
        self.say(f"resuming {checkpoint} at step {step}; learning rate {learning_rate(step, self.config.train):.3g}")
        if fresh:
            self.say(f"no saved state for {', '.join(fresh)}: their optimizer state starts afresh")
        to_evaluate = bool(self.config.eval) and not (self.out / "results.json").is_file()
        if step > self.config.train.steps or (step == self.config.train.steps and not to_evaluate):
            raise ValueError(f"{checkpoint} is at step {step} of {self.config.train.steps}; raise train.steps to go on")

    def say(self, text: str) -> None:
        """Print a line once, from the main process."""
        if self.accelerator.is_main_process:
            console.print(f"hyvlm: {text}", highlight=False, markup=False, soft_wrap=True)

    def run(self) -> Path:
        """Train to the last step, then evaluate."""
        config, start = self.config.train, self.state.step
        self.write_header()
        loader = train_loader(
            self.views,
            batch_size=config.batch_size,
            workers=self.config.data.workers,
            seed=config.seed,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
            start_step=start,
            steps=config.steps,
        )
        main = self.accelerator.is_main_process
        log = MetricsLog(self.out, steps=config.steps, start=start) if main else None
        with log or nullcontext(), deferred_interrupt() as interrupt:
            self.loop(loader, log, interrupt)
        if self.config.eval:
            self.evaluate(self.out)
        self.accelerator.end_training()
        return self.out

    def loop(self, loader: Iterable[Batch], log: MetricsLog | None, interrupt: Interrupt) -> None:
        """The steps that are left; an interrupt is answered with a checkpoint, if no other process shares the run."""
        config = self.config.train
        self.step_module.train()
        for batch in loader:
            output = self.optimize(batch)
            self.state.step += 1
            step = self.state.step
            self.tally.add(batch, output)
            self.warn_of_skipped(batch)
            last = step == config.steps
            if log:
                log.advance(step)
            if step == 1 or step % config.log_every == 0 or last:
                row = self.log_row(output)
                if log:
                    log.write(row)
            if interrupt.requested:
                if self.accelerator.num_processes == 1:
                    self.save()
                    self.say(f"interrupted; saved step {step}, continue with --resume latest")
                raise KeyboardInterrupt
            with self.tally.paused():
                if step % config.save_every == 0 or last:
                    self.save()
                if config.eval_every and step % config.eval_every == 0 and not last:
                    scores = self.evaluate(None)
                    if log:
                        log.write({"step": step, **scores})

    def optimize(self, batch: Batch) -> LossOutput:
        """One optimizer step on one batch."""
        config = self.config.train
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.state.step, config)
        output = self.backpropagate(batch)
        if config.max_grad_norm is not None:
            self.accelerator.clip_grad_norm_(self.step_module.parameters(), config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for name, value in self.module.constrain_().items():
            if name not in self.warned:
                self.warned.add(name)
                self.say(f"warning: {name} reached its bound ({value:.4g} after exp) at step {self.state.step + 1}")
        return output

    def backpropagate(self, batch: Batch) -> LossOutput:
        """The loss of one batch, and its gradients in the parameters; in micro-batches if the config asks for them."""
        device, processes, step = self.accelerator.device, self.accelerator.num_processes, self.state.step + 1
        size = micro_batch_size(self.config.train, processes)
        if size is None:
            output: LossOutput = self.step_module(batch.to(device))
            check_finite(output, step)
            # Data-parallel wrappers average gradients over processes; the loss is a sum of shares.
            self.accelerator.backward(output.total * processes)
        else:
            pieces = MicroBatches(self.module, batch, size, device=device, autocast=self.accelerator.autocast)
            output = pieces.loss()
            check_finite(output, step)
            self.accelerator.backward(output.total)
            pieces.backward()
        return output

    def log_row(self, output: LossOutput) -> dict[str, Any]:
        """One line of ``metrics.jsonl``; every process takes part."""
        terms = {f"term/{k}": v for k, v in output.terms.items()}
        shares = {"loss": output.total.detach(), **terms, **output.stat_shares}
        summed = {k: float(v) for k, v in sum_over_ranks(shares).items()}
        tally: Counter[str] = Counter()
        for counts in gather_object([self.tally.counts]):
            tally.update(counts)  # keeps zeros, which a sum of counters drops
        samples_per_s = tally["samples"] / max(self.tally.seconds(), 1e-9)
        self.used += tally.pop("samples")
        self.tally.start_interval()
        step = self.state.step
        skipped = {key.removeprefix("skipped/"): n for key, n in tally.items() if key.startswith("skipped/")}
        last = step == self.config.train.steps
        if not self.used and (last or step * self.config.train.batch_size >= len(self.samples)):
            raise ValueError(f"no sample of {self.samples.name} could be used: {reasons(skipped) or 'it is empty'}")
        if last and skipped:
            self.say(f"skipped in this run: {reasons(skipped)}")
        for key, lacking in LACKING.items():
            if 0 < self.used == tally[key] and (last or self.used >= 32) and key not in self.warned:
                self.warned.add(key)
                self.say(f"warning: {lacking.format(self.samples.name)}")
        return {
            "step": step,
            "epoch": step / math.ceil(len(self.samples) / self.config.train.batch_size),
            "lr": learning_rate(step - 1, self.config.train),
            **summed,
            **{k: float(v) for k, v in output.stats.items()},
            "image_scale": float(self.module.model.image_log_scale.detach().exp().mean()),
            "text_scale": float(self.module.model.text_log_scale.detach().exp().mean()),
            "samples_per_s": samples_per_s,
            "memory_mb": peak_memory_mb(),
            **tally,
        }

    def warn_of_skipped(self, batch: Batch) -> None:
        """Name the first sample that is skipped for each reason; ``metrics.jsonl`` has the counts."""
        for place in batch.skipped_examples:
            reason = place.rpartition(": ")[2]
            if reason not in self.warned:
                self.warned.add(reason)
                self.say(f"warning: skipped {place} (counts of all such are in metrics.jsonl)")

    def save(self) -> None:
        """Write a checkpoint; every process takes part."""
        self.state.rng = gather_object([torch.get_rng_state()])
        self.state.world_size = self.accelerator.num_processes
        if self.accelerator.is_main_process:
            self.state.optimizer = optimizer_by_name(self.optimizer.optimizer, self.module)
            save_checkpoint(
                self.out, self.module.model, self.module.objective, self.state, keep=self.config.train.keep_checkpoints
            )
        self.accelerator.wait_for_everyone()

    def evaluate(self, out: Path | None) -> dict[str, float]:
        """Scores of every evaluation in the config, by name; the main process works, the others wait."""
        scores: dict[str, float] = {}
        if self.accelerator.is_main_process:
            results = evaluate(self.module.model, self.tokenizer, self.specs, out=out, show_progress=out is not None)
            scores = {f"eval/{r.task}/{r.data}/{k}": v for r in results for k, v in r.scores.items()}
        self.step_module.train()
        self.accelerator.wait_for_everyone()
        return scores

    def write_header(self) -> None:
        """Write what the run is: the resolved config and the versions it ran with."""
        if not self.accelerator.is_main_process:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        for line in changed_settings(self.out / "config.yaml", self.config):
            kept = line.startswith("model.init:") and self.state.step > 0 and (self.out / START).is_dir()
            unused = f" (not read: the run began as {self.out / START})" if kept else ""
            self.say(f"setting changed since this run began: {line}{unused}")
        write_text(self.out / "config.yaml", to_yaml(self.config))
        if self.start is not None and (self.state.step == 0 or not (self.out / START).is_dir()):
            save_model(self.start, self.out / START)
        versions = {"hyvlm": hyvlm.__version__, "torch": torch.__version__}
        write_text(self.out / "env.json", json.dumps(versions) + "\n")
        parameters = sum(p.numel() for p in self.module.parameters() if p.requires_grad)
        settings = to_dict(self.config)["train"]
        self.say(
            f"{len(self.samples)} samples of {self.samples.name}, {parameters / 1e6:.1f} M parameters, "
            f"{settings['steps']} steps of {settings['batch_size']} on {self.accelerator.num_processes} process(es)"
        )
