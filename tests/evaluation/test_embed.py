from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import SafetensorError

from hyvlm.data import open_data
from hyvlm.evaluation.cache import EmbeddingCache
from hyvlm.evaluation.embed import Embedder, evaluation_mode, progress
from hyvlm.types import BadSample

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


@pytest.fixture
def model(stub):
    return stub({"a": [1, 0, 0], "bb": [0, 1, 0], "ccc": [0, 0, 1], "x": [1, 1, 0]})


def test_images_keep_order_and_bad_samples_are_counted(model, tokenizer, listed, image_of) -> None:
    samples = listed(
        [image_of(RED), BadSample("broken JPEG", "one.jpg"), image_of(BLUE), BadSample("broken JPEG", "two.jpg")]
    )
    images = Embedder(model, tokenizer, batch_size=2).images(samples)
    assert images.points.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert images.total == 4
    assert images.skipped == Counter({"broken JPEG": 2})
    assert images.examples == ["one.jpg: broken JPEG", "two.jpg: broken JPEG"]


def test_samples_dropped_when_the_set_was_opened_count_too(model, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED)])
    samples.dropped = {"no caption": 2, "part: zero area": 5, "shard is cut short": 1}
    samples.dropped_examples = ["line 3: no caption"]
    images = Embedder(model, tokenizer).images(samples)
    assert (images.total, images.skipped["no caption"]) == (3, 2)
    assert images.examples == ["line 3: no caption"]


def test_parts_follow_their_owner(model, tokenizer, listed, image_of) -> None:
    samples = listed(
        [
            image_of(RED),
            BadSample("broken JPEG", "one.jpg"),
            image_of(GREEN, parts=[(RED, "a"), (BLUE, "bb")]),
            image_of(BLUE, parts=[(GREEN, "ccc")]),
        ]
    )
    images = Embedder(model, tokenizer, batch_size=2).images(samples, parts=True)
    assert images.part_points.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert images.part_owner.tolist() == [1, 1, 2]
    assert [a.part_texts for a in images.annotations] == [[], ["a", "bb"], ["ccc"]]
    last = images.select([2], "because")
    assert (last.part_points.tolist(), last.part_owner.tolist(), last.skipped["because"]) == ([[0, 1, 0]], [0], 2)


def test_dropped_parts_are_counted_and_the_sample_stays(model, tokenizer, listed, image_of) -> None:
    sample = image_of(RED)
    sample.dropped = [BadSample("zero area", "box 3 of k17")]
    images = Embedder(model, tokenizer).images(listed([sample]))
    assert (len(images.points), images.skipped) == (1, Counter({"part: zero area": 1}))
    assert images.examples == ["box 3 of k17: zero area"]


def test_a_set_without_any_usable_sample_is_an_error(model, tokenizer, listed) -> None:
    with pytest.raises(ValueError, match="no sample of listed could be used: 1 broken JPEG"):
        Embedder(model, tokenizer).images(listed([BadSample("broken JPEG", "one.jpg")]))


def test_a_second_request_reads_nothing(model, tokenizer, listed, image_of, tmp_path: Path) -> None:
    samples = listed([image_of(RED, texts=["a"], labels=[1]), BadSample("broken JPEG", "one.jpg")])
    first = Embedder(model, tokenizer, EmbeddingCache(tmp_path)).images(samples)
    for cache in (EmbeddingCache(tmp_path), EmbeddingCache(tmp_path)):
        again = Embedder(model, tokenizer, cache).images(samples)
        assert torch.equal(again.points, first.points)
        assert (again.annotations, again.skipped, again.total) == (first.annotations, first.skipped, first.total)
    assert samples.reads == 2
    assert model.images_seen == 1


def test_a_pass_with_parts_serves_those_without(model, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, parts=[(BLUE, "a")])])
    embedder = Embedder(model, tokenizer)
    embedder.images(samples, parts=True)
    assert embedder.images(samples).points.tolist() == [[1, 0, 0]]
    assert samples.reads == 1


def test_the_same_images_under_other_annotations_are_not_encoded_again(model, tokenizer, listed, image_of) -> None:
    pairs = listed([image_of(RED, texts=["a"]), image_of(BLUE)], fingerprint="pairs", image_fingerprint="pixels")
    labels = listed(
        [BadSample("no label", "one.jpg"), image_of(BLUE, labels=[3])],
        fingerprint="labels",
        image_fingerprint="pixels",
    )
    embedder = Embedder(model, tokenizer)
    embedder.images(pairs)
    images = embedder.images(labels)
    assert model.images_seen == 2
    assert images.points.tolist() == [[0, 0, 1]]
    assert [a.labels for a in images.annotations] == [[3]]
    assert images.skipped == Counter({"no label": 1})


def test_an_image_that_was_skipped_under_other_annotations_is_encoded(model, tokenizer, listed, image_of) -> None:
    partial = listed([BadSample("no caption", "one.jpg"), image_of(BLUE)], fingerprint="a", image_fingerprint="pixels")
    whole = listed([image_of(RED), image_of(BLUE)], fingerprint="b", image_fingerprint="pixels")
    embedder = Embedder(model, tokenizer)
    embedder.images(partial)
    assert embedder.images(whole).points.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert embedder.images(partial).points.tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("change", ["weights", "resize", "size", "data"])
def test_what_the_embeddings_depend_on_is_in_the_key(
    change: str, model, tokenizer, listed, image_of, tmp_path: Path
) -> None:
    samples = listed([image_of(RED)])
    options = {"resize": "crop"} if change == "resize" else {"image_size": 16} if change == "size" else {}
    Embedder(model, tokenizer, EmbeddingCache(tmp_path)).images(samples)
    if change == "weights":
        model.weight.data.mul_(2)
    if change == "data":
        samples.fingerprint = samples.image_fingerprint = "other"
    images = Embedder(model, tokenizer, EmbeddingCache(tmp_path)).images(samples, **options)
    assert samples.reads == 2
    assert images.points.tolist() == [[2.0 if change == "weights" else 1.0, 0, 0]]


@pytest.mark.parametrize("damage", [b"", b"not a safetensors file", None])
def test_a_damaged_cache_file_is_reported_and_computed_anew(
    damage: bytes | None, model, tokenizer, listed, image_of, tmp_path: Path
) -> None:
    samples = listed([image_of(RED)])
    Embedder(model, tokenizer, EmbeddingCache(tmp_path)).images(samples)
    files = sorted(tmp_path.iterdir())
    assert {file.suffix for file in files} == {".safetensors"}
    for file in files:
        file.write_bytes(file.read_bytes()[:-1] if damage is None else damage)
    with pytest.warns(UserWarning, match=r"\.safetensors: cached embeddings cannot be read .* computing them anew"):
        images = Embedder(model, tokenizer, EmbeddingCache(tmp_path)).images(samples)
    assert images.points.tolist() == [[1, 0, 0]]
    assert samples.reads == 2
    Embedder(model, tokenizer, EmbeddingCache(tmp_path)).images(samples)
    assert samples.reads == 2


@pytest.mark.parametrize("error", [OSError("disk is full"), SafetensorError("permission denied")])
def test_a_cache_that_cannot_be_written_is_reported_once(
    error: Exception, model, tokenizer, tmp_path: Path, monkeypatch
) -> None:
    def refuse(tensors: dict, path: Path, metadata: dict) -> None:
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr("hyvlm.evaluation.cache.save_file", refuse)
    embedder = Embedder(model, tokenizer, EmbeddingCache(tmp_path))
    with pytest.warns(UserWarning, match=f"{tmp_path}: no more embeddings can be kept there .{error}"):
        first = embedder.texts(["a", "bb"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(embedder.texts(["a"]), first[:1])
        assert torch.equal(embedder.texts(["a", "bb"]), first)  # from memory
    assert not list(tmp_path.iterdir())


def test_a_cache_file_under_the_name_of_another_is_not_taken(model, tokenizer, tmp_path: Path) -> None:
    embedder = Embedder(model, tokenizer, EmbeddingCache(tmp_path))
    embedder.texts(["a"])
    file = next(tmp_path.iterdir())
    content = file.read_bytes()
    file.unlink()
    embedder.texts(["bb"])
    next(tmp_path.iterdir()).write_bytes(content)
    with pytest.warns(UserWarning, match="belongs to another key"):
        points = Embedder(model, tokenizer, EmbeddingCache(tmp_path)).texts(["bb"])
    assert points.tolist() == [[0, 1, 0]]


def test_texts_come_back_in_order_and_equal_ones_are_encoded_once(model, tokenizer, tmp_path: Path) -> None:
    embedder = Embedder(model, tokenizer, EmbeddingCache(tmp_path), batch_size=2)
    texts = ["ccc", "a", "bb", "a", "ccc"]
    expected = [model.points[text].tolist() for text in texts]
    assert embedder.texts(texts).tolist() == expected
    assert model.texts_seen == 3
    assert Embedder(model, tokenizer, EmbeddingCache(tmp_path)).texts(texts).tolist() == expected
    assert model.texts_seen == 3
    assert embedder.texts([]).shape == (0, 3)


def test_class_points_are_means_over_prompts(model, tokenizer) -> None:
    model.points |= {"no a": torch.tensor([0.0, 0, 2]), "no bb": torch.tensor([4.0, 0, 0])}
    embedder = Embedder(model, tokenizer, batch_size=1)
    points = embedder.class_points(["a", "bb", "a"], ["{}", "no {}"])
    assert points.tolist() == [[0.5, 0, 1], [2, 0.5, 0], [0.5, 0, 1]]
    assert model.texts_seen == 4


def test_embedding_changes_neither_mode_nor_random_numbers(model, tokenizer, listed, image_of) -> None:
    model.train()
    model.dropout.eval()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    embedder = Embedder(model, tokenizer)
    points = embedder.images(listed([image_of(RED)])).points
    embedder.texts(["a"])
    assert torch.equal(torch.rand(3), expected)
    assert not points.requires_grad
    assert (model.training, model.dropout.training) == (True, False)


def test_the_mode_is_restored_after_an_error(model) -> None:
    model.train()
    seen = []

    def fail() -> None:
        with evaluation_mode(model):
            seen.append(model.dropout.training)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert seen == [False]
    assert model.dropout.training
    assert torch.is_grad_enabled()


def test_a_long_pass_says_how_far_it_is_where_there_is_no_terminal(capsys) -> None:
    assert list(progress(range(3), "images of x", quiet_s=-1, every_s=-1)) == [0, 1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"images of x: batch {i} of 3" for i in (1, 2, 3)]
    assert list(progress(iter("ab"), "texts")) == ["a", "b"]
    assert capsys.readouterr().err == ""


def test_a_pass_within_a_pass_has_lines_but_no_bar_of_its_own(capsys, monkeypatch) -> None:
    def passes() -> list[str]:
        return [a + b for a in progress("xy", "outer", "draw", quiet_s=-1) for b in progress("zw", "inner", quiet_s=-1)]

    assert passes() == ["xz", "xw", "yz", "yw"]
    assert capsys.readouterr().err.splitlines()[:3] == [
        "inner: batch 1 of 2",
        "outer: draw 1 of 2",
        "inner: batch 1 of 2",
    ]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert passes() == ["xz", "xw", "yz", "yw"]
    shown = capsys.readouterr().err
    assert "outer" in shown
    assert "inner" not in shown
    assert passes() == ["xz", "xw", "yz", "yw"]
    assert "outer" in capsys.readouterr().err  # the bar is free again


def test_progress_can_be_off(model, tokenizer, monkeypatch) -> None:
    monkeypatch.setattr("hyvlm.evaluation.embed.progress", None)
    embedder = Embedder(model, tokenizer, show_progress=False)
    assert embedder.texts(["a"]).tolist() == [[1, 0, 0]]


def test_loader_processes_give_the_same(model, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, parts=[(BLUE, "a")]), BadSample("broken JPEG", "one.jpg"), image_of(GREEN)])
    one = Embedder(model, tokenizer, batch_size=2).images(samples, parts=True)
    two = Embedder(model, tokenizer, batch_size=2, workers=2).images(samples, parts=True)
    assert torch.equal(one.points, two.points)
    assert torch.equal(one.part_points, two.part_points)
    assert one.skipped == two.skipped


def test_parts_and_wholes_pass_the_tower_once_each_whatever_is_asked_first(model, tokenizer, listed, image_of) -> None:
    pairs = listed([image_of(RED, parts=[(BLUE, "a")])], fingerprint="pairs", image_fingerprint="pixels")
    labels = listed([image_of(RED, labels=[3])], fingerprint="labels", image_fingerprint="pixels")
    for parts_first in (True, False):
        model.images_seen = 0
        embedder = Embedder(model, tokenizer)
        for parts in (parts_first, not parts_first):
            images = embedder.images(pairs, parts=parts)
            assert images.points.tolist() == [[1, 0, 0]]
            assert images.part_points.tolist() == ([[0, 0, 1]] if parts else [])
        assert embedder.images(labels).annotations[0].labels == [3]
        assert model.images_seen == 2  # the image and its part


def test_images_of_coco_pass_the_tower_once_for_captions_and_labels(model, tokenizer, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    files = [("a.png", (255, 0, 0)), ("b.png", (0, 0, 255))]
    for name, colour in files:
        Image.new("RGB", (20, 20), colour).save(tmp_path / "images" / name)
    images = [{"id": i, "file_name": name} for i, (name, _) in enumerate(files)]
    captions = [{"id": i, "image_id": i, "caption": "a"} for i in (0, 1)]
    boxes = [{"id": 0, "image_id": 1, "category_id": 7, "bbox": [0, 0, 9, 9]}]
    document = {"images": images, "annotations": boxes, "categories": [{"id": 7, "name": "dog"}]}
    (tmp_path / "instances.json").write_text(json.dumps(document))
    (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
    embedder = Embedder(model, tokenizer)
    pairs = embedder.images(open_data(f"coco:{tmp_path}", content="pairs"), parts=True)
    labels = embedder.images(open_data(f"coco:{tmp_path}", content="labels"))
    assert model.images_seen == 2 + 1  # the images, and the part
    assert pairs.points.tolist() == labels.points.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert pairs.part_points.tolist() == [[0, 0, 1]]
    assert [a.labels for a in labels.annotations] == [[], [0]]
