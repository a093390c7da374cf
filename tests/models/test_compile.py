"""Compiled blocks give what the plain ones do, at every length, and leave the model as it was."""

import copy
import functools
import shutil

import pytest
import torch
from torch import Tensor, nn

from hyvlm.models import towers
from hyvlm.models.towers import ImageTower, TextTower, compile_blocks


def texts(*lengths: int) -> Tensor:
    tokens = torch.zeros(len(lengths), 20, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = torch.randint(1, 49406, (length,), generator=generator)
        row[length - 1] = 49407
    return tokens


def both(tower: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The tower and a copy with compiled blocks."""
    compiled = copy.deepcopy(tower)
    compile_blocks(compiled)
    assert list(compiled.state_dict()) == list(tower.state_dict())
    return tower, compiled


def assert_alike(plain: nn.Module, compiled: nn.Module, batch: Tensor) -> None:
    outputs = []
    for tower in (plain, compiled):
        tower.zero_grad()
        features = tower(batch)
        features.square().sum().backward()
        outputs.append([features.detach(), *(p.grad for p in tower.parameters())])
    for expected, found in zip(*outputs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is no g++")
def test_compiled_blocks_change_neither_features_nor_gradients() -> None:
    torch.manual_seed(0)
    plain, compiled = both(ImageTower(image_size=16, patch=8, width=32, depth=3, heads=2))
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    assert_alike(plain, compiled, torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    assert counters["unique_graphs"] == before + 2  # one for all blocks but the last


def test_texts_of_all_lengths_share_a_few_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = functools.cache(functools.partial(torch.compile, backend="aot_eager"))  # without code generation
    monkeypatch.setattr(towers, "_compiled", traced)
    torch.manual_seed(0)
    plain, compiled = both(TextTower(context_length=20, vocab_size=49408, width=32, depth=3, heads=2))
    counters = torch._dynamo.utils.counters["stats"]
    for lengths in ((3, 3), (3, 4, 12)):  # one group, then several: sizes are free from here on
        assert_alike(plain, compiled, texts(*lengths))
    graphs = counters["unique_graphs"]
    for lengths in ((20, 2, 9, 9, 5), (7,), (4, 20)):
        assert_alike(plain, compiled, texts(*lengths))
    assert counters["unique_graphs"] <= graphs + 2
