"""HyFL-CLIP against plain long-text contrast: ``GOMP_SPINCOUNT=1000 python benchmarks/hyfl_scenes.py OUT``.

A CLIP is trained on the built-in scenes (recipe clip-long-tiny). From it, with the same steps, data order and three
seeds, the long texts are fine-tuned with HyFL-CLIP (hyfl-tiny) and with the plain contrastive loss on CLIP's sphere.
All are evaluated on perturbed captions of 500 held-out scenes, in the layout of HyFL-CLIP's Table 2, and on where
perturbed captions rank (Table S4). Run it again to resume; ``OUT/hyfl_scenes.json`` holds every number. The variable is
what the command line sets: threads that spin starve the loader on few cores.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from _reporting import mean_and_half_width, where
from rich.console import Console

from hyvlm.config import load_config
from hyvlm.evaluation.report import perturbation_table, read_results
from hyvlm.files import write_text
from hyvlm.training.sweep import interval, run_once

SEEDS = (0, 1, 2)
METHODS = {"HyFL-CLIP": [], "long-text contrast": ["objective={name: clip}", "manifold={name: sphere}"]}
#: Seeds other than that of the training draw the perturbations: five of each.
EVALUATIONS = ", ".join(
    f"{{task: {task}, data: scenes-long, split: test, captions: last, seeds: 5}}"
    for task in ("perturbed-retrieval", "perturbed-ranks")
)


def run(recipe: str, folder: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Train and evaluate, unless it is done; how long that took is added to ``folder/seconds.txt``."""
    started = time.monotonic()
    done = (folder / "results.json").is_file()
    run_once(load_config(recipe, [*overrides, f"eval=[{EVALUATIONS}]"]), folder)
    if not done:
        with (folder / "seconds.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic() - started:.1f}\n")
    return read_results(folder)


def seconds(folder: Path) -> float:
    """Time that a run has taken, in all its parts."""
    return sum(map(float, (folder / "seconds.txt").read_text(encoding="utf-8").split()))


def scores(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Scores of a run's evaluations."""
    return {f"{entry['task']}/{name}": value for entry in entries for name, value in entry["scores"].items()}


def compare(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """HyFL-CLIP minus the plain contrast, paired by seed: mean and half-width of the 95 % t interval."""
    compared = {}
    for name in ("perturbed-retrieval/recall@1", "perturbed-retrieval/mean_drop"):
        pairs = zip(*(runs[method] for method in METHODS), strict=True)
        compared[name] = mean_and_half_width([a[name] - b[name] for a, b in pairs])
    return compared


def main(out: Path) -> None:
    start = out / "start"
    entries = run("clip-long-tiny", start, [])
    folders = {"start": start}
    runs: dict[str, list[dict[str, float]]] = {"start": [scores(entries)]}
    for seed in SEEDS:  # the methods take turns, so that a machine that slows down slows both
        for method, overrides in METHODS.items():
            folder = out / f"{method.replace(' ', '-')}-{seed}"
            settings = [f"model.init={start}", f"train.seed={seed}", *overrides]
            runs.setdefault(method, []).append(scores(run("hyfl-tiny", folder, settings)))
            folders[f"{method}, seed {seed}"] = folder
            entries += read_results(folder)
    names = {entry["model"]: name for name, folder in folders.items() for entry in read_results(folder)}
    times = {name: seconds(folder) for name, folder in folders.items()}
    report = {
        **where(),
        "settings": {name: load_config(str(f / "config.yaml")).train.__dict__ for name, f in folders.items()},
        "seconds": times,
        "seconds_in_all": sum(times.values()),
        "scores": runs,
        "hyfl_minus_contrast": compare(runs),
    }
    write_text(out / "hyfl_scenes.json", json.dumps(report, indent=1) + "\n")
    console = Console(width=200)
    console.print(perturbation_table(entries, names))
    for method, results in runs.items():
        for name in results[0]:
            console.print(f"{method}: {name} {interval([result[name] for result in results])}", highlight=False)
    console.print(report["hyfl_minus_contrast"], f"{sum(times.values()) / 60:.1f} minutes in all")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
