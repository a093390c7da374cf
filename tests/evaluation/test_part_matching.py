from __future__ import annotations

import pytest
import torch

from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.tasks.part_matching import PartMatching, match_above, match_in_batches

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1], "pink": [0.9, 0, 0], "any": [0.5, 0.5, 0.5]}


def dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y.T


def test_batches_are_as_a_loop_over_the_definition_says() -> None:
    """The worst of one's own captions against the best of the others', batch by batch; a tie is wrong."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(-3, 4, (21, 3), generator=generator).float()
    captions = images[:, None] + torch.randint(-1, 2, (21, 2, 3), generator=generator)
    images[8] = captions[8:10] = torch.tensor([9.0, 0, 0])  # a tie
    expected, tied = [], 0
    for i in range(21):
        start = i // 8 * 8
        others = [j for j in range(start, min(start + 8, 21)) if j != i]
        own = min(float(images[i] @ text) for text in captions[i])
        best = max(float(images[i] @ text) for j in others for text in captions[j])
        expected.append(own > best)
        tied += own == best
    found = match_in_batches(dot, images, captions)
    assert found.right.tolist() == expected
    assert found.tied == tied > 0
    assert 0 < sum(expected) < 21
    assert match_in_batches(dot, images[:1], captions[:1]).right.item()  # nothing to confuse it with


def test_all_captions_must_lie_above_all_negatives() -> None:
    images = torch.tensor([[1.0, 0], [1, 0], [1, 0]])
    captions = torch.tensor([[[3.0, 0], [2, 0]]] * 3)
    negatives = [torch.tensor([[1.0, 9]]), torch.tensor([[0.0, 0], [2.5, 0]]), torch.tensor([[2.0, 0]])]
    found = match_above(dot, images, captions, negatives)
    assert found.right.tolist() == [True, False, False]
    assert found.tied == 1
    with pytest.raises(ValueError, match="no image"):
        match_above(dot, images[:0], captions[:0], [])


def entry(image_of, colour, texts, negatives, labels):
    sample = image_of(colour, texts=texts, labels=labels)
    sample.negatives = negatives
    return sample


def test_six_numbers_by_hand(by_words, tokenizer, listed, image_of) -> None:
    five = ["red", "red", "red", "red", "pink"]
    samples = listed(
        [
            entry(image_of, RED, five, ["blue", "red"], [0, 1]),  # hard: a tie
            entry(image_of, GREEN, ["any"], ["blue", "green"], [1]),  # hard: lost
            entry(image_of, BLUE, ["green"], ["blue"], [1]),  # lost everywhere, and "any" is nearer
            entry(image_of, BLUE, ["blue"], ["red"], [0]),  # only of the whole images
            image_of(BLUE, texts=["blue"], labels=[1]),
        ],
        classes=["base", "all"],
    )
    outcome = PartMatching().run(Embedder(by_words(UNIT), tokenizer), samples)
    assert outcome.scores == pytest.approx(
        {
            # "any" finds "green" of its neighbour nearer, and "blue" finds "any"
            "all_scm": 100 / 3,
            "all_neg": 200 / 3,
            "pick5_scm": 100,
            "pick5_neg": 100,
            "base_neg": 100,
            "hard_negs": 0,
        }
    )
    assert outcome.details["entries"] == {
        "all_scm": 3, "all_neg": 3, "pick5_scm": 1, "pick5_neg": 1, "base_neg": 2, "hard_negs": 3
    }  # fmt: skip
    assert outcome.ties["hard_negs"] == 1
    assert outcome.skipped == {"no caption or no negative": 1}
    assert "hard_negs is harder" in outcome.notes[0]


def test_a_set_may_name_the_hardest_negative(by_words, tokenizer, listed, image_of) -> None:
    samples = listed([entry(image_of, RED, ["pink"], ["green", "red", "blue"], [1])], classes=["base", "all"])
    by_model = PartMatching().run(Embedder(by_words(UNIT), tokenizer), samples)
    samples.hardest_last = True
    named = PartMatching().run(Embedder(by_words(UNIT), tokenizer), samples)
    assert (by_model.scores["hard_negs"], named.scores["hard_negs"]) == (0, 100)
    assert named.notes == []
    assert named.undefined == {
        "pick5_scm": "no entry with 5 captions",
        "pick5_neg": "no entry with 5 captions",
        "base_neg": "no entry with a whole image",
    }


def test_other_sets_of_negatives_are_refused(by_words, listed, image_of) -> None:
    with pytest.raises(ValueError, match="such as sdci; not listed"):
        PartMatching().check(by_words(UNIT), listed([image_of(RED)], classes=["swap"]))
