"""Embeddings by what they were computed from, in memory and in files."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hyvlm.files import check_folder


@dataclass
class CacheEntry:
    """Tensors with the plain values that go with them."""

    tensors: dict[str, Tensor]
    info: dict[str, Any] = field(default_factory=dict)


class EmbeddingCache:
    """Embeddings by what they were computed from; in memory, and in ``folder`` if one is given.

    A file holds one entry (safetensors, key and values in its header) and appears under its name only when complete.
    A file that cannot be read is reported and computed anew. Once an entry cannot be written (the folder is there for
    reading alone, the disk is full), that is reported, and this and all later ones are kept in memory alone.

    Raises:
        ValueError: If ``folder`` is a file, lies below one, or cannot be made.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else None
        if self.folder is not None and not self.folder.is_dir():  # one that exists may be there for reading alone
            check_folder(self.folder, "the cache folder")
        self._writes = self.folder is not None
        self._entries: dict[str, CacheEntry] = {}

    def get(self, key: Mapping[str, Any]) -> CacheEntry | None:
        """The entry under ``key``, or None."""
        name = _digest(key)
        if name not in self._entries and self.folder is not None and self._path(name).exists():
            try:
                self._entries[name] = self._read(name, key)
            except (SafetensorError, OSError, ValueError, KeyError) as error:
                warnings.warn(
                    f"{self._path(name)}: cached embeddings cannot be read ({error}); computing them anew", stacklevel=2
                )
        return self._entries.get(name)

    def put(self, key: Mapping[str, Any], entry: CacheEntry) -> None:
        """Store ``entry``, replacing one of the same key."""
        name = _digest(key)
        self._entries[name] = entry
        if self.folder is None or not self._writes:
            return
        temporary = self._path(name).with_suffix(".partial")
        header = {"key": json.dumps(key, sort_keys=True), "info": json.dumps(entry.info)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file({k: v.contiguous() for k, v in entry.tensors.items()}, temporary, metadata=header)
            temporary.replace(self._path(name))
        except (SafetensorError, OSError) as error:
            self._writes = False
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            warnings.warn(f"{self.folder}: no more embeddings can be kept there ({error})", stacklevel=2)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.safetensors"

    def _read(self, name: str, key: Mapping[str, Any]) -> CacheEntry:
        with safe_open(self._path(name), framework="pt") as file:
            header = file.metadata() or {}
            if json.loads(header["key"]) != json.loads(json.dumps(key)):
                raise ValueError("it belongs to another key")
            return CacheEntry({k: file.get_tensor(k) for k in file.keys()}, json.loads(header["info"]))  # noqa: SIM118


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
