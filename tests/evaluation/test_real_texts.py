"""On real captions, where there are some: HYVLM_TEST_DATA names a folder with small subsets of public data sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hyvlm.data import open_data
from hyvlm.data.negatives import hard_negatives
from hyvlm.evaluation import EvalSpec, evaluate
from hyvlm.models import Tokenizer, build_model

ROOT = Path(os.environ.get("HYVLM_TEST_DATA", ""))
pytestmark = pytest.mark.skipif(
    "HYVLM_TEST_DATA" not in os.environ, reason="needs real captions: set HYVLM_TEST_DATA to their folder"
)
CONTEXT = 64


def need(name: str) -> Path:
    if not (ROOT / name).exists():
        pytest.skip(f"HYVLM_TEST_DATA has no {name}")
    return ROOT / name


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(
        {
            "model": {"preset": "tiny", "text": {"context_length": CONTEXT, "depth": 1}, "image": {"depth": 1}},
            "manifold": {"name": "lorentz"},
        }
    )


def test_a_description_finds_its_own_steps(model) -> None:
    """Even an untrained model finds texts that share their first words."""
    spec = EvalSpec("text-retrieval", f"long-captions:{need('long-captions/docci_steps.jsonl')}")
    outcome = evaluate(model, Tokenizer(CONTEXT), [spec], show_progress=False)[0].outcome
    assert outcome.n == outcome.total == outcome.details["queries"]
    assert outcome.scores["mean_average_precision"] > 20
    assert 0 < outcome.scores["precision_at_r"] <= 100


def test_given_negatives_of_every_type_are_scored(model) -> None:
    data = open_data(f"sugarcrepe:{need('coco-mini/sugarcrepe')}", content="negatives")
    outcome = evaluate(model, Tokenizer(CONTEXT), [EvalSpec("hard-negatives", data)], show_progress=False)[0].outcome
    assert outcome.details["pairs"] == len(data)
    assert {f"accuracy_{name}" for name in data.classes} < outcome.scores.keys()
    assert 40 < outcome.scores["accuracy"] < 60  # an untrained model guesses


@pytest.mark.parametrize("negatives", ["sampled", "first_100"])
def test_hierarchies_meet_negatives_of_other_images(model, negatives) -> None:
    """100 each; an untrained model tells coarse from fine captions, but not one image's from another's."""
    spec = EvalSpec("entailment", f"hierarcaps:{need('coco-mini/hierarcaps.jsonl')}", negatives=negatives)
    outcome = evaluate(model, Tokenizer(CONTEXT), [spec], show_progress=False)[0].outcome
    assert outcome.n == outcome.total == 340
    assert (outcome.details["positives"], outcome.details["negatives"]) == (1360, 34000)
    assert 2 < outcome.scores["average_precision_distance"] < 20
    assert outcome.notes[0].startswith("340 of the 1,000 published samples")


def test_hierarchies_with_given_negatives(model) -> None:
    path = need("coco-mini/hierarcaps_pos_neg.jsonl")
    spec = EvalSpec("entailment", f"hierarcaps:{path}", negatives="given")
    outcome = evaluate(model, Tokenizer(CONTEXT), [spec], show_progress=False)[0].outcome
    assert outcome.n == outcome.total == 300
    assert outcome.details["positives"] == 1200
    assert 1190 < outcome.details["negatives"] <= 1200  # without those that are captions as well
    assert 40 < outcome.scores["auroc_distance"] < 60


def test_most_captions_have_a_hard_negative() -> None:
    data = open_data(f"table:{need('flickr8k-mini/captions.csv')}", content="texts")
    captions = [text for i in range(len(data)) for text in data[i].texts]
    negatives = [hard_negatives(caption, seed=(0, i)) for i, caption in enumerate(captions)]
    assert sum(map(bool, negatives)) > 0.95 * len(captions)
    for caption, found in zip(captions, negatives, strict=True):
        for negative in found:
            changed = [a != b for a, b in zip(caption.split(), negative.split(), strict=True)]
            assert sum(changed) == 1
