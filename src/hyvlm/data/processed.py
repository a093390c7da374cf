"""The writer of processed shards: samples of any raw layout, whole shards or none, and counts of what was dropped."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track
from webdataset import TarWriter

from hyvlm.data.boxes import LazyPart
from hyvlm.data.files import MAX_EXAMPLES
from hyvlm.data.images import load_image
from hyvlm.data.sets.shards import Record
from hyvlm.files import write_text
from hyvlm.types import BadSample, reasons


@dataclass(frozen=True)
class Unit:
    """What becomes one processed shard: a file, or the rows of it from ``start`` to ``stop``.

    The two are numbers of rows in a parquet file, and bytes in a TSV: a row belongs to where it begins.
    """

    number: int
    path: Path
    start: int = 0
    stop: int | None = None

    def stamp(self) -> dict[str, Any]:
        """Identifies the input, to tell whether a finished shard still stands for it."""
        stat = self.path.stat()
        return {
            "source": str(self.path),
            "rows": [self.start, self.stop],
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
        }


@dataclass(frozen=True)
class Form:
    """How processed shards come out, see :func:`hyvlm.data.prepare.prepare_grit`."""

    size: int
    square: bool
    quality: int
    max_parts: int | None


@dataclass
class Counts:
    """What became of the samples of one or several units."""

    samples: int = 0
    parts: int = 0
    samples_without_parts: int = 0
    overlapping_parts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_examples: list[str] = field(default_factory=list)

    def drop(self, bad: BadSample, prefix: str = "") -> None:
        """Count one sample or part that cannot be used."""
        self.dropped[prefix + bad.reason] += 1
        self.dropped_examples = [*self.dropped_examples, str(bad)][:MAX_EXAMPLES]

    def add(self, other: dict[str, Any]) -> None:
        """Add the counts of a unit, as its report holds them."""
        for name in ("samples", "parts", "samples_without_parts", "overlapping_parts"):
            setattr(self, name, getattr(self, name) + other[name])
        self.dropped.update(other["dropped"])
        self.dropped_examples = [*self.dropped_examples, *other["dropped_examples"]][:MAX_EXAMPLES]

    def lost(self) -> int:
        """Samples (not parts, further captions or whole shards) that were dropped."""
        return sum(n for reason, n in self.dropped.items() if not reason.startswith(("part: ", "caption: ", "shard ")))

    def as_dict(self) -> dict[str, Any]:
        """For JSON (``asdict`` cannot copy a Counter)."""
        return {**vars(self), "dropped": dict(self.dropped)}


@dataclass(frozen=True)
class Layout:
    """How samples of one kind of raw data are read. The functions are called in other processes.

    Attributes:
        name: As the command line knows it.
        boxes: Where its boxes stand, to say so if there are none.
        records: The samples of a unit; those that cannot be read are counted.
        parts: Of a sample and its image: the parts, those that cannot be used, and how many were left out for overlap.
    """

    name: str
    boxes: str
    records: Callable[[Unit, Counts], Iterator[Record]]
    parts: Callable[[Record, Image.Image], tuple[list[LazyPart], list[BadSample], int]]


def write_shards(
    layout: Layout,
    source: str,
    units: list[Unit],
    out: Path,
    form: Form,
    *,
    max_dropped: float,
    workers: int | None,
) -> dict[str, Any]:
    """Write one processed shard ``OUT/00000.tar``, ... a unit, and ``OUT/report.json``.

    A shard is written under another name and renamed when it is whole, with its counts in ``OUT/reports``: stopped at
    any moment, the same call goes on where it was.

    Args:
        layout: How samples are read.
        source: As the user gave it, for messages and the report.
        units: What becomes one shard each.
        out: Folder for the result.
        form: How shards come out; another form writes them anew.
        max_dropped: Share of samples beyond which the call fails, after it has written the report.
        workers: Processes; None takes one a core, at most 16.
    Returns:
        The content of ``report.json``.
    Raises:
        ValueError: ``max_dropped`` is no share, too many samples were dropped, there are no boxes, or ``out`` is the
            folder of a source file, or holds tar files that are not of an earlier call for this source.
    """
    if not 0 <= max_dropped <= 1:
        raise ValueError(f"max_dropped is a share, from 0 to 1, got {max_dropped}")
    _check_out(layout.name, out, units, source)
    (out / "reports").mkdir(parents=True, exist_ok=True)
    for draft in out.glob(".[0-9]*-*"):  # left by a call that was killed
        draft.unlink()
    counts = Counts()
    for report in _run(partial(_prepare_unit, layout=layout, out=out, form=form), units, workers):
        counts.add(report)
    total = counts.samples + counts.lost()
    report = {"source": source, "form": asdict(form), "shards": len(units), "read": total, **counts.as_dict()}
    _write_json(out / "report.json", report)
    if counts.lost() > max_dropped * total or not total:
        why = reasons(dict(counts.dropped.most_common())) or "there were none"
        raise ValueError(f"prepare {layout.name}: {counts.samples} of {total} samples of {source} could be used: {why}")
    if not counts.parts and not counts.dropped:
        raise ValueError(f"prepare {layout.name}: no sample of {source} has boxes in {layout.boxes}")
    return report


def _check_out(name: str, out: Path, units: list[Unit], source: str) -> None:
    """Raise ValueError if writing to ``out`` could replace a source file, or a shard that is not this call's own."""
    for unit in units:
        if out.resolve() in (unit.path.parent.resolve(), unit.path.resolve().parent):
            raise ValueError(f"prepare {name}: {out} is the folder of the source {unit.path}: choose another folder")
    ours = {f"{unit.number:05d}" for unit in units if (out / "reports" / f"{unit.number:05d}.json").is_file()}
    others = sorted(path.name for path in out.glob("*.tar") if path.stem not in ours)
    if others:
        raise ValueError(f"prepare {name}: {out} holds {others[0]}, which is not from {source}: choose another folder")


def _run(job: Callable[[Unit], dict[str, Any]], units: list[Unit], workers: int | None) -> Iterator[dict[str, Any]]:
    workers = min(workers or min(os.cpu_count() or 1, 16), len(units))
    show = partial(track, total=len(units), description="preparing shards", console=Console(stderr=True))
    if workers == 1:
        yield from show(map(job, units))
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from show(pool.map(job, units))


def _prepare_unit(unit: Unit, layout: Layout, out: Path, form: Form) -> dict[str, Any]:
    """Write one processed shard, unless it is there; returns its report."""
    shard, report_path = out / f"{unit.number:05d}.tar", out / "reports" / f"{unit.number:05d}.json"
    stamp = {**unit.stamp(), "form": asdict(form)}
    try:
        done: dict[str, Any] = json.loads(report_path.read_text(encoding="utf-8"))
        if shard.is_file() and done["stamp"] == stamp:
            return done
    except (OSError, ValueError, KeyError):
        pass  # not written, or not to the end
    _write_json(report_path, {"begun": stamp})  # says that the shard is ours, should the call stop before its report
    counts, keys = Counts(), set[str]()
    with tempfile.NamedTemporaryFile(dir=out, prefix=f".{unit.number:05d}-", delete=False) as file:
        try:
            # members carry no time, so that equal input gives equal shards
            with TarWriter(file, encoder=False, mtime=0) as writer:
                for record in layout.records(unit, counts):
                    _write_sample(writer, record, layout, form, counts, keys)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(shard)
        finally:
            Path(file.name).unlink(missing_ok=True)
    report = {"stamp": stamp, **counts.as_dict()}
    _write_json(report_path, report)
    return report


def _write_sample(
    writer: TarWriter, record: Record, layout: Layout, form: Form, counts: Counts, keys: set[str]
) -> None:
    key = record.key.replace(".", "_")  # a key ends at its first dot
    try:
        if key in keys:
            raise BadSample("second sample of the same key", record.where)
        image = load_image(record.image, record.where)
    except BadSample as bad:
        counts.drop(bad)
        return
    keys.add(key)
    parts, bad_parts, overlapping = layout.parts(record, image)
    for bad_part in bad_parts:
        counts.drop(bad_part, "part: ")
    further = [BadSample("processed samples have one caption", record.where)] * (len(record.captions) - 1)
    for bad_caption in [*record.faults, *further]:
        counts.drop(bad_caption, "caption: ")
    parts = parts[: form.max_parts]
    members: dict[str, Any] = {
        "__key__": key,
        "child.jpg": _encode(image, form),
        "child.txt": record.captions[0].encode(),
    }
    for number, part in enumerate(parts):
        members[f"parent{number:03d}.jpg"] = _encode(part.image, form)
        members[f"parent{number:03d}.txt"] = part.text.encode()
    members["numparents.txt"] = str(len(parts)).encode()
    writer.write(members)
    counts.samples += 1
    counts.parts += len(parts)
    counts.samples_without_parts += not parts
    counts.overlapping_parts += overlapping


def _encode(image: Image.Image, form: Form) -> bytes:
    if form.square:
        image = ImageOps.pad(image, (form.size, form.size), Image.Resampling.BICUBIC, color="white")
    elif min(image.size) > form.size:
        scale = form.size / min(image.size)
        sides = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(sides, Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=form.quality)
    return buffer.getvalue()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False))
