"""Table 5 of Hyper3-CLIP on the built-in scenes: ``GOMP_SPINCOUNT=1000 python benchmarks/hyper3_ablation.py OUT``.

As in the paper each row continues one run without query losses: here the first 800 of 1,000 steps, three seeds. The
variable is what the command line sets. Run it again to resume; ``OUT/hyper3_ablation.json`` holds every number.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from _reporting import where
from rich.console import Console
from rich.table import Table

from hyvlm.config import load_config
from hyvlm.evaluation.report import read_results
from hyvlm.files import write_text
from hyvlm.training.checkpoint import checkpoint_folders
from hyvlm.training.sweep import interval
from hyvlm.training.trainer import train

SEEDS = (0, 1, 2)
STEPS, SHARED = 1000, 800
EVALUATIONS = (
    "{task: entailment, data: scenes, split: test, cone: margin}",
    "{task: entailment, data: scenes, split: test, cone: angle}",
    "{task: retrieval, data: scenes, split: test, captions: last}",
)


def only(*relations: str) -> list[str]:
    """Overrides that leave out all query relations but these."""
    weights = ("image_text_weight", "visual_weight", "text_weight")
    return [f"objective.{weight}=0" for weight in weights if weight not in relations]


ROWS = {
    "no query losses": only(),
    "query image-text only": only("image_text_weight"),
    "visual hierarchy only": only("visual_weight"),
    "text hierarchy only": only("text_weight"),
    "full objective": [],
    "mean-pooled visual nodes": ["objective.pooling=mean"],
    "reversed visual order": ["objective.visual_order=reversed"],
    "shuffled text parents": ["objective.text_parents=shuffled"],
}


def run(folder: Path, overrides: list[str], seed: int, base: Path | None) -> dict[str, float]:
    """Scores of one run, trained from step ``SHARED`` of the ``base`` run (or from the start) unless it is done."""
    config = load_config(
        "hyper3-tiny",
        [
            *overrides,
            f"train.seed={seed}",
            f"train.steps={STEPS}",
            f"train.save_every={SHARED if base is None else STEPS}",
            f"eval=[{', '.join(EVALUATIONS)}]",
        ],
    )
    if not (folder / "results.json").is_file():
        started = time.monotonic()
        resume = folder if checkpoint_folders(folder) else base and base / "checkpoints" / f"step_{SHARED:07d}"
        train(config, folder, resume=resume)
        with (folder / "seconds.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic() - started:.1f}\n")
    scores: dict[str, float] = {}
    for entry in read_results(folder):
        suffix = f" ({entry['settings']['cone']})" if entry["task"] == "entailment" else ""
        scores |= {f"{name}{suffix}": value for name, value in entry["scores"].items()}
    return scores


def summary(scores: dict[str, float]) -> dict[str, float]:
    """The columns of the table."""
    return {
        "AP (margin)": scores["average_precision_cone (margin)"],
        "AUROC (margin)": scores["auroc_cone (margin)"],
        "AP (angle)": scores["average_precision_cone (angle)"],
        "R@10": (scores["t2i_recall@10"] + scores["i2t_recall@10"]) / 2,
        "R@1": (scores["t2i_recall@1"] + scores["i2t_recall@1"]) / 2,
    }


def main(out: Path) -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in SEEDS:
        base = out / f"seed_{seed}" / "no query losses"
        for name, overrides in ROWS.items():
            folder = out / f"seed_{seed}" / name
            scores = run(folder, overrides, seed, None if folder == base else base)
            taken = sum(map(float, (folder / "seconds.txt").read_text(encoding="utf-8").split()))
            results.setdefault(name, []).append({"seed": seed, "seconds": taken, "scores": scores})
    in_all = sum(result["seconds"] for row in results.values() for result in row)
    report = {
        **where(),
        "steps": {"shared": SHARED, "all": STEPS},
        "seconds_in_all": in_all,
        "rows": results,
    }
    write_text(out / "hyper3_ablation.json", json.dumps(report, indent=1) + "\n")
    columns = list(summary(results["full objective"][0]["scores"]))
    table = Table(
        "variant", *(column for name in columns for column in (name, "Δ")), title=f"{in_all / 60:.1f} minutes"
    )
    for name, row in results.items():
        cells = []
        for column in columns:
            values = [summary(result["scores"])[column] for result in row]
            plain = [summary(result["scores"])[column] for result in results["no query losses"]]
            cells += [interval(values), interval([a - b for a, b in zip(values, plain, strict=True)])]
        table.add_row(name, *cells)
    Console(width=220).print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
