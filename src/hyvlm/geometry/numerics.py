"""Functions that stay exact, with finite gradients, where the textbook forms divide by zero or cancel."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")

#: Below this squared argument the quotients sinh(s)/s and asinh(s)/s are evaluated from their series.
_SERIES_BELOW = 1e-3


def full_precision(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Run a geometry function in float32 or float64 whatever the autocast; half-precision tensors become float32."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        with torch.autocast(given[0].device.type, enabled=False):
            return function(*map(_widen, args), **{k: _widen(v) for k, v in kwargs.items()})  # type: ignore[arg-type]

    return run


def _widen(value: object) -> object:
    if isinstance(value, Tensor) and value.is_floating_point() and value.element_size() < 4:
        return value.float()
    return value


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean inner product over the last axis."""
    return (x * y).sum(-1)


def square(x: Tensor) -> Tensor:
    """``dot(x, x)``; its gradient takes one pass over ``x``."""
    found: Tensor = _Square.apply(x)
    return found


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return dot(x, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (2 * grad).unsqueeze(-1) * x


def norm(x: Tensor) -> Tensor:
    """Euclidean norm over the last axis; its gradient at zero is zero and takes one pass over ``x``."""
    found: Tensor = _Norm.apply(x)
    return found


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found = torch.linalg.vector_norm(x, dim=-1)
        ctx.save_for_backward(x, found)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, found = ctx.saved_tensors
        return torch.where(found == 0, 0.0, grad / nonzero(found)).unsqueeze(-1) * x


def nonzero(x: Tensor) -> Tensor:
    """``x`` with zeros replaced by one: a denominator whose quotient is masked, or zero, where ``x`` is zero."""
    return torch.where(x == 0, torch.ones_like(x), x)


def unit(x: Tensor) -> Tensor:
    """``x / |x|`` over the last axis; the zero vector, with a zero gradient, where ``x`` is zero."""
    n = norm(x).unsqueeze(-1)
    return torch.where(n == 0, torch.zeros_like(x), x / nonzero(n))


@torch.no_grad()
def rounded_off(product: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a * b - product``, exactly: what rounding took from ``product = a * b`` (Dekker 1971). Carries no gradient."""
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` as a sum of two numbers of half the digits, whose products are free of rounding."""
    shifted = x * (2.0 ** (12 if x.dtype == torch.float32 else 27) + 1)
    high = shifted - (shifted - x)
    return high, x - high


def safe_sqrt(x: Tensor) -> Tensor:
    """Square root of ``max(x, 0)``; its gradient is zero where ``x <= 0``."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def angle_of(sine: Tensor, cosine: Tensor) -> Tensor:
    """``atan2(sine, cosine)`` of arguments in any common scale; 0, with zero gradient, where both are zero.

    Both are divided by the larger one first: the gradient of ``atan2`` squares its arguments, which overflows in
    float32 for points beyond a norm of 1e9.
    """
    scale = torch.maximum(sine.abs(), cosine.abs()).detach()
    undefined = scale == 0
    scale = nonzero(scale)
    return torch.atan2(sine / scale, torch.where(undefined, 1.0, cosine / scale))


def sinhc(squared: Tensor) -> Tensor:
    """``sinh(s) / s`` as a function of ``s**2``, smooth at zero."""
    small = squared < _SERIES_BELOW
    s = torch.where(small, 1.0, squared).sqrt()
    q = torch.where(small, squared, 0.0)
    series = 1 + q / 6 * (1 + q / 20 * (1 + q / 42 * (1 + q / 72 * (1 + q / 110))))
    return torch.where(small, series, torch.sinh(s) / s)


def asinhc(squared: Tensor) -> Tensor:
    """``asinh(s) / s`` as a function of ``s**2``, smooth at zero."""
    small = squared < _SERIES_BELOW
    s = torch.where(small, 1.0, squared).sqrt()
    q = torch.where(small, squared, 0.0)
    series = 1 - q * (1 / 6 - q * (3 / 40 - q * (5 / 112 - q * (35 / 1152 - q * 63 / 2816))))
    return torch.where(small, series, torch.asinh(s) / s)
