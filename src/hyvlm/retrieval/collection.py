"""A folder of embedded images and texts, as ``hyvlm embed`` writes it.

::

    collection.json   the model (path, fingerprint, width, manifold with its present curvature), and for each group how
                      many of how many there are, what was skipped and why, and the source
    images.npy        (N, D) float32 or float16, points; images.parquet: key, index (place in the source), radius
    texts.npy         the same of texts; texts.parquet: key, index, radius, text

Either group may be missing. Rows keep the order of the source. The radius is null where the manifold has no origin.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import hyvlm
from hyvlm.data.catalog import SampleSet
from hyvlm.data.files import unreported
from hyvlm.data.sets.image_files import open_pictures
from hyvlm.errors import MissingExtra
from hyvlm.geometry import Manifold
from hyvlm.models import DualEncoder, Tokenizer, fingerprint
from hyvlm.models.dual_encoder import build_manifold

if TYPE_CHECKING:
    import pyarrow

#: Raise it when the files would be read differently.
FORMAT = 1
MANIFEST = "collection.json"
GROUPS = ("images", "texts")
#: Entries of a manifest, and what they are.
_MODEL = {"path": str, "fingerprint": str, "dim": int, "manifold": dict}
_GROUP = {"count": int, "total": int, "source": dict}


@dataclass(frozen=True)
class Group:
    """The images, or the texts, of a collection.

    Attributes:
        name: "images" or "texts".
        points: ``(N, D)``, space components, memory-mapped and not to be written.
        info: Its part of the manifest: count, total, skipped, examples, source.
    """

    name: str
    points: np.ndarray
    info: Mapping[str, Any]
    _file: Path

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def keys(self) -> Sequence[str]:
        """Names of the rows: of images their path or key in the source."""
        return list(self._column("key").to_pylist())

    @cached_property
    def texts(self) -> list[str] | None:
        """The texts themselves; None for images."""
        return list(self._column("text").to_pylist()) if self.name == "texts" else None

    @cached_property
    def radii(self) -> np.ndarray | None:
        """Distances from the origin, ``(N,)`` float32; None if the manifold has no origin."""
        column = self._column("radius")
        return None if column.null_count else column.to_numpy().astype(np.float32, copy=False)

    @cached_property
    def indices(self) -> np.ndarray:
        """Places in the source, ``(N,)`` int64, increasing."""
        return np.asarray(self._column("index").to_numpy())

    def _column(self, name: str) -> pyarrow.ChunkedArray:
        import pyarrow as pa

        try:
            return parquet().read_table(self._file, columns=[name])[name]
        except (OSError, KeyError, pa.ArrowException) as error:
            raise ValueError(f"{self._file} is damaged or has no column {name!r}: embed again") from error


class Collection:
    """A collection on disk; open it with :meth:`open`.

    Attributes:
        folder: Where it is.
        manifest: What ``collection.json`` holds.
        images, texts: The groups; None where there is none.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], groups: Mapping[str, Group]) -> None:
        self.folder, self.manifest = folder, manifest
        self.images, self.texts = groups.get("images"), groups.get("texts")

    @classmethod
    def open(cls, folder: str | Path) -> Collection:
        """Open the collection in ``folder``; points are mapped, not read.

        Raises:
            FileNotFoundError: There is no such folder, or a file of it is missing.
            ValueError: It holds no collection, one of another format version, or one whose files do not fit.
            MissingExtra: pyarrow, which reads Parquet, is not installed.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        dim, dtype = manifest["model"]["dim"], manifest["dtype"]
        groups = {}
        for name, info in manifest["groups"].items():
            points = _map(folder / f"{name}.npy", (info["count"], dim), dtype)
            table = folder / f"{name}.parquet"
            rows = _rows_of(table)
            if rows != len(points):
                raise ValueError(f"{table} has {rows} rows, {name}.npy has {len(points)}: embed again")
            groups[name] = Group(name, points, info, table)
        return cls(folder, manifest, groups)

    def group(self, name: str) -> Group:
        """The group "images" or "texts". Raises ValueError if there is none."""
        if name not in GROUPS:
            raise ValueError(f"a collection has the groups {' and '.join(GROUPS)}, not {name!r}")
        group = self.images if name == "images" else self.texts
        if group is None:
            raise ValueError(f"the collection {self.folder} has no {name}: hyvlm embed with --{name}")
        return group

    def manifold(self) -> Manifold:
        """The manifold of the points, with the curvature that the model had."""
        return build_manifold(self.manifest["model"]["manifold"])

    def check_model(self, model: DualEncoder) -> None:
        """Raise ValueError, naming what differs, unless ``model`` is the one that the points come from."""
        have, given = self.manifest["model"], describe_model(model)
        for what in ("dim", "manifold", "fingerprint"):
            if have[what] != given[what]:
                name = {"dim": "dimension", "fingerprint": "fingerprint of the weights"}.get(what, what)
                raise ValueError(
                    f"the collection {self.folder} is of another model, {have['path']}: its {name} "
                    f"{_short(have[what], given[what])}, that of the model given {_short(given[what], have[what])}"
                )

    def load_model(
        self, path: str | Path | None = None, device: torch.device | str = "cpu"
    ) -> tuple[DualEncoder, Callable[[Image.Image], Tensor], Tokenizer]:
        """The model that the points come from, its preprocessing and tokenizer, as :func:`hyvlm.load` gives them.

        Args:
            path: Where the model is now; None takes the path that was given when the collection was made.
        Raises:
            FileNotFoundError: There is no model.
            ValueError: It is another one.
        """
        given = self.manifest["model"]["path"] if path is None else path
        try:
            loaded = hyvlm.load(given, device=device)
        except FileNotFoundError as error:
            if path is not None:
                raise
            raise FileNotFoundError(
                f"the model of the collection {self.folder} has moved, say where: {error}"
            ) from None
        self.check_model(loaded[0])
        return loaded

    def image(self, row: int) -> Image.Image:
        """The picture of a row of the images, RGB and upright, read from its source.

        Raises:
            IndexError: There is no such row.
            ValueError: The source has changed since, or is gone.
            BadSample: This picture cannot be read any more.
        """
        images = self.group("images")
        if not 0 <= row < len(images):
            raise IndexError(f"row {row} of {len(images)} images")
        return self._source[int(images.indices[row])].picture

    @cached_property
    def _source(self) -> SampleSet:
        source = self.group("images").info["source"]
        try:
            with unreported():  # hyvlm embed has said it
                samples = open_pictures(source["spec"], split=source["split"])
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(f"the images of {self.folder} cannot be found any more: {error}") from error
        if samples.fingerprint != source["fingerprint"]:
            raise ValueError(f"the images of {self.folder} have changed since they were embedded: {source['spec']}")
        return samples


def describe_model(model: DualEncoder) -> dict[str, Any]:
    """What a manifest says of a model, except its path; ``manifold`` is a section for :func:`build_manifold`."""
    present = copy.deepcopy(model.manifold).double().describe()  # so exactly that the curvature is the same float32
    section = {**model.config["manifold"], **present}
    if present:  # it stays as it is; and one at its bound may lie outside by a rounding of its logarithm
        section |= {"learn": False, "bounds": None}
    section = json.loads(json.dumps(section))  # as it will be read back: lists, no tuples
    return {"fingerprint": fingerprint(model), "dim": model.dim, "manifold": section}


def read_manifest(folder: Path) -> dict[str, Any]:
    """What ``collection.json`` in ``folder`` holds; raises as :meth:`Collection.open`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no collection at {folder}: there is no such folder")
    file = folder / MANIFEST
    if not file.is_file():
        unfinished = " yet: run hyvlm embed again to finish it" if (folder / ".partial").is_dir() else ""
        raise ValueError(f"{folder} is no collection{unfinished or f': it has no {MANIFEST} (hyvlm embed writes one)'}")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        version = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is cut short or not the manifest of a collection") from error
    if version != FORMAT:
        raise ValueError(f"{file} has format version {version}, this hyvlm reads version {FORMAT}: embed again")
    try:
        complete = _has(manifest, {"model": dict, "dtype": str, "groups": dict}) and _has(manifest["model"], _MODEL)
        complete = complete and manifest["groups"].keys() <= set(GROUPS)
        for info in manifest["groups"].values() if complete else ():
            complete = complete and _has(info, _GROUP) and _has(info["source"], {"spec": str, "fingerprint": str})
    except AttributeError:
        complete = False
    if not complete:
        raise ValueError(f"{file} is not the manifest of a collection: an entry is missing or of another kind")
    return dict(manifest)


def _has(entries: Any, kinds: dict[str, type]) -> bool:
    return isinstance(entries, dict) and all(isinstance(entries.get(key), kind) for key, kind in kinds.items())


def parquet() -> Any:
    """``pyarrow.parquet``. Raises :class:`MissingExtra`."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("a collection of embeddings", "pyarrow", "search") from error
    return pyarrow.parquet


def _map(file: Path, shape: tuple[int, int], dtype: str) -> np.ndarray:
    if not file.is_file():
        raise FileNotFoundError(f"the collection is not whole: {file} is missing")
    try:
        points = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{file} is cut short or no .npy file: embed again") from error
    if points.shape != shape or points.dtype != dtype:
        raise ValueError(f"{file} holds {points.dtype} {points.shape}, {MANIFEST} says {dtype} {shape}: embed again")
    return np.asarray(points).view(np.memmap) if isinstance(points, np.memmap) else points


def _rows_of(file: Path) -> int:
    read = parquet()  # before the file is asked for: what is missing comes first
    if not file.is_file():
        raise FileNotFoundError(f"the collection is not whole: {file} is missing")
    try:
        return int(read.read_metadata(file).num_rows)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise ValueError(f"{file} is cut short or no Parquet file: embed again") from error


def _short(value: Any, other: Any) -> str:
    """``is VALUE``; of two manifolds only the keys in which they differ."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: value.get(key) for key in sorted({*value, *other}) if value.get(key) != other.get(key)}
        return "has " + ", ".join(f"{key}={entry}" for key, entry in value.items())
    return f"is {value}"
