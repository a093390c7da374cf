"""``hyvlm push``: a model to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def push(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model: folder, run or file")],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="OWNER/NAME on the hub; made if need be")],
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Of a new repository; default: the owner's setting")
    ] = None,
    branch: Annotated[str | None, typer.Option("--branch", "--revision", help="Branch to commit to")] = None,
    message: Annotated[str, typer.Option("--message", "-m", help="Of the commit")] = "Upload model",
    licence: Annotated[
        str | None, typer.Option("--licence", "--license", help="The hub's name of one, e.g. cc-by-nc-4.0")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Run folder that the card tells of; default: MODEL, if it is one")
    ] = None,
) -> None:
    """Upload a model with its card; `hyvlm.load("hf-hub:OWNER/NAME")` reads it. Needs `hf auth login` or HF_TOKEN."""
    from hyvlm.models import load, push_to_hub

    if run is None and (Path(model) / "config.yaml").is_file():
        run = Path(model)
    loaded = load(model)[0]
    print(push_to_hub(loaded, repo, run=run, licence=licence, private=private, revision=branch, message=message))
