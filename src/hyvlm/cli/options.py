"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, e.g. train.steps=100")]
Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name (hyvlm list recipes) or a YAML file")]
Out = Annotated[Path | None, typer.Option("--out", "-o", "--output", help="Folder to write to")]
Split = Annotated[str | None, typer.Option("--split", help="Split of the data set")]
Readout = Annotated[str | None, typer.Option("--readout", help="Rank pairs as trained or as published")]
Resize = Annotated[str | None, typer.Option("--resize", help="squash to a square, or crop the centre")]
PartSize = Annotated[int | None, typer.Option("--part-size", min=1, help="Side of part crops in pixels")]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, ...; default: the fastest")]
Cache = Annotated[Path | None, typer.Option("--cache", help="Folder that keeps embeddings between calls")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Images, or texts, at a time")]
Workers = Annotated[int, typer.Option("--num-workers", min=0, help="Processes that read images")]

#: That of whichever click typer uses, the installed one or its own copy.
UsageError: Any = typer.BadParameter.__mro__[1]

#: Of a text or a key in a listing.
LONGEST = 200


def in_a_line(text: str) -> str:
    """A text or a key for a listing: white space made single, the end of a long one cut off."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
