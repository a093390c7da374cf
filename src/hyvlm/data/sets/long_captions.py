"""Sets of long captions in their published layouts: DOCCI, DCI, Long-DCI, Urban-1k."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import check_offer, need_folder, read_json
from hyvlm.data.images import IMAGE_SUFFIXES
from hyvlm.data.sets.captioned import UNREADABLE, CaptionedImages, Captions
from hyvlm.data.sets.table import decode, read_rows

_CONTENTS = ["pairs", "texts"]
#: Published sizes by split.
DOCCI_SIZES = {"train": 9647, "test": 5000, "qual_dev": 100, "qual_test": 100}
DCI_SIZE = 7805
LONG_DCI_SIZE = 7602  # images of DCI whose extra caption is not empty
URBAN_SIZE = 1000


@DATASETS.register("docci")
def open_docci(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """DOCCI (Onoe et al. 2024): ``docci_descriptions.jsonlines`` and ``images/``. Content: pairs, texts.

    Rows are ``{"example_id", "image_file", "description", "split"}``. Splits: train, test (the default), qual_dev,
    qual_test.
    """
    check_offer("docci", "content", content, _CONTENTS)
    folder, split = need_folder(Path(location), "docci"), split or "test"
    path = folder / "docci_descriptions.jsonlines"
    if not path.is_file():
        raise FileNotFoundError(f"docci: no file {path}")
    captions, splits = Captions(), set[str]()
    for number, line in enumerate(decode(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"row {number} of {path} is not JSON: {error}") from error
        where, named = f"row {number} of {path}", row.get("split") if isinstance(row, dict) else None
        if not isinstance(named, str):
            captions.drops.add(UNREADABLE, where)
            continue
        splits.add(named)
        if named == split:
            captions.add(row.get("image_file"), [row.get("description")], where, row.get("example_id"))
    if not splits:
        raise ValueError(f"{path} has no row with a split: example_id, image_file, description and split are due")
    check_offer(f"docci:{location}", "split", split, sorted(splits))
    entries = captions.placed(folder, ["images", ""])
    return CaptionedImages(
        f"docci:{location}", split, content, entries, folder, captions.drops, expected=DOCCI_SIZES.get(split)
    )


@DATASETS.register("dci")
def open_dci(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """Densely Captioned Images (Urbanek et al. 2024). Content: pairs, texts.

    Read are ``annotations/*.json`` with "image", "short_caption" and "extra_caption", ``photos/`` and, for splits,
    ``splits.json``; the split "all" (the default) needs none. The caption is the short one, a line break, and the extra
    one, as the authors join them. Every annotation file is read, masks included.
    """
    check_offer("dci", "content", content, _CONTENTS)
    folder = _dci_folder(location, "dci")
    split, captions = split or "all", Captions()
    for path in _dci_files(folder, f"dci:{location}", split):
        entry = _dci_entry(path)
        texts = [entry.get("short_caption"), entry.get("extra_caption")]
        joined = "\n".join(text.strip() for text in texts if isinstance(text, str) and text.strip())
        captions.add(entry.get("image"), [joined], str(path))
    expected = DCI_SIZE if split == "all" else None
    entries = captions.placed(folder, ["photos", "images", ""])
    return CaptionedImages(f"dci:{location}", split, content, entries, folder, captions.drops, expected=expected)


@DATASETS.register("long-dci")
def open_long_dci(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """Long-DCI (Najdenkoska et al. 2024): DCI's extra captions, of the images that have one. Content: pairs, texts.

    ``location`` is the authors' ``dci_long.csv`` (columns ``filepath`` and ``title``, parted by tabs) or a folder of
    DCI, from which that file is made: annotation files in the order of their names.
    """
    check_offer("long-dci", "content", content, _CONTENTS)
    check_offer("long-dci", "split", split or "all", ["all"])
    captions, path = Captions(), Path(location)
    if path.suffix.lower() in (".csv", ".tsv") and path.is_file():
        folder = path.parent
        for number, row in read_rows(path, ("filepath", "title")):
            captions.add(row["filepath"], [row["title"]], f"row {number} of {path}")
    else:
        folder = _dci_folder(location, "long-dci")
        for file in _dci_files(folder, f"long-dci:{location}", "all"):
            entry = _dci_entry(file)
            captions.add(entry.get("image"), [entry.get("extra_caption")], str(file))
    entries = captions.placed(folder, ["photos", "images", ""])
    return CaptionedImages(
        f"long-dci:{location}", "all", content, entries, folder, captions.drops, expected=LONG_DCI_SIZE
    )


def _dci_folder(location: str, kind: str) -> Path:
    folder = need_folder(Path(location), kind)
    inner = folder / "densely_captioned_images"
    folder = inner if inner.is_dir() else folder
    if not (folder / "annotations").is_dir():
        raise FileNotFoundError(f"{kind}: {folder} has no folder annotations")
    return folder


def _dci_files(folder: Path, name: str, split: str) -> list[Path]:
    """Annotation files of a split, by name for "all", else in the order of ``splits.json``."""
    if split == "all":
        return sorted((folder / "annotations").glob("*.json"))
    listed = read_json(folder / "splits.json") if (folder / "splits.json").is_file() else {}
    if not isinstance(listed, dict) or not all(isinstance(names, list) for names in listed.values()):
        raise ValueError(f"{folder / 'splits.json'} is not an object of lists of annotation files")
    check_offer(name, "split", split, ["all", *listed])
    return [folder / "annotations" / str(file) for file in listed[split]]


def _dci_entry(path: Path) -> dict[str, Any]:
    """The annotation, empty if it cannot be read."""
    try:
        entry = read_json(path)
    except (ValueError, OSError):
        return {}
    return entry if isinstance(entry, dict) else {}


@DATASETS.register("urban1k")
def open_urban1k(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """Urban-1k (Zhang et al. 2024): ``caption/N.txt`` and ``image/N.jpg``. Content: pairs, texts.

    The caption is the first line of its file that is not empty, as the authors read it.
    """
    check_offer("urban1k", "content", content, _CONTENTS)
    check_offer("urban1k", "split", split or "all", ["all"])
    folder = need_folder(Path(location), "urban1k")
    files = sorted((folder / "caption").glob("*.txt"), key=lambda p: (len(p.stem), p.stem))
    if not files:
        raise FileNotFoundError(f"urban1k: {folder / 'caption'} has no .txt file")
    images = {p.stem: p.name for p in sorted((folder / "image").glob("*")) if p.suffix[1:].lower() in IMAGE_SUFFIXES}
    captions = Captions()
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (UnicodeDecodeError, OSError):
            captions.drops.add("text is not UTF-8", str(path))
            continue
        text = next(filter(None, map(str.strip, lines)), "")
        captions.add(images.pop(path.stem, f"{path.stem}.jpg"), [text], str(path), path.stem)
    if content == "pairs":
        for name in images.values():
            captions.drops.add("no caption", name)
    entries = captions.placed(folder, ["image"])
    return CaptionedImages(f"urban1k:{location}", "all", content, entries, folder, captions.drops, expected=URBAN_SIZE)
