"""What benchmarks of speed share: alternating runs, peak memory in fresh processes, and rows of one table.

A row sets ours beside the plain formula and beside a limit, the bare work that no code can avoid (matrix products, one
read of the data). All variants of a row take turns in one process, so that whatever else the machine does falls on all.
"""

from __future__ import annotations

import gc
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from _reporting import where

from hyvlm.files import write_text

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One comparison. Times are medians in seconds, memory is the peak above the inputs in MB; None was not measured.

    Attributes:
        what, size: What was run, and on how much.
        ours, plain, limit: The library, the plain formula with torch's defaults, the bare work.
        ratio: Median over the rounds of plain / ours.
        to_limit: Median over the rounds of ours / limit.
        rounds: How many rounds the medians are of.
        asked: What the numbers should reach, in words.
    """

    what: str
    size: str
    ours: float
    plain: float | None = None
    limit: float | None = None
    ratio: float | None = None
    to_limit: float | None = None
    peak_mb: float | None = None
    plain_peak_mb: float | None = None
    rounds: int = 0
    asked: str = ""


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call, the GPU's work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def alternate(variants: Mapping[str, Callable[[], object]], rounds: int, *, warm: int = 1) -> dict[str, list[float]]:
    """Times of every variant, which take turns ``rounds`` times after ``warm`` turns that do not count."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(warm + rounds):
        for name, work in variants.items():
            gc.collect()
            taken = seconds(work)
            if turn >= warm:
                times[name].append(taken)
    return times


def row(
    what: str,
    size: str,
    times: Mapping[str, Sequence[float]],
    *,
    peak_mb: float | None = None,
    plain_peak_mb: float | None = None,
    asked: str = "",
) -> Row:
    """A :class:`Row` of the times of "ours" and, where they were run, "plain" and "limit"."""
    medians = {name: statistics.median(times[name]) for name in ("ours", "plain", "limit") if name in times}

    def over(a: str, b: str) -> float | None:
        if a not in times or b not in times:
            return None
        return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))

    return Row(
        what,
        size,
        medians["ours"],
        medians.get("plain"),
        medians.get("limit"),
        over("plain", "ours"),
        over("ours", "limit"),
        peak_mb,
        plain_peak_mb,
        len(times["ours"]),
        asked,
    )


def peak_mb() -> float:
    """Most memory that this process has held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if platform.system() != "Darwin" else 1024**2)


def in_fresh_process(script: str | Path, *arguments: str) -> Any:
    """What ``python SCRIPT ARGUMENTS`` prints last, read as JSON: for peak memory, which a process keeps."""
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_rows(name: str, rows: Sequence[Row], **further: Any) -> Path:
    """Write ``results/NAME.json``: the rows, where they were measured, and whatever else is given."""
    report = {**where(), "threads": torch.get_num_threads(), "rows": [asdict(r) for r in rows], **further}
    path = RESULTS / f"{name}.json"
    write_text(path, json.dumps(report, indent=2) + "\n")
    for r in rows:
        print(describe(r), flush=True)
    return path


def describe(r: Row) -> str:
    """One line for the terminal."""
    parts = [f"{r.what}, {r.size}: {r.ours:.4g} s"]
    if r.ratio is not None:
        parts.append(f"plain {r.plain:.4g} s, {r.ratio:.2f} times ours")
    if r.to_limit is not None:
        parts.append(f"{r.to_limit:.2f} times the limit of {r.limit:.4g} s")
    if r.peak_mb is not None:
        parts.append(f"peak {r.peak_mb:.0f} MB" + (f" of plain's {r.plain_peak_mb:.0f}" if r.plain_peak_mb else ""))
    return "; ".join(parts)
