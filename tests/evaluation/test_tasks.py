from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from hyvlm.evaluation import TASKS
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.prompts import TEMPLATES, hash_lines, read_templates
from hyvlm.evaluation.tasks.order import part_above_whole, view_radii
from hyvlm.geometry import Lorentz, Sphere
from hyvlm.types import BadSample

RED, GREEN, BLUE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (0, 0, 0)
UNIT = {"red": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}


def run(name: str, model, tokenizer, samples, **settings):
    task = TASKS[name](**settings)
    task.check(model, samples)
    return task.run(Embedder(model, tokenizer), samples)


def test_retrieval_names_its_directions(stub, tokenizer, listed, image_of) -> None:
    """Two images, three captions: scores (captions x images) (.9, .8), (.1, .5), (.85, .82), owners 0, 0, 1."""
    model = stub({"one": [0.9, 0.8, 0], "two": [0.1, 0.5, 0], "three": [0.85, 0.82, 0]})
    samples = listed([image_of(RED, texts=["one", "two"]), image_of(GREEN, texts=["three"])])
    outcome = run("retrieval", model, tokenizer, samples, ks=(1, 2))
    assert outcome.scores == pytest.approx(
        {"t2i_recall@1": 100 / 3, "t2i_recall@2": 100, "i2t_recall@1": 100, "i2t_recall@2": 100}
    )
    assert (outcome.n, outcome.total, outcome.ties) == (2, 2, {"t2i": 0, "i2t": 0})
    assert outcome.details["captions"] == 3


@pytest.mark.parametrize(("captions", "hits"), [("all", None), ("first", 0.0), ("last", 100.0)])
def test_retrieval_by_choice_of_captions(stub, tokenizer, listed, image_of, captions, hits) -> None:
    """The first caption of each image describes the other one, the last its own."""
    samples = listed([image_of(RED, texts=["green", "red"]), image_of(GREEN, texts=["red", "green"])])
    outcome = run("retrieval", stub(UNIT), tokenizer, samples, captions=captions, ks=(1,))
    assert outcome.details["captions"] == (4 if captions == "all" else 2)
    if hits is not None:
        assert outcome.scores["t2i_recall@1"] == hits


@pytest.mark.parametrize("task", ["retrieval", "order"])
def test_an_unknown_choice_of_captions_is_named(task) -> None:
    with pytest.raises(ValueError, match=r"'lst'\. Did you mean 'last'"):
        TASKS[task](captions="lst")


def test_retrieval_counts_duplicate_captions_as_ties_against_the_model(stub, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, texts=["red"]), image_of(RED, texts=["red"])])
    outcome = run("retrieval", stub(UNIT), tokenizer, samples)
    assert outcome.scores["i2t_recall@1"] == outcome.scores["t2i_recall@1"] == 0
    assert outcome.scores["i2t_recall@5"] == 100
    assert outcome.ties == {"t2i": 2, "i2t": 2}


def test_retrieval_says_n_of_all(stub, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, texts=["red"]), image_of(GREEN), BadSample("broken JPEG", "three.jpg")])
    outcome = run("retrieval", stub(UNIT), tokenizer, samples)
    assert (outcome.n, outcome.total) == (1, 3)
    assert outcome.skipped == Counter({"no caption": 1, "broken JPEG": 1})


def test_retrieval_needs_captions(stub, tokenizer, listed, image_of) -> None:
    with pytest.raises(ValueError, match="listed has no captions"):
        run("retrieval", stub(UNIT), tokenizer, listed([image_of(RED)]))


def test_retrieval_gives_the_score_images_first(stub, tokenizer, listed, image_of) -> None:
    """A score may differ by direction; here it prefers whatever its second argument's first coordinate says."""
    model = stub({"high": [1, 0, 0], "low": [0, 0, 0]})
    model.score = lambda x, y, by="image": torch.zeros(len(x), 1) + y[:, 0]
    samples = listed([image_of(RED, texts=["high"]), image_of(GREEN, texts=["low"])])
    outcome = run("retrieval", model, tokenizer, samples)
    assert outcome.scores["i2t_recall@1"] == 50  # both images choose "high"
    assert outcome.ties["t2i"] == 2  # a text does not tell images apart


def labelled(listed, image_of, classes=("red", "green", "blue"), **more):
    items = [
        image_of(RED, labels=[0]),
        image_of(RED, labels=[0]),
        image_of(RED, labels=[1]),
        image_of(GREEN, labels=[1]),
    ]
    return listed(items, classes=classes, **more)


def test_classification_by_hand(stub, tokenizer, listed, image_of) -> None:
    """Three of four right; class 0 has recall 1, class 1 has 1/2, class 2 has no image."""
    outcome = run("classification", stub(UNIT), tokenizer, labelled(listed, image_of), templates="name")
    assert outcome.scores == pytest.approx({"acc1": 75, "mean_per_class_recall": 75, "mean_per_class_released": 75})
    assert outcome.intervals["acc1"] == pytest.approx((30.06, 95.44), abs=0.01)
    assert outcome.details["classes_hash"] == hash_lines(["red", "green", "blue"])
    assert outcome.details["templates_hash"] == hash_lines(["{}"])
    assert "1 of 3 classes have no image" in outcome.notes[0]


def test_top5_needs_more_than_five_classes(stub, tokenizer, listed, image_of) -> None:
    names = [f"c{i}" for i in range(7)]
    model = stub({name: [1 - i / 10, 0, 0] for i, name in enumerate(names)})
    samples = listed([image_of(RED, labels=[i]) for i in range(7)], classes=names)
    outcome = run("classification", model, tokenizer, samples, templates="name")
    assert outcome.scores["acc5"] == pytest.approx(500 / 7)


def test_classification_takes_images_with_one_label(stub, tokenizer, listed, image_of) -> None:
    items = [image_of(RED, labels=[0]), image_of(RED), image_of(RED, labels=[0, 1]), BadSample("broken", "x")]
    outcome = run("classification", stub(UNIT), tokenizer, listed(items, classes=["red", "green"]), templates="name")
    assert (outcome.n, outcome.total) == (1, 4)
    assert outcome.skipped == Counter({"not exactly one label": 2, "broken": 1})


def test_classes_of_one_name_are_reported_and_never_right(stub, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, labels=[0]), image_of(GREEN, labels=[1])], classes=["red", "green", "red"])
    outcome = run("classification", stub(UNIT), tokenizer, samples, templates="name")
    assert outcome.notes[0] == "classes 0, 2 share the name 'red': their ties count as errors"
    assert outcome.scores["acc1"] == 50
    assert outcome.ties == {"images": 1}


def test_accuracy_below_chance_is_remarked(stub, tokenizer, listed, image_of) -> None:
    """Class names in the wrong order: every image is wrong."""
    samples = listed([image_of(RED, labels=[1]), image_of(GREEN, labels=[0])] * 10, classes=["red", "green"])
    outcome = run("classification", stub(UNIT), tokenizer, samples, templates="name")
    assert any("below chance" in note for note in outcome.notes)


@pytest.mark.parametrize("task", ["classification", "hierarchy", "multilabel"])
def test_a_label_outside_the_classes_is_an_error(task: str, stub, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, labels=[3])], classes=list(UNIT), parents=dict.fromkeys(UNIT, "colour"))
    with pytest.raises(ValueError, match="label 3, but the 3 classes are 0 to 2"):
        run(task, stub(UNIT), tokenizer, samples, templates="name")


def test_classification_needs_names_and_labels(stub, tokenizer, listed, image_of) -> None:
    with pytest.raises(ValueError, match="listed has no class names"):
        run("classification", stub(UNIT), tokenizer, listed([image_of(RED, labels=[0])]))
    with pytest.raises(ValueError, match="exactly one label; for label sets use the task 'multilabel'"):
        run("classification", stub(UNIT), tokenizer, listed([image_of(RED)], classes=["red"]), templates="name")


def test_hierarchy_by_hand(stub, tokenizer, listed, image_of) -> None:
    """warm > red; cold > green, blue. Predictions red, red, red, green of red, red, green, green: one is off."""
    parents = {"red": "warm", "green": "cold", "blue": "cold", "warm": "colour", "cold": "colour"}
    samples = labelled(listed, image_of, parents=parents)
    outcome = run("hierarchy", stub(UNIT), tokenizer, samples, templates="name")
    assert outcome.scores == pytest.approx(
        {
            "tie": 4 / 4,
            "lca_released": (3 * 1 + 2) / 4,
            "jaccard": (3 + 1 / 3) / 4,
            "precision": (3 + 1 / 2) / 4,
            "recall": (3 + 1 / 2) / 4,
            "lca_height": 2 / 4,
            "lca_path_sum": 4 / 4,
        }
    )
    assert (outcome.details["hierarchy"], outcome.details["hierarchy_nodes"]) == ("listed", 6)


def test_hierarchy_from_a_file(stub, tokenizer, listed, image_of, tmp_path: Path) -> None:
    file = tmp_path / "flat.txt"
    file.write_text("red colour\ngreen colour\nblue colour\n")
    samples = labelled(listed, image_of, parents={"red": "x", "green": "x", "blue": "x"})
    outcomes = [
        run("hierarchy", stub(UNIT), tokenizer, samples, templates="name", hierarchy=h) for h in (str(file), None)
    ]
    assert outcomes[0].scores["tie"] == 2 / 4
    assert outcomes[0].details["hierarchy"] == str(file)
    assert outcomes[0].details["hierarchy_hash"] != outcomes[1].details["hierarchy_hash"]


def test_trees_of_a_data_set_are_joined_and_those_of_a_file_are_an_error(
    stub, tokenizer, listed, image_of, tmp_path: Path
) -> None:
    """warm > red, cold > green, and blue alone; red for green is two edges up and two down."""
    parents = {"red": "warm", "green": "cold"}
    samples = labelled(listed, image_of, parents=parents)
    outcome = run("hierarchy", stub(UNIT), tokenizer, samples, templates="name")
    assert outcome.scores["tie"] == 4 / 4
    assert outcome.details["hierarchy_joined_roots"] == ["blue", "cold", "warm"]
    assert outcome.notes == [
        "the taxonomy of listed has 3 roots; the artificial root '(root)' joins them",
        "1 of 3 classes have no image and do not enter the mean per class",
    ]
    file = tmp_path / "forest.txt"
    file.write_text("red warm\ngreen cold\nblue cold\n")
    with pytest.raises(ValueError, match="the hierarchy has 2 roots"):
        run("hierarchy", stub(UNIT), tokenizer, samples, templates="name", hierarchy=str(file))


def test_hierarchy_needs_a_taxonomy(stub, tokenizer, listed, image_of) -> None:
    with pytest.raises(ValueError, match=r"listed has no taxonomy .* give a file of 'child parent' lines"):
        run("hierarchy", stub(UNIT), tokenizer, labelled(listed, image_of))


def test_multilabel_by_hand(stub, tokenizer, listed, image_of) -> None:
    """Class red ranks its images 1 and 3 (AP 5/6), green its one image first; none is blue; ignored entries are out."""
    items = [
        image_of((255, 0, 0), labels=[0]),
        image_of((200, 90, 0), labels=[1]),
        image_of((150, 0, 0), labels=[0]),
        image_of((220, 99, 0), ignored=[0, 1]),
    ]
    samples = listed(items, classes=list(UNIT))
    outcome = run("multilabel", stub(UNIT), tokenizer, samples, templates="name")
    assert outcome.scores["mean_average_precision"] == pytest.approx(100 * (5 / 6 + 1) / 2)
    assert outcome.scores["mean_average_precision_11_point"] == pytest.approx(100 * ((6 + 5 * 2 / 3) / 11 + 1) / 2)
    assert outcome.details["average_precision_percent"] == pytest.approx({"0 red": 100 * 5 / 6, "1 green": 100})
    assert outcome.details["classes_without_positives"] == ["blue"]
    assert outcome.details["ignored_entries"] == 2
    assert "1 of 3 classes have no positive image" in outcome.notes[-1]


def test_multilabel_needs_a_positive(stub, tokenizer, listed, image_of) -> None:
    with pytest.raises(ValueError, match="no image of listed shows any of its 1 classes"):
        run("multilabel", stub(UNIT), tokenizer, listed([image_of(RED)], classes=["red"]), templates="name")


def test_order_by_hand(stub, tokenizer, listed, image_of) -> None:
    """Image parts: darker than their whole in 2 of 3; text parts against each caption: shorter in 3 of 4."""
    model = stub({"w": [2, 0, 0], "v": [0.5, 0, 0], "p": [1, 0, 0], "q": [0, 0.1, 0]}, Lorentz(c=0.5))
    samples = listed(
        [
            image_of((100, 0, 0), texts=["w", "v"], parts=[((50, 0, 0), "p"), ((0, 90, 0), "q")]),
            image_of((100, 0, 0), parts=[((0, 0, 200), "p")]),
            image_of(BLACK),
        ]
    )
    outcome = run("order", model, tokenizer, samples)
    assert outcome.scores["part_above_whole_image"] == pytest.approx(200 / 3)
    assert outcome.scores["part_above_whole_text"] == 75
    radius = math.asinh(math.sqrt(0.5) * 2) / math.sqrt(0.5)
    half = math.asinh(math.sqrt(0.5) * 0.5) / math.sqrt(0.5)
    assert outcome.scores["mean_radius_text"] == pytest.approx((radius + half) / 2)
    assert outcome.intervals["part_above_whole_image"] == pytest.approx((20.77, 93.85), abs=0.01)
    assert (outcome.n, outcome.total, outcome.skipped) == (2, 3, Counter({"no part": 1}))
    assert outcome.details["pairs"] == {"image": 3, "text": 4}


def test_order_without_captions_has_no_text_share(stub, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, parts=[(BLACK, "red")])])
    outcome = run("order", stub(UNIT), tokenizer, samples)
    assert outcome.scores["part_above_whole_image"] == 100
    assert math.isnan(outcome.scores["part_above_whole_text"])
    assert "no (part, whole) pair of texts" in outcome.undefined["part_above_whole_text"]


def test_order_needs_a_radius_and_parts(stub, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, texts=["red"], parts=[(BLACK, "red")])])
    with pytest.raises(ValueError, match="points of a Sphere have no radius"):
        run("order", stub(UNIT, Sphere()), tokenizer, samples)
    with pytest.raises(ValueError, match="no sample of listed has a part"):
        run("order", stub(UNIT), tokenizer, listed([image_of(RED, texts=["red"])]))


def test_radii_come_by_view(stub, tokenizer, listed, image_of) -> None:
    samples = listed([image_of(RED, texts=["red"], parts=[(BLACK, "green")])])
    radii, _ = view_radii(Embedder(stub(UNIT), tokenizer), samples)
    assert {view: len(values) for view, values in radii.radius.items()} == dict.fromkeys(
        ["image", "text", "part_image", "part_text"], 1
    )
    assert radii.radius["part_image"].tolist() == [0]


def test_equal_radii_are_not_above_and_nan_is_an_error() -> None:
    assert part_above_whole(torch.tensor([1.0, 0.5]), torch.tensor([1.0, 1.0])).value == 0.5
    with pytest.raises(ValueError, match="radius of a whole is not a number"):
        part_above_whole(torch.tensor([1.0]), torch.tensor([torch.nan]))
    with pytest.raises(ValueError, match=r"in pairs, got \(2,\) and \(1,\)"):
        part_above_whole(torch.ones(2), torch.ones(1))


def test_prompt_sets_are_pinned_by_content() -> None:
    """A change of any template moves published numbers: then the name must change, too."""
    own = [name for name in TEMPLATES if not name.startswith("openai:")]  # those are clip_benchmark's
    hashes = {name: hash_lines(TEMPLATES[name]()) for name in own}
    assert hashes == {
        "name": "44136fa355b3678a",
        "official:cub": "7083837b1ff9b2b8",
        "official:flowers102": "8187303f947578ac",
        "official:food101": "158ebd679421bec6",
        "openai": "4f976686fb651bb5",
        "photo": "e8e367e769f86c27",
        "plain": "7647dbc5f7897cc9",
    }
    assert len(TEMPLATES["openai"]()) == 80
    assert all(template.count("{}") == 1 for name in own for template in TEMPLATES[name]())


def test_prompts_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("a {} here.\n\nsome {}.\n")
    assert read_templates(str(file)) == ("a {} here.", "some {}.")
    file.write_text("a {}.\nno place\n")
    with pytest.raises(ValueError, match=r"mine\.txt:2: a template holds \{\} exactly once"):
        read_templates(str(file))
    file.write_text("\n")
    with pytest.raises(ValueError, match="no template in this file"):
        read_templates(str(file))
    with pytest.raises(ValueError, match=r"unknown prompt set 'fhoto'\. Did you mean 'photo'\?"):
        read_templates("fhoto")
    for path in ("prompts/mine", "mine.txt"):
        with pytest.raises(FileNotFoundError, match=f"prompt file {path} does not exist"):
            read_templates(path)


@pytest.mark.parametrize(
    ("published", "note"), [(3, []), (4, ["3 of the 4 published captions of listed: not comparable"])]
)
def test_a_set_with_other_captions_than_published_is_not_comparable(published, note, stub, tokenizer, listed, image_of):
    samples = listed([image_of(RED, texts=["red", "reddish"]), image_of(GREEN, texts=["green"])])
    samples.expected, samples.expected_captions = 2, published
    model = stub({**UNIT, "reddish": [1, 0, 0]})
    assert run("retrieval", model, tokenizer, samples).notes == note
    assert run("retrieval", model, tokenizer, samples, captions="first").notes == []
