"""What texts of mixed lengths cost: ``python benchmarks/text_lengths.py OUT.json``.

Forward and backward of the text tower of ViT-B/16 at a context of 248 tokens, for a batch of long texts, one of short
texts, and one of both, packed (as the tower runs) and padded to the longest. All variants take turns in one process;
the table holds medians.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

from hyvlm.models.towers import TextTower

CONTEXT, SHORT, ROWS, ROUNDS = 248, 16, 4, 5


def texts(lengths: list[int]) -> torch.Tensor:
    """Random texts of these lengths, start and end included."""
    tokens = torch.zeros(len(lengths), CONTEXT, dtype=torch.long)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = torch.randint(1, 49406, (length,))
        row[length - 1] = 49407
    return tokens


def seconds(tower: TextTower, tokens: torch.Tensor, *, padded: bool) -> float:
    """Time of one forward and backward pass."""
    started = time.perf_counter()
    features = tower.pooled(tokens, tokens.argmax(-1)) if padded else tower(tokens)
    features.sum().backward()
    if tokens.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main(out: Path) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tower = TextTower(context_length=CONTEXT, vocab_size=49408, width=512, depth=12, heads=8).to(device)
    batches = {
        "long": [CONTEXT] * ROWS,
        "short": [SHORT] * ROWS,
        "mixed, packed": [CONTEXT, SHORT] * (ROWS // 2),
        "mixed, padded": [CONTEXT, SHORT] * (ROWS // 2),
    }
    runs: dict[str, list[float]] = {name: [] for name in batches}
    for turn in range(ROUNDS + 1):
        for name, lengths in batches.items():
            taken = seconds(tower, texts(lengths).to(device), padded=name.endswith("padded"))
            if turn:  # the first warms up
                runs[name].append(taken)
    medians = {name: statistics.median(values) for name, values in runs.items()}
    report = {
        "machine": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "texts": ROWS,
        "tokens_of_a_text": {"long": CONTEXT, "short": SHORT},
        "median_seconds": medians,
        "packed_over_padded": medians["mixed, packed"] / medians["mixed, padded"],
        "packed_over_mean_of_long_and_short": 2 * medians["mixed, packed"] / (medians["long"] + medians["short"]),
    }
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
