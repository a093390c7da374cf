"""Losses, forward and backward on ready features: ``python benchmarks/losses.py [ROUNDS]``, default 5.

The objective of the library, with compiled kernels and in plain torch, against the same objective as the papers write
it (``_plain_losses.py``) and against the matrix products that it needs at the faster library's rate: one forward and
two backward for each matrix of scores, a matrix and its transpose being one. 512 dimensions; features of tangent norm
1, a text is its image plus noise. Peak memory over the inputs in fresh processes. Writes ``results/losses.json``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from _plain_losses import Plain
from _runner import Row, alternate, in_fresh_process, peak_mb, row, write_rows

from hyvlm.geometry import Lorentz
from hyvlm.geometry.matmul import fast_matmul, matmul_report
from hyvlm.losses import kernel_report, tiled
from hyvlm.methods import OBJECTIVES
from hyvlm.types import Views

DIM = 512
#: Objective, parts an image, batch, and what the ratios to plain should be with compiled kernels and without.
CASES = [
    ("meru", 0, 64, "never slower"),
    ("hycoclip", 1, 64, "never slower"),
    ("uncha", 2, 64, "never slower"),
    ("meru", 0, 768, "2.5 times faster (torch 2.2)"),
    ("hycoclip", 1, 768, "2.5 times faster (torch 2.2)"),
    ("uncha", 2, 768, "2.5 times faster (torch 2.2)"),
    ("meru", 0, 4096, "7 times faster (torch 6)"),
    ("hycoclip", 1, 8192, "7 times faster (torch 6)"),
    ("uncha", 2, 4096, "10 times faster (torch 8), 1.7 times the products (torch 2.2), 6 % of the memory"),
]
GROWTH = (2048, 4096, 8192, 16384, 32768)  # of UNCHA with two parts: memory only
SWITCH = "HYVLM_KERNELS"


def features(batch: int, parts: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Images, texts and, with parts, those of the parts, as leaves; and the owners of the parts."""
    draws = torch.Generator().manual_seed(0)

    def noise(n: int) -> torch.Tensor:
        return torch.randn(n, DIM, generator=draws) / DIM**0.5

    owner = torch.arange(batch).repeat_interleave(parts)
    image = noise(batch)
    text = image + 0.5 * noise(batch)
    views = [image, text]
    if parts:
        views += [whole[owner] + 0.5 * noise(len(owner)) for whole in (image, text)]
    return [view.requires_grad_() for view in views], owner


def ours(method: str, parts: int, leaves: list[torch.Tensor], owner: torch.Tensor) -> Callable[[], float]:
    manifold, objective = Lorentz(), OBJECTIVES[method]()

    def step() -> float:
        points = [manifold.lift(leaf) for leaf in leaves]
        total = objective(manifold, Views.single(*points, **({"owner": owner} if parts else {}))).total
        total.backward()
        return total.item()

    return step


def in_torch(step: Callable[[], float]) -> Callable[[], float]:
    """The same without compiled kernels."""

    def run() -> float:
        os.environ[SWITCH] = "torch"
        try:
            return step()
        finally:
            del os.environ[SWITCH]

    return run


def plain(method: str, parts: int, leaves: list[torch.Tensor], owner: torch.Tensor) -> Callable[[], float]:
    log_c = torch.zeros(()).requires_grad_()
    log_scale = {name: p.detach().clone().requires_grad_() for name, p in OBJECTIVES[method]().log_scale.items()}

    def step() -> float:
        total = getattr(Plain(log_c, log_scale), method)(*leaves, *([owner] if parts else []))
        total.backward()
        return total.item()

    return step


def products(method: str, parts: int, leaves: list[torch.Tensor]) -> Callable[[], None]:
    """The matrix products that the objective needs, panel by panel."""
    image, text, *rest = (leaf.detach() for leaf in leaves)
    needed = [(image, text)]
    if rest:
        needed += [(rest[0], text), (rest[1], image)]
    if method == "uncha":
        needed.append((rest[0], rest[1]))

    def run() -> None:
        with fast_matmul():
            for x, y in needed:
                by_y = torch.zeros_like(y)
                for some in x.split(max(1, tiled.PANEL // len(y))):
                    scores = some @ y.T
                    scores @ y
                    by_y.addmm_(scores.T, some)

    return run


def measure(method: str, parts: int, batch: int, asked: str, rounds: int) -> list[Row]:
    leaves, owner = features(batch, parts)
    step = ours(method, parts, leaves, owner)
    variants: dict[str, Callable[[], Any]] = {
        "kernels": step,
        "torch": in_torch(step),
        "plain": plain(method, parts, leaves, owner),
        "limit": products(method, parts, leaves),
    }
    values = {name: variants[name]() for name in ("kernels", "torch", "plain")}
    if max(abs(v / values["plain"] - 1) for v in values.values()) > 1e-4:
        raise RuntimeError(f"{method}, batch {batch}: values differ, {values}")
    times = alternate(variants, rounds if batch > 1000 else 5 * rounds)
    memory = {name: memory_of(name, method, parts, batch) for name in ("kernels", "torch", "plain")}
    size = f"B={batch}" + (f", {parts} part{'s' * (parts > 1)} each" if parts else "")
    return [
        row(
            f"{method}, {name}",
            size,
            {"ours": times[name], "plain": times["plain"], "limit": times["limit"]},
            peak_mb=memory[name],
            plain_peak_mb=memory["plain"],
            asked=asked,
        )
        for name in ("kernels", "torch")
    ]


def memory_of(variant: str, method: str, parts: int, batch: int) -> float:
    return in_fresh_process(__file__, "--memory", variant, method, str(parts), str(batch))


def memory(variant: str, method: str, parts: int, batch: int) -> float:
    """Peak over the inputs of one step in this process, MB; a small one before loads libraries and kernels."""
    build = plain if variant == "plain" else ours
    if variant == "torch":
        os.environ[SWITCH] = "torch"
    tiled.FROM = 1  # the small step takes the same way
    build(method, parts, *features(16, parts))()
    inputs = features(batch, parts)
    before = peak_mb()
    build(method, parts, *inputs)()
    return peak_mb() - before


def main(rounds: int) -> None:
    rows = [one for method, parts, batch, asked in CASES for one in measure(method, parts, batch, asked, rounds)]
    growth = {batch: memory_of("kernels", "uncha", 2, batch) for batch in GROWTH}
    path = write_rows(
        "losses", rows, uncha_2_parts_peak_mb_by_batch=growth, kernels=kernel_report(), products=matmul_report()
    )
    print(f"UNCHA, 2 parts, peak MB by batch: {growth}\n{path}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print(json.dumps(memory(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
