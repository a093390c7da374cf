"""Is there a regime in which hyperbolic geometry does work? ``python benchmarks/low_dimension.py OUT TREE``.

Two data sets with a real hierarchy in 2, 4, 8 and 16 dimensions: nouns of WordNet (a table of vectors, MERU's
objective) and the built-in scenes (projections of frozen features, HyCoCLIP's). In every regime a Lorentz manifold
meets its flat twin with the same starting vectors, batches, steps and learning rate, five seeds. The rate of a regime
is chosen before, on a seed of its own, by what both sides reach together; with it the flat side gets the better of two
radii of the ball where cones are undefined: ``2K/sqrt(c)`` at its twin's last curvature (as in *How Hyperbolic Are
Hyperbolic VLMs?*) or at ``c = 0.1``.

TREE is a file of ``child parent`` lines with one root, such as the hypernyms of the ImageNet-1k classes and all their
ancestors; ``nltk.corpus.wordnet`` gives them as ``synset.hypernyms()``, and WordNet 3.0 as the "@" pointers of
data.noun. Run it again to resume; ``OUT/low_dimension.json`` holds every number. Set ``GOMP_SPINCOUNT=1000`` and
``OMP_NUM_THREADS=1``: the matrices are small.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from _low_dimension import Regime, fit
from _low_dimension_scenes import TOWERS, Scenes
from _low_dimension_words import HELD_OUT, Nouns
from _reporting import mean_and_half_width, where
from rich.console import Console
from rich.table import Table

from hyvlm.files import write_text
from hyvlm.geometry import Euclidean, Lorentz

SEEDS, TUNING_SEED = (0, 1, 2, 3, 4), 99
DIMENSIONS, TUNING_DIMENSION = (2, 4, 8, 16), 4
REGIMES = {
    "published": Regime(),
    "no floor, from 2": Regime(c=4.0, bounds=None),
    "bounded": Regime(sharpest=2.0),
    "held": Regime(learn=False, sharpest=2.0),
}
FLOOR = 0.1  # of the published curvature
STEPS = {"words": 800, "scenes": 300}
RATES = {"words": (0.1, 0.3), "scenes": (0.03, 0.1)}
#: What the Lorentz side ends with: curvature, operating point (median), inverse temperature.
SCALARS = ("c", "sqrt_c_x", "inverse_temperature")
#: Columns of the tables: title, and whether higher is better.
COLUMNS = {
    "map_score": ("mAP, score", True),
    "map_cone": ("mAP, cone", True),
    "map_cone_held_out": ("held out, cone", True),
    "spearman": ("tree, Spearman", True),
    "tie": ("TIE", False),
    "accuracy": ("accuracy", True),
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run; ``radius`` is that of the ball without cones in flat space, None on the Lorentz manifold."""

    data: str
    regime: str
    dim: int
    seed: int
    lr: float
    radius: float | None = None

    @property
    def file(self) -> str:
        side = "lorentz" if self.radius is None else f"flat-{self.radius:.4g}"
        regime = self.regime.replace(",", "").replace(" ", "-")
        return f"{self.data}/{regime}-n{self.dim}-{side}-lr{self.lr:g}-seed{self.seed}.json"

    def manifold(self) -> Lorentz | Euclidean:
        return REGIMES[self.regime].manifold() if self.radius is None else Euclidean(aperture_radius=self.radius)


class Experiment:
    """Runs that are kept in ``out`` and done once.

    Attributes:
        results: Trial and scores of every run that was asked for, in order.
    """

    def __init__(self, out: Path, tree: Path) -> None:
        self.out = out
        self.nouns, self.scenes = Nouns(tree), Scenes(out / "frozen")
        self.results: dict[Trial, dict[str, Any]] = {}

    def run(self, trial: Trial) -> dict[str, Any]:
        """Scores of a run, trained unless that is done."""
        file = self.out / trial.file
        if not file.is_file():
            started = time.monotonic(), time.process_time()
            torch.manual_seed(trial.seed)
            problem = self.nouns if trial.data == "words" else self.scenes
            embedding = problem.embedding(trial.dim, trial.manifold(), trial.seed)
            steps = STEPS[trial.data]
            found = fit(embedding, REGIMES[trial.regime], lr=trial.lr, steps=steps, seed=trial.seed)
            found |= {"seconds": time.monotonic() - started[0], "cpu_seconds": time.process_time() - started[1]}
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps({name: float(f"{value:.6g}") for name, value in found.items()}) + "\n")
            print(f"{file}: {found['seconds']:.1f} s", file=sys.stderr, flush=True)
        self.results[trial] = json.loads(file.read_text(encoding="utf-8"))
        return self.results[trial]

    def tune(self, data: str, regime: str) -> tuple[float, float | None]:
        """The rate that both sides share and the flat side's radius, None for that of the twin at its last curvature.

        They are those of the highest mean average precision, by score and by cone, of both sides together.
        """
        common: dict[str, Any] = {"data": data, "dim": TUNING_DIMENSION, "seed": TUNING_SEED}
        floor = twin_radius({"c": FLOOR})
        found = {}
        for lr in RATES[data]:
            lorentz = self.run(Trial(**common, regime=regime, lr=lr))
            for radius in dict.fromkeys((floor, twin_radius(lorentz))):
                flat = self.run(Trial(**common, regime=flat_regime(regime), lr=lr, radius=radius))
                precision = sum(side[f"map_{by}"] for side in (lorentz, flat) for by in ("score", "cone"))
                found[lr, floor if radius == floor else None] = precision
        return max(found, key=found.__getitem__)

    def pairs(self, data: str, regime: str, dim: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Results of both sides, seed by seed."""
        lr, fixed = self.tune(data, regime)
        pairs = []
        for seed in SEEDS:
            common: dict[str, Any] = {"data": data, "dim": dim, "seed": seed, "lr": lr}
            one = self.run(Trial(**common, regime=regime))
            pairs.append((one, self.run(Trial(**common, regime=flat_regime(regime), radius=fixed or twin_radius(one)))))
        return pairs


def flat_regime(regime: str) -> str:
    """The first regime of the same bound on the temperature: flat space knows no other difference between them."""
    return next(name for name, other in REGIMES.items() if other.sharpest == REGIMES[regime].sharpest)


def twin_radius(result: dict[str, Any]) -> float:
    """``2K/sqrt(c)`` at the last curvature of a Lorentz run, to the digits that name files."""
    return float(f"{Lorentz(c=result['c'], bounds=None).flat().aperture_radius:.4g}")


def row(data: str, regime: str, dim: int, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Means over the seeds; of every score that of both sides and their difference, with its 95 % t interval."""
    found: dict[str, Any] = {"data": data, "regime": regime, "n": dim}
    found |= {name: statistics.fmean(one[name] for one, _ in pairs) for name in SCALARS}
    for name in filter(pairs[0][0].__contains__, COLUMNS):
        sides = [[pair[side][name] for pair in pairs] for side in (0, 1)]
        difference = mean_and_half_width([a - b for a, b in zip(*sides, strict=True)])
        found[name] = {"lorentz": statistics.fmean(sides[0]), "flat": statistics.fmean(sides[1])}
        found[name] |= {"difference": difference["mean"], "half_width_95": difference["half_width_95"]}
    return found


def table(data: str, rows: list[dict[str, Any]]) -> Table:
    """A line for every regime and dimension. H or E: which side is better, where the interval leaves out 0."""
    shown = {name: column for name, column in COLUMNS.items() if name in rows[0]}
    heads = [head for title, _ in shown.values() for head in (title, "flat", "Δ")]
    result = Table("regime", "n", "c", "√c|x|", "1/τ", *heads, title=f"{data}, {STEPS[data]} steps, {len(SEEDS)} seeds")
    for column in result.columns:
        column.no_wrap = True
    for line in rows:
        cells = [f"{line[name]:.3g}" for name in SCALARS]
        for name, (_, higher) in shown.items():
            digits = 3 if name == "spearman" else 2
            lorentz, flat, mean, half = line[name].values()
            delta = f"{mean:+.{digits}f} ± {half:.{digits}f}"
            if abs(mean) > half:
                delta = f"[bold]{delta} {'H' if (mean > 0) == higher else 'E'}[/bold]"
            cells += [f"{lorentz:.{digits}f}", f"{flat:.{digits}f}", delta]
        result.add_row(line["regime"], str(line["n"]), *cells, end_section=line["n"] == DIMENSIONS[-1])
    return result


def as_json(report: dict[str, Any]) -> str:
    """JSON with a line for every entry, and for every element of a list."""
    entries = []
    for name, value in report.items():
        lines = ",\n  ".join(map(json.dumps, value)) if isinstance(value, list) else None
        entries.append(f" {json.dumps(name)}: " + (json.dumps(value) if lines is None else f"[\n  {lines}\n ]"))
    return "{\n" + ",\n".join(entries) + "\n}\n"


def main(out: Path, tree: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(out, tree)
    prepared = experiment.scenes.prepare()
    rows = [
        row(data, regime, dim, experiment.pairs(data, regime, dim))
        for data in STEPS
        for regime in REGIMES
        for dim in DIMENSIONS
    ]
    cpu = sum(run["cpu_seconds"] for run in experiment.results.values())
    seconds = {"towers_and_features": prepared, "runs_cpu": cpu}
    report = {
        **where(),
        "settings": {
            "regimes": {name: asdict(regime) for name, regime in REGIMES.items()},
            "steps": STEPS,
            "rates": RATES,
            "held_out": HELD_OUT,
            "towers": TOWERS,
            "tree": experiment.nouns.taxonomy.fingerprint,
        },
        "seconds": seconds,
        "rows": rows,
        "runs": [asdict(trial) | result for trial, result in experiment.results.items()],
    }
    write_text(out / "low_dimension.json", as_json(report))
    console = Console(width=260)
    for data in STEPS:
        console.print(table(data, [line for line in rows if line["data"] == data]))
    console.print(f"{prepared / 60:.1f} minutes for towers and features, {cpu / 60:.1f} of one core for all runs")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
