"""LVIS: boxes of 1,203 classes on COCO's images (Gupta et al. 2019, "LVIS", version 1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, check_offer, need_folder
from hyvlm.data.sets.coco import Coco, CocoFiles, CocoImage

PREFIX = "lvis_v1_"


class LvisFiles(CocoFiles):
    """Where the files are: ``lvis_v1_SPLIT.json`` (or in ``annotations/``) above the folders of COCO's images."""

    flat = False

    def __init__(self, root: Path) -> None:
        self.root = need_folder(root, "lvis")
        self._files = {
            path.stem.removeprefix(PREFIX): path
            for folder in (self.root / "annotations", self.root)
            for path in sorted(folder.glob(f"{PREFIX}*.json"))
        }
        if not self._files:
            raise FileNotFoundError(f"lvis: {root} has no {PREFIX}SPLIT.json and no annotations/{PREFIX}SPLIT.json")
        self._named = sorted(self._files)

    def default_split(self) -> str:
        """ "val", or the only one."""
        return "val" if "val" in self._files else self._named[0]

    def captions(self, split: str) -> Path:
        """LVIS has no captions: a file that does not exist."""
        return self.root / "annotations" / f"{PREFIX}captions_{split}.json"

    def instances(self, split: str) -> Path:
        """The file of boxes."""
        return self._files[split]

    def image_folder(self, split: str) -> Path:
        """The folder that holds ``train2017/`` and ``val2017/``; a split of LVIS has images of both."""
        inner = self.root / "images"
        return inner if inner.is_dir() else self.root

    def image_name(self, entry: dict[str, Any]) -> object:
        """Folder and file, as the image's ``coco_url`` ends: "val2017/000000397133.jpg"."""
        url = entry.get("coco_url")
        return "/".join(url.split("/")[-2:]) if isinstance(url, str) else None

    def read(self, split: str, drops: Drops) -> tuple[list[CocoImage], tuple[str, ...], dict[str, str]]:
        """As :meth:`CocoFiles.read`; "_" in class names ("alarm_clock") is read as a space."""
        images, classes, parents = super().read(split, drops)
        return images, tuple(name.replace("_", " ") for name in classes), parents


@DATASETS.register("lvis")
def open_lvis(location: str, *, split: str | None = None, content: str = "classes") -> SampleSet:
    """A COCO folder with ``lvis_v1_SPLIT.json``, there or in ``annotations/``. Content: classes (crops of boxes).

    Images are read from ``train2017/`` and ``val2017/``, or from those in ``images/``; where only the latter is there,
    the boxes on the others' images are left out with them, and the images are counted. Which classes an image does not
    show, LVIS knows for a few only, so it offers no label sets.
    """
    check_offer("lvis", "content", content, ["classes"])
    files = LvisFiles(Path(location))
    split = split or files.default_split()
    check_offer(f"lvis:{location}", "split", split, files.splits)
    return Coco(files, f"lvis:{location}", split, content)
