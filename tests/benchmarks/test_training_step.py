"""The training step against the plain one that its benchmark times: timm, open_clip, texts padded, the whole matrix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hyvlm.config import Config
from hyvlm.losses import tiled
from hyvlm.models import linear

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = [1, 2, 0, 3]
TINY = {
    "image": {"image_size": 32, "patch": 8, "width": 32, "depth": 2, "heads": 2},
    "text": {"context_length": 77, "width": 32, "depth": 2, "heads": 2},
    "dim": 16,
}


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import training_step as module

    read = module.read

    def tiny(method: str) -> Config:
        config: Config = read(method)
        config.model, config.data.image_size, config.train.warmup_steps = TINY, 32, 0
        return config

    monkeypatch.setattr(module, "read", tiny)
    return module


@pytest.fixture
def everything_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What only pays at larger sizes is used at these: oneDNN, whatever was measured, and contrast in panels."""
    used: list[str] = []

    @contextmanager
    def always() -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        used.append("on")
        yield
        torch.set_float32_matmul_precision(before)

    monkeypatch.setattr(linear, "fast_matmul", always)
    monkeypatch.setattr(linear, "_FROM", 0)
    monkeypatch.setattr(tiled, "FROM", 0)
    return used


def test_twenty_steps_give_the_plain_losses(benchmark: ModuleType, everything_on: list[str]) -> None:
    config = benchmark.read("uncha")
    batches = [benchmark.draw(PARTS, config.data.image_size, seed=seed) for seed in range(5)]
    steps = benchmark.both_steps(config)
    losses: dict[str, list[float]] = {name: [] for name in steps}
    for name, (step, optimizer) in steps.items():
        for at in range(20):
            losses[name].append(benchmark.step_work(step, optimizer, batches[at % 5], bf16=False)())
    assert everything_on
    ours, plain = torch.tensor(losses["ours"]), torch.tensor(losses["plain"])
    assert (plain[15:] - plain[:5]).abs().min() > 1e-2 * plain[0]  # they learn
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=0)


@pytest.mark.parametrize("method", ["uncha", "hycoclip", "meru"])
def test_gradients_are_the_plain_ones(benchmark: ModuleType, method: str, everything_on: list[str]) -> None:
    config = benchmark.read(method)
    batch = benchmark.draw(PARTS, config.data.image_size)
    steps = {name: step for name, (step, _) in benchmark.both_steps(config).items()}
    for step in steps.values():
        step(batch).total.backward()
    ours, plain = (dict(step.named_parameters()) for step in steps.values())
    assert ours.keys() == plain.keys() - {"model.image_tower.pos_embed"}
    gaps = {name: (p.grad - plain[name].grad).norm() for name, p in ours.items()}
    whole = torch.stack([plain[name].grad.norm() for name in ours]).norm()
    assert torch.stack(list(gaps.values())).norm() <= 1e-5 * whole
    for name, gap in gaps.items():
        assert gap <= 1e-4 * plain[name].grad.norm() + 1e-7 * whole, name


def test_the_plain_optimizer_is_the_same_without_fusion(benchmark: ModuleType) -> None:
    config = benchmark.read("uncha")
    groups = [
        [
            (len(group["params"]), group["weight_decay"], group["lr"], group["betas"], group["eps"])
            for group in o.param_groups
        ]
        for o in (optimizer for _, optimizer in benchmark.both_steps(config).values())
    ]
    assert groups[0] == groups[1]


def test_rows_say_what_was_run(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "PARTS", {"uncha": PARTS})
    monkeypatch.setattr("_runner.gc.collect", lambda: 0)  # half a second each in a large process
    rows = [*benchmark.whole_steps("uncha", 1), *benchmark.towers(1)]
    assert [row.what for row in rows] == ["uncha, training step"] * 2 + ["text tower"] * 2 + ["image tower"] * 2
    assert rows[1].size == "4 images, 6 parts, bf16 (plain: float32)"
    assert all(row.plain is not None and row.plain > 0 for row in rows)
    assert ["2.5" in rows[0].asked, "3.4" in rows[1].asked] == [True, True]
