"""Approximate search: candidates from a FAISS index, ranked by the model's own score.

The index holds tangent vectors at the origin (``logmap0``; on the sphere the points themselves) under L2: near the
origin L2 there is the distance, and its order further out is close to that of the score. An index by inner product on
space and time components, with the time negated for the queries, is exact only if it looks at everything: as a graph
or with cells it loses many neighbours (``benchmarks/search.py`` has the numbers).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyvlm.errors import MissingExtra
from hyvlm.evaluation.embed import progress
from hyvlm.geometry import Manifold
from hyvlm.models import DualEncoder
from hyvlm.registry import unknown
from hyvlm.retrieval.blocks import as_tensor
from hyvlm.retrieval.collection import Collection
from hyvlm.retrieval.exact import Allowed, check_finite
from hyvlm.retrieval.index import new_index, read_settings, write_settings

Kind = Literal["ivf", "hnsw"]
KINDS: tuple[Kind, ...] = ("ivf", "hnsw")
#: Candidates that are taken for k results, at least.
CANDIDATES, CANDIDATES_PER_HIT = 100, 10
#: Points that are added at once, and that one file of an inverted file holds: building needs memory for one.
ADDED_AT_ONCE, PART = 2**14, 2**19
#: Points a cell that the cells are learned from (FAISS wants 39 or more), and iterations of k-means.
TRAINED_ON, ITERATIONS = 40, 10
#: Links of a point in the graph, and how wide building looks.
LINKS, EF_CONSTRUCTION = 16, 80
DEFAULT_NPROBE, DEFAULT_EF = 16, 128


def faiss() -> Any:
    """The module faiss. Raises :class:`MissingExtra`."""
    try:
        import faiss as module
    except ImportError as error:
        raise MissingExtra("approximate search", "faiss", "search") from error
    return module


@torch.no_grad()
def tangent_vectors(manifold: Manifold, points: Tensor) -> Tensor:
    """What an L2 index holds for points ``(N, D)``: ``logmap0``; on the sphere, which has none, the points."""
    logmap0 = getattr(manifold, "logmap0", None)
    return points if logmap0 is None else logmap0(points)


def cells_for(count: int) -> int:
    """Number of cells of an inverted file: near ``4 sqrt(N)``, and few enough that each learns from 39 points."""
    return max(1, min(int(4 * count**0.5), count // 39))


class ApproximateIndex:
    """An index over tangent vectors in FAISS: an inverted file of cells ("ivf"), or a graph ("hnsw").

    Attributes:
        parts: FAISS indexes; the rows of one follow those of the one before. A graph has one part; the parts of an
            inverted file share their cells.
    """

    def __init__(self, parts: Sequence[Any], kind: Kind) -> None:
        self.parts, self.kind = list(parts), kind

    def __len__(self) -> int:
        return sum(int(part.ntotal) for part in self.parts)

    @classmethod
    def build(
        cls, manifold: Manifold, points: NDArray[np.floating], kind: Kind, *, folder: Path | None = None, name: str = ""
    ) -> ApproximateIndex:
        """Index points ``(N, D)``.

        Args:
            folder: Writes the parts there, ``name.faiss``, ``name.faiss.1``, ...; those of an inverted file are let go
                from memory one by one, and mapped. None keeps all in memory.
        Raises:
            ValueError: There is no such kind; a point is not finite.
            MissingExtra: FAISS is not installed.
        """
        if kind not in KINDS:
            raise ValueError(unknown("kind of index", kind, list(KINDS)))
        library = faiss()
        count, dim = points.shape
        if kind == "hnsw":
            empty, size = library.IndexHNSWFlat(dim, LINKS), count
            empty.hnsw.efConstruction = EF_CONSTRUCTION
        else:
            cells = cells_for(count)
            empty, size = library.IndexIVFFlat(library.IndexFlatL2(dim), dim, cells), PART
            sample = np.random.default_rng(0).permutation(count)[: cells * TRAINED_ON]
            empty.cp.min_points_per_centroid = 1  # a small set is no fault
            empty.cp.max_points_per_centroid = TRAINED_ON
            empty.cp.niter = ITERATIONS
            empty.train(_vectors(manifold, points[np.sort(sample)], 0))
        parts = []
        for number, start in enumerate(range(0, count, size)):
            part = empty if kind == "hnsw" else library.clone_index(empty)
            stop = min(start + size, count)
            for at in progress(range(start, stop, ADDED_AT_ONCE), "indexing", "block"):
                part.add(_vectors(manifold, points[at : min(at + ADDED_AT_ONCE, stop)], at))
            if folder is not None:
                file = folder / _part_name(name, number)
                library.write_index(part, str(file))
                part = _read(file, kind)
            parts.append(part)
        return cls(parts, kind)

    @classmethod
    def write(cls, collection: Collection, model: DualEncoder, group: str, kind: Kind) -> Path:
        """Index a group of a collection, beside its files; raises as :meth:`build`, and if the model is another."""
        collection.check_model(model)
        points = collection.group(group).points
        settings_file = f"{group}.faiss.json"
        manifold = copy.deepcopy(model.manifold).cpu()
        with new_index(collection, settings_file) as draft:
            built = cls.build(manifold, points, kind, folder=draft, name=group)
        settings: dict[str, Any] = {"kind": kind, "vectors": "tangent vectors at the origin, L2"}
        settings["parts"] = len(built.parts)
        settings |= {"links": LINKS} if kind == "hnsw" else {"cells": cells_for(len(points))}
        write_settings(collection, group, settings_file, settings)
        return collection.folder / f"{group}.faiss"

    @classmethod
    def open(cls, collection: Collection, group: str) -> ApproximateIndex:
        """The index that :meth:`write` wrote, memory-mapped.

        Raises:
            FileNotFoundError: There is none.
            ValueError: It is damaged, or older than the collection.
            MissingExtra: FAISS is not installed.
        """
        faiss()
        settings = read_settings(collection, group, f"{group}.faiss.json")
        if settings is None:
            raise FileNotFoundError(
                f"no approximate index of the {group} of '{collection.folder}': make one with "
                f"hyvlm index {collection.folder} --kind ivf --group {group}"
            )
        files = [collection.folder / _part_name(group, number) for number in range(settings["parts"])]
        index = cls([_read(file, settings["kind"]) for file in files], settings["kind"])
        count, dim = collection.group(group).points.shape
        if (len(index), index.parts[0].d) != (count, dim):
            raise ValueError(
                f"'{files[0]}' holds {len(index)} vectors of {index.parts[0].d}, the {group} are {count} of {dim}; "
                "make it anew with hyvlm index"
            )
        return index

    def candidates(
        self,
        manifold: Manifold,
        queries: Tensor,
        k: int,
        *,
        allowed: Allowed = None,
        nprobe: int | None = None,
        ef_search: int | None = None,
    ) -> Tensor:
        """Rows that may be among the best ``k``, ``(Q, m)`` int64, -1 where fewer were found.

        Args:
            queries: Points ``(Q, D)``.
            allowed: Rows that may be found; FAISS skips all others while it looks.
            nprobe: Cells that are looked into (ivf).
            ef_search: How wide the graph is looked through (hnsw).
        Raises:
            ValueError: A setting belongs to the other kind, or is not positive.
        """
        library = faiss()
        for setting, value, kind in (("nprobe", nprobe, "ivf"), ("ef_search", ef_search, "hnsw")):
            if value is not None and (kind != self.kind or value < 1):
                raise ValueError(f"{setting} is a positive number for an index of kind {kind}; this one is {self.kind}")
        m = min(len(self), max(CANDIDATES, CANDIDATES_PER_HIT * k))
        vectors = np.ascontiguousarray(tangent_vectors(manifold, queries).float().cpu().numpy())
        found, distances, start = [], [], 0
        for part in self.parts:
            how: dict[str, Any] = {}
            if allowed is not None:
                bits = np.packbits(allowed[start : start + part.ntotal], bitorder="little")  # not copied there
                how["sel"] = library.IDSelectorBitmap(bits)
            if self.kind == "ivf":
                how["nprobe"] = min(nprobe or DEFAULT_NPROBE, part.nlist)
                parameters = library.SearchParametersIVF(**how)
            else:
                how["efSearch"] = max(ef_search or DEFAULT_EF, m)
                parameters = library.SearchParametersHNSW(**how)
            far, rows = part.search(vectors, m, params=parameters)
            found.append(np.where(rows < 0, -1, rows + start))
            distances.append(np.where(rows < 0, np.inf, far))
            start += part.ntotal
        rows, far = torch.from_numpy(np.hstack(found)), torch.from_numpy(np.hstack(distances))
        return rows.gather(1, far.topk(m, largest=False).indices)


def _part_name(name: str, number: int) -> str:
    return f"{name}.faiss" + (f".{number}" if number else "")


def _read(file: Path, kind: Kind) -> Any:
    """A part, its vectors memory-mapped. Raises ValueError if it is damaged, FileNotFoundError if it is missing."""
    library = faiss()
    if not file.is_file():
        raise FileNotFoundError(f"'{file}' is missing; make it anew with hyvlm index")
    try:
        return library.read_index(str(file), library.IO_FLAG_MMAP_IFC if kind == "hnsw" else library.IO_FLAG_MMAP)
    except RuntimeError as error:
        raise ValueError(f"'{file}' is cut short or no FAISS index; make it anew with hyvlm index") from error


def _vectors(manifold: Manifold, points: NDArray[np.floating], start: int) -> NDArray[np.float32]:
    block = as_tensor(points, "cpu")
    check_finite(block, "point", range(start, start + len(block)))
    vectors: NDArray[np.float32] = np.ascontiguousarray(tangent_vectors(manifold, block).numpy())
    return vectors
