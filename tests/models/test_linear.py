"""Linear layers by the faster matrix product: the same numbers, and the switch set nowhere else."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from hyvlm.models import linear as module
from hyvlm.models.linear import Linear, linear, speed_up_linears


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The switch is set whatever was measured, and for every size; one entry each time."""
    used: list[str] = []

    @contextmanager
    def always() -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        used.append("on")
        yield
        torch.set_float32_matmul_precision(before)

    monkeypatch.setattr(module, "fast_matmul", always)
    monkeypatch.setattr(module, "_FROM", 0)
    return used


def leaves(*shape: int, bias: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = [shape, (6, shape[-1]), *([(6,)] if bias else [])]
    return [torch.randn(size, generator=generator).requires_grad_() for size in sizes]


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (4,), (0, 4), (2, 1, 3, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_torch(switched: list[str], shape: tuple[int, ...], bias: bool) -> None:
    inputs = leaves(*shape, bias=bias)
    found, expected = linear(*inputs), nn.functional.linear(*inputs)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found, expected)
    pairs = zip(
        torch.autograd.grad(found, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs)
    assert switched == ["on", "on"]
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("learns", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_gradients_that_are_asked_for_are_formed(switched: list[str], learns: tuple[bool, ...]) -> None:
    inputs = [leaf.detach().requires_grad_(on) for leaf, on in zip(leaves(5, 4), learns, strict=True)]
    linear(*inputs).sum().backward()
    assert [leaf.grad is not None for leaf in inputs] == list(learns)
    assert switched == ["on", "on"]


@pytest.mark.parametrize("case", ["double", "autocast", "small", "compiling"])
def test_elsewhere_it_is_torchs_own(switched: list[str], case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [leaf.detach().double() if case == "double" else leaf for leaf in leaves(5, 4)]
    if case == "small":
        monkeypatch.setattr(module, "_FROM", 5 * 4 * 6 + 1)
    if case == "compiling":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        found = linear(*inputs)
    assert found.dtype == {"double": torch.float64, "autocast": torch.bfloat16}.get(case, torch.float32)
    assert switched == []


def test_layers_are_exchanged_in_place_with_their_parameters(switched: list[str]) -> None:
    plain = nn.Sequential(nn.Linear(4, 6), nn.ModuleDict({"inner": nn.Linear(6, 3, bias=False)}))
    fast = copy.deepcopy(plain)
    speed_up_linears(fast)
    assert all(isinstance(layer, Linear) for layer in (fast[0], fast[1]["inner"]))
    assert list(fast.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(fast[0](torch.ones(2, 4)), plain[0](torch.ones(2, 4)))
    assert switched == ["on"]
