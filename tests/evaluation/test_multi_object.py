"""Linear classifiers on frozen features, against scikit-learn itself and worlds where the answer is known."""

import os
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from hyvlm.data import open_data
from hyvlm.evaluation import TASKS
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.tasks import multi_object
from hyvlm.evaluation.tasks.multi_object import probe
from hyvlm.geometry import Lorentz, Sphere
from hyvlm.types import BadSample

CLASSES = ["red", "green", "blue"]
EVERY = np.ones((60, 3), dtype=bool)


def run(model, tokenizer, samples, **settings):
    task = TASKS["multi-object"](**settings)
    task.check(model, samples)
    return task.run(Embedder(model, tokenizer), samples)


def scenes(listed, image_of, copies: int = 20, sizes=(1, 2), **more):
    """Images whose colour is the sum of those of their objects, each a little different."""
    items = [
        image_of(tuple(200 + i if k in objects else i for k in range(3)), labels=list(objects))
        for size in sizes
        for objects in combinations(range(3), size)
        for i in range(copies)
    ]
    return listed(items, classes=CLASSES, **more)


def random_problem(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(60, 5))
    positive = features @ rng.normal(size=(5, 3)) + rng.normal(size=(60, 3)) > 0.5
    return features, positive


def test_a_probe_is_scikit_learn_class_by_class() -> None:
    features, positive = random_problem()
    result = probe(features, positive, EVERY, seed=3)
    order = np.random.default_rng(3).permutation(60)
    test, train = order[:12], order[12:]
    low, spread = features[train].mean(0), features[train].std(0)
    scaled = (features - low) / spread
    expected = []
    for k in range(3):
        fitted = LogisticRegression(C=1.0, max_iter=1000).fit(scaled[train], positive[train, k])
        expected.append(average_precision_score(positive[test, k], fitted.decision_function(scaled[test])))
    assert result.average_precision == pytest.approx(expected)
    assert result.mean == pytest.approx(np.mean(expected))
    assert result.chance == pytest.approx(positive[test].mean())
    assert (result.train, result.test, result.classes) == (48, 12, 3)


def test_a_probe_measures_classes_with_positives_on_both_sides() -> None:
    features, positive = random_problem()
    positive[:, 0] = True  # no negative to train on
    positive[:, 1] = False
    result = probe(features, positive, EVERY, seed=0)
    assert np.isnan(result.average_precision).tolist() == [True, True, False]
    positive[:, 2] = False
    nothing = probe(features, positive, EVERY, seed=0)
    assert (nothing.classes, nothing.facts()["chance_percent"]) == (0, None)


def test_entries_that_do_not_count_are_not_ranked() -> None:
    features, positive = random_problem()
    test = np.random.default_rng(0).permutation(60)[:12]
    wrong = [i for i in test if not positive[i, 0]][:4]
    valid = EVERY.copy()
    valid[wrong, 0] = False
    better, all_of_them = (probe(features, positive, v, seed=0).average_precision[0] for v in (valid, EVERY))
    assert better > all_of_them


def test_objects_that_can_be_told_apart_linearly_are(stub, tokenizer, listed, image_of) -> None:
    samples = scenes(listed, image_of)
    outcome = run(stub({}, Lorentz(c=2.0)), tokenizer, samples)
    assert outcome.scores == pytest.approx(
        {
            "mean_average_precision_1_objects": 100,
            "mean_average_precision_2_objects": 100,
            "mean_average_precision": 100,
        }
    )
    assert (outcome.n, outcome.total) == (120, 120)
    facts = outcome.details["by_number_of_objects"]
    assert {n: (one["train"], one["test"], one["classes"]) for n, one in facts.items()} == {
        "1": (48, 12, 3),
        "2": (48, 12, 3),
    }
    assert facts["1"]["chance_percent"] == pytest.approx(100 / 3)
    assert facts["2"]["chance_percent"] == pytest.approx(200 / 3)
    assert "LogisticRegression" in outcome.details["classifier"]


@pytest.mark.parametrize(("manifold", "expected"), [(Lorentz(c=2.0), "logmap0"), (Sphere(), "points")])
def test_tangent_features(manifold, expected, stub, tokenizer, listed, image_of, monkeypatch) -> None:
    seen = {}

    def watch(features, *rest, **more):
        seen[len(features)] = features
        return probe(features, *rest, **more)

    monkeypatch.setattr(multi_object, "probe", watch)
    model, samples = stub({}, manifold), scenes(listed, image_of, sizes=(1,))
    run(model, tokenizer, samples)
    points = Embedder(model, tokenizer).images(samples).points
    vectors = manifold.logmap0(points) if expected == "logmap0" else points
    assert seen[60] == pytest.approx(vectors.detach().double().numpy())


def test_tower_features_are_those_before_the_projection(stub, tokenizer, listed, image_of, monkeypatch) -> None:
    """A model whose points say nothing, while its tower knows the colours: only the tower's features tell classes."""

    class Narrow(stub):
        def encode_image(self, pixels):
            return super().encode_image(pixels) * 0

        def image_outputs(self, pixels):
            return pixels.float().mean((2, 3)).repeat(1, 2), pixels.new_zeros(len(pixels), 0, 6)

    samples = scenes(listed, image_of, sizes=(1,))
    tangent, tower = (run(Narrow({}), tokenizer, samples, features=f) for f in ("tangent", "tower"))
    assert tower.scores["mean_average_precision"] == 100
    assert (tangent.details["dimensions"], tower.details["dimensions"]) == (3, 6)
    chance = tangent.details["by_number_of_objects"]["1"]["chance_percent"]
    assert tangent.scores["mean_average_precision"] == pytest.approx(chance)


def test_the_tower_shares_no_cache_with_the_points(stub, tokenizer, listed, image_of) -> None:
    class Both(stub):
        def image_outputs(self, pixels):
            return pixels.float().mean((2, 3)).repeat(1, 2), pixels.new_zeros(len(pixels), 0, 6)

    model = Both({})
    embedder, samples = Embedder(model, tokenizer), scenes(listed, image_of, sizes=(1,))
    widths = [
        TASKS["multi-object"](features=features).run(embedder, samples).details["dimensions"]
        for features in ("tangent", "tower", "tangent", "tower")
    ]
    assert widths == [3, 6, 3, 6]
    assert samples.reads == 2 * 60


def test_few_images_of_a_number_are_left_out_and_counted(stub, tokenizer, listed, image_of) -> None:
    samples = scenes(listed, image_of, sizes=(1,))
    lonely = image_of((200, 200, 200), labels=[0, 1, 2])
    more = listed([*samples.items, lonely, image_of((0, 0, 0)), BadSample("broken", "x")], classes=CLASSES)
    outcome = run(stub({}), tokenizer, more)
    assert list(outcome.scores) == ["mean_average_precision_1_objects", "mean_average_precision"]
    assert (outcome.n, outcome.total) == (60, 63)
    assert outcome.skipped == Counter({"too few images of this number of objects": 1, "no label": 1, "broken": 1})
    assert outcome.notes == [
        "classes that training or test images lack do not enter the mean, by number of objects: 3 of 3 at 3"
    ]


def test_few_test_images_are_said(stub, tokenizer, listed, image_of) -> None:
    outcome = run(stub({}), tokenizer, scenes(listed, image_of, copies=16, sizes=(1,)))
    assert outcome.notes == []
    outcome = run(stub({}), tokenizer, scenes(listed, image_of, copies=10, sizes=(1,)))
    assert outcome.notes == ["fewer than 10 test images, by number of objects: 6 at 1"]


def test_what_cannot_be_measured_is_an_error(stub, tokenizer, listed, image_of) -> None:
    with pytest.raises(ValueError, match=r"no number of objects with a class .*: 1 images with 2"):
        run(stub({}), tokenizer, listed([image_of((1, 1, 1), labels=[0, 1])], classes=CLASSES))
    with pytest.raises(ValueError, match="no class names"):
        run(stub({}), tokenizer, listed([image_of((1, 1, 1), labels=[0])]))
    with pytest.raises(ValueError, match="label 7, but the 3 classes are 0 to 2"):
        run(stub({}), tokenizer, listed([image_of((1, 1, 1), labels=[7])], classes=CLASSES))
    with pytest.raises(ValueError, match=r"unknown kind of features 'towr'\. Did you mean 'tower'"):
        TASKS["multi-object"](features="towr")
    broken = stub({})
    torch.nn.init.constant_(broken.weight, torch.nan)
    with pytest.raises(ValueError, match="features of 60 of 60 images are not numbers, first of 0"):
        run(broken, tokenizer, scenes(listed, image_of, sizes=(1,)))


def test_classifiers_that_do_not_converge_are_said(stub, tokenizer, listed, image_of, monkeypatch) -> None:
    def hurried():
        return multi_object.make_pipeline(
            multi_object.StandardScaler(), multi_object.OneVsRestClassifier(LogisticRegression(max_iter=1))
        )

    monkeypatch.setattr(multi_object, "classifier", hurried)
    outcome = run(stub({}), tokenizer, scenes(listed, image_of, sizes=(1,)))
    assert outcome.notes == ["3 classifiers did not converge"]


def test_the_seed_decides_the_split() -> None:
    features, positive = random_problem()
    first, again, other = (probe(features, positive, EVERY, seed=s).mean for s in (0, 0, 1))
    assert first == again != other


@pytest.mark.skipif("HYVLM_TEST_DATA" not in os.environ, reason="needs real photographs: HYVLM_TEST_DATA")
def test_on_real_label_sets(stub, tokenizer) -> None:
    """VOC lists each class once, so that objects are classes; a mean colour tells little, but more than chance."""
    samples = open_data(f"voc:{Path(os.environ['HYVLM_TEST_DATA']) / 'voc-mini'}", content="labels")
    outcome = run(stub({}), tokenizer, samples)
    facts = outcome.details["by_number_of_objects"]
    assert sum(one["train"] + one["test"] for one in facts.values()) == 170
    assert 100 > outcome.scores["mean_average_precision_1_objects"] > facts["1"]["chance_percent"]
