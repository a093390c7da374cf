from __future__ import annotations

import base64
import html
import io
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from hyvlm.evaluation import Embedder
from hyvlm.models import Tokenizer
from hyvlm.plotting.contributions import Contributions, Word, contributions, heat, largest, words_of
from hyvlm.plotting.token_page import token_figure, token_page

TOKENIZER = Tokenizer(77)
PICTURE = Image.linear_gradient("L").convert("RGB").resize((60, 30))


def split(caption: str, limit: int | None = None) -> tuple[list[Word], str]:
    ids = TOKENIZER.ids(caption)[1:-1][:limit]
    return words_of(caption, ids, [1 / len(ids)] * len(ids))


def joined(words: list[Word]) -> str:
    return "".join(("" if word.glued else " ") + word.text for word in words).strip()


@pytest.mark.parametrize(
    ("caption", "shown"),
    [
        ("A bicyclist's café: Two-tone <b>T-shirt</b>, 3.5 km.", None),
        ("antidisestablishmentarianism", None),
        ("  odd \n spaces ", "odd spaces"),
        ("“curly” quotes don’t stay", '"curly" quotes don\'t stay'),
        ("犬が走る。 Ein Straßenbahnhof! 😀😀", None),
        ("İstanbul", "i̇stanbul"),
    ],
)
def test_words_read_as_the_caption(caption: str, shown: str | None) -> None:
    words, cut = split(caption)
    assert joined(words) == (shown or caption)
    assert cut == ""


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=60).filter(lambda s: "&" not in s))
def test_no_word_and_no_weight_is_lost(caption: str) -> None:
    if not caption.strip() or "<" in caption:  # the tokenizer reads special spellings
        return
    words, cut = split(caption)
    assert joined(words) == " ".join(caption.split())
    assert cut == ""
    assert sum(word.weight for word in words) == pytest.approx(1)
    assert all(word.weight == pytest.approx(sum(weight for _, weight in word.pieces)) for word in words)


def test_byte_pair_tokens_make_whole_words() -> None:
    (word,), _ = split("antidisestablishmentarianism")
    assert len(word.pieces) > 2
    assert "".join(piece for piece, _ in word.pieces) == word.text


def test_what_the_context_cuts_is_told() -> None:
    words, cut = split("one two three four", limit=2)
    assert (joined(words), cut) == ("one two", "three four")
    words, cut = split("antidisestablishmentarianism rests", limit=1)
    assert words[0].text + cut == "antidisestablishmentarianism rests"


@pytest.mark.parametrize("kind", ["embedder", "sphere"])
def test_weights_are_the_softmax_of_similarity_to_the_image(kind: str, request: pytest.FixtureRequest) -> None:
    embedder: Embedder = request.getfixturevalue(kind)
    model = embedder.model
    caption = "A red bicyclist."
    found = contributions(embedder, PICTURE, caption, temperature=0.5)
    with torch.no_grad():
        image = model.encode_image(found.seen[None])[0]
        points = model.encode_text_tokens(embedder.tokenizer([caption]))[1].values[0, 1:-1]
        closeness = points @ image if kind == "sphere" else -model.manifold.distance(points, image.expand_as(points))
    expected = np.exp(closeness.double().numpy() / 0.5)
    expected /= expected.sum()
    assert [weight for word in found.words for _, weight in word.pieces] == pytest.approx(expected, rel=1e-4)
    assert [word.text for word in found.words] == ["A", "red", "bicyclist", "."]
    with torch.no_grad():
        text = model.encode_text(embedder.tokenizer([caption]))
        patches = model.encode_image_tokens(found.seen[None])[1].values[0]
    expected = (model.manifold.similarity(patches, text)[:, 0] / 0.5).softmax(0)
    torch.testing.assert_close(found.patches, expected.unflatten(0, (4, 4)))
    assert heat(found).shape == (32, 32)
    assert heat(found).max() <= 1


def test_patches_lie_where_they_are_seen() -> None:
    patches = torch.zeros(2, 4)
    patches[1, 3] = 1
    found = Contributions(
        [Word("a", 1.0, (("a", 1.0),), False)], "", patches, torch.zeros(3, 20, 40, dtype=torch.uint8)
    )
    assert divmod(int(heat(found).argmax()), 40) >= (14, 34)
    assert heat(found)[:10, :20].max() == 0


def test_bad_settings_are_told(embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="temperature"):
        contributions(embedder, PICTURE, "a dog", temperature=0.0)
    with pytest.raises(ValueError, match="no token"):
        contributions(embedder, PICTURE, "   ")


@pytest.fixture
def two(embedder: Embedder, sphere: Embedder) -> dict[str, Contributions]:
    caption = 'A "<script>alert(1)</script>" on $5 & more. ' + "word " * 40
    return {"<ours>": contributions(embedder, PICTURE, caption), "clip": contributions(sphere, PICTURE, caption)}


def test_the_page_is_self_contained_and_escaped(two: dict[str, Contributions]) -> None:
    page = token_page(PICTURE, two, title="1 < 2")
    assert "<script" not in page
    assert "<ours>" not in page
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    assert "http" not in page
    sources = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    assert len(sources) == 3
    assert Image.open(io.BytesIO(base64.b64decode(sources[0]))).size == PICTURE.size
    assert page.count("beyond the context") == 2
    text = html.unescape(re.sub(r"<[^>]+>", "", page.split('<p class="words" dir="auto">')[1].split("</p>")[0]))
    assert text.startswith('A "<script>alert(1)</script>" on $5 & more.')


def test_the_page_gives_every_exact_weight_and_darker_is_more(two: dict[str, Contributions]) -> None:
    page = token_page(PICTURE, two)
    weights = [float(value) for value in re.findall(r'data-weight="([^"]+)"', page)]
    assert weights == pytest.approx([word.weight for one in two.values() for word in one.words], rel=1e-8)
    shades = [int(value, 16) for value in re.findall(r"background:#(..)....;color", page)]
    greens = [int(value, 16) for value in re.findall(r"background:#..(..)..;color", page)]
    order = np.argsort(weights)
    assert (np.diff(np.array(greens)[order]) <= 0).all()
    assert max(shades) > max(min(greens), 100)
    assert f"{100 * largest(list(two.values())):.1f} %" in page


@pytest.mark.parametrize("models", [1, 2])
def test_the_sheet_shows_every_word(two: dict[str, Contributions], models: int) -> None:
    shown = dict(list(two.items())[:models])
    figure: Figure = token_figure(PICTURE, shown)
    panels = [ax for ax in figure.axes if ax.get_title(loc="left") in shown]
    for ax, one in zip(panels, shown.values(), strict=True):
        assert [text.get_text() for text in ax.texts][: len(one.words)] == [word.text for word in one.words]
        right = max(patch.get_x() + patch.get_width() for patch in ax.patches)
        assert right <= ax.get_xlim()[1]
    figure.savefig(io.BytesIO())
