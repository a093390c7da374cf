import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hyvlm.models.lengths import MOST_GROUPS, PRICE_OF_A_GROUP, group_by_length

LENGTHS = st.lists(st.integers(2, 30), min_size=1, max_size=5)


def price(lengths: np.ndarray, groups: list[np.ndarray]) -> float:
    """Tokens after padding, times 1.1 for every group but the first."""
    return sum(len(g) * lengths[g].max() for g in groups) * PRICE_OF_A_GROUP ** (len(groups) - 1)


@given(LENGTHS)
@settings(max_examples=100, deadline=None)
def test_no_partition_into_four_groups_is_cheaper(numbers: list[int]) -> None:
    lengths = np.array(numbers)
    found = group_by_length(lengths)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    assert all((np.diff(rows) > 0).all() for rows in found)
    cheapest = min(
        price(lengths, [np.flatnonzero(np.array(labels) == g) for g in sorted(set(labels))])
        for labels in itertools.product(range(MOST_GROUPS), repeat=len(lengths))
    )
    assert price(lengths, found) <= cheapest * (1 + 1e-12)


def test_like_lengths_stay_together() -> None:
    assert [g.tolist() for g in group_by_length(np.array([10, 11, 10, 11]))] == [[0, 1, 2, 3]]
    assert [g.tolist() for g in group_by_length(np.array([7]))] == [[0]]


def test_groups_go_from_short_to_long() -> None:
    groups = group_by_length(np.array([248, 20, 60, 21, 240, 61]))
    assert [g.tolist() for g in groups] == [[1, 3], [2, 5], [0, 4]]
    even = group_by_length(np.arange(2, 249))  # of n lengths, k groups leave (k + 1) / 2k: 0.75, 0.67, 0.63
    assert len(even) == 3
    assert np.concatenate(even).tolist() == list(range(247))
    assert [g.tolist() for g in group_by_length(np.array([120, 5, 248, 60]))] == [[1], [3], [0], [2]]
