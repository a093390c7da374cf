import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hyvlm.models import stretch_positions


def random_table(rows: int, width: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive(table: list[list[float]], length: int, keep: int) -> list[list[float]]:
    """The rule, position by position."""
    ratio = (length - keep) / (len(table) - keep)
    rows = []
    for p in range(length):
        coordinate = p if p < keep else keep + (p - keep) / ratio
        low = min(math.floor(coordinate), len(table) - 2)
        a = coordinate - low
        rows.append([(1 - a) * x + a * y for x, y in zip(table[low], table[low + 1], strict=True)])
    return rows


@given(st.integers(2, 40), st.integers(0, 60), st.data())
@settings(max_examples=100, deadline=None)
def test_a_stretched_table_follows_the_rule(rows: int, more: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(0, rows - 2))
    table = random_table(rows)
    found = stretch_positions(table, rows + more, keep=keep)
    assert found.shape == (rows + more, 3)
    assert torch.equal(found[:keep], table[:keep])
    expected = torch.tensor(naive(table.tolist(), rows + more, keep), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@given(st.integers(2, 40), st.integers(1, 7), st.data())
@settings(max_examples=100, deadline=None)
def test_a_whole_ratio_keeps_every_old_row(rows: int, ratio: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(0, rows - 2))
    table = random_table(rows).float()
    found = stretch_positions(table, keep + (rows - keep) * ratio, keep=keep)
    assert torch.equal(found[:keep], table[:keep])
    assert torch.equal(found[keep::ratio], table[keep:])


@given(st.integers(2, 40), st.integers(0, 60), st.data())
@settings(max_examples=50, deadline=None)
def test_a_line_stays_a_line(rows: int, more: int, data: st.DataObject) -> None:
    """Beyond the kept rows and past the last one the slope is 1 / r."""
    keep = data.draw(st.integers(0, rows - 2))
    table = torch.arange(rows, dtype=torch.float64).unsqueeze(1) * torch.tensor([1.0, -2.0], dtype=torch.float64)
    found = stretch_positions(table, rows + more, keep=keep)
    ratio = (rows + more - keep) / (rows - keep)
    expected = keep + torch.arange(rows + more - keep, dtype=torch.float64) / ratio
    torch.testing.assert_close(found[keep:], expected.unsqueeze(1) * torch.tensor([1.0, -2.0], dtype=torch.float64))


def test_77_positions_become_248() -> None:
    table = random_table(77).float()
    found = stretch_positions(table, 248)
    assert found.shape == (248, 3)
    assert torch.equal(found[:21], table[:21])
    assert torch.equal(found[20::4], table[20:])
    torch.testing.assert_close(found[21], 0.75 * table[20] + 0.25 * table[21])
    torch.testing.assert_close(found[247], table[76] + 0.75 * (table[76] - table[75]))


def test_a_shorter_table_is_cut_and_a_copy() -> None:
    table = random_table(77)
    for length in (1, 20, 50, 77):
        found = stretch_positions(table, length)
        assert torch.equal(found, table[:length])
        assert found.data_ptr() != table.data_ptr()


@pytest.mark.parametrize(
    ("shape", "length", "keep", "complaint"),
    [
        ((1, 77, 3), 248, 20, r"a table of positions is \(P, D\), got \(1, 77, 3\)"),
        ((77, 3), 0, 20, "at least one row, got length 0"),
        ((77, 3), 248, 76, "of 77 positions, 0 to 75 can be kept, got keep=76"),
        ((77, 3), 248, -1, "got keep=-1"),
        ((20, 3), 248, 20, "of 20 positions, 0 to 18 can be kept"),
    ],
)
def test_nonsense_is_refused(shape: tuple[int, ...], length: int, keep: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        stretch_positions(torch.zeros(shape), length, keep=keep)
