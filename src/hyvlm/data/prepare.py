"""Raw grounded data to processed shards: boxes cut, chosen and scaled once instead of at every visit."""

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

from hyvlm.data.files import MAX_EXAMPLES, need_caption
from hyvlm.data.grit import MAX_OVERLAP, choose_parts
from hyvlm.data.images import IMAGE_SUFFIXES, load_image
from hyvlm.data.shards import Record, expand_shards, read_record
from hyvlm.data.tarindex import index_shard
from hyvlm.errors import MissingExtra
from hyvlm.files import write_text
from hyvlm.registry import Registry
from hyvlm.types import BadSample

#: Raw layouts by name, as ``hyvlm data prepare LAYOUT SOURCE OUT`` names them: called as ``prepare(source, out)``.
PREPARERS: Registry[Callable[..., dict[str, Any]]] = Registry("layout of raw data")


@dataclass(frozen=True)
class Unit:
    """What becomes one processed shard: a raw shard, or rows ``start`` to ``stop`` of a parquet file."""

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
    """How processed shards come out, see :func:`prepare_grit`."""

    size: int
    square: bool
    quality: int
    max_parts: int | None
    max_overlap: float
    images: str


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


@PREPARERS.register("grit")
def prepare_grit(
    source: str | Path,
    out: str | Path,
    *,
    images: str | Path | None = None,
    size: int = 256,
    square: bool = False,
    quality: int = 95,
    max_parts: int | None = None,
    max_overlap: float = MAX_OVERLAP,
    shard_size: int = 10_000,
    max_dropped: float = 0.5,
    workers: int | None = None,
) -> dict[str, Any]:
    """Turn local raw GRIT into processed shards ``OUT/00000.tar``, ``OUT/00001.tar``, ...

    The source is either shards with an image and a json (img2dataset's, with "caption", "noun_chunks", "ref_exps"), one
    processed shard each, or parquet files with columns key (or id), caption, noun_chunks, ref_exps. The image of a
    parquet row is a local path in its column "image" or "url" (relative to ``images``), else ``KEY.jpg`` or ``ID.jpg``
    (or another image suffix) in ``images``. Phrases and boxes are chosen by :func:`hyvlm.data.grit.choose_parts`: by
    falling score, without those that overlap a better one; "parent000" is the best.

    A shard is written under another name and renamed when it is whole, with its counts in ``OUT/reports``: stopped at
    any moment, the same call goes on where it was. ``OUT/report.json`` has the sums. One call at a time may write to
    a folder.

    Args:
        source: Shard pattern as in :func:`hyvlm.data.shards.expand_shards`, or one of ``.parquet`` files.
        out: Folder for the result.
        images: Folder of the images of a parquet source; by default ``images/`` beside the file.
        size: Images and crops are scaled down until their short side has this many pixels; never up.
        square: Scale the long side to ``size`` instead and pad with white to a square, as the released shards are.
        quality: JPEG quality.
        max_parts: Parts kept of a sample; None keeps all.
        max_overlap: See :func:`hyvlm.data.grit.choose_parts`.
        shard_size: Rows of a parquet file that make one shard.
        max_dropped: Share of samples beyond which the call fails, after it has written the report.
        workers: Processes; None takes one a core, at most 16.
    Returns:
        The content of ``report.json``.
    Raises:
        FileNotFoundError: The source, or the folder of images, does not exist.
        ValueError: The source is processed already, holds no boxes, or too many samples were dropped; or ``out`` is the
            folder of a source file, or holds tar files that are not of an earlier call for this source.
    """
    out = Path(out)
    units = _units(str(source), shard_size)
    folder = Path(images) if images is not None else units[0].path.parent / "images"
    if images is not None and not folder.is_dir():
        raise FileNotFoundError(f"prepare grit: no folder of images {folder}")
    form = Form(size, square, quality, max_parts, max_overlap, str(folder))
    _check_out(out, units, str(source))
    (out / "reports").mkdir(parents=True, exist_ok=True)
    for draft in out.glob(".[0-9]*-*"):  # left by a call that was killed
        draft.unlink()
    counts = Counts()
    for report in _run(partial(_prepare_unit, out=out, form=form), units, workers):
        counts.add(report)
    total = counts.samples + counts.lost()
    report = {"source": str(source), "form": asdict(form), "shards": len(units), "read": total, **counts.as_dict()}
    _write_json(out / "report.json", report)
    if counts.lost() > max_dropped * total or not total:
        reasons = ", ".join(f"{n} {reason}" for reason, n in counts.dropped.most_common()) or "there were none"
        raise ValueError(f"prepare grit: {counts.samples} of {total} samples of {source} could be used: {reasons}")
    if not counts.parts and not counts.dropped:
        raise ValueError(f"prepare grit: no sample of {source} has boxes in ref_exps or noun_chunks; is it raw GRIT?")
    return report


def _check_out(out: Path, units: list[Unit], source: str) -> None:
    """Raise ValueError if writing to ``out`` could replace a source file, or a shard that is not this call's own."""
    for unit in units:
        if out.resolve() in (unit.path.parent.resolve(), unit.path.resolve().parent):
            raise ValueError(f"prepare grit: {out} is the folder of the source {unit.path}: choose another folder")
    ours = {f"{unit.number:05d}" for unit in units if (out / "reports" / f"{unit.number:05d}.json").is_file()}
    others = sorted(path.name for path in out.glob("*.tar") if path.stem not in ours)
    if others:
        raise ValueError(f"prepare grit: {out} holds {others[0]}, which is not from {source}: choose another folder")


def _units(source: str, shard_size: int) -> list[Unit]:
    is_parquet = ".parquet" in source or (Path(source).is_dir() and any(Path(source).glob("*.parquet")))
    if not is_parquet:
        return [Unit(number, path) for number, path in enumerate(expand_shards(source))]
    parquet = _pyarrow_parquet()
    folder = Path(source)
    paths = sorted(folder.glob("*.parquet")) if folder.is_dir() else expand_shards(source)
    ranges = [
        (path, start, min(start + shard_size, rows))
        for path in paths
        for rows in [parquet.ParquetFile(path).metadata.num_rows]
        for start in range(0, rows, shard_size)
    ]
    if not ranges:
        raise ValueError(f"prepare grit: {source} has no rows")
    return [Unit(number, *piece) for number, piece in enumerate(ranges)]


def _pyarrow_parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("reading parquet", "pyarrow", "parquet") from error
    return parquet


def _run(job: Callable[[Unit], dict[str, Any]], units: list[Unit], workers: int | None) -> Iterator[dict[str, Any]]:
    workers = min(workers or min(os.cpu_count() or 1, 16), len(units))
    show = partial(track, total=len(units), description="preparing shards", console=Console(stderr=True))
    if workers == 1:
        yield from show(map(job, units))
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from show(pool.map(job, units))


def _prepare_unit(unit: Unit, out: Path, form: Form) -> dict[str, Any]:
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
                for record in _records(unit, form, counts):
                    _write_sample(writer, record, form, counts, keys)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(shard)
        finally:
            Path(file.name).unlink(missing_ok=True)
    report = {"stamp": stamp, **counts.as_dict()}
    _write_json(report_path, report)
    return report


def _records(unit: Unit, form: Form, counts: Counts) -> Iterator[Record]:
    if unit.stop is not None:
        yield from _parquet_records(unit, Path(form.images), counts)
        return
    shard = index_shard(unit.path)
    if any(suffix.startswith("child.") for suffix in shard.suffixes):
        raise ValueError(f"prepare grit: {unit.path} is in the processed layout already")
    counts.dropped.update(shard.drops.counts)
    counts.dropped_examples += shard.drops.examples
    for number in range(len(shard.samples)):
        try:
            yield read_record(shard, number)
        except BadSample as bad:
            counts.drop(bad)


def _parquet_rows(unit: Unit) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers and values of the unit's rows, read from the row groups that hold them."""
    file = _pyarrow_parquet().ParquetFile(unit.path)
    names = file.schema_arrow.names
    for column in ("caption", "ref_exps"):
        if column not in names:
            raise ValueError(f"{unit.path} has no column {column!r}; found: {', '.join(names)}")
    columns = [name for name in ("key", "id", "caption", "ref_exps", "noun_chunks", "image", "url") if name in names]
    first = 0
    for group in range(file.num_row_groups):
        last = first + file.metadata.row_group(group).num_rows
        start, stop = max(first, unit.start), min(last, unit.stop or last)
        if start < stop:
            rows = file.read_row_group(group, columns=columns).slice(start - first, stop - start)
            yield from enumerate(rows.to_pylist(), start=start)
        first = last


def _parquet_records(unit: Unit, folder: Path, counts: Counts) -> Iterator[Record]:
    for number, row in _parquet_rows(unit):
        key = str(row.get("key") or row.get("id") or number)
        where = f"row {number} (key {key!r}, id {row.get('id')!r}) of {unit.path}"
        try:
            (caption,) = captions = need_caption(["" if row["caption"] is None else row["caption"]], where)
            yield Record(key, where, captions, {**row, "caption": caption}, _image_path(row, folder, where))
        except BadSample as bad:
            counts.drop(bad)


def _image_path(row: dict[str, Any], folder: Path, where: str) -> Path:
    for column in ("image", "url"):
        value = row.get(column)
        if isinstance(value, str) and (folder / value.removeprefix("file://")).is_file():
            return folder / value.removeprefix("file://")
    for column in ("key", "id"):
        for suffix in IMAGE_SUFFIXES:
            path = folder / f"{row.get(column)}.{suffix}"
            if path.is_file():
                return path
    raise BadSample("image file is missing", where)


def _write_sample(writer: TarWriter, record: Record, form: Form, counts: Counts, keys: set[str]) -> None:
    key = record.key.replace(".", "_")  # a key ends at its first dot
    try:
        if key in keys:
            raise BadSample("second sample of the same key", record.where)
        image = load_image(record.image, record.where)
    except BadSample as bad:
        counts.drop(bad)
        return
    keys.add(key)
    parts, bad_parts, overlapping = choose_parts(record.document, image, record.where, max_overlap=form.max_overlap)
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
