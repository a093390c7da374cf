"""Class taxonomies and the hierarchical metrics of a predicted and a true class, as tables over all pairs of classes.

The definitions are those of the released HyCoCLIP and UNCHA evaluation; their papers describe LCA in two other ways,
which have names of their own here. The graph may be any rooted DAG; every edge has length 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

#: Hierarchical metrics by name: unit, and whether higher is better.
HIERARCHICAL = {
    "tie": ("edges", False),
    "lca_released": ("edges", False),
    "jaccard": ("", True),
    "precision": ("", True),
    "recall": ("", True),
    "lca_height": ("edges", False),
    "lca_path_sum": ("edges", False),
}

#: Name of the root that joins the trees of a data set's own taxonomy, if there are several.
JOINING_ROOT = "(root)"


class Taxonomy:
    """A rooted directed acyclic graph of class names.

    Args:
        edges: ``(child, parent)`` pairs; a child may have several parents. Repeated pairs count once.

    Attributes:
        nodes: Names, parents before their children.
        joined_roots: Roots that :meth:`from_parents` joined by one above them; none if there was one root.
    Raises:
        ValueError: If there is no edge, an edge closes a cycle, or there is more than one root.
    """

    def __init__(self, edges: Iterable[tuple[str, str]]) -> None:
        self.edges = sorted(set(edges))
        self.joined_roots: tuple[str, ...] = ()
        if not self.edges:
            raise ValueError("a hierarchy needs at least one 'child parent' edge")
        parents: dict[str, list[str]] = {}
        for child, parent in self.edges:
            parents.setdefault(child, []).append(parent)
        try:
            self.nodes = tuple(TopologicalSorter(parents).static_order())  # parents come before their children
        except CycleError as error:
            raise ValueError(f"the hierarchy has a cycle: {' -> '.join(error.args[1])}") from None
        self.index = {name: i for i, name in enumerate(self.nodes)}
        self.parents = [[self.index[p] for p in parents.get(name, [])] for name in self.nodes]
        roots = [name for name in self.nodes if name not in parents]
        if len(roots) > 1:
            raise ValueError(
                f"the hierarchy has {len(roots)} roots ({', '.join(map(repr, sorted(roots)[:3]))}...): "
                "add one that joins them"
            )

    @classmethod
    def from_parents(cls, parents: Mapping[str, str], classes: Sequence[str] = ()) -> Taxonomy:
        """A tree from child name to parent name; several trees are joined by :data:`JOINING_ROOT` above their roots.

        One of ``classes`` that is neither a child nor a parent is a tree of its own, as COCO's "person" is.
        """
        names = dict.fromkeys([*parents.values(), *classes])
        roots = [name for name in names if name not in parents]
        if len(roots) < 2:
            return cls(parents.items())
        taxonomy = cls([*parents.items(), *((root, JOINING_ROOT) for root in roots)])
        taxonomy.joined_roots = tuple(sorted(roots))
        return taxonomy

    @classmethod
    def read(cls, path: str | Path) -> Taxonomy:
        """Read ``child parent`` lines, a tab (for names with spaces) or blanks between; ``#`` starts a comment."""
        edges = []
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            names = [part.strip() for part in (line.split("\t") if "\t" in line else line.split())]
            if len(names) != 2 or not all(names):
                raise ValueError(
                    f"{path}:{number}: expected 'child parent' (a tab between names with spaces), got {line!r}"
                )
            edges.append((names[0], names[1]))
        return cls(edges)

    @property
    def fingerprint(self) -> str:
        """Hash of the edges."""
        return hashlib.sha256("\n".join(f"{c}\t{p}" for c, p in self.edges).encode()).hexdigest()[:16]

    def check_classes(self, classes: Sequence[str]) -> None:
        """Raise ValueError if one of ``classes`` is not in the taxonomy."""
        missing = [name for name in classes if name not in self.index]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(classes)} classes are not in the hierarchy "
                f"({', '.join(map(repr, missing[:3]))}): it must name every class as the data set does"
            )

    def ancestors(self) -> np.ndarray:
        """``(nodes, nodes)`` bool: ``[i, j]`` says that j is a proper ancestor of i."""
        above = np.zeros((len(self.nodes), len(self.nodes)), dtype=bool)
        for i, parents in enumerate(self.parents):
            for p in parents:
                above[i] |= above[p]
                above[i, p] = True
        return above

    def path_lengths(self, sources: np.ndarray | None = None) -> np.ndarray:
        """Edges on the shortest path from every source to every node, ``(sources, nodes)`` float64.

        Edges count either way; in a DAG a path may run through a common descendant.

        Args:
            sources: ``(S,)`` places in :attr:`nodes`; None is all of them.
        """
        at = np.arange(len(self.nodes)) if sources is None else sources
        child, parent = np.array([(self.index[c], self.index[p]) for c, p in self.edges]).T
        graph = csr_array((np.ones(len(child)), (child, parent)), shape=(len(self.nodes),) * 2)
        distinct, position = np.unique(at, return_inverse=True)
        return shortest_path(graph, method="D", directed=False, unweighted=True, indices=distinct)[position]

    def steps_up(self, sources: np.ndarray) -> np.ndarray:
        """``(nodes, sources)`` float64: fewest edges from each source up to each node; inf where it is not above."""
        steps = np.full((len(self.nodes), len(sources)), np.inf)
        steps[sources, np.arange(len(sources))] = 0
        for i in reversed(range(len(self.nodes))):
            for p in self.parents[i]:
                np.minimum(steps[p], steps[i] + 1, out=steps[p])
        return steps

    def depths(self) -> np.ndarray:
        """``(nodes,)``: fewest edges from each node up to the root."""
        depth = np.zeros(len(self.nodes), dtype=np.int64)
        for i, parents in enumerate(self.parents):
            depth[i] = min((depth[p] + 1 for p in parents), default=0)
        return depth

    def heights(self) -> np.ndarray:
        """``(nodes,)``: edges from each node down to its deepest leaf."""
        height = np.zeros(len(self.nodes), dtype=np.int64)
        for i in reversed(range(len(self.nodes))):
            for p in self.parents[i]:
                height[p] = max(height[p], height[i] + 1)
        return height


class HierarchicalMetrics:
    """Every metric of :data:`HIERARCHICAL` for every (predicted, true) pair of ``classes``.

    With A(x) the proper ancestors of x, the root included and x itself not:

    - ``tie``: edges on the shortest undirected path between the two; in a DAG it may run through a common descendant.
    - ``lca_released``: |A(pred)| - |A(pred) ∩ A(true)| + 1, asymmetric and 1 for a right prediction.
    - ``jaccard``, ``precision``, ``recall``: |A(pred) ∩ A(true)| over the union, |A(pred)| and |A(true)|. Siblings
      get 1, as a right prediction does; where the divisor is 0 (a class that is the root) the value is 1.
    - ``lca_height``: edges from the deepest common ancestor (a class may be its own) down to its deepest leaf: the
      wording of papers that follow HyCoCLIP.
    - ``lca_path_sum``: edges from it to pred plus edges to true, the wording of UNCHA. Of several deepest ones the
      smallest value counts.

    Attributes:
        tables: Metric name to ``(C, C)`` float64, rows predicted, columns true.

    Raises:
        ValueError: If a class is not in the taxonomy.
    """

    def __init__(self, taxonomy: Taxonomy, classes: Sequence[str]) -> None:
        taxonomy.check_classes(classes)
        at = np.array([taxonomy.index[name] for name in classes])
        up = taxonomy.steps_up(at)
        above = (np.isfinite(up) & (up > 0)).T.astype(np.float32)  # (C, nodes); counts up to 2**24 are exact
        above = above[:, above.any(0)]
        common = (above @ above.T).astype(np.float64)
        size = above.sum(1, dtype=np.float64)
        tables = {
            "tie": taxonomy.path_lengths(at)[:, at],
            "lca_released": size[:, None] - common + 1,
            "jaccard": _ratio(common, size[:, None] + size[None, :] - common),
            "precision": _ratio(common, np.broadcast_to(size[:, None], common.shape)),
            "recall": _ratio(common, np.broadcast_to(size[None, :], common.shape)),
            **_lca_tables(taxonomy, up),
        }
        self.tables = {name: np.ascontiguousarray(table) for name, table in tables.items()}

    def rows(self, predicted: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
        """Every metric of every prediction, ``(N,)`` each; arguments hold class indices."""
        classes = len(self.tables["tie"])
        pair = np.ravel_multi_index((predicted, target), (classes, classes))
        return {name: table.ravel()[pair] for name, table in self.tables.items()}  # one index: half the time of two

    def means(self, predicted: np.ndarray, target: np.ndarray) -> dict[str, float]:
        """Every metric, averaged over the predictions."""
        return {name: float(values.mean()) for name, values in self.rows(predicted, target).items()}


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.ones_like(part), where=whole > 0)


def _lca_tables(taxonomy: Taxonomy, up: np.ndarray) -> dict[str, np.ndarray]:
    """Sweep over the nodes from the root down: below each, its values replace those of shallower common ancestors."""
    depth, height = taxonomy.depths(), taxonomy.heights()
    count = up.shape[1]
    lowest, score = np.zeros((count, count)), np.full((count, count), -np.inf)
    unit = 2 * len(taxonomy.nodes)  # more than any path has edges: a score is higher where depth is, then path shorter
    for node in np.lexsort((-height, depth)):  # of equally deep ones the lowest comes last
        below = np.flatnonzero(np.isfinite(up[node]))
        pairs = np.ix_(below, below)
        length = up[node, below][:, None] + up[node, below][None, :]
        lowest[pairs] = height[node]
        score[pairs] = np.maximum(score[pairs], depth[node] * unit - length)
    return {"lca_height": lowest, "lca_path_sum": np.ceil(score / unit) * unit - score}
