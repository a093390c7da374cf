"""Whether a folder can be written, asked before the work whose results go there."""

from __future__ import annotations

import os
from pathlib import Path


def check_folder(folder: str | Path, what: str) -> None:
    """Raise ValueError, naming the path, unless ``folder`` is a writable folder or could be made; it makes none."""
    path = Path(folder).absolute()
    for nearest in (path, *path.parents):
        if nearest.exists():
            if not nearest.is_dir():
                raise ValueError(f"{what} {folder} cannot be a folder: {nearest} is a file")
            if not os.access(nearest, os.W_OK | os.X_OK):
                raise ValueError(f"{what} {folder} cannot be written: no permission to write in {nearest}")
            return
