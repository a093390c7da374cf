import pytest
import torch
from PIL import Image

from hyvlm.data.boxes import LazyPart
from hyvlm.data.catalog import SampleSet
from hyvlm.data.collate import Collate, trim
from hyvlm.data.views import Item, TrainViews
from hyvlm.types import BadSample, Part, Sample

NONE = {"name": "none"}
CROP = {"name": "crop", "scale": [0.5, 1.0]}


class OneSample(SampleSet):
    name, split, fingerprint = "one", "train", "one"

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Sample:
        return self.sample


def with_parts(colours: list[str | None]) -> Sample:
    """Part ``i`` is an image of its colour, or one that cannot be decoded."""
    image = Image.linear_gradient("L").convert("RGB")

    def broken() -> Image.Image:
        raise BadSample("image is broken", "a part")

    parts = [LazyPart(c, lambda c=c: Image.new("RGB", (9, 9), c)) if c else LazyPart("bad", broken) for c in colours]
    return Sample("k", image, ["a caption"], list(parts))


def item_of(sample: Sample, tokenizer, index: tuple[int, int] = (0, 0), **settings) -> Item:
    settings = {"image_size": 16, "part_size": 8, "augment": NONE, **settings}
    item = TrainViews(OneSample(sample), tokenizer, **settings)[index]
    assert isinstance(item, Item)
    return item


def colours(item: Item) -> list[tuple[int, ...]]:
    return [tuple(p[:, 0, 0].tolist()) for p in item.part_image]


RED, LIME, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def test_views_have_the_sizes_asked_for(tokenizer):
    item = item_of(with_parts(["red", "lime"]), tokenizer, parts={"max": 5, "choice": "first"})
    assert item.image.shape == (3, 16, 16)
    assert item.image.dtype == torch.uint8
    assert item.part_image.shape == (2, 3, 8, 8)
    assert item.part_text.shape == (2, 77)
    assert item.text.shape == (77,)
    assert colours(item) == [RED, LIME]


def test_first_parts_keep_their_order_and_a_broken_one_is_replaced_and_told(tokenizer):
    item = item_of(with_parts(["red", None, "lime", "blue"]), tokenizer, parts={"max": 2, "choice": "first"})
    assert colours(item) == [RED, LIME]
    assert [bad.reason for bad in item.dropped] == ["image is broken"]


def test_random_parts_are_drawn_anew_in_every_epoch(tokenizer):
    sample = with_parts(["red", "lime", "blue"])
    drawn = [colours(item_of(sample, tokenizer, (epoch, 0), parts={"max": 1})) for epoch in range(30)]
    assert {c for (c,) in drawn} == {RED, LIME, BLUE}
    assert drawn == [colours(item_of(sample, tokenizer, (epoch, 0), parts={"max": 1})) for epoch in range(30)]


@pytest.mark.parametrize("settings", [{"views": ("image", "text")}, {"parts": {"max": 0}}])
def test_parts_that_nobody_asks_for_are_not_decoded(settings, tokenizer):
    item = item_of(with_parts([None]), tokenizer, **settings)
    assert len(item.part_image) == 0
    assert item.dropped == []


def test_each_part_draws_its_own_augmentation(tokenizer):
    image = Image.effect_noise((64, 64), 90).convert("RGB")
    sample = Sample("k", image, ["a caption"], [Part(image, "same"), Part(image, "same")])
    item = item_of(sample, tokenizer, augment=CROP, part_size=16, parts={"max": 2, "choice": "first"})
    assert not torch.equal(item.part_image[0], item.part_image[1])
    assert not torch.equal(item.part_image[0], item.image)


def test_randomness_depends_on_seed_epoch_and_index_alone(noise_set, tokenizer):
    def pixels(seed: int, epoch: int, index: int) -> torch.Tensor:
        torch.rand(3)
        data = TrainViews(noise_set(8), tokenizer, image_size=16, augment=CROP, seed=seed)
        return data[epoch, index].image

    before = torch.get_rng_state()
    reference = pixels(0, 0, 5)
    assert torch.equal(reference, pixels(0, 0, 5))
    assert not torch.equal(reference, pixels(1, 0, 5))
    assert not torch.equal(reference, pixels(0, 1, 5))
    torch.set_rng_state(before)
    expected = torch.rand(4)
    torch.set_rng_state(before)
    assert isinstance(TrainViews(noise_set(8), tokenizer, image_size=16, augment=CROP)[0, 1], Item)
    assert torch.equal(torch.rand(4), expected)  # the caller's generator is left alone


def test_captions_are_drawn_or_the_first(tokenizer):
    sample = Sample("k", Image.new("RGB", (8, 8)), ["a", "bb", "ccc"])
    seen = {int(item_of(sample, tokenizer, (epoch, 0)).text[1]) for epoch in range(30)}
    assert seen == {3, 4, 5}
    assert {int(item_of(sample, tokenizer, (epoch, 0), caption="first").text[1]) for epoch in range(9)} == {3}
    last = {int(item_of(sample, tokenizer, (epoch, 0), caption="last").text[1]) for epoch in range(9)}
    assert len(last) == 1
    assert last != {3}


def test_a_bad_sample_is_a_value_unless_strict(noise_set, tokenizer):
    settings = {"image_size": 16, "augment": NONE}
    bad = TrainViews(noise_set(3, bad=[1]), tokenizer, **settings)[0, 1]
    assert isinstance(bad, BadSample)
    assert bad.reason == "image is broken"
    with pytest.raises(BadSample):
        TrainViews(noise_set(3, bad=[1]), tokenizer, strict=True, **settings)[0, 1]
    nothing_said = TrainViews(OneSample(Sample("k", Image.new("RGB", (8, 8)))), tokenizer, **settings)[0, 0]
    assert isinstance(nothing_said, BadSample)
    assert str(nothing_said) == "sample 'k': no caption"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": {"max": -1}}, "parts.max"),
        ({"parts": {"max": 2, "choice": "last"}}, "'random' or 'first', got 'last'"),
        ({"parts": {"most": 2}}, "max and choice, got most"),
        ({"caption": "all"}, "unknown choice of caption 'all'"),
    ],
)
def test_wrong_settings_are_named(settings, message, noise_set, tokenizer):
    with pytest.raises(ValueError, match=message):
        TrainViews(noise_set(), tokenizer, image_size=16, augment=NONE, **settings)


def test_collate_keeps_parts_ragged_and_text_short(noise_set, tokenizer):
    parts = {"max": 5, "choice": "first"}
    data = TrainViews(noise_set(8, bad=[2]), tokenizer, image_size=16, part_size=8, augment=NONE, parts=parts)
    batch = Collate(16, 8)([data[0, i] for i in range(5)])
    assert batch.keys == ["0", "1", "3", "4"]
    assert batch.owner.tolist() == [1, 2, 2, 2]  # sample 3 is row 2; sample 4 has no parts
    assert batch.part_image.shape == (4, 3, 8, 8)
    assert batch.part_text.shape == (4, 4)
    assert batch.text.shape[1] == int((batch.text != 0).sum(1).max()) < 77
    assert batch.skipped == {"image is broken": 1}
    assert batch.skipped_examples == ["sample 2: image is broken"]


def test_collate_counts_parts_apart_and_keeps_few_examples(tokenizer):
    item = item_of(with_parts([None] * 9), tokenizer, parts={"max": 2, "choice": "first"})
    batch = Collate(16, 8)([item, item])
    assert batch.skipped == {"part: image is broken": 18}
    assert len(batch.skipped_examples) == 5
    assert batch.part_image.shape == (0, 3, 8, 8)
    assert batch.part_text.shape == (0, 1)


def test_parts_that_the_set_dropped_are_counted_where_parts_are_used(tokenizer):
    sample = with_parts(["red"])
    sample.dropped.append(BadSample("box outside the image", "part 1"))
    assert Collate(16, 8)([item_of(sample, tokenizer)]).skipped == {"part: box outside the image": 1}
    assert not Collate(16, 8)([item_of(sample, tokenizer, views=("image", "text"))]).skipped


def test_without_part_views_a_batch_has_none(noise_set, tokenizer):
    data = TrainViews(noise_set(4), tokenizer, image_size=16, augment=NONE, views=("image", "text"))
    batch = Collate(16, 16)([data[0, i] for i in range(4)])
    assert batch.part_image.shape == (0, 3, 16, 16)
    assert len(batch.part_text) == len(batch.owner) == 0
    assert len(batch.owner) == 0


def test_texts_that_lose_their_end_are_counted(tokenizer):
    sample = Sample("k", Image.new("RGB", (8, 8)), [" ".join(["word"] * 200)])
    batch = Collate(16, 8)([item_of(sample, tokenizer), item_of(sample, tokenizer)])
    assert batch.truncated == 2
    assert batch.text.shape == (2, 77)


def test_trimming_keeps_an_inner_zero():
    tokens = torch.tensor([[5, 0, 9, 0, 0], [5, 9, 0, 0, 0]])  # id 0 is a character as well as padding
    assert trim(tokens).tolist() == [[5, 0, 9], [5, 9, 0]]
    assert trim(torch.zeros(2, 7, dtype=torch.long)).shape == (2, 1)


@pytest.mark.parametrize(
    ("caption", "short_text", "expected"),
    [
        ("last", "first_sentence", ("A dog. It runs.", {"A dog."})),
        ("last", "random_sentence", ("A dog. It runs.", {"A dog.", "It runs."})),
        ("last", "first_caption", ("A dog. It runs.", {"An animal"})),
        ("first", "random_caption", ("An animal", {"An animal", "A dog. It runs."})),
        ("joined", "first_sentence", ("An animal A dog. It runs.", {"An animal A dog."})),
    ],
)
def test_long_and_short_texts(tokenizer, caption, short_text, expected):
    sample = Sample("k", Image.new("RGB", (9, 9)), ["An animal", "A dog. It runs."])
    settings = {"views": ("image", "text", "short_text"), "caption": caption, "short_text": short_text}
    items = [item_of(sample, tokenizer, (epoch, 0), **settings) for epoch in range(20)]
    assert all(torch.equal(item.text, tokenizer([expected[0]])[0]) for item in items)
    seen = {tuple(item.short_text.tolist()) for item in items}
    assert seen == {tuple(row) for row in tokenizer(sorted(expected[1])).tolist()}
    batch = Collate(16, 8)(items)
    assert batch.short_text.shape[0] == 20
    assert batch.short_text.shape[1] < 77


def test_short_texts_are_read_only_if_a_relation_asks(tokenizer):
    item = item_of(with_parts([]), tokenizer, views=("image", "text"))
    assert item.short_text is None
    assert Collate(16, 8)([item]).short_text.shape == (0, 1)


def test_queries_are_cut_from_the_caption_and_the_phrases_in_use(tokenizer):
    sample = with_parts(["red", "lime"])
    sample.texts = ["A red dog runs. It is near a green ball"]
    views = ("image", "text", "part_image", "query_image", "query_text")
    parts = {"max": 1, "choice": "first"}
    first = item_of(sample, tokenizer, views=views, parts=parts)
    assert [(q.text, q.parent) for q in first.queries] == [
        ("A red dog runs. It is near a green ball", None),
        ("A red dog runs.", 0),
        ("It is near a green ball", 0),
        ("red", 0),
        ("A red dog runs It is", 1),
        ("a green ball", 1),
    ]
    assert torch.equal(first.query_text, tokenizer([q.text for q in first.queries]))
    assert item_of(sample, tokenizer, views=views, parts=parts, queries={"cap": 2}).query_text.shape[0] == 2
    batch = Collate(16, 8)([first, first])
    assert batch.query_owner.tolist() == [0] * 6 + [1] * 6
    assert batch.query_parent.tolist() == [-1, 0, 0, 0, 1, 1, -1, 6, 6, 6, 7, 7]
    assert batch.query_weight.tolist() == [0, 1, 1, 0.75, 0.5, 0.5] * 2
    assert batch.part_text.shape[0] == 2


def test_without_a_query_view_there_are_no_queries(tokenizer):
    item = item_of(with_parts(["red"]), tokenizer)
    assert item.query_text is None
    batch = Collate(16, 8)([item])
    assert batch.query_text.shape == (0, 1)
    assert batch.query_owner.shape == batch.query_parent.shape == batch.query_weight.shape == (0,)


def test_a_batch_whose_captions_give_no_query(tokenizer):
    sample = with_parts([])
    sample.texts = ["ox"]
    item = item_of(sample, tokenizer, views=("image", "text", "query_text"))
    assert item.queries == []
    assert Collate(16, 8)([item]).query_text.shape == (0, 1)
