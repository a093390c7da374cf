"""Collections in a vector store, LanceDB, and search there: candidates from the store, ranked by the model's score.

A table holds two vectors of every point, one for each kind of search that any store can do:

``tangent``   the tangent vector at the origin, for L2 (``logmap0``; on the sphere the point itself)
``inner``     the point with the coordinates that make its score an inner product, for "dot": see
              :mod:`hyvlm.retrieval.forms`; the query side has others. It is absent where a score is no inner product.

LanceDB looks at every row until an index is made on a column, so that a search by ``inner`` is exact.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hyvlm.errors import MissingExtra
from hyvlm.files import check_folder
from hyvlm.geometry import Modality
from hyvlm.models import DualEncoder
from hyvlm.retrieval.approximate import CANDIDATES, CANDIDATES_PER_HIT, tangent_vectors
from hyvlm.retrieval.blocks import BLOCK_ROWS, as_tensor
from hyvlm.retrieval.collection import Collection, Group
from hyvlm.retrieval.exact import MARGIN, ExactRows, check_finite
from hyvlm.retrieval.forms import form_of, index_form
from hyvlm.retrieval.index import made_of
from hyvlm.retrieval.search import KIND, Hits, score_name, scorer

PREFIX = "lancedb:"
MADE_OF = b"hyvlm.made_of"
VECTORS = ("tangent", "inner")
Column = Literal["inner", "tangent"]


def lancedb() -> Any:
    """The module lancedb. Raises :class:`MissingExtra`."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # it warns of every new table; read when it loads
    try:
        import lancedb as module
    except ImportError as error:
        raise MissingExtra("a vector store", "lancedb", "lancedb") from error
    return module


def store_folder(target: str) -> str:
    """The folder, or address, of ``lancedb:FOLDER``. Raises ValueError for anything else."""
    folder = target.removeprefix(PREFIX)
    if not target.startswith(PREFIX) or not folder:
        raise ValueError(f"a vector store is named lancedb:DIR, got '{target}'")
    return folder


def export(collection: Collection, model: DualEncoder, folder: str | Path, *, group: str = "images") -> int:
    """Write a group of a collection as the table of its name; an earlier table is replaced.

    Columns: ``row`` (place in the collection), ``key``, ``radius``, ``text`` (of texts), ``tangent`` and ``inner``.

    Args:
        folder: What LanceDB connects to: a folder, or an address of object storage.
    Returns:
        How many rows were written.
    Raises:
        ValueError: The collection is of another model, a point is not finite, or ``folder`` cannot be a folder.
        MissingExtra: LanceDB is not installed.
    """
    module = lancedb()
    import pyarrow as pa

    if "://" not in str(folder):
        check_folder(folder, "the vector store")
    collection.check_model(model)
    found = collection.group(group)
    form = index_form(model, KIND[group])
    dim = model.dim
    fields = [pa.field("row", pa.int64()), pa.field("key", pa.string()), pa.field("radius", pa.float32())]
    if found.texts is not None:
        fields.append(pa.field("text", pa.string()))
    fields.append(pa.field("tangent", pa.list_(pa.float32(), dim)))
    if form is not None:
        fields.append(pa.field("inner", pa.list_(pa.float32(), dim + form.extra)))
    schema = pa.schema(fields, metadata={MADE_OF: made_of(collection, group).encode()})
    batches = pa.RecordBatchReader.from_batches(schema, _batches(found, model, schema))
    table = module.connect(str(folder)).create_table(group, batches, schema=schema, mode="overwrite")
    return int(table.count_rows())


def _batches(group: Group, model: DualEncoder, schema: Any) -> Iterator[Any]:
    import pyarrow as pa

    form = index_form(model, KIND[group.name])
    device = model.pixel_mean.device
    for start in range(0, len(group), BLOCK_ROWS):
        part = slice(start, min(start + BLOCK_ROWS, len(group)))
        points = as_tensor(group.points[part], device, torch.float64)
        rows = range(part.start, part.stop)
        check_finite(points, "point", rows)
        columns: dict[str, Any] = {"row": list(rows), "key": list(group.keys[part])}
        columns["radius"] = [None] * len(rows) if group.radii is None else group.radii[part]
        if group.texts is not None:
            columns["text"] = group.texts[part]
        columns["tangent"] = _vectors(tangent_vectors(model.manifold, points))
        if form is not None:
            columns["inner"] = _vectors(form.rows(points))
        arrays = [pa.array(columns[field.name], field.type) for field in schema if field.name not in VECTORS]
        arrays += [columns[field.name] for field in schema if field.name in VECTORS]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _vectors(vectors: Tensor) -> Any:
    import pyarrow as pa

    flat = vectors.detach().float().cpu().numpy()
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])


@torch.no_grad()
def search_store(
    collection: Collection,
    model: DualEncoder,
    folder: str | Path,
    queries: Tensor,
    *,
    by: Modality,
    group: str = "images",
    k: int = 10,
    column: Column = "inner",
    where: str | None = None,
) -> Hits:
    """The best ``k`` for every query: candidates from the table of :func:`export`, ranked by the model's score.

    Args:
        queries: Points ``(Q, D)``.
        by: What the queries are.
        column: "inner" is exact while the table has no index on it; "tangent" takes candidates by L2.
        where: A filter in LanceDB's SQL, such as ``"radius <= 1.5"``.
    Raises:
        FileNotFoundError: There is no such table.
        ValueError: The table was made of another collection, or the score of these queries is no inner product.
        MissingExtra: LanceDB is not installed.
    """
    module = lancedb()
    collection.check_model(model)
    points = collection.group(group).points
    database = module.connect(str(folder))
    try:
        table = database.open_table(group)
    except ValueError as error:
        raise FileNotFoundError(
            f"no table '{group}' at lancedb:{folder}; hyvlm index --to lancedb:DIR writes it"
        ) from error
    if (table.schema.metadata or {}).get(MADE_OF) != made_of(collection, group).encode():
        raise ValueError(
            f"the table '{group}' at lancedb:{folder} was made of other {group} or by another model; write it anew "
            "with hyvlm index --to"
        )
    kind = KIND[group]
    queries = queries.detach().to(model.pixel_mean.device, torch.float64)
    check_finite(queries, "query")
    if column == "inner":
        form = form_of(model, kind, by)
        if form is None or "inner" not in table.schema.names:
            raise ValueError("this score is no inner product: search the table by its column 'tangent'")
        vectors, metric, wanted = form.queries(queries), "dot", k + MARGIN
    else:
        vectors, metric, wanted = (
            tangent_vectors(model.manifold, queries),
            "l2",
            max(CANDIDATES, CANDIDATES_PER_HIT * k),
        )
    found = torch.full((len(queries), min(wanted, len(points))), -1, dtype=torch.long)
    for number, vector in enumerate(vectors.float().cpu().numpy()):
        query = table.search(vector, vector_column_name=column).distance_type(metric).limit(found.shape[1])
        query = query.where(where, prefilter=True) if where is not None else query
        rows = query.select(["row", "_distance"]).to_arrow()["row"].to_numpy()
        found[number, : len(rows)] = torch.from_numpy(np.array(rows))
    rows, scores = ExactRows(scorer(model, kind, by), points).rank(queries, found, k)
    return Hits(rows, scores, score_name(model, kind, by))
