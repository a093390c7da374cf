import json
import pickle
from pathlib import Path

import pytest
import torch

from hyvlm.models.tokenizer import Tokenizer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer()


def test_ids_match_the_reference(tokenizer: Tokenizer) -> None:
    """Ids of the released projects; of open_clip where a text spells out a special token, the only difference."""
    for case in GOLDEN["cases"]:
        expected = case["open_clip_ids"] if case["differ"] else case["meru_ids_context77"]
        row = tokenizer(case["text"])[0].tolist()
        assert row == expected + [0] * (77 - len(expected)), case["text"]


def test_texts_that_are_cut_keep_the_end_token_and_are_counted(tokenizer: Tokenizer) -> None:
    too_long = [case["text"] for case in GOLDEN["cases"] if case["meru_length"] > 77]
    assert too_long
    rows = tokenizer([*too_long, "a photo of a cat", ""])
    assert (rows[: len(too_long), 76] == 49407).all()
    assert tokenizer.truncated == len(too_long)


def test_75_words_fit_and_76_do_not(tokenizer: Tokenizer) -> None:
    assert tokenizer(" ".join(["cat"] * 75))[0, 75:].tolist() == [2368, 49407]
    assert tokenizer.truncated == 0
    assert tokenizer(" ".join(["cat"] * 76))[0, 75:].tolist() == [2368, 49407]
    assert tokenizer.truncated == 1


@pytest.mark.parametrize("context", [2, 3, 78, 100, 248, 1000])
def test_texts_of_every_context_length_keep_their_end(context: int) -> None:
    tokenizer = Tokenizer(context)
    fits, cut = (" ".join(["cat"] * words) for words in (context - 2, context - 1))
    full = [49406, *[2368] * (context - 2), 49407]
    assert tokenizer(fits).tolist() == [full]
    assert tokenizer.truncated == 0
    assert tokenizer([cut, "", fits]).tolist() == [full, [49406, 49407] + [0] * (context - 2), full]
    assert tokenizer.truncated == 1


def test_a_longer_context_only_adds_to_a_row() -> None:
    texts = [case["text"] for case in GOLDEN["cases"]]
    tokenizer = Tokenizer(77)
    short, long = tokenizer(texts), Tokenizer(248)(texts)
    whole = torch.tensor([len(tokenizer.ids(text)) <= 77 for text in texts])
    assert not whole.all()
    assert torch.equal(long[whole, :77], short[whole])
    assert not long[whole, 77:].any()
    assert torch.equal(long[~whole, :76], short[~whole, :76])
    assert ((long == 49407).any(1)).all()


def test_an_empty_text_is_start_and_end(tokenizer: Tokenizer) -> None:
    assert tokenizer(["", "  \n"])[:, :3].tolist() == [[49406, 49407, 0]] * 2


def test_one_text_and_a_list_of_one_are_alike(tokenizer: Tokenizer) -> None:
    assert torch.equal(tokenizer("a cat"), tokenizer(["a cat"]))
    assert tokenizer([]).shape == (0, 77)
    assert tokenizer("a cat").dtype == torch.int64


def test_a_spelled_out_end_token_ends_the_text(tokenizer: Tokenizer) -> None:
    row = tokenizer("a cat <END_OF_TEXT> and a dog")[0]
    assert row.argmax().item() == 3
    assert tokenizer("a cat <|endoftext|> and a dog")[0].tolist().count(49407) == 1


def test_another_context_length() -> None:
    tokenizer = Tokenizer(context_length=5)
    assert tokenizer("one two three four five six").tolist() == [[49406, 637, 1237, 2097, 49407]]
    with pytest.raises(ValueError, match="context_length"):
        Tokenizer(context_length=1)


def test_anything_but_text_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="got int in place 1"):
        tokenizer(["a cat", 3])  # type: ignore[list-item]


def test_a_tokenizer_travels_to_worker_processes(tokenizer: Tokenizer) -> None:
    assert torch.equal(pickle.loads(pickle.dumps(tokenizer))("a cat"), tokenizer("a cat"))
