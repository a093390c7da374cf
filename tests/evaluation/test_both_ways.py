from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hyvlm.evaluation.both_ways import ranks_both_ways
from hyvlm.evaluation.metrics import BLOCK, MIN_ROWS, retrieval_ranks
from hyvlm.geometry import Lorentz

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.T


@pytest.mark.parametrize("case", GOLDEN["retrieval"], ids=lambda c: c["name"])
def test_recall_matches_the_released_evaluation(case: dict) -> None:
    scores = torch.tensor(case["scores_image_by_text"], dtype=torch.float64)
    owner = torch.tensor(case["caption_owner"])
    images, texts = torch.arange(len(scores))[:, None], torch.arange(len(owner))[:, None]
    t2i, i2t = ranks_both_ways(lambda x, y: scores[x[:, 0]][:, y[:, 0]], images, texts, owner)
    for ranks, expected in ((t2i, case["text_to_image_percent"]), (i2t, case["image_to_text_percent"])):
        for k, percent in expected.items():
            assert 100 * ranks.recall_at(int(k)) == pytest.approx(percent, abs=1e-9)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(0, 60), st.sampled_from([1, 2, 4]), st.integers(1, 400))
def test_both_directions_equal_one_at_a_time(seed: int, n: int, more: int, levels: int, block: int) -> None:
    """Points of few whole numbers: many equal rows, many ties, and scores without rounding."""
    rng = np.random.default_rng(seed)
    owner = torch.from_numpy(rng.permutation(np.concatenate([np.arange(n), rng.integers(0, n, more)])))
    images = torch.from_numpy(rng.integers(-levels, levels, (n, 2))).double()
    texts = torch.from_numpy(rng.integers(-levels, levels, (len(owner), 2))).double()
    t2i, i2t = ranks_both_ways(product, images, texts, owner, block=block)
    each = torch.arange(n)
    expected_t2i = retrieval_ranks(product, texts, images, owner, each)
    expected_i2t = retrieval_ranks(product, images, texts, each, owner)
    for found, expected in ((t2i, expected_t2i), (i2t, expected_i2t)):
        assert torch.equal(found.before, expected.before)
        assert found.tied == expected.tied


def test_equal_points_tie_exactly_in_both_directions_whatever_the_rounding() -> None:
    """Every image and every text has a twin that belongs elsewhere; tiles cut between them."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(130, 513, generator=generator)
    images, texts = torch.cat([points, points]), torch.cat([points, points]) * 1.1
    for block in (BLOCK, 70 * 70):
        t2i, i2t = ranks_both_ways(product, images, texts, torch.arange(260), block=block)
        assert t2i.before.tolist() == i2t.before.tolist() == [1] * 260
        assert t2i.tied == i2t.tied == 260


def test_near_points_far_out_rank_as_one_direction_at_a_time() -> None:
    manifold, generator = Lorentz(c=0.5), torch.Generator().manual_seed(1)
    features = torch.randn(300, 16, generator=generator) / 4
    owner = torch.arange(300).repeat_interleave(2)
    images = manifold.lift(features)
    texts = manifold.lift(features[owner] + torch.randn(600, 16, generator=generator) / 4)
    t2i, i2t = ranks_both_ways(manifold.score, images, texts, owner, block=5000)
    each = torch.arange(300)
    expected = retrieval_ranks(lambda t, i: manifold.score(i, t).T, texts, images, owner, each)
    assert 0.1 < expected.recall_at(1) < 0.9
    assert (t2i.before - expected.before).abs().max() <= 1  # products of other shapes may round a near tie differently
    assert i2t.recall_at(5) == retrieval_ranks(manifold.score, images, texts, each, owner).recall_at(5)


def test_every_score_is_made_once_and_few_are_held() -> None:
    images = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0))
    owner, made = torch.arange(3000).repeat_interleave(2), []

    def score(x: Tensor, y: Tensor) -> Tensor:
        made.append(len(x) * len(y))
        return x @ y.T

    ranks_both_ways(score, images, images[owner] + 0.1, owner)
    assert max(made) <= BLOCK
    assert sum(made) <= 3000 * 6000 + 2 * MIN_ROWS * 6000  # the sweep, and the blocks around the matches


def test_a_single_image_with_many_texts() -> None:
    t2i, i2t = ranks_both_ways(product, torch.ones(1, 2), torch.randn(9, 2), torch.zeros(9, dtype=torch.long))
    assert t2i.before.tolist() == [0] * 9
    assert i2t.before.tolist() == [0]
    assert t2i.tied == i2t.tied == 0


def test_a_score_that_is_no_number_names_its_image() -> None:
    images = torch.eye(5)
    images[3, 1] = math.nan
    with pytest.raises(ValueError, match="query 3 is not a number"):
        ranks_both_ways(product, images, torch.eye(5), torch.arange(5))


def test_images_and_texts_without_a_match_are_errors() -> None:
    with pytest.raises(ValueError, match="image 1 has no match among the 3 texts"):
        ranks_both_ways(product, torch.eye(3), torch.eye(3), torch.tensor([0, 0, 2]))
    with pytest.raises(ValueError, match="text 2 has no match among the 3 images: its owner is 7"):
        ranks_both_ways(product, torch.eye(3), torch.eye(3), torch.tensor([0, 1, 7]))
    with pytest.raises(ValueError, match="got 0 and 0"):
        ranks_both_ways(product, torch.empty(0, 3), torch.empty(0, 3), torch.empty(0, dtype=torch.long))
