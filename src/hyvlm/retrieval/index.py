"""Indexes of a collection: files beside its own, which say what they were made of and are refused for anything else.

``images.exact.npy``   the images in the form that a matrix product ranks (:mod:`hyvlm.retrieval.forms`)
``images.faiss``       an approximate index (:mod:`hyvlm.retrieval.approximate`)

Beside each is a small JSON file of its settings. Texts have the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import hyvlm
from hyvlm.files import check_folder, write_text
from hyvlm.models import DualEncoder
from hyvlm.retrieval.blocks import open_array
from hyvlm.retrieval.collection import Collection
from hyvlm.retrieval.exact import Prepared, prepare
from hyvlm.retrieval.forms import index_form

#: Goes up when the files of an index would be read differently.
FORMAT = 1


def made_of(collection: Collection, group: str) -> str:
    """16 hexadecimal digits that change with the points of a group, the model or the source they come from."""
    points = collection.group(group).points
    facts = {
        "model": {key: value for key, value in collection.manifest["model"].items() if key != "path"},
        "group": {key: value for key, value in collection.manifest["groups"][group].items() if key != "examples"},
        "shape": [*points.shape, str(points.dtype)],
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(points[:: max(1, len(points) // 64)]).tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def new_index(collection: Collection, settings_file: str) -> Iterator[Path]:
    """A folder for the files of a new index, which are moved into the collection at the end.

    The settings of an earlier index are removed first, so that no reader meets old settings with new files.
    """
    check_folder(collection.folder, "the collection")
    draft = collection.folder / f".index-{os.getpid()}.partial"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        name = settings_file.removesuffix(".json")
        for earlier in (collection.folder / settings_file, *collection.folder.glob(f"{name}.[0-9]*")):
            earlier.unlink(missing_ok=True)
        for file in sorted(draft.iterdir()):
            os.replace(file, collection.folder / file.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_settings(collection: Collection, group: str, file: str, settings: dict[str, Any]) -> None:
    """Write what an index is; the last of its files."""
    about = {"format": FORMAT, "hyvlm_version": hyvlm.__version__, "made_of": made_of(collection, group)}
    write_text(collection.folder / file, json.dumps({**about, **settings}, indent=2) + "\n")


def read_settings(collection: Collection, group: str, file: str) -> dict[str, Any] | None:
    """What an index is; None if there is none.

    Raises:
        ValueError: It is damaged, of another format, or older than the collection.
    """
    path = collection.folder / file
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"'{path}' is not a JSON file; make it anew with hyvlm index") from error
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise ValueError(f"'{path}' is not of this version's format {FORMAT}; make it anew with hyvlm index")
    if settings.get("made_of") != made_of(collection, group):
        raise ValueError(
            f"the index '{path}' was made of other {group} or by another model than the collection now holds; "
            "make it anew with hyvlm index"
        )
    return settings


def write_prepared(collection: Collection, model: DualEncoder, group: str) -> Path:
    """Prepare a group for exact search, in bounded memory.

    Returns:
        The file of rows.
    Raises:
        ValueError: The collection is of another model; or the model's score is no inner product, so that there is
            nothing to prepare: exact search reads the collection as it is.
    """
    collection.check_model(model)
    form = index_form(model, "image" if group == "images" else "text")
    if form is None:
        raise ValueError(
            "this model's score is no inner product: there is nothing to prepare, exact search reads the collection as "
            "it is (--kind ivf or hnsw makes an approximate index)"
        )
    points = collection.group(group).points
    settings_file = f"{group}.exact.json"
    with new_index(collection, settings_file) as draft:
        shape = (len(points), points.shape[1] + form.extra)
        rows = np.lib.format.open_memmap(draft / f"{group}.exact.npy", mode="w+", dtype=np.float32, shape=shape)
        prepared = prepare(form, points, rows)
        rows.flush()
    write_settings(
        collection,
        group,
        settings_file,
        {"form": form.name, "shape": list(shape), "longest": prepared.longest.tolist()},
    )
    return collection.folder / f"{group}.exact.npy"


def open_prepared(collection: Collection, group: str) -> Prepared | None:
    """What :func:`write_prepared` wrote, memory-mapped; None if it was not called.

    Raises:
        ValueError, FileNotFoundError: It is damaged, or older than the collection.
    """
    settings = read_settings(collection, group, f"{group}.exact.json")
    if settings is None:
        return None
    rows = open_array(collection.folder / f"{group}.exact.npy", settings["shape"])
    return Prepared(rows, np.array(settings["longest"], np.float64))
