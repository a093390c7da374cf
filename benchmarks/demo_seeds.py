"""The demo with several seeds: ``python benchmarks/demo_seeds.py OUT [SEED ...]``. Prints each run and the medians.

Runs whose ``report.json`` is there already are only read.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

COLUMNS = {
    "part accuracy": lambda n: n["trained"]["classification/acc1"],
    "t2i recall@1": lambda n: n["trained"]["retrieval/t2i_recall@1"],
    "i2t recall@1": lambda n: n["trained"]["retrieval/i2t_recall@1"],
    "image parts above wholes": lambda n: n["trained"]["part_above_whole_image"],
    "text parts above wholes": lambda n: n["trained"]["part_above_whole_text"],
    "pixel neighbours": lambda n: n["pixel_neighbours"],
    "seconds": lambda n: n["seconds"]["all"],
}


def main(out: Path, seeds: list[int]) -> None:
    rows = []
    for seed in seeds:
        folder = out / f"seed_{seed}"
        if not (folder / "report.json").is_file():
            subprocess.run(
                [sys.executable, "-m", "hyvlm", "demo", "--seed", str(seed), "--out", str(folder)], check=True
            )
        rows.append(json.loads((folder / "report.json").read_text(encoding="utf-8")))
    print("| seed | " + " | ".join(COLUMNS) + " |")
    print("| --- |" + " ---: |" * len(COLUMNS))
    for seed, row in zip(seeds, rows, strict=True):
        print(f"| {seed} | " + " | ".join(f"{read(row):.1f}" for read in COLUMNS.values()) + " |")
    medians = (statistics.median(read(row) for row in rows) for read in COLUMNS.values())
    print("| median | " + " | ".join(f"{value:.1f}" for value in medians) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or [0, 1, 2])
