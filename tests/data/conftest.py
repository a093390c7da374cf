import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hyvlm.data.catalog import SampleSet
from hyvlm.types import BadSample, Part, Sample


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def encoded() -> Callable[..., bytes]:
    """Encoded bytes of an image of one colour, or of the given image."""

    def encode(image: Image.Image | str = "red", size: tuple[int, int] = (40, 30), form: str = "JPEG", **how) -> bytes:
        if isinstance(image, str):
            image = Image.new("RGB", size, image)
        buffer = io.BytesIO()
        image.save(buffer, form, **how)
        return buffer.getvalue()

    return encode


@pytest.fixture(scope="session")
def write_tar() -> Callable[..., Path]:
    """Writes members in the given order; text is encoded as UTF-8, other objects as JSON."""

    def write(path: Path, members: Sequence[tuple[str, object]]) -> Path:
        with tarfile.open(path, "w") as tar:
            for name, content in members:
                data = content if isinstance(content, bytes) else None
                if data is None:
                    data = (content if isinstance(content, str) else json.dumps(content)).encode()
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return path

    return write


class WordTokenizer:
    """One id a word (their length + 2), 1 at the start, 99 at the end, cut at 77 as the real one is."""

    truncated = 0

    def __call__(self, texts: list[str]) -> torch.Tensor:
        ids = torch.zeros(len(texts), 77, dtype=torch.long)
        for row, text in zip(ids, texts, strict=True):
            words = [1, *(len(word) + 2 for word in text.split())]
            self.truncated += len(words) > 76
            words = [*words[:76], 99]
            row[: len(words)] = torch.tensor(words)
        return ids


@pytest.fixture
def tokenizer() -> WordTokenizer:
    return WordTokenizer()


class NoiseSet(SampleSet):
    """``n`` images of noise; sample ``i`` has ``i % 3`` captions more than one and ``i % 4`` parts."""

    name, split, fingerprint = "noise", "train", "noise"

    def __init__(self, n: int = 10, bad: Sequence[int] = ()) -> None:
        self.n, self.bad = n, bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Sample:
        if index in self.bad:
            raise BadSample("image is broken", f"sample {index}")
        pixels = np.random.default_rng(index).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        texts = [" ".join(["word"] * (index % 5 + k + 1)) for k in range(1 + index % 3)]
        return Sample(
            str(index), image, texts, [Part(image.crop((k, 0, k + 20, 20)), "a part") for k in range(index % 4)]
        )


@pytest.fixture
def noise_set() -> type[NoiseSet]:
    return NoiseSet
