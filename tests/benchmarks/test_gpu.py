"""The script for a GPU, at toy sizes on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu as module

    return module


def test_everything_is_measured_once(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    gpu.main(tmp_path / "gpu.json", 300)
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert set(report["losses"]) == {f"{method}, 32" for method in gpu.LOSSES}
    assert set(report["steps"]) == {"uncha-tiny, 4 images, float32", "uncha-tiny, 4 images, bf16"}
    assert all(found["seconds"] > 0 for found in [*report["losses"].values(), *report["steps"].values()])


def test_without_time_nothing_is_run_and_that_is_said(gpu: ModuleType, tmp_path: Path) -> None:
    gpu.main(tmp_path / "gpu.json", 0)
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {found["not_run"] for found in [*report["losses"].values(), *report["steps"].values()]} == {
        "no time was left"
    }


@pytest.mark.parametrize("bf16", [False, True])
def test_the_step_that_is_timed_learns(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, bf16: bool) -> None:
    losses: list[float] = []
    forward = gpu.TrainStep.forward

    def kept(step: torch.nn.Module, batch: object) -> object:
        output = forward(step, batch)
        losses.append(output.total.item())
        return output

    monkeypatch.setattr(gpu.TrainStep, "forward", kept)
    work = gpu.step_work("uncha-tiny", 4, "cpu", bf16=bf16, compiled=False)
    for _ in range(6):
        work()
    assert torch.tensor(losses).isfinite().all()
    assert losses[-1] < losses[0]
