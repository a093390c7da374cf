"""Seconds to rank COCO-sized retrieval in both directions: ``python benchmarks/retrieval_ranking.py``.

5,000 images with five captions each, 512 dimensions, on the hyperboloid of c = 0.1; three runs. Prints JSON.
"""

from __future__ import annotations

import json
import resource
import statistics
import time

import torch
from _reporting import where

from hyvlm.evaluation.metrics import retrieval_ranks
from hyvlm.geometry import Lorentz

IMAGES, CAPTIONS, DIM, RUNS = 5000, 5, 512, 3


def peak_mib() -> float:
    """Most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@torch.no_grad()
def main() -> None:
    manifold, draws = Lorentz(c=0.1), torch.Generator().manual_seed(0)
    vectors = torch.randn(IMAGES, DIM, generator=draws) / DIM**0.5
    owner = torch.arange(IMAGES).repeat_interleave(CAPTIONS)
    noise = torch.randn(len(owner), DIM, generator=draws) / DIM**0.5
    images, texts = manifold.lift(vectors), manifold.lift(vectors[owner] + 4 * noise)
    each, seconds = torch.arange(IMAGES), list[float]()
    for _ in range(RUNS):
        started = time.perf_counter()
        by_image = retrieval_ranks(manifold.score, images, texts, each, owner)
        by_text = retrieval_ranks(lambda t, i: manifold.score(i, t).T, texts, images, owner, each)
        seconds.append(time.perf_counter() - started)
    report = {
        "images": IMAGES,
        "captions": len(owner),
        "dimensions": DIM,
        "seconds": {"median": statistics.median(seconds), "best": min(seconds), "worst": max(seconds)},
        "peak_mib_of_the_process": peak_mib(),
        "recall@1": {"i2t": by_image.recall_at(1), "t2i": by_text.recall_at(1)},
        **where(),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
