"""``hyvlm index``: make a collection fast to search, or hand it to a vector store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def index(
    collection: Annotated[Path, typer.Argument(metavar="COLLECTION", help="A folder that hyvlm embed wrote")],
    kind: Annotated[
        str, typer.Option("--kind", help="exact: one pass finds the best; ivf or hnsw: approximate, by FAISS")
    ] = "exact",
    group: Annotated[str, typer.Option("--group", help="images, texts or both")] = "both",
    to: Annotated[
        str | None, typer.Option("--to", help="lancedb:DIR writes a table for each group there instead")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Where the model is now, if it has moved")] = None,
) -> None:
    """Index the points of a collection for search."""
    from hyvlm.registry import unknown
    from hyvlm.retrieval.approximate import KINDS, ApproximateIndex
    from hyvlm.retrieval.collection import GROUPS, Collection
    from hyvlm.retrieval.index import write_prepared

    if group not in (*GROUPS, "both"):
        raise ValueError(unknown("group", group, [*GROUPS, "both"]))
    if kind not in ("exact", *KINDS):
        raise ValueError(unknown("kind of index", kind, ["exact", *KINDS]))
    opened = Collection.open(collection)
    groups = [name for name in GROUPS if name in opened.manifest["groups"]] if group == "both" else [group]
    for name in groups:
        opened.group(name)
    loaded = opened.load_model(model)[0]
    if to is not None:
        from hyvlm.integrations.vector_stores import export, store_folder

        folder = store_folder(to)
        for name in groups:
            print(f"{name}: {export(opened, loaded, folder, group=name):,} rows in lancedb:{folder}")
        return
    for name in groups:
        if kind == "exact":
            path = write_prepared(opened, loaded, name)
        else:
            path = ApproximateIndex.write(opened, loaded, name, "ivf" if kind == "ivf" else "hnsw")
        print(f"index: {path} ({kind}, {len(opened.group(name)):,} {name})")
