"""Scenes with a short and a long text, and the contents "texts" and "negatives" of both kinds of scenes."""

import re
from collections import Counter

import numpy as np
import pytest

from hyvlm.data import open_data
from hyvlm.data.sentences import split_sentences
from hyvlm.data.sets.scenes import COLOURS, MATERIALS, SIZES, SPLITS, describe_scene, long_texts
from hyvlm.data.sets.scenes.text import NUMBERS
from hyvlm.data.sets.scenes.world import OPPOSITE
from hyvlm.models.tokenizer import Tokenizer


@pytest.mark.parametrize(("split", "count"), [("train", 600), ("val", 500), ("test", 500)])
def test_most_long_texts_exceed_77_tokens_and_all_fit_248(split, count):
    tokenizer = Tokenizer(248)
    texts = [long_texts(describe_scene(i, split)) for i in range(count)]
    lengths = np.array([len(tokenizer.ids(t.long)) for t in texts])
    assert np.median(lengths) > 150
    assert (lengths > 77).mean() > 0.9
    assert lengths.max() <= 248
    assert max(len(tokenizer.ids(t.short)) for t in texts) <= 77
    assert max(len(tokenizer.ids(n)) for t in texts[:100] for n in t.negatives) <= 248
    assert len({t.long for t in texts}) == count


def test_the_short_text_is_the_first_sentence_and_names_every_object():
    data = open_data("scenes-long", content="texts")
    for i in range(40):
        short, long = data[i].texts
        sentences = split_sentences(long)
        scene = describe_scene(i, "test")
        assert sentences[0] == short
        assert len(sentences) == 1 + 2 + len(scene.objects) + min(3, len(scene.objects)) + (3 if i % 4 else 2)
        assert all(o.leaf in short for o in scene.objects)


def test_what_the_long_text_says_is_so():
    for i in range(60):
        scene = describe_scene(i, "val")
        by_leaf = {o.leaf: k for k, o in enumerate(scene.objects)}
        facts = {(r.subject, r.name, r.object) for r in scene.relations}
        facts |= {(b, OPPOSITE[name], a) for a, name, b in facts}
        leaf, told = "(" + "|".join(by_leaf) + ")", 0
        for sentence in split_sentences(long_texts(scene).long)[1:]:
            text = sentence.lower()
            if found := re.search(rf"the {leaf} (?:is|can be found) ({'|'.join(OPPOSITE)}) the {leaf}\.", text):
                assert (by_leaf[found[1]], found[2], by_leaf[found[3]]) in facts
                told += 1
            elif found := re.match(rf"({'|'.join(OPPOSITE)}) the {leaf} is the {leaf}\.", text):
                assert (by_leaf[found[3]], found[1], by_leaf[found[2]]) in facts
                told += 1
            elif found := re.search(leaf, text):
                one = scene.objects[by_leaf[found[1]]]
                assert one.place in text or "polyhedron" in text or "curved solid" in text
                assert {"small": "large", "large": "small"}[one.size] not in text
            else:
                for what in ("material", "size"):
                    for value, n in Counter(getattr(o, what) for o in scene.objects).items():
                        assert (
                            value not in text or f"{['no', 'one', 'two', 'three', 'four', 'five'][n]} {value}" in text
                        )
        assert told == (3 if i % 4 else 2)


def test_images_parts_and_order_are_those_of_the_scenes():
    plain, long = open_data("scenes:50", split="train"), open_data("scenes-long:50", split="train")
    assert len(plain) == len(long) == 50
    assert plain.image_fingerprint == long.image_fingerprint
    assert plain.fingerprint != long.fingerprint
    for i in (0, 7):
        assert plain[i].image.tobytes() == long[i].image.tobytes()
        assert [p.text for p in plain[i].parts] == [p.text for p in long[i].parts]
        assert plain[i].labels == long[i].labels
        assert len(long[i].texts) == 2


@pytest.mark.parametrize("name", ["scenes", "scenes-long"])
def test_texts_are_the_captions_of_the_pairs_without_images(name):
    pairs, texts = open_data(name, split="val"), open_data(name, split="val", content="texts")
    assert len(pairs) == len(texts)
    assert texts[3].image is None
    assert [texts[i].texts for i in (0, 3, 9)] == [pairs[i].texts for i in (0, 3, 9)]
    assert texts[3].key == pairs[3].key


def test_every_negative_of_a_long_text_changes_one_fact():
    data = open_data("scenes-long", content="negatives")
    numbers = Counter()
    for i in range(60):
        sample = data[i]
        assert len(sample.texts) == 1
        numbers[len(sample.negatives)] += 1
        assert len(set(sample.negatives)) == len(sample.negatives)
        true = split_sentences(sample.texts[0])
        for negative in sample.negatives[:-2]:  # colours, materials, size
            words = zip(sample.texts[0].lower().split(), negative.lower().split(), strict=True)
            changed = {word.rstrip(",.;") for pair in words if pair[0] != pair[1] for word in pair}
            assert any(changed & set(vocabulary) for vocabulary in (COLOURS, MATERIALS, SIZES))
            assert changed <= {*COLOURS, *NUMBERS.values(), "object", "objects"} or changed <= {
                *(MATERIALS if changed & set(MATERIALS) else SIZES), *NUMBERS.values(), "object", "objects"
            }  # fmt: skip
        assert sample.texts[0] not in sample.negatives
        place, relation = sample.negatives[-2], sample.negatives[-1]
        assert sum(a != b for a, b in zip(true, split_sentences(place), strict=True)) == 1
        assert sum(a != b for a, b in zip(true, split_sentences(relation), strict=True)) == (1 if i % 4 else 2)
    assert set(numbers) <= {4, 5}
    assert numbers[5] > 20


def test_negatives_of_scenes_are_false_versions_of_their_caption():
    data = open_data("scenes", split="val", content="negatives")
    assert len(data) == 1500
    assert data.classes == ("relation", "list", "full")
    for i in range(30):
        sample, scene = data[i], describe_scene(i // 3, "val")
        assert sample.texts == [scene.captions[1 + i % 3]]
        assert sample.labels == [i % 3]
        assert sample.negatives
        assert not set(sample.negatives) & set(scene.captions)
        assert sample.image.size == (128, 128)
    assert data.image_fingerprint != open_data("scenes", split="val").image_fingerprint
    asked = sum(len(data[i].negatives) for i in range(30))
    assert asked == sum(len(describe_scene(i, "val").hard_negatives) for i in range(10))


@pytest.mark.parametrize("split", SPLITS)
def test_a_text_does_not_depend_on_what_was_read_before(split):
    once = open_data("scenes-long", split=split, content="texts")
    assert [once[i].texts for i in (30, 2)] == [once[i].texts for i in (2, 30)][::-1]


def test_offers_are_told():
    with pytest.raises(ValueError, match=r"unknown content 'labels'. Known: negatives, pairs, texts"):
        open_data("scenes-long", content="labels")
    with pytest.raises(ValueError, match=r"scenes-long:x: what follows is the number of training scenes"):
        open_data("scenes-long:x")
