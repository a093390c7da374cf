"""Points on their way to a collection: chunks of rows that appear whole or not at all, joined in the end.

``OUT/.partial/images/plan.json`` says what is being embedded, ``000012.npz`` holds the rows of chunk 12. A process that
is killed loses the chunk it was at.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hyvlm.data.files import MAX_EXAMPLES
from hyvlm.files import write_text
from hyvlm.retrieval.collection import parquet
from hyvlm.types import encodable

PARTIAL = ".partial"
PLAN = "plan.json"
LOCK = "lock"


@dataclass
class Chunk:
    """Rows of a part of the source.

    Attributes:
        points: ``(n, D)`` in the type of the collection.
        radii: ``(n,)`` float32, or None for a manifold without an origin.
        indices: ``(n,)`` int64, places in the source.
        keys, texts: One a row; no texts for images.
        skipped, examples: What was left out, by reason, and where the first few are.
    """

    points: np.ndarray
    radii: np.ndarray | None
    indices: np.ndarray
    keys: list[str]
    texts: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @classmethod
    def joined(cls, parts: Sequence[Chunk]) -> Chunk:
        """One chunk of the rows of several, of which there is at least one."""
        radii = [part.radii for part in parts if part.radii is not None]
        return cls(
            np.concatenate([part.points for part in parts]),
            np.concatenate(radii) if radii else None,
            np.concatenate([part.indices for part in parts]),
            [key for part in parts for key in part.keys],
            [text for part in parts for text in part.texts],
            sum((part.skipped for part in parts), Counter()),
            [example for part in parts for example in part.examples][:MAX_EXAMPLES],
        )


class ChunkStore:
    """The chunks of one group, in ``OUT/.partial/GROUP``.

    Args:
        out: Folder of the collection.
        group: "images" or "texts".
        plan: What is embedded: ``identity``, and how many ``rows`` a chunk has. If a run before this one left a plan,
            its rows hold.
        total: Length of the source.
    """

    def __init__(self, out: Path, group: str, plan: dict[str, Any], total: int) -> None:
        self.out, self.group, self.total = out, group, total
        self.folder = out / PARTIAL / group
        self.plan = read_plan(out, group) or plan
        self.rows = int(self.plan["rows"])

    def begin(self) -> None:
        """Make the folder and write the plan."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / PLAN, json.dumps(self.plan, indent=2) + "\n")

    def __len__(self) -> int:
        return -(-self.total // self.rows)

    def range(self, number: int) -> range:
        """The places in the source of a chunk."""
        return range(number * self.rows, min((number + 1) * self.rows, self.total))

    def missing(self) -> list[int]:
        """Numbers of the chunks that are not there."""
        return [number for number in range(len(self)) if not zipfile.is_zipfile(self._path(number))]

    def write(self, number: int, chunk: Chunk) -> None:
        """Store a chunk under a temporary name, then rename it."""
        info: dict[str, Any] = {"has_radii": chunk.radii is not None}
        info |= {"keys": chunk.keys, "texts": chunk.texts, "skipped": chunk.skipped, "examples": chunk.examples}
        radii = np.empty(0, np.float32) if chunk.radii is None else chunk.radii
        draft = self.folder / f".{number:06d}.{os.getpid()}"
        with draft.open("wb") as file:
            header = np.frombuffer(json.dumps(info).encode(), np.uint8)
            np.savez(file, info=header, points=chunk.points, radii=radii, indices=chunk.indices)
        os.replace(draft, self._path(number))

    def read(self, number: int) -> Chunk:
        """A chunk as it was written."""
        with np.load(self._path(number), allow_pickle=False) as data:
            info = json.loads(data["info"].tobytes())
            radii = data["radii"] if info.pop("has_radii") else None
            info["skipped"] = Counter(info["skipped"])
            return Chunk(data["points"], radii, data["indices"], **info)

    def join(self, dim: int, dtype: str) -> dict[str, Any]:
        """Write ``GROUP.npy`` and ``GROUP.parquet``, one chunk in memory at a time.

        Returns:
            How many rows there are (if none, no file is written), what was skipped and where the first few are.
        """
        count, skipped, examples = 0, Counter[str](), list[str]()
        for number in range(len(self)):
            chunk = self.read(number)
            count += len(chunk.points)
            skipped += chunk.skipped
            examples = [*examples, *chunk.examples][:MAX_EXAMPLES]
        if count:
            self._write_joined((count, dim), dtype)
        return {"count": count, "skipped": dict(sorted(skipped.items())), "examples": examples}

    def _write_joined(self, shape: tuple[int, int], dtype: str) -> None:
        drafts = {suffix: self.folder / f"joined.{suffix}" for suffix in ("npy", "parquet")}
        points = np.lib.format.open_memmap(drafts["npy"], mode="w+", dtype=dtype, shape=shape)
        _write_table(drafts["parquet"], self._filled(points), with_texts=self.group == "texts")
        points.flush()
        del points
        for suffix, draft in drafts.items():
            os.replace(draft, self.out / f"{self.group}.{suffix}")

    def _filled(self, points: np.ndarray) -> Iterator[Chunk]:
        """The chunks in order, each one's points being copied into place."""
        row = 0
        for number in range(len(self)):
            chunk = self.read(number)
            points[row : row + len(chunk.points)] = chunk.points
            row += len(chunk.points)
            yield chunk

    def remove(self) -> None:
        """Remove the chunks, and the folder of all groups if it is empty then."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # another group's chunks are there, or it never was
            self.folder.parent.rmdir()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"


@contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Keep other runs out of ``out``, which is made; what is empty in the end is removed. A killed run keeps no hold.

    Raises:
        ValueError: Another run writes there now.
    """
    lock = out / PARTIAL / LOCK
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock's, no loader process inherits it
        except (BlockingIOError, PermissionError):
            raise ValueError(f"another run is embedding into {out} now: wait for it, or name another folder") from None
        except OSError:  # the file system has no locks
            pass
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
            for folder in (lock.parent, out):
                with suppress(OSError):  # it holds something
                    folder.rmdir()


def read_plan(out: Path, group: str) -> dict[str, Any] | None:
    """The plan that an unfinished run left; None if there is none. Raises ValueError if it is damaged."""
    file = out / PARTIAL / group / PLAN
    try:
        plan = dict(json.loads(file.read_text(encoding="utf-8")))
        if plan.keys() >= {"model", "dtype", "source", "rows"}:
            return plan
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        pass
    raise ValueError(f"{file} is damaged: remove {out / PARTIAL} and embed again")


def _write_table(file: Path, chunks: Iterator[Chunk], *, with_texts: bool) -> None:
    pq = parquet()
    import pyarrow as pa

    columns = [("key", pa.string()), ("index", pa.int64()), ("radius", pa.float32())]
    schema = pa.schema([*columns, ("text", pa.string())] if with_texts else columns)
    with pq.ParquetWriter(file, schema) as writer:
        for chunk in chunks:
            radii = [None] * len(chunk.points) if chunk.radii is None else chunk.radii
            values = {"key": _encodable(chunk.keys), "index": chunk.indices, "radius": radii, "text": chunk.texts}
            writer.write_table(pa.table([pa.array(values[f.name], f.type) for f in schema], schema=schema))


def _encodable(texts: Sequence[str]) -> list[str]:
    return [encodable(text) for text in texts]
