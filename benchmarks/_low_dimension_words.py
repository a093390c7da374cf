"""The nouns of WordNet as a table of tangent vectors: ancestors are the texts of MERU, their descendants the images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from _low_dimension import Embedding, starting_log_scale
from torch import Tensor, nn

from hyvlm.evaluation.taxonomy import Taxonomy
from hyvlm.evaluation.tree_metrics import ancestor_precision, distance_correlation, parent_errors
from hyvlm.geometry import Euclidean, Lorentz
from hyvlm.types import Views

BATCH = 256
#: Share of the ancestors that are no parents, held out of training (drawn anew with every seed).
HELD_OUT = 0.5


@dataclass(frozen=True)
class Nouns:
    """A rooted graph of ``child parent`` lines, and which (node, ancestor) pairs a seed holds out."""

    path: Path

    @cached_property
    def taxonomy(self) -> Taxonomy:
        return Taxonomy.read(self.path)

    @cached_property
    def ancestors(self) -> np.ndarray:
        return self.taxonomy.ancestors()

    @cached_property
    def path_lengths(self) -> np.ndarray:
        return self.taxonomy.path_lengths()

    def held_out(self, seed: int) -> np.ndarray:
        """``(nodes, nodes)`` bool; parents are never held out (Nickel and Kiela 2017; Ganea et al. 2018)."""
        indirect = self.ancestors.copy()
        for node, parents in enumerate(self.taxonomy.parents):
            indirect[node, parents] = False
        return indirect & (np.random.default_rng(seed).random(indirect.shape) < HELD_OUT)

    def embedding(self, dim: int, manifold: Lorentz | Euclidean, seed: int) -> Embedding:
        return NounTable(self, dim, manifold, seed)


class NounTable(Embedding):
    """A tangent vector for every noun; a batch is pairs of a noun and one of its ancestors that are not held out."""

    objective = "meru"

    def __init__(self, nouns: Nouns, dim: int, manifold: Lorentz | Euclidean, seed: int) -> None:
        super().__init__(manifold)
        self.nouns = nouns
        self.table = nn.Embedding(len(nouns.taxonomy.nodes), dim)
        self.log_scale = starting_log_scale(dim)
        self.held_out = nouns.held_out(seed)
        self.pairs = torch.from_numpy(np.argwhere(nouns.ancestors & ~self.held_out))

    def points(self, at: Tensor) -> Tensor:
        return self.manifold.lift(self.table(at) * self.log_scale.exp())

    def views(self, draws: torch.Generator) -> Views:
        pairs = self.pairs[torch.randint(len(self.pairs), (BATCH,), generator=draws)]
        return Views.single(image=self.points(pairs[:, 0]), text=self.points(pairs[:, 1]))

    def measure(self) -> dict[str, float]:
        nouns = self.nouns
        points = self.points(torch.arange(self.table.num_embeddings))
        distances = self.distances(points, points)
        others = ~np.eye(len(points), dtype=bool)
        not_trained = others & ~(nouns.ancestors & ~self.held_out)
        scores = {}
        for by, ranking in {"score": -distances, "cone": self.cone_margins(points, points)}.items():
            precision = ancestor_precision(ranking, nouns.ancestors, candidates=others)
            held_out = ancestor_precision(ranking, self.held_out, candidates=not_trained)
            scores |= {f"map_{by}": 100 * np.nanmean(precision), f"map_{by}_held_out": 100 * np.nanmean(held_out)}
        correlation = distance_correlation(distances, nouns.path_lengths)
        below = [node for node, parents in enumerate(nouns.taxonomy.parents) if parents]
        parents = [nouns.taxonomy.parents[node] for node in below]
        errors = parent_errors(-distances[below], parents, nouns.path_lengths, candidates=others[below])
        scores |= {"pearson": correlation.pearson, "spearman": correlation.spearman, "tie": errors.edges.mean()}
        return {name: float(value) for name, value in scores.items()} | self.where(points)
