"""The faster float32 matrix product of this machine's CPU, where it is as exact as the default one."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hyvlm.files import user_cache

#: Set this environment variable to "default" or "oneDNN" to choose the library oneself.
SWITCH = "HYVLM_MATMUL"

#: oneDNN must be this much faster than torch's default (MKL or OpenBLAS), and at most this many times less exact.
_FASTER, _LESS_EXACT = 1.15, 4.0


@dataclass(frozen=True)
class MatmulReport:
    """How two libraries multiply float32 matrices here, measured once a machine and kept in the user's cache.

    Attributes:
        library: "oneDNN", or "default" where that is not faster or not as exact.
        speed_up: Seconds of the default over those of oneDNN; None if oneDNN does not run.
        default_error, onednn_error: Largest error over the largest entry of the product.
    """

    library: str
    speed_up: float | None
    default_error: float
    onednn_error: float | None


@contextmanager
def fast_matmul(enabled: bool = True) -> Iterator[None]:
    """Multiply float32 matrices on the CPU by the faster library, where it was found to be as exact.

    The switch is torch's float32 precision "medium", which hands products to oneDNN. It reaches CUDA devices as well,
    where it means TF32, so pass ``enabled=False`` for tensors that are not on the CPU. Attention is slower under it:
    put it around linear layers and score matrices only. Backward passes run outside the block that ran forward.
    """
    if not enabled or _checked().library == "default":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def matmul_report() -> dict[str, Any]:
    """What :func:`fast_matmul` uses on this machine and why, as plain values; the first call takes about 0.1 s."""
    return asdict(_checked())


@cache
def _checked() -> MatmulReport:
    """What the first process on this machine found: later ones, and those beside it, must multiply as it did.

    Else two runs of one seed could differ in their last bits, when a busy machine hides which library is faster.
    """
    measured = _kept(user_cache("matmul") / f"{_machine()}.json")
    asked = os.environ.get(SWITCH)
    return replace(measured, library=asked) if asked in ("default", "oneDNN") else measured


def _kept(file: Path) -> MatmulReport:
    """The report in ``file``; if there is none, that of a measurement, which is put there unless another is first."""

    def read() -> MatmulReport | None:
        try:
            return MatmulReport(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    known = read()
    if known is not None:
        return known
    report = _measured()
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(asdict(report)), encoding="utf-8")
        os.link(draft, file)  # fails if there is one by now
    except OSError:
        return read() or report
    finally:
        with suppress(OSError):
            draft.unlink()
    return report


def processor() -> str:
    """The processor's name, as Linux knows it; elsewhere what Python says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _machine() -> str:
    """A name for the processor and the libraries: homes may be shared by different machines."""
    facts = (platform.machine(), processor(), torch.backends.cpu.get_cpu_capability(), torch.__version__)
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


@torch.no_grad()
def _measured() -> MatmulReport:
    before = torch.get_float32_matmul_precision()
    try:
        with torch.autocast("cpu", enabled=False):
            return _measure()
    finally:
        torch.set_float32_matmul_precision(before)


def _measure() -> MatmulReport:
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(256, 512, generator=draws), torch.randn(1024, 512, generator=draws)
    exact = x.double() @ y.double().T

    def multiply(precision: str) -> tuple[float, Tensor]:
        torch.set_float32_matmul_precision(precision)
        started = time.perf_counter()
        product = x @ y.T
        return time.perf_counter() - started, product

    def error(product: Tensor) -> float:
        return float((product - exact).abs().max() / exact.abs().max())

    default_error = error(multiply("highest")[1])
    if not torch.backends.mkldnn.is_available():
        return MatmulReport("default", None, default_error, None)
    onednn_error = error(multiply("medium")[1])
    pairs = [(multiply("highest")[0], multiply("medium")[0]) for _ in range(9)]
    speed_up = statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
    better = speed_up >= _FASTER and onednn_error <= _LESS_EXACT * default_error
    return MatmulReport("oneDNN" if better else "default", speed_up, default_error, onednn_error)
