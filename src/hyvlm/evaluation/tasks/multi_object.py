"""What a frozen image encoder holds of every object of a scene: a linear classifier for each number of objects."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import sklearn
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Embedder, ImageEmbeddings
from hyvlm.evaluation.metrics import average_precision
from hyvlm.evaluation.task import TASKS, Outcome, Task, percent
from hyvlm.evaluation.tasks.multilabel import label_table
from hyvlm.geometry import Sphere
from hyvlm.models import DualEncoder
from hyvlm.registry import unknown

#: Share of the images of every number of objects that the classifier is tested on (Abbasi et al. 2025, released code).
TEST_SHARE = 0.2
#: Fewer test images than these are remarked.
FEW = 10
FEATURES = ("tangent", "tower")
#: Of the logistic regressions; the rest is scikit-learn's default (L2 penalty, L-BFGS).
SETTINGS = {"C": 1.0, "max_iter": 1000}


@TASKS.register("multi-object")
@dataclass(frozen=True, kw_only=True)
class MultiObject(Task):
    """mAP of linear classifiers on frozen image features, one for every number of objects (UNCHA, Tables 5 and S.8).

    The sets of images with 2, 3, ... objects (as many as an image has labels) are each split by chance into a training
    and a test share. A logistic regression for every class is trained on the one, and ranks the images of the other.

    Attributes:
        features: ``"tangent"``: the image's point as a tangent vector at the origin, on the sphere the point;
            ``"tower"``: the output of the image tower before its projection.
        seed: Of the split.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "labels"

    features: str = "tangent"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.features not in FEATURES:
            raise ValueError(unknown("kind of features", self.features, list(FEATURES)))

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        if not samples.classes:
            raise ValueError(f"{samples.name} has no class names, so its images have no label sets")

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        images, features = self._features(embedder, samples)
        positive, valid = label_table(images.annotations, samples)
        objects = np.array([len(annotation.labels) for annotation in images.annotations])
        sets = {
            n: probe(features[rows], positive[rows], valid[rows], seed=self.seed)
            for n in sorted(set(objects[objects > 0].tolist()))
            for rows in [np.flatnonzero(objects == n)]
        }
        measured = {n: one for n, one in sets.items() if one.classes}
        if not measured:
            raise ValueError(
                f"{samples.name} has no number of objects with a class that training and test images show: "
                f"{', '.join(f'{one.train + one.test} images with {n}' for n, one in sets.items()) or 'no labels'}"
            )
        shares = {f"mean_average_precision_{n}_objects": one.mean for n, one in measured.items()}
        shares["mean_average_precision"] = float(np.mean([one.mean for one in measured.values()]))
        used = sum(one.train + one.test for one in measured.values())
        few = Counter({"too few images of this number of objects": int((objects > 0).sum()) - used})
        return Outcome(
            scores=percent(shares),
            units=dict.fromkeys(shares, "%"),
            n=used,
            total=images.total,
            skipped=images.skipped + Counter({"no label": int((objects == 0).sum())}) + few,
            skipped_examples=images.examples,
            details={
                "by_number_of_objects": {str(n): one.facts() for n, one in sets.items()},
                "classifier": "StandardScaler, OneVsRestClassifier(LogisticRegression)",
                "classifier_settings": SETTINGS,
                "scikit_learn": sklearn.__version__,
                "test_share": TEST_SHARE,
                "dimensions": features.shape[1],
            },
            notes=self._notes(sets, len(samples.classes)),
        )

    def _features(self, embedder: Embedder, samples: SampleSet) -> tuple[ImageEmbeddings, np.ndarray]:
        """Images and their features ``(N, D)``. Raises ValueError where one is not a number."""
        if self.features == "tower":
            embedder = TowerEmbedder(**{f.name: getattr(embedder, f.name) for f in fields(Embedder)})
        images = embedder.images(samples, resize=self.resize, image_size=self.image_size)
        points = images.points
        manifold: Any = embedder.model.manifold
        if self.features == "tangent" and not isinstance(manifold, Sphere):
            with torch.no_grad():
                points = manifold.logmap0(points)
        features = points.double().cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
        if len(bad):
            raise ValueError(f"features of {len(bad)} of {len(features)} images are not numbers, first of {bad[0]}")
        return images, features

    @staticmethod
    def _notes(sets: dict[int, Probe], classes: int) -> list[str]:
        notes = []
        left_out = {n: classes - one.classes for n, one in sets.items() if one.classes < classes}
        if left_out:
            counts = ", ".join(f"{count} of {classes} at {n}" for n, count in left_out.items())
            notes.append(
                f"classes that training or test images lack do not enter the mean, by number of objects: {counts}"
            )
        few = [f"{one.test} at {n}" for n, one in sets.items() if one.classes and one.test < FEW]
        if few:
            notes.append(f"fewer than {FEW} test images, by number of objects: {', '.join(few)}")
        unfinished = sum(one.unfinished for one in sets.values())
        if unfinished:
            notes.append(f"{unfinished} classifiers did not converge")
        return notes


@dataclass
class TowerEmbedder(Embedder):
    """Gives what the image tower says before its projection, in place of points."""

    def _encode(self, pixels: Any) -> Tensor:
        return self.model.image_outputs(torch.stack(list(pixels)).to(self.device))[0].cpu()

    def _key(self, kind: str, **inputs: Any) -> dict[str, Any]:
        return super()._key(kind if kind == "annotations" else f"tower {kind}", **inputs)


@dataclass(frozen=True)
class Probe:
    """What the classifier of one set of images came to.

    Attributes:
        average_precision: ``(C,)``, NaN for a class that was not measured.
        chance: Share of positives among the test images, mean over the measured classes: the mAP of a random ranking.
        train, test: Numbers of images.
        unfinished: Classes whose logistic regression did not converge.
    """

    average_precision: np.ndarray
    chance: float
    train: int
    test: int
    unfinished: int

    @property
    def classes(self) -> int:
        """How many classes were measured."""
        return int(np.isfinite(self.average_precision).sum())

    @property
    def mean(self) -> float:
        """Mean average precision over the measured classes."""
        return float(np.nanmean(self.average_precision))

    def facts(self) -> dict[str, Any]:
        """What a reader of the mean must know."""
        return {
            "train": self.train,
            "test": self.test,
            "classes": self.classes,
            "chance_percent": 100 * self.chance if self.classes else None,
        }


def classifier() -> Pipeline:
    """Features standardised over the training images, then a logistic regression for every class."""
    return make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression(**SETTINGS)))


def probe(features: np.ndarray, positive: np.ndarray, valid: np.ndarray, *, seed: int) -> Probe:
    """Train on a random share of the images and rank the others.

    Args:
        features: ``(N, D)``.
        positive, valid: ``(N, C)`` bool: which classes an image shows, and which entries count. Training takes an entry
            that does not count for a negative one.
        seed: Of the split: images are shuffled, and the first ``TEST_SHARE``, rounded, are the test images.
    Returns:
        Measured are the classes with a positive test image and with positive and negative training images.
    """
    order = np.random.default_rng(seed).permutation(len(features))
    test, train = np.split(order, [round(TEST_SHARE * len(features))])
    precision = np.full(positive.shape[1], np.nan)
    shown = positive[train].any(axis=0) & ~positive[train].all(axis=0) & positive[test].any(axis=0)
    which = np.flatnonzero(shown)
    if not len(which):
        return Probe(precision, float("nan"), len(train), len(test), 0)
    model = classifier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(features[train], positive[train][:, which])
    scores = model.decision_function(features[test]).reshape(len(test), len(which))
    asked, counts = positive[test][:, which], valid[test][:, which]
    precision[which] = average_precision(scores, asked, valid=counts)
    chance = float((asked.sum(axis=0) / counts.sum(axis=0)).mean())
    unfinished = sum(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    return Probe(precision, chance, len(train), len(test), unfinished)
