"""The built-in scenes through one frozen pair of towers: HyCoCLIP's objective trains projections to few dimensions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from _low_dimension import Embedding, starting_log_scale
from torch import Tensor, nn

from hyvlm.config import load_config
from hyvlm.data.catalog import open_data
from hyvlm.evaluation import Embedder, EmbeddingCache
from hyvlm.evaluation.metrics import classify
from hyvlm.evaluation.taxonomy import HierarchicalMetrics, Taxonomy
from hyvlm.evaluation.tree_metrics import ancestor_precision, distance_correlation
from hyvlm.geometry import Euclidean, Lorentz
from hyvlm.models import load
from hyvlm.training.sweep import run_once
from hyvlm.types import Views

BATCH = 128
TRAIN = "scenes:4000"
TOWERS = (
    "clip-tiny",
    [
        "objective.parts=true",
        f"data.train={TRAIN}",
        "data.caption=random",  # from two kinds of things to all that is known: names of every level occur
        "data.parts={max: 3, choice: random}",
        "train.steps=600",
        "eval=[{task: classification, data: scenes, split: test, templates: plain, image_size: 32}]",
    ],
)


@dataclass(frozen=True)
class Scenes:
    """Features of scenes, their captions, parts and phrases, and of the classes, from towers trained in ``folder``."""

    folder: Path

    def prepare(self) -> float:
        """Train the towers and compute all features unless that is done; the seconds that it took."""
        started = time.monotonic()
        _ = self.train, self.test  # computed at their first use, and kept
        taken = self.folder / "seconds.txt"
        if not taken.is_file():
            taken.write_text(f"{time.monotonic() - started:.1f}\n", encoding="utf-8")
        return float(taken.read_text(encoding="utf-8"))

    @cached_property
    def towers(self) -> Embedder:
        """Towers of a CLIP on the sphere: neither geometry that is compared has had a part in them."""
        recipe, overrides = TOWERS
        run_once(load_config(recipe, overrides), self.folder / "towers")
        model, _, tokenizer = load(self.folder / "towers")
        return Embedder(model, tokenizer, EmbeddingCache(self.folder / "features"))

    @cached_property
    def train(self) -> dict[str, Tensor]:
        """Features of the training set; ``captions`` ``(N, 4, W)``, ``first`` the first part of each scene."""
        samples = open_data(TRAIN, split="train")
        images = self.towers.images(samples, image_size=48, parts=True, part_size=32)
        captions = [text for annotation in images.annotations for text in annotation.texts]
        phrases = [text for annotation in images.annotations for text in annotation.part_texts]
        count = torch.bincount(images.part_owner)
        return {
            "image": images.points,
            "captions": self.towers.texts(captions).unflatten(0, (len(images.points), -1)),
            "part_image": images.part_points,
            "part_text": self.towers.texts(phrases),
            "parts": count,
            "first": count.cumsum(0) - count,
        }

    @cached_property
    def test(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features and leaf classes of crops of single objects, and features of the names of all classes."""
        samples = open_data("scenes", split="test", content="classes")
        crops = self.towers.images(samples, image_size=32)
        labels = torch.tensor([annotation.labels[0] for annotation in crops.annotations])
        return crops.points, labels, self.towers.texts([f"a {name}" for name in self.taxonomy.nodes])

    @cached_property
    def taxonomy(self) -> Taxonomy:
        samples = open_data("scenes", split="test", content="classes")
        return Taxonomy.from_parents(samples.parents or {})

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        return open_data("scenes", split="test", content="classes").classes

    @cached_property
    def errors(self) -> HierarchicalMetrics:
        return HierarchicalMetrics(self.taxonomy, self.leaves)

    def embedding(self, dim: int, manifold: Lorentz | Euclidean, seed: int) -> Embedding:
        return SceneProjections(self, dim, manifold)


class SceneProjections(Embedding):
    """A linear projection and a scale each for images and texts; a batch is scenes with one caption and one part."""

    objective = "hycoclip"

    def __init__(self, scenes: Scenes, dim: int, manifold: Lorentz | Euclidean) -> None:
        super().__init__(manifold)
        self.scenes = scenes
        width = scenes.train["image"].shape[1]
        self.image_projection = nn.Linear(width, dim, bias=False)
        self.text_projection = nn.Linear(width, dim, bias=False)
        for projection in (self.image_projection, self.text_projection):
            nn.init.normal_(projection.weight)  # features have unit length: the results get standard normal entries
        self.image_log_scale, self.text_log_scale = starting_log_scale(dim), starting_log_scale(dim)

    def images(self, features: Tensor) -> Tensor:
        return self.manifold.lift(self.image_projection(features) * self.image_log_scale.exp())

    def texts(self, features: Tensor) -> Tensor:
        return self.manifold.lift(self.text_projection(features) * self.text_log_scale.exp())

    def views(self, draws: torch.Generator) -> Views:
        train = self.scenes.train
        at = torch.randint(len(train["image"]), (BATCH,), generator=draws)
        level = torch.randint(train["captions"].shape[1], (BATCH,), generator=draws)
        part = train["first"][at] + (torch.rand(BATCH, generator=draws) * train["parts"][at]).long()
        return Views.single(
            image=self.images(train["image"][at]),
            text=self.texts(train["captions"][at, level]),
            part_image=self.images(train["part_image"][part]),
            part_text=self.texts(train["part_text"][part]),
            owner=torch.arange(BATCH),
        )

    def measure(self) -> dict[str, float]:
        scenes, taxonomy = self.scenes, self.scenes.taxonomy
        crop_features, labels, name_features = scenes.test
        crops, names = self.images(crop_features), self.texts(name_features)
        leaf = torch.tensor([taxonomy.index[name] for name in scenes.leaves])
        above = taxonomy.ancestors()
        above[leaf, leaf] = True  # a crop lies below its leaf class, too
        wanted = above[leaf[labels]]
        rankings = {"score": -self.distances(crops, names), "cone": self.cone_margins(names, crops)}
        scores = {f"map_{by}": 100 * ancestor_precision(r, wanted).mean() for by, r in rankings.items()}
        correlation = distance_correlation(self.distances(names, names), taxonomy.path_lengths())
        predictions = classify(self.manifold.similarity, crops, names[leaf], labels)
        tie = scenes.errors.means(predictions.predicted.numpy(), labels.numpy())["tie"]
        scores |= {"pearson": correlation.pearson, "spearman": correlation.spearman, "tie": tie}
        scores["accuracy"] = 100 * predictions.accuracy()
        return {name: float(value) for name, value in scores.items()} | self.where(torch.cat([crops, names]))
