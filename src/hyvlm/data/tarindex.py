"""Where the samples of a tar shard lie: one pass over the headers, kept in the user's cache, gives random access.

Members of one sample share a key: the name up to the first dot of its last component (WebDataset's rule), so
``a/k17.child.jpg`` is member ``child.jpg`` of sample ``a/k17``. They need not be adjacent. Three layouts are known:

- processed GRIT: ``child.jpg``, ``child.txt``, ``parent000.jpg``, ``parent000.txt``, ..., ``numparents.txt``;
- an image and ``json`` with "caption" and, in raw GRIT, "ref_exps" and "noun_chunks";
- an image and ``txt``.

Nothing is extracted: only regular members are read, in place.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hyvlm.data.files import Drops
from hyvlm.data.images import IMAGE_SUFFIXES
from hyvlm.files import user_cache

#: Raise it when the index of a shard would come out differently.
INDEX_VERSION = 1
PLACES = ("image", "text", "json")
PART_DTYPE = np.dtype([("number", "i4"), ("image", "i8", 2), ("text", "i8", 2)])
KEY_AND_SUFFIX = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
PARENT = re.compile(r"parent(\d+)\.(\w+)")

#: Offset and size of a member's data, in bytes.
Place = tuple[int, int]


@dataclass
class ShardIndex:
    """Samples of one shard. Arrays are memory-mapped from the cache, so that processes share them.

    Attributes:
        path: The shard.
        samples: Per sample its key, the places (offset, size) of image, text and json (0, 0 where there is none), and
            the range ``first``, ``parts`` of its rows in ``parts``.
        parts: Per part its number and the places of its image and its phrase.
        drops: Samples that the shard holds but that cannot be used.
        suffixes: Suffixes found, for error messages.
    """

    path: Path
    samples: np.ndarray
    parts: np.ndarray
    drops: Drops = field(default_factory=Drops)
    suffixes: list[str] = field(default_factory=list)
    folder: Path | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self.folder is not None:  # a process that is sent the index maps the cached arrays itself
            del state["samples"], state["parts"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.folder is not None:
            self.samples, self.parts = _map(self.folder)


def index_shard(path: Path, *, captions: bool = True) -> ShardIndex:
    """The index of a shard: from the cache if the file has not changed since, else by one pass over its headers.

    Args:
        captions: Whether a sample needs one; without, an image by itself is a sample too.
    Raises:
        ValueError: The file is no tar file, or a compressed one.
    """
    folder = cache_folder() / _cache_key(path, captions)
    try:
        return _read(folder, path)
    except (OSError, ValueError, KeyError):  # absent, or left by a crash: made again
        pass
    index = scan_shard(path, captions=captions)
    try:
        _write(folder, index)
        return _read(folder, path)
    except (OSError, ValueError, KeyError):  # a cache that cannot be written costs time only
        return index


def cache_folder() -> Path:
    """Where indices of shards are kept."""
    return user_cache("shards")


def scan_shard(path: Path, *, captions: bool = True) -> ShardIndex:
    """Index a shard from its headers; arguments as in :func:`index_shard`.

    A shard that is cut short loses its tail, counted under its name.
    """
    drops = Drops()
    groups, cut, last = _members(path, drops)
    if cut:
        drops.add("shard is cut short", str(path))
        members = groups.get(last, {})
        whole_plain = "child" not in _stems(members) and _places(members, captions) is not None
        if not whole_plain:  # of a processed sample, parts may be missing that nobody can count
            groups.pop(last, None)
    suffixes = sorted({suffix for members in groups.values() for suffix in members})
    samples, parts = [], list[tuple[int, Place, Place]]()
    for key, members in groups.items():
        places = _places(members, captions)
        if places is None:
            drops.add(_why_unusable(members), f"sample {key!r} of {path}")
            continue
        own = _parts(members, f"sample {key!r} of {path}", drops)
        samples.append((key.encode("utf-8", "surrogateescape"), *places, len(parts), len(own)))
        parts += own
    width = max((len(s[0]) for s in samples), default=1)
    dtype = np.dtype([("key", f"S{width}"), *((name, "i8", 2) for name in PLACES), ("first", "i8"), ("parts", "i4")])
    return ShardIndex(path, np.array(samples, dtype), np.array(parts, PART_DTYPE), drops, suffixes)


def _members(path: Path, drops: Drops) -> tuple[dict[str, dict[str, Place]], bool, str]:
    """Regular members by key and lower-case suffix, whether the shard is cut short, and the last key in it."""
    size, end, last = path.stat().st_size, 0, ""
    groups: dict[str, dict[str, Place]] = {}
    doubled = set()
    try:
        with tarfile.open(path, "r:") as tar:
            for info in tar:
                end = info.offset_data + -(-info.size // 512) * 512
                match = KEY_AND_SUFFIX.fullmatch(info.name.removeprefix("./"))
                if not info.isreg() or info.issparse() or match is None:
                    continue
                last, suffix = match[1], match[2].lower()
                members = groups.setdefault(last, {})
                if suffix in members:
                    doubled.add(last)
                elif info.offset_data + info.size <= size:
                    members[suffix] = (info.offset_data, info.size)
    except tarfile.ReadError as error:
        if end == 0 and size >= 512:
            raise ValueError(_not_a_tar(path)) from error
    for key in doubled:
        drops.add("second sample of the same key", f"sample {key!r} of {path}")
    with path.open("rb") as file:  # an archive ends with blocks of zeros; tarfile is silent where they are missing
        file.seek(end)
        return groups, file.read(512) != bytes(512), last


def _stems(members: dict[str, Place]) -> set[str]:
    return {suffix.partition(".")[0] for suffix in members}


def _places(members: dict[str, Place], captions: bool) -> tuple[Place, Place, Place] | None:
    """Places of image, text and json; None if the sample is not of a known layout."""
    prefix = "child." if any(s.startswith("child.") for s in members) else ""
    image = next((members[prefix + s] for s in IMAGE_SUFFIXES if prefix + s in members), None)
    text, document = members.get(prefix + "txt"), members.get("json") if not prefix else None
    if image is None or (captions and text is None and document is None):
        return None
    return image, text or (0, 0), document or (0, 0)


def _parts(members: dict[str, Place], where: str, drops: Drops) -> list[tuple[int, Place, Place]]:
    images, texts = dict[int, Place](), dict[int, Place]()
    for suffix, place in members.items():
        match = PARENT.fullmatch(suffix)
        if match and match[2] in IMAGE_SUFFIXES:
            images[int(match[1])] = place
        elif match and match[2] == "txt":
            texts[int(match[1])] = place
    for number in sorted(set(images) ^ set(texts)):
        drops.add("part: no image or no phrase", f"part {number} of {where}")
    return [(number, images[number], texts[number]) for number in sorted(set(images) & set(texts))]


def _why_unusable(members: dict[str, Place]) -> str:
    endings = {suffix.rpartition(".")[2] for suffix in members if "." in suffix}
    if endings & {*IMAGE_SUFFIXES, "txt", "json"} and not any(s.startswith("child.") for s in members):
        return "name has dots before its suffix"
    has_image = any(s.removeprefix("child.") in IMAGE_SUFFIXES for s in members)
    return "no txt or json caption" if has_image else "no image"


def _not_a_tar(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(6)
    packed = (
        head[:2] == b"\x1f\x8b" or head[:4] == b"\x28\xb5\x2f\xfd" or head in (b"\xfd7zXZ\0",) or head[:3] == b"BZh"
    )
    return f"{path} is a compressed tar file; unpack it to a plain .tar" if packed else f"{path} is not a tar file"


def _cache_key(path: Path, captions: bool) -> str:
    stat = path.stat()
    kind = "" if captions else "\0images"
    text = f"{INDEX_VERSION}\0{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}{kind}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _map(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    samples, parts = (_load(folder / f"{name}.npy") for name in ("samples", "parts"))
    return samples, parts


def _load(path: Path) -> np.ndarray:
    big = path.stat().st_size > 2**16  # a small array is read, which also spares an empty one the mapping
    return np.load(path, mmap_mode="r" if big else None, allow_pickle=False)


def _read(folder: Path, path: Path) -> ShardIndex:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    drops = Drops()
    drops.counts.update(meta["drops"])
    drops.examples = meta["examples"]
    return ShardIndex(path, *_map(folder), drops, meta["suffixes"], folder)


def _write(folder: Path, index: ShardIndex) -> None:
    """Write to a folder of another name and rename it, so that other processes see all of it or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    try:
        np.save(draft / "samples.npy", index.samples)
        np.save(draft / "parts.npy", index.parts)
        meta = {"drops": index.drops.counts, "examples": index.drops.examples, "suffixes": index.suffixes}
        (draft / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        if folder.exists() and not _is_whole(folder):
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    try:
        _map(folder)
        return "drops" in json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
