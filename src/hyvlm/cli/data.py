"""``hyvlm data``: describe training data, and make it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hyvlm.cli.options import Out, Split

data_app = typer.Typer(help="Prepare and describe training data.", no_args_is_help=True)


@data_app.command("stats")
def stats(
    data: Annotated[str, typer.Argument(metavar="DATA", help="NAME or NAME:LOCATION of data with parts")],
    split: Split = None,
    cap: Annotated[int | None, typer.Option("--cap", min=1, help="Cap that the figure marks")] = None,
    out: Out = None,
) -> None:
    """Count the parts of every sample: their distribution, and what a cap on them keeps."""
    from functools import partial

    from hyvlm.data.stats import scan_parts
    from hyvlm.evaluation.embed import progress
    from hyvlm.files import check_folder

    if out:
        check_folder(out, "the folder for statistics")
    found = scan_parts(data, split, show=partial(progress, what=f"parts of {data}", unit="sample"))
    report = json.dumps(found.to_dict(), indent=2)
    print(report)
    if out:
        from hyvlm.plotting.figures import save
        from hyvlm.plotting.part_counts import part_counts_figure

        for path in save({"png": part_counts_figure(found, cap=cap), "json": report + "\n"}, out, "part-counts"):
            print(f"written: {path}", file=sys.stderr)


@data_app.command("prepare")
def prepare(
    layout: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="cifar10, food101, ...: downloaded to OUT; grit: raw GRIT (shards, or parquet + images); "
            "cc3m-gligen: CC3M with GLIGEN's boxes (its .tsv files)",
        ),
    ],
    source: Annotated[str, typer.Argument(metavar="[SOURCE]", help="Raw data: shard pattern, parquet or .tsv files")],
    out: Annotated[Path | None, typer.Argument(metavar="OUT", help="Folder for what is made")] = None,
    images: Annotated[Path | None, typer.Option("--images", help="grit: folder of a parquet file's images")] = None,
    size: Annotated[int, typer.Option("--size", min=1, help="Short side of what is written, in pixels")] = 256,
    square: Annotated[bool, typer.Option("--square", help="Pad to a white square, as the released shards are")] = False,
    max_parts: Annotated[int | None, typer.Option("--max-parts", min=0, help="Parts of an image at the most")] = None,
    max_dropped: Annotated[float, typer.Option("--max-dropped", help="Share of dropped rows that is an error")] = 0.5,
) -> None:
    """Download a data set, or turn raw grounded data into processed shards. Rerun after an interruption."""
    from hyvlm.data.download import SOURCES, download
    from hyvlm.data.prepare import PREPARERS
    from hyvlm.files import check_folder
    from hyvlm.registry import unknown

    if layout not in PREPARERS and layout not in SOURCES:
        raise ValueError(unknown("data set or layout of raw data", layout, [*SOURCES, *PREPARERS]))
    if (out is None) != (layout in SOURCES):
        wanted = "OUT" if layout in SOURCES else "SOURCE OUT"
        raise ValueError(f"wrong number of arguments; right would be: hyvlm data prepare {layout} {wanted}")
    if out is None:
        print(download(layout, source))
        return
    if images is not None and layout == "cc3m-gligen":
        raise ValueError("prepare cc3m-gligen: the images are in the .tsv files; leave --images out")
    check_folder(out, "the folder for shards", ["report.json"])
    folder = {} if images is None else {"images": images}
    report = PREPARERS[layout](
        source, out, size=size, square=square, max_parts=max_parts, max_dropped=max_dropped, **folder
    )
    print(json.dumps(report, indent=2))
