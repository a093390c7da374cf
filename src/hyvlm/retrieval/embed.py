"""Images and texts to a collection on disk: in chunks, by one process or several, going on where a run was stopped."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import hyvlm
from hyvlm.data.catalog import SampleSet
from hyvlm.data.files import MAX_EXAMPLES, dropped_samples, unreported
from hyvlm.data.sets.image_files import open_pictures
from hyvlm.data.text_rows import open_texts
from hyvlm.data.transforms import Transform, eval_transform
from hyvlm.evaluation.embed import evaluation_mode, progress
from hyvlm.evaluation.runner import choose_device
from hyvlm.files import check_folder, write_text
from hyvlm.models import DualEncoder, Tokenizer
from hyvlm.retrieval.chunks import PARTIAL, Chunk, ChunkStore, only_writer, read_plan
from hyvlm.retrieval.collection import FORMAT, GROUPS, MANIFEST, Collection, describe_model, parquet, read_manifest
from hyvlm.retrieval.processes import Processes, processes
from hyvlm.types import BadSample, reasons

DTYPES = ("float32", "float16")
#: A chunk has this many batches.
BATCHES_A_CHUNK = 16


def embed(
    model: str | Path,
    *,
    out: str | Path,
    images: str | None = None,
    texts: str | None = None,
    dtype: str = "float32",
    batch_size: int = 64,
    workers: int = 0,
    device: str | None = None,
    resize: str | None = None,
    split: str | None = None,
    show_progress: bool = True,
) -> Collection:
    """Embed images, texts or both into a folder.

    What an earlier call left in ``out`` is gone on with, or kept, if model, type and sources are the same. Under
    torchrun every process makes the same call and takes every Nth chunk; points are the same, bit for bit, however many
    processes there are, if each computes with as many threads. Memory holds a chunk of points, and all texts.

    Args:
        model: What :func:`hyvlm.load` takes.
        out: The folder; new, empty, or left by such a call.
        images: As :func:`hyvlm.data.sets.image_files.open_pictures` takes it.
        texts: As :func:`hyvlm.data.text_rows.open_texts` takes it.
        dtype: Of the points on disk, "float32" or "float16". Points that float16 cannot hold are left out and counted.
        batch_size: Images, or texts, that pass the model at a time.
        workers: Processes that read images.
        device: Where the model computes; None takes the fastest there is.
        resize: "squash" or "crop"; None is the model's own way, squashed if it has none.
        split: Of the data sets; files and folders have none.
        show_progress: Say on stderr how far a long pass is.
    Returns:
        The collection; under torchrun in every process.
    Raises:
        ValueError: A setting is out of range, ``out`` holds something else or is being written by another run, or
            nothing of a source could be used.
        FileNotFoundError: There is no such model or source.
        MissingExtra: pyarrow is not installed.
    """
    if dtype not in DTYPES:
        raise ValueError(f"points are stored as {' or '.join(DTYPES)}, not {dtype!r}")
    if images is None and texts is None:
        raise ValueError("say what to embed: images, texts or both")
    parquet()
    out, splits = Path(out), _splits([images, texts], split)
    with processes() as among, ExitStack() as alone:
        with among.together():
            check_folder(out, "the collection")
            where = _device(device, among)
            encoder, _, tokenizer = hyvlm.load(model, device=where)
            about = {"path": str(model), **describe_model(encoder)}
            sources: dict[str, Source] = {}
            if images is not None:
                transform = eval_transform(encoder.image_tower.image_size, resize or encoder.resize or "squash")
                sources["images"] = ImageSource(images, splits[images], transform, batch_size, workers)
            if texts is not None:
                sources["texts"] = TextSource(texts, splits[texts], tokenizer, batch_size)
            done = _check_out(out, about, dtype, sources)
            stores = {
                group: ChunkStore(out, group, _plan(about, dtype, source), len(source))
                for group, source in sources.items()
                if group not in done
            }
            if among.first and stores:
                alone.enter_context(only_writer(out))
            missing = {group: store.missing() for group, store in stores.items()}  # before any process writes
        with among.together():
            for group, store in stores.items():
                store.begin()
                if among.first and len(missing[group]) < len(store):
                    kept = len(store) - len(missing[group])
                    print(f"{sources[group].name}: {kept} of {len(store)} chunks are done already", file=sys.stderr)
                mine = [number for number in missing[group] if number % among.world == among.rank]
                _fill(store, mine, encoder, sources[group], dtype, show_progress and among.first)
        with among.together():
            if among.first:
                for group, store in stores.items():
                    _finish(store, about, dtype, sources[group])
    return Collection.open(out)


def _splits(specs: list[str | None], split: str | None) -> dict[str, str | None]:
    """The split of each source: files and folders have none. Raises ValueError if none of the sources takes it."""
    named = {s: ":" in s or not (os.path.exists(s) or os.path.splitext(s)[1]) for s in specs if s is not None}
    if split is not None and not any(named.values()):
        raise ValueError(f"files and folders have no splits: leave --split {split} out")
    return {spec: split if is_named else None for spec, is_named in named.items()}


def _device(name: str | None, among: Processes) -> torch.device:
    device = choose_device(name)
    if device.type == "cuda" and device.index is None and among.world > 1:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


@dataclass
class Encoded:
    """What became of one batch of a source: points of those that could be read, and what was skipped."""

    points: Tensor
    indices: list[int]
    keys: list[str]
    texts: list[str]
    bad: list[BadSample]


class ImageSource:
    """Images, read by ``workers`` processes."""

    def __init__(self, spec: str, split: str | None, transform: Transform, batch_size: int, workers: int) -> None:
        with unreported():  # it is said with what cannot be read, in the end
            samples = open_pictures(spec, split=split)
        self.samples = samples
        self.name, self.transform, self.batch_size, self.workers = spec, transform, batch_size, workers
        self.identity = {
            "spec": os.path.abspath(spec) if os.path.exists(spec) else spec,
            "split": split,
            "fingerprint": samples.fingerprint,
            "resize": repr(transform),
        }
        self.dropped = Counter(samples.dropped)
        self.examples = list(samples.dropped_examples)
        self.total = len(samples) + dropped_samples(self.dropped)

    def __len__(self) -> int:
        return len(self.samples)

    def batches(self, model: DualEncoder, ranges: list[range]) -> Iterator[Encoded]:
        """Points of the images at the places ``ranges``, one batch each, in order."""
        loader = DataLoader(
            _Pictures(self.samples, self.transform),
            batch_sampler=ranges,  # type: ignore[arg-type]  # a range is a sequence of indices
            num_workers=self.workers,
            collate_fn=list,
            generator=torch.Generator(),  # the default would draw from the global one
        )
        for items in loader:
            read = [item for item in items if not isinstance(item, BadSample)]
            points = torch.empty(0, model.dim)
            if read:
                points = model.encode_image(torch.stack([p for _, _, p in read]).to(model.pixel_mean.device))
            bad = [item for item in items if isinstance(item, BadSample)]
            yield Encoded(points, [i for i, _, _ in read], [key for _, key, _ in read], [], bad)


class _Pictures(Dataset[tuple[int, str, Tensor] | BadSample]):
    def __init__(self, samples: SampleSet, transform: Transform) -> None:
        self.samples, self.transform = samples, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, str, Tensor] | BadSample:
        try:
            sample = self.samples[index]
            return index, sample.key, self.transform(sample.picture)
        except BadSample as bad:
            return bad


class TextSource:
    """The texts of a file or a data set."""

    def __init__(self, spec: str, split: str | None, tokenizer: Tokenizer, batch_size: int) -> None:
        self.rows = rows = open_texts(spec, split=split)
        self.name, self.tokenizer, self.batch_size = spec, tokenizer, batch_size
        self.identity = {
            "spec": os.path.abspath(spec) if os.path.exists(spec) else spec,
            "split": split,
            "fingerprint": rows.fingerprint,
        }
        self.dropped, self.examples, self.total = Counter(rows.drops.counts), list(rows.drops.examples), rows.total

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, model: DualEncoder, ranges: list[range]) -> Iterator[Encoded]:
        """Points of the texts at the places ``ranges``, one batch each, in order."""
        rows = self.rows
        for places in ranges:
            part = slice(places.start, places.stop)
            points = model.encode_text(self.tokenizer(rows.texts[part]).to(model.pixel_mean.device))
            yield Encoded(points, rows.indices[part], rows.keys[part], rows.texts[part], [])


Source = ImageSource | TextSource


def _plan(about: dict[str, Any], dtype: str, source: Source) -> dict[str, Any]:
    return {
        "model": about,
        "dtype": dtype,
        "source": source.identity,
        "rows": BATCHES_A_CHUNK * source.batch_size,
    }


def _check_out(out: Path, about: dict[str, Any], dtype: str, sources: dict[str, Source]) -> set[str]:
    """The groups that ``out`` already holds. Raises ValueError if what it holds is of something else."""
    plans = {group: plan for group in GROUPS if (plan := read_plan(out, group))}
    manifest = read_manifest(out) if (out / MANIFEST).exists() else None
    if manifest is None and not (out / PARTIAL).exists() and out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} holds other files, none of a collection: name a new folder")
    for held in [*([manifest] if manifest else []), *plans.values()]:
        model = held["model"]
        if model["fingerprint"] != about["fingerprint"]:
            raise ValueError(f"{out} holds points of another model, {model['path']}: name a new folder")
        if held["dtype"] != dtype:
            raise ValueError(f"{out} holds points in {held['dtype']}, not {dtype}: name a new folder")
    finished = {group: info["source"] for group, info in manifest["groups"].items()} if manifest else {}
    for group, source in sources.items():
        held = finished.get(group) or (plans[group]["source"] if group in plans else source.identity)
        for key, changed in (("fingerprint", "other"), ("resize", "otherwise resized")):
            if held.get(key) != source.identity.get(key):
                same = held["spec"] == source.identity["spec"] and key == "fingerprint"
                what = f"{held['spec']} has changed since" if same else f"those of {held['spec']}"
                raise ValueError(f"{out} holds {changed} {group} ({what}): name a new folder")
    for group in plans.keys() & finished.keys():  # left when a run was killed after its last step
        ChunkStore(out, group, plans[group], 0).remove()
    return set(finished) & set(sources)


def _fill(
    store: ChunkStore, mine: list[int], model: DualEncoder, source: Source, dtype: str, show_progress: bool
) -> None:
    """Compute the chunks ``mine``."""
    step = source.batch_size
    batches = [
        (number, places[start : start + step])
        for number in mine
        for places in [store.range(number)]
        for start in range(0, len(places), step)
    ]
    with evaluation_mode(model):
        passed = source.batches(model, [places for _, places in batches])
        bar = progress(_Sized(passed, len(batches)), f"{store.group} of {source.name}") if show_progress else passed
        held: list[Chunk] = []
        for (number, places), encoded in zip(batches, bar, strict=True):
            held.append(_stored(encoded, model, dtype))
            if places.stop == store.range(number).stop:
                store.write(number, Chunk.joined(held))
                held = []


@dataclass
class _Sized:
    """An iterator whose length is known."""

    items: Iterator[Encoded]
    length: int

    def __iter__(self) -> Iterator[Encoded]:
        return self.items

    def __len__(self) -> int:
        return self.length


def _stored(encoded: Encoded, model: DualEncoder, dtype: str) -> Chunk:
    """A batch as it goes to disk: points in their type, and those that are not finite counted."""
    full = encoded.points.float()
    measure: Callable[[Tensor], Tensor] | None = getattr(model.manifold, "radius", None)
    radii = measure(full).float() if measure is not None else None
    points = full.to(getattr(torch, dtype))
    finite = full.isfinite().all(-1) if radii is None else full.isfinite().all(-1) & radii.isfinite()
    fits = finite & points.isfinite().all(-1)
    skipped, examples = Counter(bad.reason for bad in encoded.bad), [str(bad) for bad in encoded.bad]
    for row in (~fits).nonzero().flatten().tolist():
        reason = f"point is too far out for {dtype}" if finite[row] else "point is not finite"
        skipped[reason] += 1
        examples.append(f"{encoded.keys[row]}: {reason}")
    keep = fits.nonzero().flatten().tolist()
    return Chunk(
        points[fits].cpu().numpy(),
        None if radii is None else radii[fits].cpu().numpy(),
        np.array([encoded.indices[row] for row in keep], dtype=np.int64),
        [encoded.keys[row] for row in keep],
        [encoded.texts[row] for row in keep] if encoded.texts else [],
        skipped,
        examples[:MAX_EXAMPLES],
    )


def _finish(store: ChunkStore, about: dict[str, Any], dtype: str, source: Source) -> None:
    """Join the chunks, say what was left out, and enter the group into the manifest."""
    joined = store.join(about["dim"], dtype)
    skipped = dict(source.dropped + Counter(joined["skipped"]))
    examples = [*source.examples, *joined["examples"]][:MAX_EXAMPLES]
    if skipped:
        why = f"{reasons(skipped)}; first: {'; '.join(examples)}"
        print(f"{source.name}: {joined['count']} of {source.total} {store.group}; left out: {why}", file=sys.stderr)
    if not joined["count"]:
        store.remove()
        raise ValueError(f"none of the {source.total} {store.group} of {source.name} could be used: {reasons(skipped)}")
    groups = read_manifest(store.out)["groups"] if (store.out / MANIFEST).exists() else {}
    info = {"count": joined["count"], "total": source.total, "skipped": skipped, "examples": examples}
    groups[store.group] = {**info, "source": source.identity}
    manifest = {"format": FORMAT, "hyvlm_version": hyvlm.__version__, "model": about, "dtype": dtype, "groups": groups}
    write_text(store.out / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    store.remove()
