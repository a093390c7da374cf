"""What a run writes while it trains: ``metrics.jsonl`` (one object a logged step), TensorBoard, a progress bar."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from hyvlm.files import write_text

console = Console(stderr=True)


def peak_memory_mb() -> float:
    """Largest memory so far, in MB: of the GPU where there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _step(line: str) -> int:
    """The step of a logged line, 0 of one that is no whole line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return 0


class MetricsLog:
    """Writes logged steps of the main process; a context manager that owns the progress bar.

    On resume the lines of steps that will be done again are dropped first, and one that a kill cut short.

    Args:
        run: The run folder.
        steps: Steps of the whole run.
        start: Step that training starts from.
    """

    def __init__(self, run: Path, *, steps: int, start: int) -> None:
        self.path = run / "metrics.jsonl"
        kept = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        kept = [line for line in kept if 0 < _step(line) <= start]
        write_text(self.path, "".join(f"{line}\n" for line in kept))
        self.board = SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)
        self.interactive = console.is_terminal
        self.progress = Progress(
            TextColumn("train"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not self.interactive,
        )
        self.bar = self.progress.add_task("train", total=steps, completed=start, note="")
        self.printed = time.monotonic()
        self.steps = steps

    def __enter__(self) -> MetricsLog:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        self.board.close()

    def advance(self, step: int) -> None:
        """Show that ``step`` steps are done."""
        self.progress.update(self.bar, completed=step)

    def write(self, row: dict[str, Any]) -> None:
        """Append one row (it has a ``step``) and show its loss and throughput."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        for name, value in row.items():
            if isinstance(value, int | float) and name != "step":
                self.board.add_scalar(name, value, row["step"])
        if "loss" not in row:
            return
        contrast = [v for k, v in row.items() if k.startswith("term/") and "->" in k]
        entail = [v for k, v in row.items() if k.startswith("term/") and "⊒" in k and "calibration" not in k]
        means = [f"{n} {sum(v) / len(v):.3f}" for n, v in (("contrast", contrast), ("entailment", entail)) if v]
        note = "  ".join([f"loss {row['loss']:.3f}", *means, f"{row['samples_per_s']:.0f} samples/s"])
        self.progress.update(self.bar, note=note)
        if not self.interactive and (time.monotonic() - self.printed > 10 or row["step"] in (1, self.steps)):
            self.printed = time.monotonic()
            console.print(f"step {row['step']}/{self.steps}  {note}", highlight=False, soft_wrap=True)
