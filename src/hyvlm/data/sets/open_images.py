"""Open Images: boxes of some 600 classes (Kuznetsova et al. 2020, "The Open Images Dataset V4"), in CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from hyvlm.data.boxes import cut_part
from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, Fingerprint, ObjectImages, check_offer, existing_boxes, need_folder
from hyvlm.data.sets.captioned import UNREADABLE
from hyvlm.data.sets.table import decode, read_rows
from hyvlm.types import Sample

BOXES = "annotations-bbox.csv"
NAMES = "class-descriptions-boxable.csv"
COLUMNS = ("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax")

#: Label and corners ``[x0, y0, x1, y1]`` in shares of width and height.
Box = tuple[int, tuple[float, ...]]


class OpenImages(ObjectImages):
    """One crop a box, image by image in the order in which the file names them."""

    content = "classes"

    def __init__(self, files: tuple[Path, Path], folder: Path, name: str, split: str) -> None:
        self.name, self.split = name, split
        boxes, names = files
        drops, fingerprint = Drops(), Fingerprint("open-images", split)
        for path in files:
            fingerprint.add_file(path.name, path)
        labels, self.classes = read_classes(names)
        listed = read_boxes(boxes, labels, drops)
        found = existing_boxes({f"{k}.jpg": len(b) for k, b in listed.items()}, folder, fingerprint, drops)
        self.images: Sequence[tuple[str, list[Box]]] = [(k, b) for k, b in listed.items() if f"{k}.jpg" in found]
        self.objects = [(i, k) for i, (_, objects) in enumerate(self.images) for k in range(len(objects))]
        self.finish(folder, fingerprint, drops)

    def _whole(self, index: int) -> Sample:
        raise ValueError("open-images offers crops of boxes alone")

    def _crop(self, index: int, number: int) -> Sample:
        key, objects = self.images[index]
        label, box = objects[number]
        picture = self.folder.load_to_cut(f"{key}.jpg")
        part = cut_part(picture, box, self.classes[label], f"object {number} of {key!r}", normalised=True)
        return Sample(f"{key}#{number}", part.image, labels=[label])


def read_classes(path: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """Label ("/m/0199g") to place, and the class names in the order of the file, with or without its header.

    Raises:
        ValueError: A row is not a label and a name.
    """
    rows = [row for row in csv.reader(decode(path).splitlines()) if row]
    if rows and rows[0] == ["LabelName", "DisplayName"]:
        rows = rows[1:]
    if not rows or any(len(row) != 2 or not row[1].strip() for row in rows):
        raise ValueError(f"{path} is not a list of labels and names, such as '/m/0199g,Bicycle'")
    return {label: i for i, (label, _) in enumerate(rows)}, tuple(name.strip() for _, name in rows)


def read_boxes(path: Path, labels: dict[str, int], drops: Drops) -> dict[str, list[Box]]:
    """Boxes by image. Groups (``IsGroupOf``: more than five that touch) are no boxes of an object, and counted."""
    images: dict[str, list[Box]] = {}
    for number, row in read_rows(path, COLUMNS):
        where = f"row {number} of {path}"
        try:
            box = tuple(float(row[side]) for side in ("XMin", "YMin", "XMax", "YMax"))
            label, key = labels[row["LabelName"]], row["ImageID"]
        except (KeyError, TypeError, ValueError):
            drops.add(UNREADABLE, where)
            continue
        if row.get("IsGroupOf") == "1":
            drops.add("box of a group", where)
        else:
            images.setdefault(key, []).append((label, box))
    return images


@DATASETS.register("open-images")
def open_open_images(location: str, *, split: str | None = None, content: str = "classes") -> SampleSet:
    """A folder of Open Images. Content: classes (crops of boxes); boxes of groups are left out and counted.

    Read are ``SPLIT-annotations-bbox.csv`` and ``class-descriptions-boxable.csv``, with or without "oidv6-" or "oidv7-"
    before their names, there or in ``annotations/``, and ``SPLIT/ID.jpg``, ``images/SPLIT/ID.jpg`` or
    ``images/ID.jpg``. The default split is "validation", or the only one. Which classes an image does not show is
    known for a few only, so there are no label sets.
    """
    check_offer("open-images", "content", content, ["classes"])
    root = need_folder(Path(location), "open-images")
    boxes = {re.sub(r"^oidv\d-", "", path.name.removesuffix(f"-{BOXES}")): path for path in _files(root, f"*-{BOXES}")}
    names = _files(root, f"*{NAMES}")
    if not boxes or not names:
        lacking = f"*{NAMES}" if boxes else f"SPLIT-{BOXES}"
        raise FileNotFoundError(f"open-images: {root} has no {lacking}, nor has annotations/")
    if split is None:
        split = "validation" if "validation" in boxes else sorted(boxes)[0]
    check_offer(f"open-images:{location}", "split", split, sorted(boxes))
    options = [root / split, root / "images" / split, root / "images"]
    folder = next((option for option in options if option.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"open-images: no image folder {' or '.join(map(str, options))}")
    return OpenImages((boxes[split], names[0]), folder, f"open-images:{location}", split)


def _files(root: Path, pattern: str) -> list[Path]:
    return [path for folder in (root, root / "annotations") for path in sorted(folder.glob(pattern))]
