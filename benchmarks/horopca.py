"""CPU time of HoroPCA on one core: ``python benchmarks/horopca.py [N D]...``, default 20000 512; a table row a size."""

from __future__ import annotations

import os
import resource
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from hyvlm.geometry import Lorentz
from hyvlm.plotting.horopca import horopca


def main(sizes: list[tuple[int, int]]) -> None:
    torch.set_num_threads(1)
    print("| N | D | CPU seconds | variance kept | by the tangent PCA's directions | peak memory, GB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for n, d in sizes:
        generator = torch.Generator().manual_seed(0)
        groups = torch.randn(10, d, generator=generator)[torch.randint(10, (n,), generator=generator)]
        spread = torch.randn(n, d, generator=generator) * torch.linspace(1.5, 0.2, d)
        points = Lorentz(c=1.0, learn=False).lift((groups + spread) / d**0.5)
        start = time.process_time()
        fit = horopca(points, 1.0)
        fit.disk(points)
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"| {n} | {d} | {seconds:.1f} | {fit.explained:.3f} | {fit.explained_start:.3f} | {peak:.1f} |")


if __name__ == "__main__":
    numbers = [int(value) for value in sys.argv[1:]] or [20000, 512]
    main(list(zip(numbers[::2], numbers[1::2], strict=True)))
