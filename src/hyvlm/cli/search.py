"""``hyvlm search``: the images or texts of a collection that a text or an image scores highest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hyvlm.cli.options import Device, in_a_line


def search(
    collection: Annotated[Path, typer.Argument(metavar="COLLECTION", help="A folder that hyvlm embed wrote")],
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="What to look for")] = None,
    image: Annotated[Path | None, typer.Option("--image", help="A picture on disk to look for instead")] = None,
    key: Annotated[str | None, typer.Option("--key", help="An image or a text of it to look for instead")] = None,
    group: Annotated[str, typer.Option("--in", help="Look among images or texts")] = "images",
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="How many, at the most")] = 10,
    radius_min: Annotated[float | None, typer.Option("--radius-min", help="Least distance from the origin")] = None,
    radius_max: Annotated[float | None, typer.Option("--radius-max", help="Largest distance from the origin")] = None,
    within: Annotated[
        str | None, typer.Option("--within", help="Only what lies in the entailment cone of this text")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact/--approximate", help="Every point, or a FAISS index")] = True,
    nprobe: Annotated[int | None, typer.Option("--nprobe", min=1, help="Cells of an ivf index to look into")] = None,
    ef_search: Annotated[
        int | None, typer.Option("--ef-search", min=1, help="How wide to look through an hnsw index")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Where the model is now, if it has moved")] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Find the images or texts of a collection that a text or an image scores highest."""
    from hyvlm.evaluation.runner import choose_device
    from hyvlm.retrieval.collection import Collection
    from hyvlm.retrieval.places import Places
    from hyvlm.retrieval.search import Searcher

    if sum(given is not None for given in (text, image, key)) != 1:
        raise ValueError("look for one thing: a text, --image FILE or --key KEY")
    if exact and (nprobe is not None or ef_search is not None):
        raise ValueError("--nprobe and --ef-search are of an approximate index: add --approximate")
    opened = Collection.open(collection)
    found = opened.group(group)
    places = Places(opened, *opened.load_model(model, device=choose_device(device)))
    searcher = Searcher(opened, places.model, group=group, exact=exact)
    if text is not None:
        query = places.of_text(text)
    else:
        query = places.of_image(image) if image is not None else places.of_key(str(key))
    cone = None if within is None else places.of_text(within).point
    hits = searcher.search(
        query.point.unsqueeze(0),
        by=query.kind,
        k=min(k, len(found)),
        radius_min=radius_min,
        radius_max=radius_max,
        within=cone,
        nprobe=nprobe,
        ef_search=ef_search,
    )
    results: list[dict[str, Any]] = [
        {
            "rank": rank,
            "score": score,
            "radius": None if found.radii is None else float(found.radii[row]),
            "key": found.keys[row],
            **({} if found.texts is None else {"text": found.texts[row]}),
        }
        for rank, (row, score) in enumerate(zip(hits.rows[0].tolist(), hits.scores[0].tolist(), strict=True), start=1)
        if row >= 0
    ]
    asked = {"kind": query.kind, "name": query.name, "within": within}
    if as_json:
        print(json.dumps({"query": asked, "in": group, "score": hits.score_name, "results": results}, indent=2))
        return
    if not results:
        print(f"none of the {len(found):,} {group} passes the filters", file=sys.stderr)
        return
    print(f"rank  score   radius  key ({len(results)} of {len(found):,} {group}; score: {hits.score_name})")
    for result in results:
        radius = "-" if result["radius"] is None else f"{result['radius']:.3f}"
        line = f"{result['rank']:>4}  {result['score']:<7.4g} {radius:<6}  {in_a_line(result['key'])}"
        print(f"{line}  {in_a_line(result['text'])}" if "text" in result else line)
