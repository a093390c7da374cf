"""Seconds to score 50,000 predictions over ImageNet's classes: ``python benchmarks/hierarchical_metrics.py [N]``.

Two threads, five runs from the file of the hierarchy to the means of all seven metrics, and the same without the
tables of class pairs, which a model's evaluation makes once. 40 % of the predictions are right, the rest drawn at
random. Prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "2"

import numpy as np
from _reporting import where
from timm.data import ImageNetInfo

from hyvlm.data.class_names import IMAGENET_HIERARCHY
from hyvlm.evaluation.taxonomy import HierarchicalMetrics, Taxonomy

RUNS = 5


def main(count: int) -> None:
    classes = ImageNetInfo().label_names()
    draws = np.random.default_rng(0)
    target = draws.integers(len(classes), size=count)
    predicted = np.where(draws.random(count) < 0.4, target, draws.integers(len(classes), size=count))
    all_of_it, means_only, cpu = [], [], []
    for _ in range(RUNS):
        start, start_cpu = time.perf_counter(), time.process_time()
        taxonomy = Taxonomy.read(IMAGENET_HIERARCHY)
        metrics = HierarchicalMetrics(taxonomy, classes)
        made = time.perf_counter()
        means = metrics.means(predicted, target)
        end = time.perf_counter()
        all_of_it.append(end - start)
        means_only.append(end - made)
        cpu.append(time.process_time() - start_cpu)
    report = {
        "predictions": count,
        "classes": len(classes),
        "nodes": len(taxonomy.nodes),
        "hierarchy_hash": taxonomy.fingerprint,
        "seconds": {"median": float(np.median(all_of_it)), "best": min(all_of_it), "worst": max(all_of_it)},
        "cpu_seconds": {"median": float(np.median(cpu)), "best": min(cpu), "worst": max(cpu)},
        "seconds_without_tables": {"median": float(np.median(means_only))},
        "means": means,
        **where(),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
