"""The faster matrix product: only where it is as exact, and only inside its block."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

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


def test_every_process_multiplies_as_the_first_one_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, first = tmp_path / "deeper" / "here.json", MatmulReport("oneDNN", 2.0, 1e-7, 1e-7)
    monkeypatch.setattr(matmul, "_measured", lambda: first)
    assert matmul._kept(file) == first
    monkeypatch.setattr(matmul, "_measured", lambda: MatmulReport("default", 1.0, 1e-7, 1e-7))  # a busy moment
    assert matmul._kept(file) == first
    assert [p.name for p in file.parent.iterdir()] == ["here.json"]


def test_a_process_that_was_measuring_too_takes_the_other_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "here.json", MatmulReport("oneDNN", 2.0, 1e-7, 1e-7)

    def slow() -> MatmulReport:
        file.write_text(json.dumps(asdict(other)))
        return MatmulReport("default", 1.0, 1e-7, 1e-7)

    monkeypatch.setattr(matmul, "_measured", slow)
    assert matmul._kept(file) == other


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"library": "oneDNN"}'])
def test_without_a_cache_that_can_be_used_the_measurement_counts(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = MatmulReport("default", 1.0, 1e-7, 1e-7)
    monkeypatch.setattr(matmul, "_measured", lambda: report)
    (tmp_path / "damaged.json").write_text(content)
    assert matmul._kept(tmp_path / "damaged.json") == report
    assert matmul._kept(tmp_path / "damaged.json" / "below-a-file.json") == report


def test_the_library_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("default", "oneDNN"):
        matmul._checked.cache_clear()
        monkeypatch.setenv(matmul.SWITCH, library)
        assert matmul_report()["library"] == library
    monkeypatch.delenv(matmul.SWITCH)
    matmul._checked.cache_clear()
