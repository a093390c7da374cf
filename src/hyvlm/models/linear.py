"""Linear layers that multiply float32 matrices on the CPU by the faster library, forward and backward.

The switch (:mod:`hyvlm.geometry.matmul`) slows attention, so it is set inside each layer and nowhere else.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hyvlm.geometry.matmul import fast_matmul

#: Multiplications from which on the faster product makes up for the calls that it adds.
_FROM = 2**21


class _FastLinear(torch.autograd.Function):
    """``x @ weight.T + bias`` whose backward pass, too, runs under :func:`fast_matmul`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        with fast_matmul():
            return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        with fast_matmul():
            return (
                (rows @ weight).view(x.shape) if for_x else None,
                rows.T @ x.reshape(-1, x.shape[-1]) if for_weight else None,
                rows.sum(0) if for_bias else None,
            )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`torch.nn.functional.linear`, by the faster matrix product where that applies.

    It applies to float32 on the CPU, outside autocast, where there is enough to multiply. A graph that is traced
    (torch.compile, ONNX) holds the plain function and multiplies as its runtime does.
    """
    if (
        torch.compiler.is_compiling()
        or x.device.type != "cpu"
        or x.dtype != torch.float32
        or weight.dtype != torch.float32
        or torch.is_autocast_enabled("cpu")
        or x.numel() * len(weight) < _FROM
    ):
        return F.linear(x, weight, bias)
    return cast(Tensor, _FastLinear.apply(x, weight, bias))


class Linear(nn.Linear):
    """:class:`torch.nn.Linear` by :func:`linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def speed_up_linears(module: nn.Module) -> None:
    """Make every linear layer inside ``module`` a :class:`Linear`, in place; parameters and their names stay."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.__class__ = Linear
