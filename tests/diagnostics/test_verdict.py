"""The one line: what affirms it, what denies it, and what it says where evidence is missing."""

import math

import pytest

from hyvlm.diagnostics.distortion import RelationRatios
from hyvlm.diagnostics.readout import ReadoutAblation, ReadoutRow
from hyvlm.diagnostics.verdict import Thresholds, judge, no_verdict


def ratios(quantity: str, low: float, high: float, relation: str = "text ⊒ image") -> RelationRatios:
    return RelationRatios(relation, quantity, 100, 0, low, (low + high) / 2, high)


def scores(*points: float, n: int = 1000) -> ReadoutAblation:
    rows = [
        ReadoutRow("retrieval", "scenes", "val", f"m{i}", "%", n, 50.0, 50.0 + p, p, None) for i, p in enumerate(points)
    ]
    return ReadoutAblation(rows, {})


NEAR = [ratios("distance", 1.001, 1.01), ratios("exterior_angle", 0.97, 1.02)]


def test_near_one_and_unmoved_is_weakly_hyperbolic() -> None:
    found = judge(NEAR, scores(0.1, -0.4))
    assert found.weakly_hyperbolic is True
    assert found.sentence == (
        "weakly hyperbolic: r_d of 1.001 to 1.010 (text ⊒ image) is within 1 ± 0.05; "
        "r_ext of 0.970 to 1.020 (text ⊒ image) is within 1 ± 0.05; "
        "without the map a score moves by -0.40 points (retrieval m1 on scenes), at most 1 point"
    )
    assert found.evidence.readout is not None
    assert found.evidence.readout.points == -0.4


@pytest.mark.parametrize(
    ("of_pairs", "of_scores", "said"),
    [
        ([ratios("distance", 0.94, 1.0), NEAR[1]], scores(0.0), "r_d of 0.940 to 1.000 (text ⊒ image) leaves 1 ± 0.05"),
        ([NEAR[0], ratios("exterior_angle", 1.0, 1.06)], scores(0.0), "r_ext of 1.000 to 1.060"),
        (NEAR, scores(0.2, -1.5), "a score moves by -1.50 points (retrieval m1 on scenes), more than 1 point"),
        ([ratios("distance", 1.0, 1.3)], ReadoutAblation([], {}), "r_d of 1.000 to 1.300"),
    ],
    ids=["distance", "angle", "score", "one piece against is enough"],
)
def test_any_evidence_against_denies_it(of_pairs: list, of_scores: ReadoutAblation, said: str) -> None:
    found = judge(of_pairs, of_scores)
    assert found.weakly_hyperbolic is False
    assert found.sentence.startswith("not weakly hyperbolic: ")
    assert said in found.sentence


@pytest.mark.parametrize(
    ("of_pairs", "of_scores", "said"),
    [
        (NEAR[1:], scores(0.0), "cannot tell: no pair gives r_d; so far, r_ext of"),
        ([NEAR[1], ratios("distance", math.nan, math.nan)], scores(0.0), "no pair gives r_d"),
        (
            NEAR,
            ReadoutAblation([], {"retrieval on x": "it is empty"}),
            "no read-out score: retrieval on x: it is empty",
        ),
        (NEAR, ReadoutAblation([], {}), "no read-out score was compared"),
        ([], ReadoutAblation([], {}), "cannot tell: no pair gives r_d; no pair gives r_ext; no read-out"),
    ],
)
def test_missing_evidence_is_said_and_not_made_up(of_pairs: list, of_scores: ReadoutAblation, said: str) -> None:
    found = judge(of_pairs, of_scores)
    assert found.weakly_hyperbolic is None
    assert said in found.sentence
    assert "\n" not in found.sentence


def test_the_widest_relation_counts_and_apertures_do_not() -> None:
    wide = ratios("distance", 0.98, 1.04, "part_text -> image")
    found = judge([*NEAR, wide, ratios("aperture", 0.5, 1.0)], scores(0.0))
    assert found.weakly_hyperbolic is True
    assert found.evidence.distance is not None
    assert found.evidence.distance.relation == "part_text -> image"


def test_thresholds_are_parameters_and_bounds_count_as_within() -> None:
    pairs = [ratios("distance", 1.0, 1.25), ratios("exterior_angle", 0.75, 1.0)]
    assert judge(pairs, scores(2.0), Thresholds(tolerance=0.25, max_change=2.0)).weakly_hyperbolic is True
    assert judge(pairs, scores(2.0), Thresholds(tolerance=0.2, max_change=2.0)).weakly_hyperbolic is False
    assert judge(pairs, scores(2.0), Thresholds(tolerance=0.25, max_change=1.9)).weakly_hyperbolic is False
    for wrong in ({"tolerance": -0.1}, {"max_change": math.nan}, {"tolerance": math.inf}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be finite and not negative"):
            Thresholds(**wrong)


def test_what_one_sample_is_worth_is_said_where_it_decides() -> None:
    assert "one sample is worth 5.00" in judge(NEAR, scores(5.0, n=20)).sentence
    assert "one sample" not in judge(NEAR, scores(5.0, n=1000)).sentence


def test_scores_that_all_stay_are_said_to_stay() -> None:
    assert judge(NEAR, scores(0.0, 0.0)).sentence.endswith("; without the map no score moves")


def test_a_question_that_does_not_apply_has_no_verdict() -> None:
    found = no_verdict("the space is flat")
    assert (found.weakly_hyperbolic, found.sentence) == (None, "cannot tell: the space is flat")
    assert found.thresholds == Thresholds()
