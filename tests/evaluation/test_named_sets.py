"""What classification and hierarchical metrics do on data sets that bring prompts, a hierarchy and a published size."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import recall_score, top_k_accuracy_score

from hyvlm.data import open_data
from hyvlm.data.class_names import CIFAR100_SUPERCLASSES, IMAGENET_HIERARCHY
from hyvlm.evaluation import TASKS, prompts
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.prompts import hash_lines, prompts_for, read_templates
from hyvlm.evaluation.taxonomy import Taxonomy

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}


def run(name: str, model, tokenizer, samples, **settings):
    task = TASKS[name](**settings)
    task.check(model, samples)
    return task.run(Embedder(model, tokenizer), samples)


@pytest.fixture
def benchmark_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of clip_benchmark's file."""
    monkeypatch.setattr(prompts, "benchmark_prompts", lambda key: (f"{key}: {{}}",))


@pytest.fixture
def imagenet(listed, image_of):
    """Three of ImageNet's classes: two cats and a fish, whose names are colours here."""
    samples = listed(
        [image_of(RED, labels=[0]), image_of(GREEN, labels=[0]), image_of(BLUE, labels=[2])],
        classes=["red", "green", "blue"],
    )
    samples.name, samples.expected = "imagenet:/data", 50_000
    samples.class_ids = ("n02123045", "n02123159", "n01443537")  # tabby, tiger cat, goldfish
    samples.hierarchy = IMAGENET_HIERARCHY
    samples.remarks = ["3 of ImageNet's 1,000 classes are there: told apart are only these"]
    return samples


def test_a_family_of_prompt_sets_has_one_for_the_data_set(listed, benchmark_prompts) -> None:
    samples = listed([])
    samples.name = "cifar10:/data/cifar10"
    assert prompts_for("openai", samples) == "openai:cifar10"
    assert read_templates("openai:cifar10") == ("cifar10: {}",)
    assert prompts_for("photo", samples) == "photo"
    samples.name = "flowers102:/data"
    assert prompts_for("official", samples) == "official:flowers102"
    assert read_templates("openai:flowers102") == ("flowers: {}",)
    samples.name = "folder:/data"
    assert prompts_for("openai", samples) == "openai"
    with pytest.raises(ValueError, match="unknown prompt set 'official'"):
        read_templates(prompts_for("official", samples))


@pytest.mark.skipif(find_spec("clip_benchmark") is None, reason="needs clip_benchmark")
def test_prompts_of_clip_benchmark_are_pinned_by_content() -> None:
    counts = {name: len(prompts.TEMPLATES[name]()) for name in prompts.TEMPLATES if name.startswith("openai:")}
    assert counts == {
        "openai:aircraft": 2, "openai:caltech101": 34, "openai:cars": 8, "openai:cifar10": 18, "openai:cifar100": 18,
        "openai:country211": 5, "openai:dtd": 8, "openai:eurosat": 3, "openai:flowers102": 1, "openai:food101": 1,
        "openai:pets": 1, "openai:resisc45": 4, "openai:stl10": 2, "openai:sun397": 2,
    }  # fmt: skip


def test_results_say_which_prompts_and_what_is_odd(stub, tokenizer, listed, image_of, benchmark_prompts) -> None:
    classes = ["red", "green", "blue"]
    samples = listed([image_of(RED, labels=[0]), image_of(GREEN, labels=[1])], classes=classes)
    samples.name, samples.expected, samples.remarks = "eurosat:/data", 27_000, ["another part was published"]
    model = stub({f"eurosat: {name}": point for name, point in UNIT.items()})
    outcome = run("classification", model, tokenizer, samples, templates="openai")
    assert outcome.details["templates"] == "openai:eurosat"
    assert outcome.details["templates_hash"] == hash_lines(["eurosat: {}"])
    assert outcome.scores["acc1"] == outcome.scores["mean_per_class_recall"] == 100
    assert outcome.notes == [
        "1 of 3 classes have no image and do not enter the mean per class",
        "another part was published",
        "2 of the 27,000 published samples of eurosat:/data: not comparable",
    ]


def test_birds_have_no_prompts_of_clip(stub, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, labels=[0]), image_of(GREEN, labels=[1])], classes=["red", "green"])
    samples.name = "cub:/data"
    texts = {template.format(name): UNIT[name] for template in read_templates("openai") for name in ("red", "green")}
    tokenizer.context_length = 80
    outcome = run("classification", stub(texts), tokenizer, samples, templates="openai")
    assert outcome.notes == ["CLIP has no prompts for CUB: these are its 80 for ImageNet"]


def test_imagenet_brings_its_hierarchy(stub, tokenizer, imagenet) -> None:
    outcome = run("hierarchy", stub(UNIT), tokenizer, imagenet, templates="name")
    # tabby as tabby, tabby as tiger cat (siblings: two edges), goldfish as goldfish
    assert outcome.scores["tie"] == pytest.approx(2 / 3)
    assert outcome.scores["jaccard"] == outcome.scores["precision"] == outcome.scores["recall"] == 1
    fingerprint = Taxonomy.read(IMAGENET_HIERARCHY).fingerprint
    assert outcome.details["hierarchy"] == "imagenet_hierarchy.txt"
    assert (outcome.details["hierarchy_hash"], outcome.details["hierarchy_nodes"]) == (fingerprint, 1860)
    assert outcome.notes[0] == (
        f"the hierarchy has 1,860 nodes (hash {fingerprint}), the pruned tree of the published numbers 1,372: "
        "not comparable with them"
    )
    assert imagenet.remarks[0] in outcome.notes


def test_a_hierarchy_may_know_imagenet_by_names_or_by_synsets(stub, tokenizer, imagenet, tmp_path: Path) -> None:
    by_name = tmp_path / "names.txt"
    by_name.write_text("red warm\ngreen cold\nblue cold\nwarm all\ncold all\n")
    outcome = run("hierarchy", stub(UNIT), tokenizer, imagenet, templates="name", hierarchy=str(by_name))
    assert outcome.scores["tie"] == pytest.approx(4 / 3)
    by_synset = tmp_path / "synsets.txt"
    by_synset.write_text("n02123045 cat\nn02123159 cat\nn01443537 fish\ncat all\nfish all\n")
    outcome = run("hierarchy", stub(UNIT), tokenizer, imagenet, templates="name", hierarchy=str(by_synset))
    assert outcome.scores["tie"] == pytest.approx(2 / 3)
    by_synset.write_text("n02123045 cat\nn02123159 cat\n")
    with pytest.raises(ValueError, match="3 of 3 classes are not in the hierarchy"):
        run("hierarchy", stub(UNIT), tokenizer, imagenet, templates="name", hierarchy=str(by_synset))


def test_the_published_graph_is_taken_for_it(stub, tokenizer, imagenet, tmp_path: Path) -> None:
    tree = [f"{imagenet.class_ids[i]} root" for i in range(3)] + [f"node{i} root" for i in range(1368)]
    file = tmp_path / "tree.txt"
    file.write_text("\n".join(tree))
    outcome = run("hierarchy", stub(UNIT), tokenizer, imagenet, templates="name", hierarchy=str(file))
    assert outcome.details["hierarchy_nodes"] == 1372
    assert not any("pruned tree" in note for note in outcome.notes)


def test_superclasses_of_cifar100_are_a_hierarchy(stub, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, labels=[1]), image_of(GREEN, labels=[2])], classes=["rose", "tulip", "bus"])
    samples.name, samples.hierarchy = "cifar100:/data", CIFAR100_SUPERCLASSES
    model = stub({"rose": UNIT["red"], "tulip": UNIT["blue"], "bus": UNIT["green"]})
    outcome = run("hierarchy", model, tokenizer, samples, templates="name")
    assert outcome.scores["tie"] == 1  # a tulip taken for a rose, both flowers; a bus for a bus
    assert not any("pruned" in note for note in outcome.notes)


@pytest.mark.skipif("HYVLM_TEST_DATA" not in os.environ, reason="needs real photographs")
def test_cifar10_mini_against_scikit_learn(stub, tokenizer) -> None:
    folder = Path(os.environ["HYVLM_TEST_DATA"]) / "cifar10-mini"
    if not folder.is_dir():
        pytest.skip("HYVLM_TEST_DATA has no cifar10-mini")
    samples = open_data(f"cifar10:{folder}", content="classes")
    assert (len(samples), len(samples.classes)) == (1000, 10)
    colours = np.random.default_rng(0).normal(size=(10, 3))
    model = stub(dict(zip(samples.classes, colours.tolist(), strict=True)))
    outcome = run("classification", model, tokenizer, samples, templates="name")
    images = Embedder(model, tokenizer).images(samples, resize="crop")
    scores = (images.points.double() @ torch.tensor(colours).T).numpy()
    target = np.array([annotation.labels[0] for annotation in images.annotations])
    for k in (1, 5):
        assert outcome.scores[f"acc{k}"] == pytest.approx(100 * top_k_accuracy_score(target, scores, k=k), abs=0.11)
    recall = 100 * recall_score(target, scores.argmax(1), average="macro")
    assert outcome.scores["mean_per_class_recall"] == pytest.approx(recall, abs=0.11)
    assert "1,000 of the 10,000 published samples" in " ".join(outcome.notes)
