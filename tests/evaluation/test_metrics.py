from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor
from torchmetrics.functional.retrieval import retrieval_r_precision

from hyvlm.evaluation.metrics import (
    BLOCK,
    MIN_ROWS,
    average_precision,
    choose_between,
    classify,
    mean_per_class,
    ranked_precision,
    ranks_among,
    recall_per_class,
    retrieval_ranks,
    wilson_interval,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())
SEEDS = st.integers(0, 2**31)


def table_score(table: Tensor):
    """A score function over row and column numbers of a table."""
    return lambda rows, columns: table[rows[:, 0]][:, columns[:, 0]]


def numbers(n: int) -> Tensor:
    return torch.arange(n)[:, None]


@pytest.mark.parametrize("case", GOLDEN["retrieval"], ids=lambda c: c["name"])
def test_recall_matches_the_released_evaluation(case: dict) -> None:
    scores = torch.tensor(case["scores_image_by_text"], dtype=torch.float64)
    owner, images = torch.tensor(case["caption_owner"]), torch.arange(len(scores))
    texts = numbers(len(owner))
    t2i = retrieval_ranks(table_score(scores.T), texts, numbers(len(scores)), owner, images)
    i2t = retrieval_ranks(table_score(scores), numbers(len(scores)), texts, images, owner)
    for ranks, expected in ((t2i, case["text_to_image_percent"]), (i2t, case["image_to_text_percent"])):
        assert ranks.tied == 0
        for k, percent in expected.items():
            assert 100 * ranks.recall_at(int(k)) == pytest.approx(percent, abs=1e-9)


def ranks_by_loops(scores: np.ndarray, query_owner: np.ndarray, owner: np.ndarray) -> tuple[list[int], int]:
    """Sort candidates, those that do not match first among equals; count what stands before the first match."""
    before, tied = [], 0
    for row, who in zip(scores, query_owner, strict=True):
        order = sorted(range(len(row)), key=lambda j: (-row[j], owner[j] == who))
        before.append(next(place for place, j in enumerate(order) if owner[j] == who))
        best = row[order[before[-1]]]
        tied += any(row[j] == best and owner[j] != who for j in range(len(row)))
    return before, tied


@settings(derandomize=True, max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 9), st.integers(0, 20), st.sampled_from([2, 5, 1000]), st.integers(1, 40))
def test_ranks_equal_a_sort_with_loops(seed: int, owners: int, extra: int, levels: int, block: int) -> None:
    """Few score levels make ties, a small block makes many slices; neither may change a rank."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.concatenate([np.arange(owners), rng.integers(0, owners, extra)]))
    query_owner = rng.integers(0, owners, 1 + extra)
    table = rng.integers(0, levels, (len(query_owner), len(owner))).astype(np.float64)
    ranks = retrieval_ranks(
        table_score(torch.from_numpy(table)),
        numbers(len(query_owner)),
        numbers(len(owner)),
        torch.from_numpy(query_owner),
        torch.from_numpy(owner),
        block=block,
    )
    before, tied = ranks_by_loops(table, query_owner, owner)
    assert ranks.before.tolist() == before
    assert ranks.tied == tied


def test_very_many_candidates_keep_the_matrix_product_tall() -> None:
    candidates, shapes = torch.randn(BLOCK // 10, 1, generator=torch.Generator().manual_seed(0)), []

    def score(x: Tensor, y: Tensor) -> Tensor:
        shapes.append((len(x), len(y)))
        return x @ y.T

    owner = torch.arange(len(candidates))
    ranks = retrieval_ranks(score, candidates[:70], candidates, owner[:70], owner)
    assert shapes[0] == (MIN_ROWS, len(candidates.unique()))
    assert ranks.before[3] == (candidates[3] * candidates[:, 0] > candidates[3] ** 2).sum()


def test_equal_candidates_tie_exactly_whatever_the_rounding() -> None:
    """A matrix product may round equal columns differently; a duplicate of the match must still stand before it."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(37, 129, generator=generator)
    candidates = torch.cat([points, points])  # candidate i + 37 equals candidate i, but only i matches
    ranks = retrieval_ranks(lambda x, y: x @ y.T, points, candidates, torch.arange(37), torch.arange(74), block=74 * 5)
    assert ranks.tied == 37
    assert ranks.before.tolist() == [1] * 37


def test_k_may_exceed_the_candidates_but_not_be_zero() -> None:
    ranks = retrieval_ranks(table_score(torch.eye(2)), numbers(2), numbers(2), torch.arange(2), torch.arange(2))
    assert ranks.recall_at(10) == 1.0
    with pytest.raises(ValueError, match="at least 1, got 0"):
        ranks.recall_at(0)


def test_a_score_that_is_no_number_is_an_error() -> None:
    table = torch.eye(4)
    table[2, 1] = torch.nan
    with pytest.raises(ValueError, match="query 2 is not a number"):
        retrieval_ranks(table_score(table), numbers(4), numbers(4), torch.arange(4), torch.arange(4), block=4)


def test_a_query_without_match_is_an_error() -> None:
    with pytest.raises(ValueError, match="query 1 has no match among the 2 candidates"):
        retrieval_ranks(table_score(torch.eye(2)), numbers(2), numbers(2), torch.tensor([0, 7]), torch.arange(2))


def test_ranking_never_holds_the_whole_matrix() -> None:
    """20,000 x 20,000 scores are 1.6 GB; ranking them may grow the process by far less."""
    points = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0))
    owner, largest = torch.arange(20_000), 0

    def score(x: Tensor, y: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, len(x) * len(y))
        return x @ y.T

    unit = 2**20 if sys.platform == "darwin" else 2**10
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    ranks = retrieval_ranks(score, points, points, owner, owner)
    assert largest <= BLOCK
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit - before < 200
    hits = (points[:500] @ points.T).argmax(1) == owner[:500]
    assert torch.equal(ranks.before[:500] == 0, hits)


@pytest.mark.parametrize("case", GOLDEN["classification"], ids=lambda c: c["name"])
def test_class_means_match_the_released_evaluation(case: dict) -> None:
    target, predicted, count = torch.tensor(case["target"]), torch.tensor(case["pred"]), case["num_classes"]
    scores = torch.nn.functional.one_hot(predicted, count).double()
    result = classify(lambda i, c: scores[i[:, 0]][:, c[:, 0]], numbers(len(target)), numbers(count), target)
    assert result.predicted.tolist() == predicted.tolist()
    assert 100 * result.accuracy() == pytest.approx(case["top1_percent"], abs=1e-9)
    own = 100 * mean_per_class(predicted, target, count)
    assert own == pytest.approx(case["mean_per_class_targets_only_percent"], abs=1e-9)
    released = 100 * mean_per_class(predicted, target, count, over="target_or_predicted")
    assert released == pytest.approx(case["mean_per_class_target_or_pred_percent"], abs=1e-9)
    assert released == pytest.approx(case["released_macro_percent"], abs=1e-4)
    for label, recall in case["per_class_recall"].items():
        assert recall_per_class(predicted, target, count)[int(label)].item() == pytest.approx(recall, abs=1e-9)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 6), st.integers(1, 30), st.sampled_from([2, 3, 1000]), st.integers(1, 20))
def test_classification_equals_loops(seed: int, classes: int, images: int, levels: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    table = torch.from_numpy(rng.integers(0, levels, (images, classes)).astype(np.float64))
    target = torch.from_numpy(rng.integers(0, classes, images))
    result = classify(table_score(table), numbers(images), numbers(classes), target, block=block)
    for row, (scores, label) in enumerate(zip(table.tolist(), target.tolist(), strict=True)):
        others = [c for c in range(classes) if c != label]
        assert result.before[row] == sum(scores[c] >= scores[label] for c in others)
        best = [c for c in others if scores[c] == max(scores)]
        assert result.predicted[row] == (best[0] if best else label)
    assert result.tied == sum(
        any(s == row[label] and c != label for c, s in enumerate(row))
        for row, label in zip(table.tolist(), target.tolist(), strict=True)
    )
    assert result.accuracy() == (result.predicted == target).double().mean().item()


def test_a_label_outside_the_classes_is_an_error() -> None:
    with pytest.raises(ValueError, match="image 1 has label 2, but the 2 classes are 0 to 1"):
        classify(table_score(torch.eye(2)), numbers(2), numbers(2), torch.tensor([0, 2]))


def test_mean_per_class_knows_two_rules() -> None:
    with pytest.raises(ValueError, match="'everything'"):
        mean_per_class(torch.tensor([0]), torch.tensor([0]), 1, over="everything")


@settings(derandomize=True, max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 40), st.sampled_from([2, 4, 1000]))
def test_average_precision_equals_scikit_learn(seed: int, n: int, levels: int) -> None:
    """Ties, ignored entries and classes without positives included."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (n, 3)).astype(np.float64)
    positive, valid = rng.random((n, 3)) < 0.3, rng.random((n, 3)) < 0.8
    result = average_precision(scores, positive, valid=valid)
    for c in range(3):
        rows = valid[:, c]
        if positive[rows, c].any():
            expected = average_precision_score(positive[rows, c], scores[rows, c])
            assert result[c] == pytest.approx(expected, abs=1e-12)
        else:
            assert np.isnan(result[c])


def test_eleven_point_average_precision_by_hand() -> None:
    """Ranking + - + -: precision 1 up to recall 1/2 (levels 0 to 0.5), then 2/3 (levels 0.6 to 1)."""
    scores, positive = np.array([[4.0], [3.0], [2.0], [1.0]]), np.array([[True], [False], [True], [False]])
    assert average_precision(scores, positive, interpolation="11-point")[0] == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)
    assert average_precision(scores, positive)[0] == pytest.approx((1 + 2 / 3) / 2)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 25))
def test_eleven_point_average_precision_equals_its_definition(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    scores, positive = rng.permutation(n).astype(np.float64), rng.random(n) < 0.5
    positive[0] = True
    order = np.argsort(-scores)
    found = np.cumsum(positive[order])
    best = [max(found[i] / (i + 1) for i in range(n) if 10 * found[i] >= level * positive.sum()) for level in range(11)]
    result = average_precision(scores[:, None], positive[:, None], interpolation="11-point")
    assert result[0] == pytest.approx(np.mean(best), abs=1e-12)


def test_average_precision_refuses_what_it_cannot_rank() -> None:
    with pytest.raises(ValueError, match="not a number"):
        average_precision(np.array([[np.nan]]), np.array([[True]]))
    with pytest.raises(ValueError, match="'area' or '11-point', not 'voc'"):
        average_precision(np.array([[1.0]]), np.array([[True]]), interpolation="voc")


def test_wilson_interval_of_known_shares() -> None:
    """15 of 50: 0.1910 to 0.4375 (Newcombe 1998 gives the formula; evaluated with z = 1.959964)."""
    z, p, n = 1.959963984540054, 0.3, 50
    centre, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    low, high = wilson_interval(15, 50)
    assert low == pytest.approx((centre - half) / (1 + z * z / n), abs=1e-12)
    assert high == pytest.approx((centre + half) / (1 + z * z / n), abs=1e-12)
    assert wilson_interval(0, 10)[0] == 0


def precisions_by_loops(row: np.ndarray, match: np.ndarray) -> tuple[float, float]:
    """Average precision and Precision@R of one ranking, candidates that do not match first among equals."""
    order = sorted(range(len(row)), key=lambda j: (-row[j], match[j]))
    hits = [bool(match[j]) for j in order]
    precisions = [sum(hits[: place + 1]) / (place + 1) for place, hit in enumerate(hits) if hit]
    return sum(precisions) / len(precisions), sum(hits[: len(precisions)]) / len(precisions)


@given(SEEDS, st.integers(1, 30), st.integers(2, 40), st.integers(1, 4), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_ranked_precision_equals_the_loops(seed: int, queries: int, candidates: int, levels: int, block: int) -> None:
    """Scores of few levels, so that most of them tie."""
    generator = np.random.default_rng(seed)
    scores = torch.from_numpy(generator.integers(0, levels, (queries, candidates)).astype(np.float32))
    owner = torch.from_numpy(generator.integers(0, 3, candidates))
    query_owner = owner[torch.from_numpy(generator.integers(0, candidates, queries))]
    found = ranked_precision(
        table_score(scores), numbers(queries), numbers(candidates), query_owner, owner, block=block * candidates
    )
    match = (query_owner[:, None] == owner).numpy()
    expected = [precisions_by_loops(row, m) for row, m in zip(scores.numpy(), match, strict=True)]
    np.testing.assert_allclose(found.average_precision, [ap for ap, _ in expected], atol=1e-12)
    np.testing.assert_allclose(found.precision_at_r, [pr for _, pr in expected], atol=1e-12)
    assert found.tied == sum(bool({*row[m]} & {*row[~m]}) for row, m in zip(scores.numpy(), match, strict=True))


def test_ranked_precision_agrees_with_the_libraries_where_nothing_ties() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(20, 50, generator=generator)
    owner = torch.randint(0, 4, (50,), generator=generator)
    query_owner = torch.arange(20) % 4
    found = ranked_precision(table_score(scores), numbers(20), numbers(50), query_owner, owner)
    for i in range(20):
        match = owner == query_owner[i]
        assert found.average_precision[i].item() == pytest.approx(average_precision_score(match, scores[i]), abs=1e-9)
        expected = retrieval_r_precision(scores[i], match)
        assert found.precision_at_r[i].item() == pytest.approx(expected.item(), abs=1e-6)


def test_ranked_precision_leaves_the_query_itself_out() -> None:
    """Texts 0, 1 (one class) and 2, 3 (another): each is most like itself, then like the next one."""
    scores = torch.tensor([[9.0, 5, 1, 2], [5, 9, 3, 1], [1, 3, 9, 2], [2, 1, 2, 9]])
    owner = torch.tensor([0, 0, 1, 1])
    every = torch.arange(4)
    found = ranked_precision(table_score(scores), numbers(4), numbers(4), owner, owner, itself=every)
    # query 2 finds a stranger first; query 3 ties with one
    assert found.average_precision.tolist() == [1, 1, 1 / 2, 1 / 2]
    assert found.precision_at_r.tolist() == [1, 1, 0, 0]
    assert found.tied == 1


def test_ranked_precision_names_a_query_without_match() -> None:
    scores, owner = torch.zeros(2, 3), torch.tensor([0, 0, 1])
    with pytest.raises(ValueError, match="query 1 has no match"):
        ranked_precision(table_score(scores), numbers(2), numbers(3), torch.tensor([0, 7]), owner)
    with pytest.raises(ValueError, match="query 0 has no match"):  # the query itself is none
        ranked_precision(
            table_score(scores), numbers(1), numbers(3), torch.tensor([1]), owner, itself=torch.tensor([2])
        )
    with pytest.raises(ValueError, match="no query"):
        ranked_precision(table_score(scores), numbers(0), numbers(3), torch.empty(0, dtype=torch.long), owner)


@given(SEEDS, st.integers(1, 150), st.integers(1, 20), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_ranks_among_equal_the_loops(seed: int, queries: int, candidates: int, repetitions: int, levels: int) -> None:
    """Points on a line of few places, scored by their product."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randint(0, levels, (*shape, 1), generator=generator).float()

    points, common, extra = draw(queries), draw(candidates), draw(repetitions, queries)
    ranks = ranks_among(lambda x, y: x @ y.T, points, common, extra)
    expected = 1 + ((points * common.T)[None] >= points * extra).sum(-1)  # (Q, C) against (K, Q, 1)
    assert ranks.shape == (repetitions, queries)
    assert torch.equal(ranks, expected)


def test_an_extra_candidate_ties_exactly_with_its_equal() -> None:
    """Whatever the rounding of the product: the extra candidate is one of the common ones."""
    generator = torch.Generator().manual_seed(1)
    common = torch.randn(70, 513, generator=generator)
    ranks = ranks_among(lambda x, y: x @ y.T, common, common, common[None])
    assert (ranks == 2 + ((common @ common.T) > (common * common).sum(1)[:, None] * 1.001).sum(1)).all()


@given(SEEDS, st.integers(1, 200), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_choose_between_equals_the_loops(seed: int, queries: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points, right, wrong = (torch.randint(0, levels, (queries, 2), generator=generator).float() for _ in range(3))
    found = choose_between(lambda x, y: x @ y.T, points, right, wrong)
    good, bad = (points * right).sum(1), (points * wrong).sum(1)
    assert torch.equal(found.right, good > bad)
    assert found.tied == int((good == bad).sum())


def test_choose_between_needs_a_query_and_numbers() -> None:
    with pytest.raises(ValueError, match="no query"):
        choose_between(lambda x, y: x @ y.T, torch.empty(0, 2), torch.empty(0, 2), torch.empty(0, 2))
    with pytest.raises(ValueError, match="not a number"):
        choose_between(lambda x, y: x @ y.T, torch.ones(1, 2), torch.full((1, 2), torch.nan), torch.ones(1, 2))
