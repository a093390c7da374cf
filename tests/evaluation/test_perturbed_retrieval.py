from __future__ import annotations

import math

import pytest
from rich.console import Console

from hyvlm.data.sentences import PERTURBATIONS
from hyvlm.evaluation import EvalSpec, evaluate, perturbation_table
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.tasks.perturbed_retrieval import PAPER_SETTINGS, PerturbedRetrieval, drop, mean_drop, perturb_all

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}

#: HyFL-CLIP: Table 1 (I2T, T2I), Table S9 (p = 0.5, first, shuffling, n = 2, n = 3) and "Ours full" of Table S5.
PRINTED = {
    "Urban-1k": ((91.80, 91.10), (77.14, 75.45, 86.08, 27.64, 36.25), 33.83),
    "DOCCI": ((78.41, 81.12), (68.48, 65.13, 75.53, 30.93, 37.20), 30.48),
    "DCI": ((71.54, 71.79), (61.74, 58.51, 67.69, 28.73, 34.56), 29.89),
    "DCI-Long": ((59.00, 58.75), (48.18, 45.56, 54.14, 18.93, 23.63), 35.31),
}


def run(model, tokenizer, samples, **settings):
    return PerturbedRetrieval(**settings).run(Embedder(model, tokenizer), samples)


@pytest.mark.parametrize("name", PRINTED)
def test_mean_drop_gives_the_printed_table(name: str) -> None:
    directions, perturbed, printed = PRINTED[name]
    assert round(mean_drop(sum(directions) / 2, perturbed), 2) == printed


def test_mean_drop_over_the_sets_gives_the_printed_average() -> None:
    drops = [mean_drop(sum(directions) / 2, perturbed) for directions, perturbed, _ in PRINTED.values()]
    assert round(sum(drops) / len(drops), 2) == 32.38


def test_drop_is_a_share_of_what_was_there() -> None:
    assert drop(80, 60) == pytest.approx(25)
    assert drop(50, 60) == pytest.approx(-20)
    assert math.isnan(drop(0, 0))
    with pytest.raises(ValueError, match="at least one perturbed score"):
        mean_drop(50, [])


def test_the_paper_settings_are_perturbations_without_the_light_dropout() -> None:
    assert set(PAPER_SETTINGS) == set(PERTURBATIONS) - {"word_dropout_0.3"}


def test_captions_that_keep_their_sense_cost_nothing(by_words, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(c, texts=[f"{n} {n}. {n}. {n} {n}."]) for c, n in ((RED, "red"), (BLUE, "blue"))])
    outcome = run(by_words(UNIT), tokenizer, samples)
    assert all(outcome.scores[f"recall@1_{how}"] == 100 for how in PERTURBATIONS)
    assert all(outcome.scores[f"drop_{how}"] == 0 for how in PERTURBATIONS)
    assert outcome.scores["mean_drop"] == 0
    assert outcome.details["perturbations"]["shuffled"]["standard_deviation"] == 0


def test_a_lost_first_sentence_by_hand(by_words, tokenizer, listed, image_of) -> None:
    """Without its first sentence the caption of the red image is that of the blue one: one text is right (t2i 50%);
    both images see two equal captions, and ties count against the model (i2t 0%)."""
    samples = listed([image_of(RED, texts=["red red red. blue."]), image_of(BLUE, texts=["blue. blue."])])
    outcome = run(by_words(UNIT), tokenizer, samples, seeds=2)
    assert outcome.scores["recall@1"] == outcome.scores["t2i_recall@1"] == outcome.scores["i2t_recall@1"] == 100
    result = outcome.details["perturbations"]["first_removed"]
    assert (result["t2i_recall@1"], result["i2t_recall@1"]) == (50, 0)
    assert (outcome.scores["recall@1_first_removed"], outcome.scores["drop_first_removed"]) == (25, 75)
    assert (outcome.scores["drop_shuffled"], outcome.scores["drop_random_3"]) == (0, 0)
    assert outcome.scores["mean_drop"] == pytest.approx(
        sum(outcome.scores[f"drop_{how}"] for how in PAPER_SETTINGS) / len(PAPER_SETTINGS)
    )
    assert outcome.ties["i2t first_removed"] == 4  # both images, both seeds
    assert outcome.ties["i2t original"] == 0


def test_seeds_differ_and_results_repeat(by_words, tokenizer, listed, image_of) -> None:
    captions = ["red. blue. green red blue.", "green. red. blue red red green.", "blue. red red. green red."]
    assert len({tuple(perturb_all(captions, "word_dropout_0.5", seed)) for seed in range(5)}) > 1
    samples = listed([image_of(c, texts=[t]) for c, t in zip((RED, GREEN, BLUE), captions, strict=True)])
    first, again = (run(by_words(UNIT), tokenizer, samples, seeds=4) for _ in range(2))
    assert first.scores == again.scores
    result = first.details["perturbations"]["word_dropout_0.5"]
    assert result["recall@1"] == pytest.approx((result["t2i_recall@1"] + result["i2t_recall@1"]) / 2)
    assert result["standard_deviation"] > 0
    assert run(by_words(UNIT), tokenizer, samples, seeds=1).details["perturbations"]["shuffled"][
        "standard_deviation"
    ] is None  # fmt: skip


def test_images_and_original_captions_are_encoded_once(by_words, tokenizer, listed, image_of) -> None:
    model = by_words(UNIT)
    samples = listed([image_of(RED, texts=["red."]), image_of(BLUE, texts=["blue."])])
    run(model, tokenizer, samples, seeds=5)
    assert model.images_seen == 2
    assert model.texts_seen == 2  # nothing can be perturbed here


def test_captions_of_one_sentence_are_counted(by_words, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, texts=["red."]), image_of(BLUE, texts=["blue. blue."])])
    outcome = run(by_words(UNIT), tokenizer, samples)
    assert outcome.notes == ["1 of 2 captions have one sentence: perturbed by sentences they stay"]
    assert outcome.details["perturbations"]["first_removed"]["unchanged_captions"] == 1
    outcome = run(by_words(UNIT), tokenizer, listed([image_of(RED, texts=["red.", "red"])]))
    assert outcome.notes[0].endswith("they stay; --captions joined makes one of all captions of an image")
    assert run(by_words(UNIT), tokenizer, listed([image_of(RED, texts=["red.", "red"])]), captions="joined").notes == []


def test_no_recall_no_drop(by_words, tokenizer, listed, image_of, tmp_path) -> None:
    """Equal images and captions: every query ties, and 0 cannot drop. The results file holds null."""
    samples = listed([image_of(RED, texts=["red. red."]), image_of(RED, texts=["red. red."])])
    result = evaluate(by_words(UNIT), tokenizer, [EvalSpec("perturbed-retrieval", samples, seeds=1)], out=tmp_path)[0]
    written = result.to_dict()
    assert written["scores"]["recall@1"] == 0
    assert written["scores"]["mean_drop"] is None
    assert written["undefined"]["drop_shuffled"] == "recall on the original captions is 0"
    assert len(written["undefined"]) == len(PERTURBATIONS) + 1


@pytest.mark.parametrize("text", ["犬が走る。猫が眠る。", "...", "Ein Hund. Eine Katze. Ein Vogel."])
def test_any_language_and_a_single_image(by_words, tokenizer, listed, image_of, text: str) -> None:
    outcome = run(by_words(UNIT), tokenizer, listed([image_of(RED, texts=[text])]), seeds=2)
    assert outcome.scores["recall@1"] == 100
    assert outcome.scores["mean_drop"] == 0


def test_bad_settings_and_empty_sets(by_words, tokenizer, listed, image_of) -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        PerturbedRetrieval(seeds=0)
    with pytest.raises(ValueError, match="unknown choice of captions 'some'"):
        PerturbedRetrieval(captions="some")
    with pytest.raises(ValueError, match="listed has no captions to retrieve by"):
        run(by_words(UNIT), tokenizer, listed([image_of(RED)]))
    with pytest.raises(ValueError, match="no sample of listed could be used: it is empty"):
        run(by_words(UNIT), tokenizer, listed([]))


def test_a_set_of_another_size_than_the_published_one(by_words, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, texts=["red. red."]), image_of(BLUE, texts=["blue. blue."])])
    samples.expected = 5000
    note = "2 of the 5,000 published samples of listed: not comparable"
    for task in ("retrieval", "perturbed-retrieval", "perturbed-ranks"):
        assert evaluate(by_words(UNIT), tokenizer, [EvalSpec(task, samples)])[0].outcome.notes[0] == note
    samples.expected = 2
    assert evaluate(by_words(UNIT), tokenizer, [EvalSpec("retrieval", samples)])[0].outcome.notes == []


def printed(*entries, **options) -> list[list[str]]:
    """The rows of the table, as they stand on a wide screen."""
    console = Console(width=300)
    with console.capture() as capture:
        console.print(perturbation_table(entries, **options))
    return [[cell.strip() for cell in line[1:-1].split("│")] for line in capture.get().splitlines() if line[:1] == "│"]


def entry(model: str, data: str, recall: float, perturbed: list[float]) -> dict:
    pairs = list(zip(PERTURBATIONS, perturbed, strict=True))
    return {
        "task": "perturbed-retrieval",
        "model": model,
        "data": data,
        "split": "",
        "settings": {"seeds": 5},
        "scores": {
            "recall@1": recall,
            **{f"recall@1_{how}": value for how, value in pairs},
            **{f"drop_{how}": drop(recall, value) if recall else None for how, value in pairs},
            "mean_drop": mean_drop(recall, perturbed[1:]) if recall else None,
        },
    }


def test_the_table_has_the_layout_of_the_paper() -> None:
    """HyFL-CLIP on Urban-1k and DOCCI, from Tables 1 and S9."""
    urban = entry("a1", "urban1k", 91.45, [77.60, 77.14, 75.45, 86.08, 27.64, 36.25])
    docci = entry("a1", "docci", 79.765, [68.18, 68.48, 65.13, 75.53, 30.93, 37.20])
    other = {**entry("b2", "urban1k", 0, [0.0] * 6), "split": "test"}
    rows = printed(urban, {"task": "retrieval"}, docci, other, names={"a1": "HyFL-CLIP"})
    assert rows[0][3:] == [
        "77.60 ↓15.14", "77.14 ↓15.65", "75.45 ↓17.50", "86.08 ↓5.87", "27.64 ↓69.78", "36.25 ↓60.36", "33.83"
    ]  # fmt: skip
    assert rows[2][-1] == "32.15"
    assert rows[3][3:] == ["0.00"] * 6 + ["not defined"]
    assert [row[:3] for row in rows] == [
        ["HyFL-CLIP", "urban1k", "91.45"],
        ["HyFL-CLIP", "docci", "79.77"],
        ["HyFL-CLIP", "average", "85.61"],
        ["b2", "urban1k (test)", "0.00"],
    ]


def test_the_table_needs_a_result() -> None:
    with pytest.raises(ValueError, match="no result of the task 'perturbed-retrieval'"):
        perturbation_table([{"task": "retrieval"}])
