"""The faster matrix product: only where it is as exact, and only inside its block."""

from __future__ import annotations

import pytest
import torch

from hyvlm.geometry import matmul
from hyvlm.geometry.matmul import MatmulReport, fast_matmul, matmul_report


def choose(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_checked", lambda: MatmulReport(library, 2.0, 1e-7, 1e-7))


def test_what_is_used_is_fast_and_exact() -> None:
    report = matmul_report()
    assert report["default_error"] < 1e-5
    if report["library"] == "oneDNN":
        assert report["speed_up"] > 1
        assert report["onednn_error"] <= 4 * report["default_error"]
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    with fast_matmul():
        product = x @ x.T
    torch.testing.assert_close(product, (x.double() @ x.double().T).float(), rtol=1e-5, atol=1e-3)


def test_the_switch_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    choose("oneDNN", monkeypatch)
    before = torch.get_float32_matmul_precision()
    seen: list[str] = []

    @fast_matmul()
    def fails() -> None:
        seen.append(torch.get_float32_matmul_precision())
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert seen == ["medium"]
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("library", "enabled"), [("default", True), ("oneDNN", False)])
def test_nothing_is_switched(library: str, enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(library, monkeypatch)
    before = torch.get_float32_matmul_precision()
    with fast_matmul(enabled):
        assert torch.get_float32_matmul_precision() == before


def test_less_exact_or_slower_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_FASTER", 1e9)
    assert matmul._measure().library == "default"
    monkeypatch.setattr(matmul, "_FASTER", 0.0)
    monkeypatch.setattr(matmul, "_LESS_EXACT", 0.0)
    assert matmul._measure().library == "default"
    torch.set_float32_matmul_precision("highest")
