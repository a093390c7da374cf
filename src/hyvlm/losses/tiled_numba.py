"""The element-wise work on one panel, compiled by numba for float32 on a CPU; see :mod:`hyvlm.losses.tiled_torch`.

Logarithm and exponential are written out (Cephes' polynomials, to 2e-7), because the compiler turns them into vector
instructions then, and does not do so for calls into the mathematical library. No flag here assumes that NaN is absent
where a result depends on it.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import get_num_threads, njit, prange, set_num_threads  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

_F = np.float32
_ZERO, _HALF, _ONE = _F(0), _F(0.5), _F(1)
_LOG2E, _LN2_HIGH, _LN2_LOW, _UNDERFLOW = _F(1.44269504), _F(0.693359375), _F(-2.12194440e-4), _F(-87)
_E0, _E1, _E2, _E3, _E4, _E5 = map(
    _F, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
_L0, _L1, _L2, _L3, _L4 = map(
    _F, (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1)
)
_L5, _L6, _L7, _L8 = map(_F, (-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1))

#: Threads that numba was started with; it runs on as many as torch does, up to these.
_THREADS = get_num_threads()

#: Columns that one task keeps in its cache while it runs down the rows.
_STRIP = 256

_elementwise = njit(error_model="numpy", fastmath={"nsz", "contract"}, cache=True)
_panel = njit(error_model="numpy", fastmath={"nsz", "contract", "reassoc"}, cache=True, parallel=True)


@_elementwise
def _exp(x):  # type: ignore[no-untyped-def]
    n = np.floor(x * _LOG2E + _HALF)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return _ZERO if x < _UNDERFLOW else (p * (r * r) + r + _ONE) * power


@_elementwise
def _asinh_of_root(q):  # type: ignore[no-untyped-def]
    """``asinh(sqrt(q))`` as ``log(1 + w)``, with what rounding takes from ``1 + w`` added back."""
    w = np.sqrt(q) + q / (_ONE + np.sqrt(_ONE + q))
    u = np.float32(_ONE + w)
    rest = (w - (u - _ONE)) / u
    bits = u.view(np.int32)
    exponent = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
    f = np.int32(bits - np.int32(exponent << np.int32(23))).view(np.float32) - _ONE
    e = np.float32(exponent)
    p = (((((((_L0 * f + _L1) * f + _L2) * f + _L3) * f + _L4) * f + _L5) * f + _L6) * f + _L7) * f + _L8
    square = f * f
    return f + (f * square * p + e * _LN2_LOW - _HALF * square) + e * _LN2_HIGH + rest


@_panel
def _similarity(q, s, lowest, hyperbolic):  # type: ignore[no-untyped-def]
    for i in prange(q.shape[0]):
        least = q[i, 0]
        for j in range(q.shape[1]):
            least = min(least, q[i, j])
        lowest[i] = least
        if hyperbolic:
            for j in range(q.shape[1]):
                s[i, j] = _ZERO if q[i, j] <= _ZERO else -_asinh_of_root(q[i, j])
        else:
            for j in range(q.shape[1]):
                s[i, j] = _ZERO if q[i, j] <= _ZERO else -np.sqrt(q[i, j])


@_panel
def _pull(q, h, hyperbolic):  # type: ignore[no-untyped-def]
    for i in prange(q.shape[0]):
        if hyperbolic:
            for j in range(q.shape[1]):
                v = q[i, j]
                h[i, j] = _ZERO if v <= _ZERO else -_HALF * h[i, j] / np.sqrt(v + v * v)
        else:
            for j in range(q.shape[1]):
                v = q[i, j]
                h[i, j] = _ZERO if v <= _ZERO else -_HALF * h[i, j] / np.sqrt(v)


@_panel
def _rows(s, scale, offset, top, mass, moment):  # type: ignore[no-untyped-def]
    for i in prange(s.shape[0]):
        k, before = scale[i], top[i]
        now = before
        for j in range(s.shape[1]):
            now = max(now, k * s[i, j] + offset[j])
        total, dot = _ZERO, _ZERO
        for j in range(s.shape[1]):
            e = _exp(k * s[i, j] + offset[j] - now)
            total += e
            dot += e * s[i, j]
        shrink = _exp(before - now)
        top[i] = now
        mass[i] = mass[i] * shrink + total
        moment[i] = moment[i] * shrink + dot


@_panel
def _columns(s, scale, top, mass, moment):  # type: ignore[no-untyped-def]
    n, m = s.shape
    for strip in prange((m + _STRIP - 1) // _STRIP):
        first = strip * _STRIP
        last = min(first + _STRIP, m)
        peak = top[first:last].copy()
        k = scale[first:last].copy()
        width = last - first
        for i in range(n):
            for j in range(width):
                peak[j] = max(peak[j], k[j] * s[i, first + j])
        total, dot = np.zeros(width, np.float32), np.zeros(width, np.float32)
        for i in range(n):
            for j in range(width):
                e = _exp(k[j] * s[i, first + j] - peak[j])
                total[j] += e
                dot[j] += e * s[i, first + j]
        for j in range(width):
            shrink = _exp(top[first + j] - peak[j])
            top[first + j] = peak[j]
            mass[first + j] = mass[first + j] * shrink + total[j]
            moment[first + j] = moment[first + j] * shrink + dot[j]


@_panel
def _gradient(s, scale, offset, log_sum, factor):  # type: ignore[no-untyped-def]
    for i in prange(s.shape[0]):
        for j in range(s.shape[1]):
            s[i, j] = factor[i] * _exp(scale[i] * s[i, j] + offset[j] - log_sum[i])


@_panel
def _gradient_of_both(s, scale, offset, log_sum, factor, scale2, log_sum2, factor2):  # type: ignore[no-untyped-def]
    for i in prange(s.shape[0]):
        for j in range(s.shape[1]):
            by_row = factor[i] * _exp(scale[i] * s[i, j] + offset[j] - log_sum[i])
            s[i, j] = by_row + factor2[j] * _exp(scale2[j] * s[i, j] - log_sum2[j])


def similarity(q: Tensor, s: Tensor, *, hyperbolic: bool) -> Tensor:
    lowest = q.new_empty(len(q))
    _run(_similarity, q, s, lowest, hyperbolic)
    return lowest


def pull(q: Tensor, h: Tensor, *, hyperbolic: bool) -> None:
    _run(_pull, q, h, hyperbolic)


def rows(s: Tensor, scale: Tensor, offset: Tensor, top: Tensor, mass: Tensor, moment: Tensor) -> None:
    _run(_rows, s, scale, offset, top, mass, moment)


def columns(s: Tensor, scale: Tensor, top: Tensor, mass: Tensor, moment: Tensor) -> None:
    _run(_columns, s, scale, top, mass, moment)


def gradient(s: Tensor, by_row: tuple[Tensor, ...], by_column: tuple[Tensor, ...] | None) -> None:
    if by_column is None:
        _run(_gradient, s, *by_row)
    else:
        _run(_gradient_of_both, s, *by_row, *by_column)


def _run(kernel, *args: Tensor | bool) -> None:  # type: ignore[no-untyped-def]
    set_num_threads(min(torch.get_num_threads(), _THREADS))
    kernel(*(a.detach().numpy() if isinstance(a, Tensor) else a for a in args))
