"""Raw grounded data to processed shards: boxes cut, chosen and scaled once instead of at every visit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from hyvlm.data import gligen
from hyvlm.data.boxes import LazyPart
from hyvlm.data.files import need_caption
from hyvlm.data.grit import MAX_OVERLAP, choose_parts
from hyvlm.data.images import IMAGE_SUFFIXES
from hyvlm.data.processed import Counts, Form, Layout, Unit, write_shards
from hyvlm.data.sets.shards import Record, expand_shards, read_record
from hyvlm.data.tarindex import index_shard
from hyvlm.errors import MissingExtra
from hyvlm.registry import Registry
from hyvlm.types import BadSample

#: Raw layouts by name, as ``hyvlm data prepare LAYOUT SOURCE OUT`` names them: called as ``prepare(source, out)``.
PREPARERS: Registry[Callable[..., dict[str, Any]]] = Registry("layout of raw data")


@dataclass(frozen=True)
class GritForm(Form):
    """What besides decides how raw GRIT comes out, see :func:`prepare_grit`."""

    max_overlap: float
    images: str


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
        source: Shard pattern as in :func:`hyvlm.data.sets.shards.expand_shards`, or one of ``.parquet`` files.
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
    units = _units(str(source), shard_size)
    folder = Path(images) if images is not None else units[0].path.parent / "images"
    if images is not None and not folder.is_dir():
        raise FileNotFoundError(f"prepare grit: no folder of images {folder}")
    form = GritForm(size, square, quality, max_parts, max_overlap, str(folder))
    layout = Layout(
        "grit",
        "ref_exps or noun_chunks; is it raw GRIT?",
        partial(_grit_records, images=folder),
        partial(_grit_parts, max_overlap=max_overlap),
    )
    return write_shards(layout, str(source), units, Path(out), form, max_dropped=max_dropped, workers=workers)


@PREPARERS.register("cc3m-gligen")
def prepare_gligen(
    source: str | Path,
    out: str | Path,
    *,
    size: int = 256,
    square: bool = False,
    quality: int = 95,
    max_parts: int | None = None,
    shard_bytes: int = 2**31,
    max_dropped: float = 0.5,
    workers: int | None = None,
) -> dict[str, Any]:
    """Turn CC3M with the grounded boxes that GLIGEN released into processed shards, as :func:`prepare_grit` does.

    The source is the released ``train-0000.tsv``, ``train-0001.tsv``, ... or the one file that they merge to, see
    :mod:`hyvlm.data.gligen`. The images are in it; ``.lineidx`` files are not needed. Boxes have no score: all are
    kept, in their order.

    Args:
        source: A folder of ``.tsv`` files, or a list, range or glob of them as in
            :func:`hyvlm.data.sets.shards.expand_shards`.
        out, size, square, quality, max_parts, max_dropped, workers: As in :func:`prepare_grit`.
        shard_bytes: Larger files become several shards, each from at most so many bytes.
    Returns:
        The content of ``report.json``.
    Raises:
        FileNotFoundError: The source does not exist, or a folder has no ``.tsv`` file.
        ValueError: A file is no such TSV; or as in :func:`prepare_grit`.
    """
    ranges = [(path, *piece) for path in gligen.find_files(str(source)) for piece in gligen.pieces(path, shard_bytes)]
    units = [Unit(number, *piece) for number, piece in enumerate(ranges)]
    layout = Layout("cc3m-gligen", "annos", _gligen_records, _gligen_parts)
    form = Form(size, square, quality, max_parts)
    return write_shards(layout, str(source), units, Path(out), form, max_dropped=max_dropped, workers=workers)


def _gligen_records(unit: Unit, counts: Counts) -> Iterator[Record]:
    for where, row in gligen.rows(unit.path, unit.start, unit.stop):
        try:
            yield gligen.read_row(row, where)
        except BadSample as bad:
            counts.drop(bad)


def _gligen_parts(record: Record, image: Image.Image) -> tuple[list[LazyPart], list[BadSample], int]:
    return *gligen.boxed_parts(record.document, image, record.where), 0


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


def _grit_records(unit: Unit, counts: Counts, images: Path) -> Iterator[Record]:
    if unit.stop is not None:
        yield from _parquet_records(unit, images, counts)
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
            captions = need_caption(["" if row["caption"] is None else row["caption"]], where)
            yield Record(key, where, captions, row, _image_path(row, folder, where))
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


def _grit_parts(record: Record, image: Image.Image, max_overlap: float) -> tuple[list[LazyPart], list[BadSample], int]:
    return choose_parts(record.document, image, record.where, max_overlap=max_overlap)
