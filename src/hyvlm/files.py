"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name beside ``path`` and rename it, so that no reader meets half a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def check_folder(path: Path, option: str) -> None:
    """Raise ValueError if nothing can be written into the folder ``path``, which need not exist yet."""
    nearest = next(p for p in (path, *path.absolute().parents) if p.exists() or p.is_symlink())
    if not nearest.is_dir():
        raise ValueError(f"{option} {path}: {nearest} is a file, a folder is needed")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{option} {path}: {nearest} cannot be written to")
