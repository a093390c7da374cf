"""*How Hyperbolic Are Hyperbolic VLMs?* on the built-in scenes: ``python benchmarks/hyperbolic_or_flat.py OUT``.

MERU, HyCoCLIP, ARGENT and PHyCLIP, each from its published curvature, from the floor of the curvature where the paper's
runs settle (600 steps are too few to get there), and as its Euclidean control; one run each, as in the paper. Every
hyperbolic run is diagnosed against its control. Run it again to resume; ``OUT/hyperbolic_or_flat.json`` holds the
numbers, ``OUT/*.png`` two figures, ``OUT/METHOD/ARM/`` the runs and reports. Set ``GOMP_SPINCOUNT=1000``.
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
from hyvlm.diagnostics.diagnose import diagnose
from hyvlm.diagnostics.distortion import Box, Surface
from hyvlm.diagnostics.trajectories import read_trajectories
from hyvlm.evaluation.report import read_results
from hyvlm.evaluation.runner import EvalSpec
from hyvlm.files import write_text
from hyvlm.plotting.diagnosis_page import write_report
from hyvlm.plotting.distortion_figures import heat_maps
from hyvlm.plotting.training_figures import trajectory_figure
from hyvlm.training.checkpoint import checkpoint_folders
from hyvlm.training.trainer import train

METHODS = ("meru", "hycoclip", "argent", "phyclip")
#: From where the curvature starts; the control has none.
ARMS = {"published": [], "floor": ["manifold.c=0.1"], "control": []}
STEPS, SEED = 600, 0
#: At the tiny recipes' 8e-4 HyCoCLIP falls into a point from c = 1: entailment outruns contrast in the first steps.
SCHEDULE = ["train.lr=3e-4", "train.warmup_steps=200"]
EVALUATIONS: list[dict[str, Any]] = [
    {"task": "classification", "data": "scenes", "split": "test", "templates": "plain", "image_size": 32},
    {"task": "retrieval", "data": "scenes", "split": "test", "captions": "last"},
    {"task": "hierarchy", "data": "scenes", "split": "test", "templates": "plain", "image_size": 32},
]
#: Columns of Table 2: the score, and whether less is better.
COLUMNS = {
    "classification": False,
    "retrieval": False,
    "tie": True,
    "lca_height": True,
    "jaccard": False,
    "precision": False,
    "recall": False,
}


def trained(method: str, arm: str, folder: Path) -> float:
    """Train (or finish) one run; the seconds that it took in all."""
    recipe = f"{method}-euclid-tiny" if arm == "control" else f"{method}-tiny"
    entries = [f"{{{', '.join(f'{key}: {value}' for key, value in entry.items())}}}" for entry in EVALUATIONS]
    settings = [f"train.steps={STEPS}", f"train.seed={SEED}", f"eval=[{', '.join(entries)}]"]
    overrides = [*settings, *SCHEDULE, *ARMS[arm]]
    clock = folder / "seconds.txt"
    if not (folder / "results.json").is_file():
        started = time.monotonic()
        train(load_config(recipe, overrides), folder, resume=folder if checkpoint_folders(folder) else None)
        with clock.open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic() - started:.1f}\n")
    return sum(map(float, clock.read_text(encoding="utf-8").split()))


def scores_of(folder: Path) -> dict[str, float]:
    """The columns of Table 2; retrieval is the mean of recall@5 and @10 over both directions."""
    by_task = {entry["task"]: entry["scores"] for entry in read_results(folder)}
    recalls = [by_task["retrieval"][f"{way}_recall@{k}"] for way in ("t2i", "i2t") for k in (5, 10)]
    hierarchy = {name: by_task["hierarchy"][name] for name in COLUMNS if name in by_task["hierarchy"]}
    return {"classification": by_task["classification"]["acc1"], "retrieval": sum(recalls) / len(recalls), **hierarchy}


def course_of(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Curvature, temperature, radii and loss terms at every logged step."""
    named = read_trajectories(folder).by_name
    return {name: {"steps": t.steps, "values": [round(v, 6) for v in t.values]} for name, t in named.items()}


def diagnosed(folder: Path, control: Path, cache: Path) -> dict[str, Any]:
    """Diagnose one hyperbolic run against its control, once; ratios, operating points, read-outs and the verdict."""
    file = folder / "diagnosis" / "diagnosis.json"
    if not file.is_file():
        specs = [EvalSpec(**entry) for entry in EVALUATIONS]
        found = diagnose(
            folder, "scenes", split="test", control=control, captions="last", tasks=specs, cache=cache, workers=1
        )
        write_report(found, file.parent)
        found.write(file.parent)
    found = json.loads(file.read_text(encoding="utf-8"))
    model = found["model"]
    return {
        "curvature": model["curvature"],
        "ratios": model["ratios"],
        "operating_points": model["operating_points"],
        "gradients": model["gradients"],
        "readout": found["readout"]["rows"],
        "verdict": found["verdict"],
    }


def draw(out: Path) -> None:
    """Course of training of every method against its control (Figs. 1, 5, 9), and the distortion of distances and
    angles between text and image from the floor of the curvature (Fig. 3)."""
    course = {arm: {m: read_trajectories(out / m / arm).by_name for m in METHODS} for arm in ARMS}
    floors = dict.fromkeys(METHODS, 0.1)
    trajectory_figure(course["published"], course["control"], floors=floors).savefig(out / "trajectories.png", dpi=110)
    surfaces = {m: text_image(out / m / "floor" / "diagnosis" / "diagnosis.json") for m in METHODS}
    heat_maps(surfaces).savefig(out / "distortion.png", dpi=110)


def text_image(diagnosis: Path) -> list[Surface]:
    """The surfaces of the pair that all methods have."""
    saved = json.loads(diagnosis.read_text(encoding="utf-8"))["model"]["surfaces"]
    return [Surface(**{**s, "box": Box(**s["box"])}) for s in saved if s["relation"] == "text ⊒ image"]


def table_2(results: dict[str, dict[str, Any]]) -> Table:
    """Scores of every geometry, the best of each method in bold."""
    table = Table("method", "geometry", *COLUMNS, title="Table 2: hyperbolic or flat")
    for method, arms in results.items():
        for arm, result in arms.items():
            cells = []
            for column, less in COLUMNS.items():
                value = result["scores"][column]
                best = (min if less else max)(other["scores"][column] for other in arms.values())
                cells.append(f"[bold]{value:.3f}[/bold]" if value == best else f"{value:.3f}")
            table.add_row(method, arm, *cells)
    return table


def table_1(results: dict[str, dict[str, Any]]) -> Table:
    """Curvature at the end, distortion ratios over the model's own pairs, and what removing the map changes."""
    columns = ("method", "start", "c", "r_d 5-95 %", "r_ext 5-95 %", "largest change, points", "verdict")
    table = Table(*columns, title="Exponential map")
    for method, arms in results.items():
        for arm in ("published", "floor"):
            found = arms[arm]["diagnosis"]
            c = found["curvature"]
            spans = []
            for quantity in ("distance", "exterior_angle"):
                of = [ratio for ratio in found["ratios"] if ratio["quantity"] == quantity]
                spans.append(f"{min(r['low'] for r in of):.3f} to {max(r['high'] for r in of):.3f}")
            shares = [row["difference"] for row in found["readout"] if row["unit"] == "%"]
            weakly = found["verdict"]["weakly_hyperbolic"]
            verdict = "cannot tell" if weakly is None else "weakly hyperbolic" if weakly else "not weakly"
            table.add_row(method, arm, f"{sum(c) / len(c):.3f}", *spans, f"{max(map(abs, shares)):.2f}", verdict)
    return table


def main(out: Path) -> None:
    results: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        results[method] = {}
        for arm in ("control", "published", "floor"):
            folder = out / method / arm
            seconds = trained(method, arm, folder)
            entry = {"seconds": seconds, "scores": scores_of(folder), "course": course_of(folder)}
            if arm != "control":
                started = time.monotonic()
                entry["diagnosis"] = diagnosed(folder, out / method / "control", out / "cache")
                entry["seconds"] += time.monotonic() - started
            results[method][arm] = entry
    in_all = sum(entry["seconds"] for arms in results.values() for entry in arms.values())
    report = {
        **where(),
        "steps": STEPS,
        "seed": SEED,
        "seconds_in_all": in_all,
        "results": results,
    }
    write_text(out / "hyperbolic_or_flat.json", json.dumps(report, indent=1) + "\n")
    draw(out)
    console = Console(width=160)
    console.print(table_2(results))
    console.print(table_1(results))
    console.print(f"{in_all / 60:.1f} minutes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
