"""``hyvlm plot``: what models make of a data set, in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyvlm.cli.options import BatchSize, Device, Out, Resize, Split


def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="tokens, map, ranks, retrieval, segmentation, similarity, crops, uncertainty, radii, distances, parts",
        ),
    ],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="One model, or several side by side")],
    data: Annotated[str, typer.Option("--data", "--dataset", help="NAME or NAME:LOCATION, with captions (or masks)")],
    split: Split = None,
    sample: Annotated[int, typer.Option("--sample", min=0, help="Place of the image that the picture is about")] = 0,
    captions: Annotated[str, typer.Option("--captions", help="The text of an image: first, last or joined")] = "joined",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Images that take part, at the most")] = 500,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the weights of tokens")] = 0.07,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of perturbations and of the layout")] = 0,
    resize: Resize = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help="similarity: what to look for; repeatable; default: the caption")
    ] = None,
    templates: Annotated[str, typer.Option("--templates", help="segmentation: prompt set, or a file")] = "photo",
    background: Annotated[
        str, typer.Option("--background", help="segmentation: scenery, name, or a file of one name a line")
    ] = "scenery",
    extrapolation: Annotated[
        float, typer.Option("--extrapolation", help="Factor of the texts' radius (segmentation, similarity)")
    ] = 1.0,
    device: Device = None,
    batch_size: BatchSize = 64,
    out: Out = None,
) -> None:
    """Draw what models make of a data set: weights of words, a map, ranks, retrieval, or what is where in an image."""
    from hyvlm.plotting.pictures import draw

    for path in draw(
        kind,
        models,
        data,
        out or Path("pictures"),
        split=split,
        sample=sample,
        captions=captions,
        limit=limit,
        temperature=temperature,
        seed=seed,
        resize=resize,
        texts=text or (),
        templates=templates,
        background=background,
        extrapolation=extrapolation,
        device=device,
        batch_size=batch_size,
    ):
        print(f"picture: {path}")
