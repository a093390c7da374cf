"""``hyvlm app``: a collection in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyvlm.cli.options import Device


def app_(
    collection: Annotated[Path, typer.Argument(metavar="COLLECTION", help="A folder that hyvlm embed wrote")],
    model: Annotated[str | None, typer.Option("--model", help="Where the model is now, if it has moved")] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at; the default lets only this machine in")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 7860,
    max_upload_mb: Annotated[float, typer.Option("--max-upload-mb", help="Largest picture, in MiB")] = 10,
    device: Device = None,
) -> None:
    """Open a page in which a collection is searched, walked through and seen as a map. Ctrl-C ends it."""
    from hyvlm.integrations.app import serve

    serve(collection, model=model, host=host, port=port, max_upload_mb=max_upload_mb, device=device)
