"""Images named after the objects they show: ComCo and SimCo (Abbasi et al. 2025, "CLIP Under the Microscope")."""

from __future__ import annotations

from pathlib import Path

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, FileSet, Fingerprint, ImageFolder, check_offer, existing, need_folder
from hyvlm.data.images import IMAGE_SUFFIXES
from hyvlm.data.sets.table import json_list, read_rows
from hyvlm.types import Sample

TABLES = (".csv", ".tsv", ".jsonl")


class MultiObjectImages(FileSet):
    """Images in the order of their paths, or of the rows of a table, each with one label for every object.

    Args:
        root: Folder that the paths are relative to.
        objects: Path of every image to the names of its objects.
        drops: What was left out of ``objects``.
    """

    def __init__(self, root: Path, name: str, split: str, objects: dict[str, list[str]], drops: Drops) -> None:
        self.name, self.split = name, split
        fingerprint = Fingerprint("multi-object", split)
        found = existing(objects, root, fingerprint, drops)
        self.images = [(path, names) for path, names in objects.items() if path in found]
        self.classes = tuple(sorted({name for _, names in self.images for name in names}))
        label = {name: i for i, name in enumerate(self.classes)}
        self.labels = [sorted(label[name] for name in names) for _, names in self.images]
        fingerprint.update(*self.classes, *map(str, self.labels))
        self.folder = ImageFolder(root)
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        path, _ = self.images[index]
        return Sample(path, self.folder.load(path), labels=list(self.labels[index]))


@DATASETS.register("multi-object")
def open_multi_object(location: str, *, split: str | None = None, content: str = "labels") -> SampleSet:
    """Images with several objects, as ComCo and SimCo name them, or listed in a table. Content: labels.

    In a folder every image, at any depth, is named after its objects with "_" between them
    ("cake_boat_traffic light.png" shows three); the classes are all names that occur. A table (.csv, .tsv, .jsonl) has
    the columns ``image``, relative to the table, and ``objects``: a JSON list, or names with ";" between them; a
    column ``split`` is optional. An object that comes twice has its label twice.
    """
    check_offer("multi-object", "content", content, ["labels"])
    path, name, drops = Path(location), f"multi-object:{location}", Drops()
    if path.suffix.lower() in TABLES:
        if not path.is_file():
            raise FileNotFoundError(f"multi-object: no file {path}")
        rows = _listed(path, drops)
        check_offer(name, "split", split or "all", ["all", *sorted({part for _, part in rows.values() if part})])
        objects = {image: names for image, (names, part) in rows.items() if split in (None, "all", part)}
        path = path.parent
    else:
        check_offer(name, "split", split or "all", ["all"])
        objects = _named(need_folder(path, "multi-object"), drops)
    if not objects:
        raise ValueError(f"{location} has no image with objects: neither a_b.png in a folder nor a row of a table")
    return MultiObjectImages(path, name, split or "all", objects, drops)


def _named(root: Path, drops: Drops) -> dict[str, list[str]]:
    """Images in ``root`` at any depth to the names in their file names."""
    objects = {}
    for path in sorted(p for p in root.rglob("*") if p.suffix.lower().lstrip(".") in IMAGE_SUFFIXES):
        names = [name.strip() for name in path.stem.split("_")]
        if path.name.startswith(".") or not all(names):
            drops.add("file name is not objects with _ between them", str(path))
        else:
            objects[path.relative_to(root).as_posix()] = names
    return objects


def _listed(path: Path, drops: Drops) -> dict[str, tuple[list[str], str]]:
    """Images of a table to the names of their objects and their split."""
    rows = {}
    for number, row in read_rows(path, ("image", "objects")):
        cell = row["objects"]
        names = json_list(cell)
        if names is None:
            names = str(cell or "").split(";")
        names = [name.strip() for name in names if isinstance(name, str)]
        image = str(row["image"] or "").strip()
        if not image or not names or not all(names):
            drops.add("row without an image and its objects", f"row {number} of {path}")
        elif image in rows:
            raise ValueError(f"row {number} of {path} lists the image {image!r} again; put all its objects in one row")
        else:
            rows[image] = (names, str(row.get("split") or "").strip())
    return rows
