"""Ranking at the size of COCO's and ImageNet's validation sets: ``python benchmarks/retrieval_ranking.py [ROUNDS]``.

Retrieval: 5,000 images with five captions each, both directions. Zero-shot: 50,000 images and 1,000 classes. 512
dimensions, on the hyperboloid of c = 0.1. Plain is the whole matrix of scores, sorted, with lists of the best; the
limit is one bare product by the faster library. Writes ``results/retrieval_ranking.json``; ``peak FILE WHAT VARIANT``
prints the peak memory above the inputs in a file, for which the rest starts fresh processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from _runner import Row, alternate, in_fresh_process, peak_mb, row, write_rows
from torch import Tensor

from hyvlm.evaluation.both_ways import ranks_both_ways
from hyvlm.evaluation.metrics import classify
from hyvlm.geometry import Lorentz
from hyvlm.geometry.matmul import fast_matmul

IMAGES, CAPTIONS, DIM, BEST = 5000, 5, 512, 10
MANIFOLD = Lorentz(c=0.1)
Variants = dict[str, Callable[[], tuple[float, float]]]


def captioned(images: int = IMAGES) -> tuple[Tensor, Tensor, Tensor]:
    """Points of images, of texts, and the image of each text."""
    draws = torch.Generator().manual_seed(0)
    vectors = torch.randn(images, DIM, generator=draws) / DIM**0.5
    owner = torch.arange(images).repeat_interleave(CAPTIONS)
    noise = torch.randn(len(owner), DIM, generator=draws) / DIM**0.5
    return MANIFOLD.lift(vectors), MANIFOLD.lift(vectors[owner] + 4 * noise), owner


def labelled(images: int = 50_000, classes: int = 1000) -> tuple[Tensor, Tensor, Tensor]:
    """Points of images, of classes, and the class of each image."""
    draws = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, DIM, generator=draws) / DIM**0.5
    target = torch.randint(classes, (images,), generator=draws)
    noise = torch.randn(images, DIM, generator=draws) / DIM**0.5
    return MANIFOLD.lift(centres[target] + 4 * noise), MANIFOLD.lift(centres), target


def retrieval_variants(images: Tensor, texts: Tensor, owner: Tensor) -> Variants:
    """Recall@1 of images by text and of texts by image, from ten best."""

    def ours() -> tuple[float, float]:
        by_text, by_image = ranks_both_ways(MANIFOLD.score, images, texts, owner)
        return by_text.recall_at(1), by_image.recall_at(1)

    def plain() -> tuple[float, float]:
        scores = MANIFOLD.score(images, texts)
        of_images, of_texts = owner.tolist(), [set((owner == i).nonzero()[:, 0].tolist()) for i in range(len(images))]
        found = scores.T.argsort(dim=1, descending=True)[:, :BEST].tolist()
        by_text = sum(best[0] == image for best, image in zip(found, of_images, strict=True)) / len(found)
        found = scores.argsort(dim=1, descending=True)[:, :BEST].tolist()
        return by_text, sum(best[0] in texts for best, texts in zip(found, of_texts, strict=True)) / len(found)

    return {"ours": ours, "plain": plain, "limit": lambda: (float(product(images, texts)), 0.0)}


def zero_shot_variants(images: Tensor, classes: Tensor, target: Tensor) -> Variants:
    """Accuracy at 1 and at 5."""

    def ours() -> tuple[float, float]:
        found = classify(MANIFOLD.score, images, classes, target)
        return found.accuracy(1), found.accuracy(5)

    def plain() -> tuple[float, float]:
        best = MANIFOLD.score(images, classes).topk(5).indices == target[:, None]
        return best[:, 0].double().mean().item(), best.any(1).double().mean().item()

    return {"ours": ours, "plain": plain, "limit": lambda: (float(product(images, classes)), 0.0)}


def product(x: Tensor, y: Tensor) -> int:
    """The bare product, in slices of rows, by the faster library."""
    count = 0
    with fast_matmul():
        for part in x.split(max(1, 2**23 // len(y))):
            count += len(part @ y.T)
    return count


CASES: dict[str, tuple[Callable[..., tuple[Tensor, Tensor, Tensor]], Callable[..., Variants], str, str]] = {
    "retrieval, both directions": (
        captioned,
        retrieval_variants,
        f"{IMAGES:,} x {IMAGES * CAPTIONS:,}, d={DIM}",
        "at most 1.5 times one score product plus 0.3 s, under 200 MB",
    ),
    "zero-shot": (labelled, zero_shot_variants, f"50,000 x 1,000, d={DIM}", "at most 1.6 times its product"),
}


def measure(what: str, rounds: int) -> Row:
    inputs, variants, size, asked = CASES[what]
    points = inputs()
    work = variants(*points)
    values: dict[str, tuple[float, float]] = {}

    def run(name: str) -> None:
        values[name] = work[name]()

    times = alternate({name: partial(run, name) for name in work}, rounds, warm=1 if what == "zero-shot" else 0)
    for number, other in zip(values["ours"], values["plain"], strict=True):
        assert abs(number - other) < 2e-4, f"{what}: ours and plain differ, {values}"
    with TemporaryDirectory() as folder:
        file = str(Path(folder, "inputs.pt"))
        torch.save(points, file)  # making them takes more memory than ranking them
        peaks = {name: in_fresh_process(__file__, "peak", file, what, name) for name in ("ours", "plain")}
    return row(what, size, times, peak_mb=peaks["ours"], plain_peak_mb=peaks["plain"], asked=asked)


def peak_of(file: str, what: str, variant: str) -> float:
    """Peak memory above the inputs, in MB; a small run first brings in the libraries."""
    inputs, variants, *_ = CASES[what]
    variants(*inputs(100))[variant]()
    work = variants(*torch.load(file))[variant]
    before = peak_mb()
    work()
    return peak_mb() - before


@torch.no_grad()
def main() -> None:
    if sys.argv[1:2] == ["peak"]:
        print(json.dumps(peak_of(*sys.argv[2:])))
        return
    rounds = int(sys.argv[1]) if sys.argv[1:] else 3
    write_rows(Path(__file__).stem, [measure(what, rounds) for what in CASES])


if __name__ == "__main__":
    main()
