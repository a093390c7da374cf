"""Pictures to embed, and calls that embed them."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from hyvlm.retrieval import Collection, embed


def encoded(colour: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (12, 9), (colour % 256, colour * 7 % 256, colour * 31 % 256)).save(file, "PNG")
    return file.getvalue()


def photos(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        (folder / f"{n:05d}.png").write_bytes(encoded(n))
    return folder


def run(model: Path, out: Path, **settings: object) -> Collection:
    return embed(
        model, out=out, show_progress=False, **{k: str(v) if isinstance(v, Path) else v for k, v in settings.items()}
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
