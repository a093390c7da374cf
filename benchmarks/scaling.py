"""How the losses grow with batch, width, parts and processes: ``python benchmarks/scaling.py``.

Forward and backward of UNCHA's loss on ready features: time and peak memory in fresh processes, for growing batches,
widths and numbers of parts, and for 1, 2 and 4 gloo processes that share one batch (a thread each, so 4 of them share 2
cores: their CPU seconds are what each would take on a core of its own). A memory model, fitted on the smaller batches,
is held against the largest, and carried on to many GPUs by arithmetic. Writes ``results/scaling.json``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from _reporting import where
from _runner import RESULTS, in_fresh_process, peak_mb, seconds
from gpu import build_manifold, build_objective, loss_work, read

from hyvlm.files import write_text
from hyvlm.training.distributed import gather_views
from hyvlm.types import Views

#: The setting that everything but one quantity keeps, and the values of that quantity.
BASE = {"batch": 2048, "dim": 512, "parts": 2}
SWEEPS = {"batch": (1024, 2048, 4096, 8192), "dim": (128, 256, 512, 1024), "parts": (0, 1, 2, 4)}
PROCESSES, SHARED_BATCH = (1, 2, 4), 2048
ROUNDS = 3
#: Assumed of one GPU and its link, not measured: 60 % of an H100's 67 TFLOP/s in float32, and 400 Gbit/s.
GPU_FLOPS, LINK_BYTES = 40e12, 50e9
#: GPUs and global batches that the arithmetic is done for.
FLEETS = ((8, 2**15), (8, 2**17), (256, 2**15), (256, 2**17), (256, 2**20))


def one(batch: int, dim: int, parts: int) -> dict[str, float]:
    """Time and peak memory over the inputs, in this process."""
    loss_work("uncha", 16, "cpu", dim=dim, parts=parts)()  # libraries and kernels are loaded before memory is read
    work = loss_work("uncha", batch, "cpu", dim=dim, parts=parts)
    before = peak_mb()
    times = [seconds(work) for _ in range(ROUNDS)]
    return {"seconds": statistics.median(times), "peak_mb": peak_mb() - before}


def rank_work(rank: int, world: int, store: str, out: str) -> None:
    """One of ``world`` processes that share a batch: wall and CPU seconds of its loss."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    config = read("uncha-vit-s-16")
    manifold, objective = build_manifold(config.manifold), build_objective(config)
    rows, dim, parts = SHARED_BATCH // world, BASE["dim"], BASE["parts"]
    generator = torch.Generator().manual_seed(rank)
    sizes = {"image": rows, "text": rows, "part_image": rows * parts, "part_text": rows * parts}
    leaves = {view: (torch.randn(n, dim, generator=generator) / dim**0.5).requires_grad_() for view, n in sizes.items()}
    owner = torch.arange(rows).repeat_interleave(parts)

    def work() -> None:
        points = {view: manifold.lift(leaf) for view, leaf in leaves.items()}
        (objective(manifold, gather_views(Views.single(**points, owner=owner))).total * world).backward()

    work()
    found = []
    for _ in range(ROUNDS):
        dist.barrier()
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    if rank == 0:
        wall, cpu = (statistics.median(values) for values in zip(*found, strict=True))
        Path(out).write_text(json.dumps({"wall": wall, "cpu": cpu}), encoding="utf-8")
    dist.destroy_process_group()


def shared(world: int) -> dict[str, float]:
    """The same batch over ``world`` processes."""
    os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}  # read when the processes load their libraries
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        mp.spawn(rank_work, (world, f"{folder}/store", out), nprocs=world)
        return dict(json.loads(Path(out).read_text(encoding="utf-8")))


def memory_model(found: dict[str, dict[str, float]]) -> dict[str, Any]:
    """``peak = fixed + copies * 4 bytes * points * dim``, fitted on all batches but the largest, and checked there."""
    sizes = sorted(SWEEPS["batch"])
    points = np.array([2 * n * (1 + BASE["parts"]) * BASE["dim"] * 4 / 2**20 for n in sizes])
    measured = np.array([found[f"batch={n}"]["peak_mb"] for n in sizes])
    copies, fixed = np.polyfit(points[:-1], measured[:-1], 1)
    predicted = fixed + copies * points[-1]
    return {
        "formula": "peak MB = fixed + copies * (MB of all points of the batch)",
        "fixed_mb": float(fixed),
        "copies": float(copies),
        "at": sizes[-1],
        "predicted_mb": float(predicted),
        "measured_mb": float(measured[-1]),
    }


def projected(gpus: int, batch: int, copies: float) -> dict[str, float]:
    """UNCHA's loss over ``gpus`` processes with ``parts`` parts an image: FLOP, bytes and seconds of each process.

    Every process scores its own rows against all columns. In units of (batch / gpus) x batch that is 2 matrices of
    wholes with wholes, 2 parts^2 of parts with parts and 2 parts of parts with wholes, each of which costs a product
    forward and two backward. It receives the points of all, and the gradients of all are added up over processes,
    which moves them twice.
    """
    parts, dim = BASE["parts"], BASE["dim"]
    matrices = 2 + 2 * parts**2 + 2 * parts
    flop = matrices * 3 * 2 * dim * batch * batch / gpus
    points = 2 * (1 + parts) * batch * dim * 4
    return {
        "gpus": gpus,
        "batch": batch,
        "tflop": flop / 1e12,
        "products_s": flop / GPU_FLOPS,
        "points_gb": points / 1e9,
        "memory_gb": copies * points / 1e9,
        "communication_s": 3 * points / LINK_BYTES,
    }


def main() -> None:
    report: dict[str, Any] = {**where(), "threads": torch.get_num_threads(), "base": BASE, "found": {}, "processes": {}}
    for quantity, values in SWEEPS.items():
        for value in values:
            setting = {**BASE, quantity: value}
            found = in_fresh_process(__file__, "one", *(str(setting[key]) for key in BASE))
            report["found"][f"{quantity}={value}"] = found
            print(f"{quantity}={value}: {found['seconds']:.3f} s, {found['peak_mb']:.0f} MB", flush=True)
    for world in PROCESSES:
        report["processes"][str(world)] = shared(world)
        print(f"{world} processes: {report['processes'][str(world)]}", flush=True)
    report["memory_model"] = memory_model(report["found"])
    print(json.dumps(report["memory_model"], indent=2))
    copies = report["memory_model"]["copies"]
    report["assumed"] = {"gpu_flop_per_s": GPU_FLOPS, "link_bytes_per_s": LINK_BYTES}
    report["projected"] = [projected(gpus, batch, copies) for gpus, batch in FLEETS]
    write_text(RESULTS / "scaling.json", json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(one(*map(int, sys.argv[2:]))))
    else:
        main()
