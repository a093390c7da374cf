"""``hyvlm embed``: images and texts as points in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hyvlm.cli.options import BatchSize, Device, Resize, Split, Workers


def embed(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a checkpoint or a saved model")],
    out: Annotated[Path, typer.Option("--out", "-o", "--output", help="Folder of the collection")],
    images: Annotated[
        str | None, typer.Option("--images", help="A folder of images, .tar shards, or NAME:LOCATION")
    ] = None,
    texts: Annotated[
        str | None, typer.Option("--texts", help="A .txt, .csv, .tsv, .jsonl or .parquet file, or NAME:LOCATION")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Of the points on disk: float32 or float16")] = "float32",
    split: Split = None,
    resize: Resize = None,
    device: Device = None,
    batch_size: BatchSize = 64,
    num_workers: Workers = 2,
) -> None:
    """Embed images and texts into a folder, to be searched. Goes on where it was stopped; torchrun shares the work."""
    from hyvlm.retrieval.embed import embed as run

    collection = run(
        model,
        out=out,
        images=images,
        texts=texts,
        dtype=dtype,
        batch_size=batch_size,
        workers=num_workers,
        device=device,
        resize=resize,
        split=split,
    )
    counts = ", ".join(
        f"{info['count']:,} of {info['total']:,} {group}" for group, info in collection.manifest["groups"].items()
    )
    if os.environ.get("RANK", "0") == "0":  # of the processes of torchrun, one speaks
        print(f"collection: {collection.folder} ({counts})")
