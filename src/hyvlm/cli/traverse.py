"""``hyvlm traverse``: what lies on the way from an image or a text to the root, or to another one."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyvlm.cli.options import Device, in_a_line

if TYPE_CHECKING:
    from hyvlm.retrieval.collection import Collection
    from hyvlm.retrieval.places import Place, Places
    from hyvlm.retrieval.traverse import Traversal


def traverse(
    collection: Annotated[Path, typer.Argument(metavar="COLLECTION", help="A folder that hyvlm embed wrote")],
    from_text: Annotated[str | None, typer.Option("--from-text", help="Start at a text")] = None,
    from_image: Annotated[Path | None, typer.Option("--from-image", help="Start at a picture on disk")] = None,
    from_key: Annotated[str | None, typer.Option("--from-key", help="Start at an image or a text of it")] = None,
    to_text: Annotated[str | None, typer.Option("--to-text", help="End at a text instead of at the root")] = None,
    to_image: Annotated[Path | None, typer.Option("--to-image", help="End at a picture on disk")] = None,
    to_key: Annotated[str | None, typer.Option("--to-key", help="End at an image or a text of it")] = None,
    within: Annotated[
        str | None, typer.Option("--in", help="texts, images or both; default: what the collection has")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=2, help="Points of the way, both ends included")] = 50,
    by: Annotated[str, typer.Option("--by", help="geodesic; or radius: only what is as far out as each step")] = (
        "geodesic"
    ),
    entailed: Annotated[
        bool | None,
        typer.Option("--entailed/--any", help="Only what a step is in the cone of; default: on a geodesic to the root"),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Where the model is now, if it has moved")] = None,
    device: Device = None,
    figure: Annotated[Path | None, typer.Option("--figure", help="Draw it, as .png, .svg or .pdf")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Walk from an image or a text to the root, or to another one, and list the nearest images and texts on the way."""
    from hyvlm.evaluation.runner import choose_device
    from hyvlm.retrieval.collection import Collection
    from hyvlm.retrieval.places import Places

    check_figure(figure)
    check_places({"--from": (from_text, from_image, from_key), "--to": (to_text, to_image, to_key)})
    opened = Collection.open(collection)
    places = Places(opened, *opened.load_model(model, device=choose_device(device)))
    start = place_of(places, from_text, from_image, from_key)
    assert start is not None
    end = place_of(places, to_text, to_image, to_key)
    found = places.walk(start, end, within=within, steps=steps, by=by, entailed=entailed)
    if as_json:
        target = None if end is None else {"kind": end.kind, "name": end.name}
        print(json.dumps({"from": {"kind": start.kind, "name": start.name}, "to": target, **asdict(found)}, indent=2))
    else:
        print(listing(found, start, end))
    if figure is not None:
        draw(figure, opened, found, start, end)
        print(f"figure: {figure}", file=sys.stderr if as_json else sys.stdout)


def check_figure(figure: Path | None) -> None:
    """Raise ValueError before anything is computed for a figure that could not be written."""
    from hyvlm.files import check_folder

    if figure is not None:
        if figure.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"--figure must end in .png, .svg or .pdf, got {figure}")
        check_folder(figure.parent, "the folder of the figure", [figure.name])


def check_places(asked: dict[str, tuple[Any, Any, Any]]) -> None:
    """Raise ValueError unless there is one start and at most one end."""
    for option, given in asked.items():
        count = sum(value is not None for value in given)
        if count > 1 or (option == "--from" and not count):
            names = f"{option}-text, {option}-image and {option}-key"
            raise ValueError(f"give {'one' if option == '--from' else 'at most one'} of {names}, got {count}")


def place_of(places: Places, text: str | None, image: Path | None, key: str | None) -> Place | None:
    """What the three options of one end say."""
    if text is not None:
        return places.of_text(text)
    if image is not None:
        return places.of_image(image)
    return None if key is None else places.of_key(key)


def listing(found: Traversal, start: Place, end: Place | None) -> str:
    """A line for every step, between those of the ends."""

    def line(radius: float | None, distance: str, kind: str, name: str) -> str:
        return f"{'' if radius is None else f'{radius:.3f}':>7} {distance:>9}  {kind:<6} {in_a_line(name)}"

    lines = [f"{'radius':>7} {'distance':>9}", line(found.start_radius, "", "from", start.name)]
    lines += [line(s.radius, f"{s.distance:.3f}", "" if s.kind == "root" else s.kind, s.name) for s in found.steps]
    if end is not None:
        lines.append(line(found.end_radius, "", "to", end.name))
    holds = "an end" if found.by == "radius" else "the step"
    limits = ["about as far out as the step"] if found.by == "radius" else []
    limits += [f"whose cone holds {holds}"] if found.entailed else []
    lines.append(f"the nearest {', '.join(limits) or 'of all'}, at {found.looked} steps")
    if found.empty:
        lines[-1] += f"; at {found.empty} of them there was none"
    return "\n".join(lines)


def draw(figure: Path, collection: Collection, found: Traversal, start: Place, end: Place | None) -> None:
    """Write the figure; pictures that cannot be read any more are counted on stderr."""
    from hyvlm.plotting.figures import missing_letters, save
    from hyvlm.plotting.traversal import Strip, traversal_strips
    from hyvlm.retrieval.places import picture_of

    rows = [step.row for step in found.steps if step.kind == "image" and step.row is not None]
    read = {row: picture_of(collection, row) for row in rows}
    pictures = {row: picture for row, picture in read.items() if picture is not None}
    if len(pictures) < len(rows):
        print(f"hyvlm: {len(rows) - len(pictures)} of {len(rows)} pictures cannot be read any more", file=sys.stderr)
    shown = None if end is None else end.picture or end.name
    strip = Strip(found, start.picture or start.name, shown, pictures=pictures)
    with missing_letters():
        save({figure.suffix[1:]: traversal_strips([strip])}, figure.parent, figure.stem)
