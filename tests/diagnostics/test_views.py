"""Points of a data set: which rows stay, which belong together, and that everything lost is counted."""

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from hyvlm.data.catalog import SampleSet
from hyvlm.diagnostics.views import collect_views, finite_views
from hyvlm.evaluation import Embedder
from hyvlm.models import Tokenizer, build_model
from hyvlm.types import BadSample, Part, Sample

NAN = float("nan")


class Listed(SampleSet):
    name, split, fingerprint = "listed", "test", "listed"

    def __init__(self, items: Sequence[Sample | BadSample]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Sample:
        item = self.items[index]
        if isinstance(item, BadSample):
            raise item
        return item


def sample(number: int, texts: Sequence[str], phrases: Sequence[str] = ()) -> Sample:
    colours = [(40 * number, 255 - 40 * number, 7 * part) for part in range(len(phrases) + 1)]
    image, *crops = (Image.new("RGB", (9, 9), colour) for colour in colours)
    parts = [Part(crop, phrase) for crop, phrase in zip(crops, phrases, strict=True)]
    return Sample(key=str(number), image=image, texts=list(texts), parts=parts)


SAMPLES = [
    sample(0, ["a red dog", "a dog"], ["a paw"]),
    BadSample("image cannot be read", "file 1"),
    sample(2, ["  "], ["a tail", "an ear"]),
    sample(3, [" ", "a blue cat"], ["an eye", "a nose"]),
    sample(4, ["a fish " * 30]),
]


@pytest.fixture
def embedder() -> Embedder:
    torch.manual_seed(0)
    model = {
        "image": {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2},
        "text": {"context_length": 20, "width": 16, "depth": 1, "heads": 2},
        "dim": 8,
    }
    built = build_model({"model": model, "manifold": {"name": "lorentz"}}).eval()
    return Embedder(built, Tokenizer(20), batch_size=2, show_progress=False)


def test_points_of_usable_samples_and_what_was_lost(embedder: Embedder) -> None:
    found = collect_views(embedder, Listed(SAMPLES))
    points, model = found.views.points, embedder.model
    assert {view: len(rows) for view, rows in points.items()} == {
        "image": 3,
        "text": 3,
        "part_image": 3,
        "part_text": 3,
    }
    assert found.views.owner["part"].tolist() == [0, 1, 1]
    with torch.no_grad():
        texts = model.encode_text(embedder.tokenizer(["a red dog", "a blue cat", "a fish " * 30]))
        phrases = model.encode_text(embedder.tokenizer(["a paw", "an eye", "a nose"]))
        transform = embedder.transform()
        kept = [SAMPLES[0], SAMPLES[3], SAMPLES[4]]
        images = model.encode_image(torch.stack([transform(s.image) for s in kept]))
        crops = [part.image for s in kept for part in s.parts]
        part_images = model.encode_image(torch.stack([transform(crop) for crop in crops]))
    expected = {"image": images, "text": texts, "part_image": part_images, "part_text": phrases}
    for view, rows in expected.items():
        torch.testing.assert_close(points[view], rows, rtol=1e-4, atol=1e-5)
    assert (found.samples, found.total, found.texts_cut) == (3, 5, 1)
    assert found.skipped == {"image cannot be read": 1, "no caption": 1}
    assert found.examples == ["file 1: image cannot be read"]
    assert found.not_finite == {}


@pytest.mark.parametrize(("captions", "text"), [("last", "a dog"), ("joined", "a red dog a dog")])
def test_the_caption_is_the_one_that_was_chosen(embedder: Embedder, captions: str, text: str) -> None:
    found = collect_views(embedder, Listed(SAMPLES), captions=captions)
    torch.testing.assert_close(found.views.points["text"][0], embedder.texts([text])[0])


def test_without_parts_there_are_whole_views_alone(embedder: Embedder) -> None:
    collect_views(embedder, Listed(SAMPLES))  # the cache now holds the parts
    found = collect_views(embedder, Listed(SAMPLES), parts=False)
    assert list(found.views.points) == ["image", "text"]
    assert len(found.views.owner["part"]) == 0


def test_embeddings_that_are_not_numbers_are_left_out_and_counted(embedder: Embedder) -> None:
    tower = embedder.model.text_tower
    weight = tower.token_embedding.weight
    with torch.no_grad():  # the word "cat" has no embedding any more
        (only,) = set(embedder.tokenizer(["cat"])[0].tolist()) - set(embedder.tokenizer(["dog"])[0].tolist())
        weight[only] = NAN
    embedder = Embedder(embedder.model, embedder.tokenizer, show_progress=False)
    found = collect_views(embedder, Listed(SAMPLES))
    assert found.not_finite == {"text": 1}
    assert (found.samples, found.total) == (2, 5)
    assert found.skipped["points that are not finite"] == 1
    assert found.skipped["part: its sample is left out"] == 2
    assert found.skipped["part: the only one left"] == 1
    assert all(rows.isfinite().all() for rows in found.views.points.values())


@pytest.mark.parametrize("items", [SAMPLES[:2], SAMPLES[:3]])
def test_fewer_than_two_samples_are_refused_with_what_was_lost(embedder: Embedder, items: list[Sample]) -> None:
    with pytest.raises(ValueError, match=r"at least 2 usable samples, listed gives 1: 1 image cannot be read"):
        collect_views(embedder, Listed(items))


def test_samples_without_any_caption_are_refused(embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="gives 0: 2 no caption"):
        collect_views(embedder, Listed([sample(0, []), sample(1, [])]))


@pytest.mark.parametrize(("captions", "message"), [("all", "pairs each image with one"), ("frist", "'first'")])
def test_another_choice_of_captions_is_refused(embedder: Embedder, captions: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collect_views(embedder, Listed(SAMPLES), captions=captions)


BITS = st.lists(st.booleans(), min_size=4, max_size=4)


ALL = [True] * 4


@example(image=[False, True, True, True], text=ALL, part_image=ALL, part_text=ALL, owner=[3, 0, 1, 3])
@settings(max_examples=60, deadline=None)
@given(
    image=BITS, text=BITS, part_image=BITS, part_text=BITS, owner=st.lists(st.integers(0, 3), min_size=4, max_size=4)
)
def test_what_is_left_is_finite_and_still_belongs_together(
    image: list[bool], text: list[bool], part_image: list[bool], part_text: list[bool], owner: list[int]
) -> None:
    """Row i of a whole holds i, each part the number of its owner; a view's bad rows hold NaN."""
    good = {"image": image, "text": text, "part_image": part_image, "part_text": part_text}
    points = {}
    for view, keep in good.items():
        rows = torch.tensor(owner if view.startswith("part") else range(4), dtype=torch.float32)
        points[view] = torch.stack([rows, torch.where(torch.tensor(keep), 0.0, NAN)], dim=1)
    views, not_finite, lost = finite_views(points, torch.tensor(owner))
    assert not_finite == {view: 4 - sum(keep) for view, keep in good.items() if not all(keep)}
    assert all(rows.isfinite().all() for rows in views.points.values())
    wholes = [i for i in range(4) if image[i] and text[i]]
    assert views.points["image"][:, 0].tolist() == views.points["text"][:, 0].tolist() == wholes
    parts = [p for p in range(4) if part_image[p] and part_text[p] and owner[p] in wholes]
    if len(parts) >= 2:
        assert views.points["part_image"][:, 0].tolist() == [owner[p] for p in parts]
        assert views.points["image"][views.owner["part"], 0].tolist() == [owner[p] for p in parts]
    else:
        assert list(views.points) == ["image", "text"]
    left = len(views.points.get("part_image", ()))
    assert Counter(lost).total() == (4 - len(wholes)) + (4 - left)
