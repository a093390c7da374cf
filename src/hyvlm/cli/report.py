"""``hyvlm report``: a page to look around in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyvlm.cli.options import BatchSize, Device, Out, Resize, Split, Workers


def report(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a checkpoint or a saved model")],
    data: Annotated[str, typer.Option("--data", "--dataset", help="NAME or NAME:LOCATION, images with captions")],
    split: Split = None,
    limit: Annotated[int, typer.Option("--limit", help="Images, at the most")] = 10_000,
    results: Annotated[
        list[Path] | None, typer.Option("--results", help="A results.json of hyvlm eval to print; repeatable")
    ] = None,
    captions: Annotated[str, typer.Option("--captions", help="Text of an image: first, last or joined")] = "first",
    resize: Resize = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the map's layout")] = 0,
    device: Device = None,
    batch_size: BatchSize = 64,
    num_workers: Workers = 2,
    out: Out = None,
) -> None:
    """Write one page with a map to look around in, radii, parts and wholes, traversals and results."""
    from hyvlm.plotting.report_page import write_report

    path = write_report(
        model,
        data,
        out or Path("report"),
        split=split,
        limit=limit,
        results=results or (),
        captions=captions,
        resize=resize,
        seed=seed,
        device=device,
        batch_size=batch_size,
        workers=num_workers,
    )
    print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
