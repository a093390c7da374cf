"""From shards to batches: ``python benchmarks/input_pipeline.py [ROUNDS [SAMPLES]]``.

Photo-like JPEGs of 400 x 300 to 1024 x 768 pixels with one to three boxes, in four shards: raw (quality 87, a json with
the boxes beside each) and processed (224 x 224 with white borders, quality 95, a file for each part). Every part is
used; crop alone, and crop with colour jitter and grey; one and two loader processes, batches of 16. Plain decodes in
full, makes float tensors and pads parts to five, as UNCHA's released loader does; the random draws are of the same
distributions. The limit is the JPEG decoding alone, shared out evenly over the processes. Times are seconds for 100
samples in a loader that is running. Also measured: what decoding at a fraction of the size changes in the pixels.
Writes ``results/input_pipeline.json``.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from _runner import Row, row, write_rows
from PIL import Image, ImageDraw
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode

from hyvlm.data import TrainViews, open_data, train_loader, train_transform
from hyvlm.data.images import decode_on_demand
from hyvlm.data.prepare import prepare_grit
from hyvlm.models.tokenizer import Tokenizer

SIZE, BATCH, PADDED, SHARDS = 224, 16, 5, 4
SIDES = ((400, 300), (1024, 768))
BILINEAR = Image.Resampling.BILINEAR
ASKED = "at least 2.4 times the samples per second with 2 workers"
AUGMENTS: dict[str, dict[str, Any]] = {
    "crop": {"name": "crop", "scale": [0.8, 1.0]},
    "crop, jitter, grey": {"name": "crop_jitter_gray", "scale": [0.8, 1.0]},
}


def photo(draws: np.random.Generator) -> tuple[Image.Image, list[tuple[float, ...]]]:
    """Noise whose power falls with frequency as a photograph's does, and objects in it; the boxes are normalised."""
    share = draws.uniform()
    width, height = (round(a + share * (b - a)) for a, b in zip(*SIDES, strict=True))
    grey, colour = np.zeros((height, width, 1), np.float32), np.zeros((height, width, 3), np.float32)
    for octave in range(1, 10):
        noise = draws.normal(size=(2**octave, 2**octave)).astype(np.float32)
        grey[..., 0] += np.asarray(Image.fromarray(noise).resize((width, height), BILINEAR)) / octave
    for channel in range(3):  # colour changes slowly
        noise = draws.normal(size=(12, 12)).astype(np.float32)
        colour[..., channel] = np.asarray(Image.fromarray(noise).resize((width, height), BILINEAR))
    image = Image.fromarray(np.clip(128 + 45 * grey + 30 * colour, 0, 255).astype(np.uint8))
    drawing, boxes = ImageDraw.Draw(image), []
    for _ in range(draws.integers(1, 4)):
        w, h = draws.uniform(0.25, 0.7, 2)
        x, y = draws.uniform(0, 1 - w), draws.uniform(0, 1 - h)
        boxes.append((x, y, x + w, y + h))
        corners = [v * s for v, s in zip(boxes[-1], (width, height) * 2, strict=True)]
        drawing.ellipse(corners, outline=tuple(draws.integers(0, 256, 3).tolist()), width=9)
    return image, boxes


def write_raw(folder: Path, samples: int) -> None:
    """Shards as img2dataset writes GRIT: jpg and json."""
    folder.mkdir()
    draws = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
            for number in range(samples // SHARDS):
                image, boxes = photo(draws)
                caption = f"photograph {number} of things"
                rows = [[0, 10 + k, *box, 0.9 - 0.1 * k] for k, box in enumerate(boxes)]
                encoded = io.BytesIO()
                image.save(encoded, "JPEG", quality=87)
                document = json.dumps({"caption": caption, "noun_chunks": rows}).encode()
                for suffix, data in (("jpg", encoded.getvalue()), ("json", document)):
                    info = tarfile.TarInfo(f"{shard}-{number}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


class PlainViews(Dataset[dict[str, Tensor]]):
    """Every image decoded in full, float tensors, parts and their texts padded to five."""

    def __init__(self, data: str, augment: dict[str, Any], steps: int) -> None:
        self.samples, self.tokenizer = open_data(data), Tokenizer()
        self.order = [i % len(self.samples) for i in torch.randperm(steps * BATCH).tolist()]
        crop = v2.RandomResizedCrop(SIZE, tuple(augment["scale"]), interpolation=InterpolationMode.BICUBIC)
        colours: list[torch.nn.Module] = []
        if augment["name"] == "crop_jitter_gray":
            colours = [v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8), v2.RandomGrayscale(p=0.2)]
        self.transform = v2.Compose([crop, *colours, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        sample = self.samples[self.order[place]]
        parts = sample.parts[:PADDED]
        part_image = torch.zeros(PADDED, 3, SIZE, SIZE)
        part_text = torch.zeros(PADDED, self.tokenizer.context_length, dtype=torch.long)
        for k, part in enumerate(parts):
            part_image[k] = self.transform(part.image)
            part_text[k] = self.tokenizer(part.text)[0]
        count = torch.tensor(len(parts))
        image, text = self.transform(sample.picture), self.tokenizer(sample.texts[0])[0]
        return {"image": image, "text": text, "part_image": part_image, "part_text": part_text, "count": count}


def our_loader(data: str, augment: dict[str, Any], workers: int, steps: int) -> DataLoader[Any]:
    parts = {"max": PADDED, "choice": "first"}
    views = TrainViews(open_data(data), Tokenizer(), image_size=SIZE, augment=augment, parts=parts)
    return train_loader(views, BATCH, workers=workers, steps=steps)


def plain_loader(data: str, augment: dict[str, Any], workers: int, steps: int) -> DataLoader[Any]:
    return DataLoader(PlainViews(data, augment, steps), batch_size=BATCH, num_workers=workers)


def seconds_per_100(make: Callable[[], DataLoader[Any]], workers: int) -> float:
    """Of a loader that is running: after each process has delivered a batch."""
    started, batches = 0.0, 0
    for number, _ in enumerate(make()):
        if number == workers - 1:
            started, batches = time.perf_counter(), -1
        batches += 1
    return (time.perf_counter() - started) / (batches * BATCH) * 100


def decoding_alone(folder: Path, workers: int) -> float:
    """Seconds for 100 samples: JPEG decoding in full, shared out over processes that do nothing else."""
    encoded = []
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            encoded += [file.read() for m in tar if m.name.endswith(".jpg") and (file := tar.extractfile(m))]
    samples = len(open_data(f"shards:{folder}"))
    started = time.perf_counter()
    for data in encoded:
        Image.open(io.BytesIO(data), formats=["JPEG"]).load()
    return (time.perf_counter() - started) / samples * 100 / workers


def measure(folder: Path, what: str, rounds: int, steps: int) -> list[Row]:
    """Rows of one kind of shards; ours runs for three times as many steps, to last about as long."""
    rows, data = [], f"shards:{folder}"
    for name, augment in AUGMENTS.items():
        for workers in (1, 2):
            times: dict[str, list[float]] = {"ours": [], "plain": [], "limit": []}
            for _ in range(rounds):
                times["ours"].append(seconds_per_100(partial(our_loader, data, augment, workers, 3 * steps), workers))
                times["plain"].append(seconds_per_100(partial(plain_loader, data, augment, workers, steps), workers))
                times["limit"].append(decoding_alone(folder, workers))
            size = f"100 samples, {workers} worker{'s' if workers > 1 else ''}"
            rows.append(row(f"{what} shards, {name}", size, times, asked=ASKED if workers == 2 else ""))
    return rows


def change_by_scale(folder: Path) -> dict[str, float]:
    """Mean absolute difference in grey levels between crops that were decoded at a fraction and in full."""
    samples, found = open_data(f"shards:{folder}"), dict[str, float]()
    for size in (224, 112, 56):
        changes = []
        for index in range(0, len(samples), 4):
            pixels = []
            for decode in ("scaled", "full"):
                transform = train_transform(AUGMENTS["crop"], size, decode=decode)
                torch.manual_seed(index)
                with decode_on_demand():
                    pixels.append(transform(samples[index].picture).float())
            if not torch.equal(*pixels):
                changes.append((pixels[0] - pixels[1]).abs().mean().item())
        found[f"to {size} pixels, share decoded at a fraction"] = len(changes) / len(range(0, len(samples), 4))
        found[f"to {size} pixels, mean change of those"] = float(np.mean(changes)) if changes else 0.0
    return found


def main() -> None:
    rounds, samples = (int(given) for given in [*sys.argv[1:], *("5", "400")[len(sys.argv) - 1 :]])
    steps = -(-samples // BATCH)
    with TemporaryDirectory() as folder:
        raw, processed = Path(folder, "raw"), Path(folder, "processed")
        write_raw(raw, samples)
        prepare_grit(str(raw), processed, size=SIZE, square=True, workers=1)
        rows = measure(raw, "raw", rounds, steps) + measure(processed, "processed", rounds, steps)
        write_rows(Path(__file__).stem, rows, change_by_scale=change_by_scale(raw))


if __name__ == "__main__":
    main()
