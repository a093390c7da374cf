"""``hyvlm demo``: the main job from end to end on the built-in scenes, with a report to look at."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.markdown import Markdown
from torch import Tensor

import hyvlm
from hyvlm.config import Config, load_config
from hyvlm.data.catalog import SampleSet, open_data
from hyvlm.data.sets.scenes import nearest_neighbour_accuracy
from hyvlm.evaluation.embed import Embedder, EmbeddingCache
from hyvlm.evaluation.report import Result, results_table
from hyvlm.evaluation.runner import EvalSpec, evaluate
from hyvlm.evaluation.tasks.order import ViewRadii, view_radii
from hyvlm.files import check_folder, write_text
from hyvlm.models.dual_encoder import DualEncoder
from hyvlm.models.tokenizer import Tokenizer
from hyvlm.plotting import Placed, loss_curves, pair_distances, part_gallery, radius_distribution
from hyvlm.training.trainer import new_model, train

RECIPE = "uncha-tiny"
FIGURES = """
## Figures

![Parts by their radius](parts.png)

![Radius by view](radii.png)

![Distances of matched and unmatched pairs](distances.png)

![Loss](loss.png)
"""
console = Console(stderr=True)


@dataclass
class Snapshot:
    """What is measured of a model, once before and once after training."""

    results: list[Result]
    radii: ViewRadii
    matched: Tensor
    unmatched: Tensor

    def numbers(self) -> dict[str, Any]:
        """Every score as ``task/metric``, and the order of parts and wholes with its 95 % interval, in percent."""
        numbers: dict[str, Any] = {f"{r.task}/{name}": value for r in self.results for name, value in r.scores.items()}
        for modality in ("image", "text"):
            share = self.radii.share(modality)
            numbers[f"part_above_whole_{modality}"] = 100 * share.value
            numbers[f"part_above_whole_{modality}_interval"] = [100 * end for end in share.interval]
        return numbers


def demo(out: Path, *, seed: int = 0, overrides: list[str] | None = None) -> Path:
    """Train tiny UNCHA on the built-in scenes, evaluate it beside its untrained weights, and write a report.

    Args:
        out: Folder of the run; if it is taken, ``out-2``, ``out-3``, ... are tried.
        seed: Of weights and data order.
        overrides: ``key=value`` changes of the recipe.
    Returns:
        The report, ``report.md``; its figures lie beside it.
    """
    start = time.monotonic()
    check_folder(out.parent, "the run folder")
    out = free_folder(out)
    config = load_config(RECIPE, [*(overrides or []), f"train.seed={seed}"])
    untrained = measure(new_model(config), config)
    train(config, out)
    trained_at = time.monotonic()
    model, _, _ = hyvlm.load(out)
    trained = measure(model, config)
    crops = {split: open_data(config.data.train, split=split, content="classes") for split in ("train", "test")}
    console.print("hyvlm: nearest neighbours on raw pixels, for comparison", highlight=False)
    pixels = 100 * nearest_neighbour_accuracy(crops["train"], crops["test"], size=config.data.part_size)
    save_figures(out, trained, untrained, open_data(config.data.train, split="test"))
    numbers = {
        "seed": seed,
        "seconds": {"trained": round(trained_at - start), "all": round(time.monotonic() - start)},
        "pixel_neighbours": pixels,
        "trained": trained.numbers(),
        "untrained": untrained.numbers(),
    }
    write_text(out / "report.json", json.dumps(numbers, indent=1) + "\n")
    table = report(config, numbers, crops["test"])
    write_text(out / "report.md", table + FIGURES)
    console.print(results_table(trained.results))
    console.print(Markdown(table))
    return out / "report.md"


def free_folder(out: Path) -> Path:
    """``out``, or the first of ``out-2``, ``out-3``, ... that does not exist."""
    candidates = (out if n == 1 else out.with_name(f"{out.name}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def measure(model: DualEncoder, config: Config) -> Snapshot:
    """Evaluate ``model`` as the config lists, and its radii and distances on held-out scenes."""
    cache, tokenizer = EmbeddingCache(), Tokenizer()
    samples = open_data(config.data.train, split="test")
    embedder = Embedder(model, tokenizer, cache)
    radii, _ = view_radii(embedder, samples, part_size=config.data.part_size, captions="last")
    specs = [
        EvalSpec(task="order", data=samples, part_size=config.data.part_size, captions="last"),
        *(EvalSpec(**vars(entry)) for entry in config.eval),
    ]
    results = evaluate(model, tokenizer, specs, cache=cache)
    images = embedder.images(samples, parts=True, part_size=config.data.part_size)
    texts = embedder.texts([annotation.texts[-1] for annotation in images.annotations])
    distance = model.manifold.pairwise_distance(images.points, texts).detach()
    return Snapshot(results, radii, distance.diagonal(), distance.roll(1, 0).diagonal())


def gallery(radii: ViewRadii, samples: SampleSet, *, rows: int = 3) -> Figure:
    """The first scenes with five parts, each part with its radius."""
    part_rows, owners = radii.pairs["image"]
    by_scene: dict[int, list[float]] = {}
    for part, owner in zip(part_rows.tolist(), owners.tolist(), strict=True):
        by_scene.setdefault(owner, []).append(float(radii.radius["part_image"][part]))
    chosen = [(owner, found) for owner, found in by_scene.items() if len(found) == 5][:rows]
    scenes = []
    for owner, found in chosen:
        sample = samples[owner]
        parts = [Placed(part.image, radius, part.text) for part, radius in zip(sample.parts, found, strict=True)]
        scenes.append((Placed(sample.picture, float(radii.radius["image"][owner])), parts))
    return part_gallery(scenes)


def save_figures(out: Path, trained: Snapshot, untrained: Snapshot, samples: SampleSet) -> None:
    """Parts by radius, radius distribution by view, distances of matched and unmatched pairs, loss curves."""
    drawn: dict[str, Figure] = {
        "parts": gallery(trained.radii, samples),
        "radii": radius_distribution(trained.radii.radius, before=untrained.radii.radius),
        "distances": pair_distances(trained.matched, trained.unmatched),
        "loss": loss_curves(out / "metrics.jsonl"),
    }
    for name, figure in drawn.items():
        figure.savefig(out / f"{name}.png", dpi=150)


def report(config: Config, numbers: dict[str, Any], crops: SampleSet) -> str:
    """Title and table of the report, as Markdown."""
    trained, untrained, seconds = numbers["trained"], numbers["untrained"], numbers["seconds"]

    def row(label: str, metric: str) -> str:
        return f"| {label} | {trained[metric]:.1f} | {untrained[metric]:.1f} |"

    def order(modality: str) -> str:
        key = f"part_above_whole_{modality}"
        cells = []
        for found in (trained, untrained):
            low, high = found[f"{key}_interval"]
            cells.append(f"{found[key]:.1f} ({low:.1f} to {high:.1f})")
        return f"| radius(part {modality}) < radius({modality}), % of pairs (95 % interval) | {' | '.join(cells)} |"

    lines = [
        "# Tiny UNCHA on the built-in scenes",
        "",
        f"{config.train.steps} steps of {config.train.batch_size} scenes, seed {numbers['seed']}; "
        f"{seconds['trained']} s to train and evaluate, {seconds['all']} s in all. Held-out scenes; "
        f"{len(crops)} part crops of {len(crops.classes)} classes.",
        "",
        "| | trained | untrained |",
        "| --- | ---: | ---: |",
        row("zero-shot accuracy on part crops, %", "classification/acc1"),
        f"| the same by nearest neighbour on raw pixels, % | {numbers['pixel_neighbours']:.1f} | |",
        row("text to image recall@1, %", "retrieval/t2i_recall@1"),
        row("image to text recall@1, %", "retrieval/i2t_recall@1"),
        order("image"),
        order("text"),
        "",
    ]
    return "\n".join(lines)
