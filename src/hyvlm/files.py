"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name beside ``path`` and rename it, so that no reader meets half a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def user_cache(name: str) -> Path:
    """``$XDG_CACHE_HOME/hyvlm/NAME``, by default below ``~/.cache``: for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hyvlm" / name


def check_folder(folder: str | Path, what: str, files: Iterable[str] = ()) -> None:
    """Raise ValueError, naming the path, unless ``folder`` is a writable folder or could be made; it makes none.

    Args:
        files: Names of files that will be written into it: where a folder has such a name, that is an error too.
    """
    path = Path(folder).absolute()
    nearest = next(p for p in (path, *path.parents) if p.exists())
    if not nearest.is_dir():
        raise ValueError(f"{what} {folder} cannot be a folder: {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{what} {folder} cannot be written: no permission to write in {nearest}")
    for name in files:
        if (path / name).is_dir():
            raise ValueError(f"{what} {folder} cannot hold the file {name}: there is a folder of that name")
