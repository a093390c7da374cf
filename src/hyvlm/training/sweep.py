"""``hyvlm sweep``: train and evaluate a grid of settings with several seeds, and summarise."""

from __future__ import annotations

import itertools
import json
import re
import statistics
from pathlib import Path

from rich.table import Table
from scipy import stats

from hyvlm.config import Config, load_config
from hyvlm.files import check_folder, write_text
from hyvlm.models import build_manifold
from hyvlm.training.checkpoint import checkpoint_folders
from hyvlm.training.trainer import build_objective, train


def split_values(text: str) -> list[str]:
    """Split at the commas that are not inside brackets, braces or quotes."""
    parts = re.findall(r"""((?:[^,\[{"']|\[[^\]]*\]|\{[^}]*\}|"[^"]*"|'[^']*')+)""", text)
    return [part.strip() for part in parts] or [text]


def grid(overrides: list[str]) -> dict[str, list[str]]:
    """Every combination of ``key=a,b,c`` overrides: a folder name that tells it apart to its list of ``key=value``."""
    axes = []
    for override in overrides:
        key, separator, values = override.partition("=")
        if not separator:
            raise ValueError(f"override {override!r} is not of the form key=a,b,c")
        axes.append([f"{key}={value}" for value in split_values(values)])
    points: dict[str, list[str]] = {}
    for number, point in enumerate(itertools.product(*axes)):
        varied = ",".join(value for value, axis in zip(point, axes, strict=True) if len(axis) > 1)
        name = re.sub(r"[^\w.=,+-]+", "_", varied)[:120] or "all"
        points[f"{name}-{number}" if name in points else name] = list(point)
    return points


def run_once(config: Config, folder: Path) -> None:
    """Train one run unless it is complete; an interrupted one continues from its newest checkpoint.

    Raises:
        ValueError: The folder holds a run with other settings.
    """
    if (folder / "config.yaml").is_file() and load_config(str(folder / "config.yaml")) != config:
        raise ValueError(f"{folder} holds a run with other settings; choose another folder with --out")
    if (folder / "results.json").is_file():
        return
    started = bool(checkpoint_folders(folder))
    train(config, folder, resume=folder if started else None)


def read_scores(folder: Path) -> dict[str, float]:
    """Every score of a run's ``results.json``, as ``task/data/metric``."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))["results"]
    return {f"{r['task']}/{r['data']}/{k}": v for r in results for k, v in r["scores"].items() if v is not None}


def interval(values: list[float]) -> str:
    """Mean and the half-width of its 95 % t interval, as text."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.2f} ± {half:.2f}"


def sweep(recipe: str, overrides: list[str], out: Path, *, seeds: int) -> Table:
    """Run every point of the grid with seeds 0, 1, ...; returns the table, also written to ``out/sweep.json``.

    Args:
        overrides: ``key=value`` or ``key=a,b,c``.
    Raises:
        ValueError: The recipe lists no evaluation, so that runs could not be compared; a setting that no run can have.
    """
    configs = {
        (name, seed): load_config(recipe, [*point, f"train.seed={seed}"])
        for name, point in grid(overrides).items()
        for seed in range(seeds)
    }
    if not all(config.eval for config in configs.values()):
        raise ValueError(f"recipe {recipe} lists no evaluation under 'eval', so its runs cannot be compared")
    for config in configs.values():  # a wrong value of the last point is known before the first one trains
        build_objective(config)
        build_manifold(config.manifold)
    check_folder(out, "the run folder")
    scores: dict[str, list[dict[str, float]]] = {}
    for (name, seed), config in configs.items():
        folder = out / name / f"seed_{seed}"
        run_once(config, folder)
        scores.setdefault(name, []).append(read_scores(folder))
    write_text(out / "sweep.json", json.dumps(scores, indent=2) + "\n")
    table = Table("settings", "metric", f"mean and 95 % interval of {seeds} seed(s)", title=recipe)
    for name, runs in scores.items():
        for row, metric in enumerate(runs[0]):
            table.add_row("" if row else name, metric, interval([run[metric] for run in runs]))
        table.add_section()
    return table
