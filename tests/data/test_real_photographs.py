"""On real photographs, where there are some: HYVLM_TEST_DATA names a folder with small subsets of public data sets."""

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from hyvlm.data import SampleSet, TrainViews, eval_transform, open_data, train_loader
from hyvlm.data.sentences import split_sentences

ROOT = Path(os.environ.get("HYVLM_TEST_DATA", ""))
pytestmark = pytest.mark.skipif(
    "HYVLM_TEST_DATA" not in os.environ, reason="needs real photographs: set HYVLM_TEST_DATA to their folder"
)


def folder(name: str) -> Path:
    if not (ROOT / name).is_dir():
        pytest.skip(f"HYVLM_TEST_DATA has no {name}")
    return ROOT / name


def every_tenth(data: SampleSet) -> list:
    return [data[i] for i in range(0, len(data), 10)]


def test_coco_subset():
    pairs = open_data(f"coco:{folder('coco-mini')}")
    assert len(pairs) == 451
    assert pairs.dropped == {"no caption": 73}
    samples = every_tenth(pairs)
    assert all(len(s.texts) >= 5 for s in samples)
    assert sum(len(s.parts) for s in samples) > 200
    labels = open_data(f"coco:{folder('coco-mini')}", content="labels")
    assert len(labels) == 524
    assert len(labels.classes) == 80
    crops = open_data(f"coco:{folder('coco-mini')}", content="classes")
    assert len(crops) == sum(len(image.objects) for image in labels.images)


def test_voc_subset_has_the_documented_counts():
    labels = open_data(f"voc:{folder('voc-mini')}", content="labels")
    images = Counter(labels.classes[k] for i in range(len(labels)) for k in (*labels[i].labels, *labels[i].ignored))
    assert len(labels) == 170
    assert {k: images[k] for k in ("bus", "person", "dining table", "sheep")} == {
        "bus": 24, "person": 58, "dining table": 5, "sheep": 2
    }  # fmt: skip
    assert len(open_data(f"voc:{folder('voc-mini')}", content="classes")) == 441 - 16  # 16 are difficult


def test_flickr_subset_and_class_folders():
    captions = open_data(str(folder("flickr8k-mini") / "captions.csv"))
    assert len(captions) == 500
    assert all(len(captions[i].texts) == 5 for i in range(0, 500, 10))
    classes = open_data(f"folder:{folder('cifar10-mini')}", content="classes")
    assert len(classes) == 1000
    assert len(classes.classes) == 10
    assert eval_transform(32, "crop")(classes[0].image).shape == (3, 32, 32)


def test_hard_negatives_of_the_coco_subset():
    data = open_data(f"sugarcrepe:{folder('coco-mini') / 'sugarcrepe'}", content="negatives")
    kinds = Counter(data.classes[data[i].labels[0]] for i in range(len(data)))
    assert kinds == {
        "add_att": 46, "add_obj": 209, "replace_att": 60, "replace_obj": 144, "replace_rel": 122,
        "swap_att": 64, "swap_obj": 24
    }  # fmt: skip
    assert not data.dropped


@pytest.mark.parametrize(
    ("name", "entries", "texts"),
    [("iiw400", 200, 200 + 888 - 1), ("iiw_docci", 53, 106), ("iiw_dci", 56, 56), ("docci_steps", 250, None)],
)
def test_long_captions_and_their_parts(name, entries, texts):  # two objects of iiw400 are described alike
    data = open_data(f"long-captions:{folder('long-captions') / name}.jsonl", content="texts")
    samples = [data[i] for i in range(len(data))]
    assert len(samples) == entries
    assert texts in (None, sum(len(s.texts) for s in samples))
    assert texts or all(3 <= len(s.texts) <= 14 for s in samples)
    sentences = [len(split_sentences(s.texts[0])) for s in samples]
    assert 4 < sum(sentences) / entries < 15
    assert sum(n > 1 for n in sentences) == entries


def test_an_epoch_over_boxes(tokenizer):
    data = open_data(f"coco:{folder('coco-mini')}")
    views = TrainViews(
        data,
        tokenizer,
        image_size=64,
        part_size=32,
        augment={"name": "crop_jitter_gray"},
        parts={"max": 5, "choice": "first"},
    )
    batches = list(train_loader(views, 100, steps=5))
    assert sorted(key for batch in batches for key in batch.keys) == sorted(image.name for image in data.images)
    assert sum(len(b.part_image) for b in batches) == sum(min(5, len(image.objects)) for image in data.images)
    assert all(b.image.dtype == torch.uint8 and not b.skipped for b in batches)
