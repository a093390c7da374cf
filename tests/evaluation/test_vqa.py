from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hyvlm.data.sentences import perturb
from hyvlm.errors import MissingExtra
from hyvlm.evaluation import TASKS
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.tasks.vqa import Answerer, phrases
from hyvlm.types import BadSample

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "yes", "no", "?", "red", "green", "blue", "a", "car"]
CPU = torch.device("cpu")


def save_blip(folder: Path, words: list[str]) -> str:
    """A random BLIP of a few thousand weights with its processor, as ``save_pretrained`` writes them."""
    torch.manual_seed(0)
    (folder / "vocab.txt").write_text("\n".join(words))
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": len(words), "encoder_hidden_size": 16, "max_position_embeddings": 32, "projection_dim": 8}
    ids = {"bos_token_id": 5, "pad_token_id": 0, "eos_token_id": 3, "sep_token_id": 3}
    config = transformers.BlipConfig(
        text_config={**shape, **text, **ids, "initializer_range": 0.5},
        vision_config={**shape, "image_size": 16, "patch_size": 8, "initializer_range": 0.5},
        projection_dim=8,
    )
    model = transformers.BlipForQuestionAnswering(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    images = transformers.BlipImageProcessor(size={"height": 16, "width": 16})
    tokenizer = transformers.BertTokenizerFast.from_pretrained(str(folder))
    transformers.BlipProcessor(images, tokenizer).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def blip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_blip(tmp_path_factory.mktemp("blip"), WORDS)


def test_phrases_of_a_caption() -> None:
    text = "A wide street in a city. Two bicycles, one red and one blue, lean against a post next to a van; a city."
    assert phrases(text, 100) == [
        "A wide street",
        "a city",
        "Two bicycles",
        "one red",
        "one blue",
        "lean",
        "a post next to a van",
    ]
    assert phrases(text, 3) == ["a city", "one red", "lean"]


@pytest.mark.parametrize(
    ("text", "expected"), [("red", ["red"]), (" it ", ["it"]), ("...", ["..."]), ("in on at", ["in on at"])]
)
def test_a_text_without_phrases_is_its_own(text, expected) -> None:
    assert phrases(text) == expected


@given(st.text(max_size=200), st.integers(1, 6))
def test_phrases_are_few_different_and_in_the_text(text, count) -> None:
    found = phrases(text, count)
    assert 1 <= len(found) <= count
    assert len({phrase.casefold() for phrase in found}) == len(found)
    assert all(phrase in text for phrase in found)


def test_yes_is_the_first_word_that_generation_would_say(blip) -> None:
    """Against transformers' own ``generate``, which gives the scores of the first step."""
    answerer = Answerer(blip, CPU)
    image = Image.new("RGB", (20, 30), RED)
    for question in ("a red car?", "blue?"):
        inputs = answerer.processor(images=image, text=question, return_tensors="pt")
        said = answerer.model.generate(
            **inputs, max_new_tokens=1, do_sample=False, output_scores=True, return_dict_in_generate=True
        )
        expected = said.scores[0][0].double().softmax(-1)[WORDS.index("yes")]
        torch.testing.assert_close(answerer.yes_probability(image, [question])[0], expected, rtol=1e-4, atol=1e-7)


def test_an_answer_does_not_depend_on_its_batch(blip) -> None:
    questions = ["red?", "a green car a green car a green car?", "blue?"]
    image = Image.new("RGB", (16, 16), BLUE)
    together = Answerer(blip, CPU).yes_probability(image, questions)
    one_by_one = Answerer(blip, CPU, batch_size=1).yes_probability(image, questions)
    torch.testing.assert_close(together, one_by_one, rtol=1e-4, atol=1e-7)
    assert together.unique().numel() == 3
    other = Answerer(blip, CPU).yes_probability(Image.new("RGB", (16, 16), RED), questions)
    assert (other != together).all()


class ByColour:
    """Says yes as surely as the image is red, times the length of the question."""

    asked: ClassVar[Counter[tuple[tuple[int, ...], str]]] = Counter()

    def __init__(self, *_: object) -> None:
        ByColour.asked.clear()

    def yes_probability(self, image: Image.Image, questions: list[str]) -> torch.Tensor:
        colour = image.getpixel((0, 0))
        self.asked.update((colour, question) for question in questions)
        return torch.tensor([colour[0] / 255 * len(question) / 100 for question in questions])


def run(model, tokenizer, samples, **settings):
    task = TASKS["blip-vqa"](**settings)
    task.check(model, samples)
    return task.run(Embedder(model, tokenizer, show_progress=False), samples)


def test_own_and_retrieved_image_answer_for_the_perturbed_caption(
    stub, tokenizer, listed, image_of, blip, monkeypatch
) -> None:
    """The dark image's caption finds the red one once its first sentence is gone. Skipped samples shift the rows."""
    monkeypatch.setattr("hyvlm.evaluation.tasks.vqa.Answerer", ByColour)
    dark, red = (51, 0, 0), (255, 0, 0)
    model = stub({"b.": [1, 0, 0], "b, ccc.": [1, 0, 0], "ddd.": [1, 0, 0]})
    samples = listed(
        [
            BadSample("broken", "sample 0"),
            image_of(dark, texts=["aaa. b, ccc."]),
            image_of(GREEN),
            image_of(red, texts=["ddd."]),
        ]
    )
    outcome = run(model, tokenizer, samples, vqa=blip, perturbations=("first_removed",), seeds=2)
    own = (0.2 * len("ccc?") / 100 + 1.0 * len("ddd?") / 100) / 2
    found = (1.0 * len("ccc?") / 100 + 1.0 * len("ddd?") / 100) / 2
    assert outcome.scores == pytest.approx({"gt_first_removed": own, "retrieved_first_removed": found})
    assert outcome.skipped == {"broken": 1, "no caption": 1}
    assert (outcome.n, outcome.total) == (2, 4)
    assert outcome.details["questions"] == 4
    assert set(ByColour.asked.values()) == {1}, "each question once an image"
    assert set(ByColour.asked) == {(dark, "ccc?"), (red, "ccc?"), (red, "ddd?")}


def test_ties_go_to_another_image(stub, tokenizer, listed, image_of, blip, monkeypatch) -> None:
    monkeypatch.setattr("hyvlm.evaluation.tasks.vqa.Answerer", ByColour)
    samples = listed([image_of(RED, texts=["ddd."]), image_of(GREEN, texts=["eee."])])
    model = stub({"ddd.": [1, 1, 0], "eee.": [0, 1, 0]})
    outcome = run(model, tokenizer, samples, vqa=blip, perturbations=("shuffled",), seeds=1)
    assert outcome.ties == {"shuffled": 1}
    assert outcome.scores["retrieved_shuffled"] == 0


def test_table_s6_with_a_real_blip(stub, tokenizer, listed, image_of, blip) -> None:
    """Every seed has draws of its own, and the numbers are those of the questions asked by hand."""
    text = "a red car. a green car. a blue car. a car."
    draws = [perturb(text, "random_2", seed=(seed, 0)) for seed in range(3)]
    points = {perturbed: [1, 0, 0] for perturbed in draws}
    samples = listed([image_of(RED, texts=[text])])
    outcome = run(stub(points), tokenizer, samples, vqa=blip, perturbations=("random_2",), seeds=3)
    answerer, image = Answerer(blip, CPU), samples[0].picture
    means = [
        answerer.yes_probability(image, [f"{phrase}?" for phrase in phrases(draw)]).mean().item() for draw in draws
    ]
    assert len(set(draws)) > 1
    assert outcome.scores["gt_random_2"] == pytest.approx(sum(means) / 3)
    assert outcome.scores["retrieved_random_2"] == pytest.approx(sum(means) / 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 0}, "seeds is how often"),
        ({"phrases": 0}, "phrases must be at least 1"),
        ({"perturbations": ("shufled",)}, "Did you mean 'shuffled'"),
        ({"captions": "lst"}, "Did you mean 'last'"),
    ],
)
def test_a_wrong_setting_is_named(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        TASKS["blip-vqa"](**settings)


def test_what_is_missing_is_said_before_anything_is_read(
    stub, tokenizer, listed, image_of, tmp_path, monkeypatch
) -> None:
    samples = listed([image_of(RED, texts=["red"])])
    model = stub({"red": [1, 0, 0]})
    with pytest.raises(ValueError, match="needs vqa"):
        run(model, tokenizer, samples)
    with pytest.raises(FileNotFoundError, match="no folder with a BLIP"):
        run(model, tokenizer, samples, vqa=str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="no BLIP model"):
        run(model, tokenizer, samples, vqa=str(tmp_path))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'hyvlm\[vqa\]'"):
        run(model, tokenizer, samples, vqa=str(tmp_path))
    assert samples.reads == 0


def test_a_hub_out_of_reach_is_said_before_anything_is_read(stub, tokenizer, listed, image_of, monkeypatch) -> None:
    def unreachable(source: str) -> None:
        raise OSError("We couldn't connect to the hub.\nCheck your internet connection.")

    monkeypatch.setattr(transformers.BlipConfig, "from_pretrained", unreachable)
    samples, model = listed([image_of(RED, texts=["red"])]), stub({"red": [1, 0, 0]})
    with pytest.raises(FileNotFoundError, match=r"at 'some/model': We couldn't connect to the hub\.$"):
        TASKS["blip-vqa"](vqa="some/model").check(model, samples)
    assert samples.reads == 0


def test_a_vocabulary_without_yes_is_refused(tmp_path) -> None:
    folder = save_blip(tmp_path, [word if word != "yes" else "maybe" for word in WORDS])
    with pytest.raises(ValueError, match="no word 'yes'"):
        Answerer(folder, CPU)
