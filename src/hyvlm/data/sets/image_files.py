"""Images alone: all that lie below a folder, in tar shards with or without captions, or in any other data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hyvlm.data.catalog import DATASETS, SampleSet, open_data
from hyvlm.data.files import Drops, FileSet, Fingerprint, NotOffered, check_offer, need_folder
from hyvlm.data.images import IMAGE_SUFFIXES, load_image
from hyvlm.data.sets.folder import TOLD_ABOUT
from hyvlm.data.sets.shards import expand_shards
from hyvlm.data.tarindex import index_shard
from hyvlm.types import Sample

#: What a data set is asked for, in this order, by who needs its images and nothing else.
WITH_IMAGES = ("images", "pairs", "labels", "negatives", "masks", "classes")

#: Files that are taken for tables of images and captions without saying so.
TABLES = (".csv", ".tsv", ".jsonl")


class ImageFiles(FileSet):
    """All images below a folder, by the sorted names of folders and files; the key is the path from the folder."""

    def __init__(self, root: Path, name: str) -> None:
        self.name, self.split, self.root = name, "all", root
        drops, fingerprint, self.files = Drops(), Fingerprint("images"), list[str]()
        walk = os.walk(root, onerror=lambda error: drops.add("folder may not be read", str(error.filename)))
        for folder, inner, names in walk:
            for hidden in sorted(d for d in inner if d.startswith(".")):
                drops.add("folder is hidden", os.path.join(folder, hidden))
            inner[:] = sorted(d for d in inner if not d.startswith("."))
            for file in sorted(names):
                path = Path(folder, file)
                if file.startswith("."):
                    drops.add("file is hidden", str(path))
                elif path.suffix.lower().lstrip(".") not in (*IMAGE_SUFFIXES, *TOLD_ABOUT):
                    drops.add("file is no image by its suffix", str(path))
                else:
                    key = path.relative_to(root).as_posix()
                    fingerprint.add_file(key, path)
                    self.files.append(key)
        if not self.files:
            shards = any(root.glob("*.tar"))
            hint = f"; for its shards say '{root}/*.tar'" if shards else ""
            raise ValueError(f"no image below {root}{drops.aside()}{hint}; suffixes read: {', '.join(IMAGE_SUFFIXES)}")
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        key = self.files[index]
        return Sample(key, load_image(self.root / key))


class ShardImages(FileSet):
    """The images of tar shards, whether or not a caption lies beside them, in the order of the shards."""

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        self.name, self.split = name, "all"
        drops, fingerprint = Drops(), Fingerprint("shard images")
        self.shards = [index_shard(path, captions=False) for path in paths]
        for shard in self.shards:
            fingerprint.add_file(shard.path.name, shard.path)
            drops.merge(shard.drops)
        self.starts = np.cumsum([0, *(len(shard.samples) for shard in self.shards)])
        if not len(self):
            raise ValueError(f"{name}: no image in {len(paths)} shards{drops.aside()}")
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> Sample:
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        shard = self.shards[number]
        row = shard.samples[index - int(self.starts[number])]
        key = row["key"].decode("utf-8", "replace")
        offset, size = row["image"].tolist()
        with shard.path.open("rb") as file:
            file.seek(offset)
            return Sample(key, load_image(file.read(size), f"sample {key!r} of {shard.path}"))


@DATASETS.register("images")
def open_images(location: str, *, split: str | None = None, content: str = "images") -> SampleSet:
    """All images below a folder, or in tar shards with or without captions. Content: images.

    ``location`` is a folder, or shards as the data set ``shards`` takes them, ending in ``.tar``. Hidden files and
    folders, files with another suffix than an image's, and folders that may not be read are left out and counted.
    """
    check_offer("images", "content", content, ["images"])
    check_offer("images", "split", split or "all", ["all"])
    if location.lower().endswith(".tar"):
        return ShardImages(expand_shards(location), f"images:{location}")
    return ImageFiles(need_folder(Path(location), "images"), f"images:{location}")


def open_pictures(spec: str, *, split: str | None = None) -> SampleSet:
    """Open what has images, to use the images alone.

    Args:
        spec: A folder of images; tar shards with or without captions; or a data set, NAME or NAME:LOCATION, with any
            content (:data:`WITH_IMAGES`) that has images.
    Raises:
        ValueError, FileNotFoundError: As :func:`hyvlm.data.open_data`; or the data set has no images.
    """
    name, _, location = spec.partition(":")
    if name == "shards":
        check_offer("shards", "split", split or "all", ["all"])
        return ShardImages(expand_shards(location), spec)
    if name not in DATASETS and (Path(spec).is_dir() or spec.lower().endswith(".tar")):
        return open_data(f"images:{spec}", split=split, content="images")
    if name not in DATASETS and not location and not spec.lower().endswith(TABLES):
        if Path(spec).exists():
            raise ValueError(f"{spec} is a file: images are a folder, .tar shards, or NAME:LOCATION of a data set")
        raise FileNotFoundError(f"there is neither a folder nor a data set (hyvlm list datasets) called {spec}")
    for content in WITH_IMAGES:
        try:
            return open_data(spec, split=split, content=content)
        except NotOffered:
            continue
    raise ValueError(f"{spec} has no images")
