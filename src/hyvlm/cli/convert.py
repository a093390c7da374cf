"""``hyvlm convert``: a released checkpoint as a model folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="A file of released weights, its name (hyvlm list models), or any model")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for model.safetensors and config.json; new")],
    layout: Annotated[
        str | None, typer.Option("--layout", help="Whose file it is, if its keys do not tell: atmg, meru, ...")
    ] = None,
    image_heads: Annotated[int | None, typer.Option("--image-heads", min=1, help="Of an unusual image tower")] = None,
    text_heads: Annotated[int | None, typer.Option("--text-heads", min=1, help="Of an unusual text tower")] = None,
) -> None:
    """Turn a released checkpoint into a model folder. Nothing that the file holds is run."""
    from hyvlm.models import convert as run

    folder, report = run(source, out, layout=layout, image_heads=image_heads, text_heads=text_heads)
    if report:
        print(f"hyvlm: {report}", file=sys.stderr)
    print(f"model: {folder}")
