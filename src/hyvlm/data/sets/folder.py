"""One folder of images for each class."""

from __future__ import annotations

from pathlib import Path

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, FileSet, Fingerprint, check_offer, log, need_folder
from hyvlm.data.images import IMAGE_SUFFIXES, load_image
from hyvlm.types import Sample

#: Suffixes of images that cannot be decoded: left in, so that their error says what to do.
TOLD_ABOUT = ("heic", "heif")
#: Names that folders of splits have, in lower case.
SPLITS = ("train", "val", "test", "valid", "validation", "training")


class ClassFolders(FileSet):
    """Images in folders named after their class, in the order of the sorted names."""

    def __init__(self, root: Path, name: str, split: str) -> None:
        self.name, self.split = name, split
        drops, self.files = Drops(), []
        entries = sorted(root.iterdir())
        folders = [f for f in entries if f.is_dir() and not f.name.startswith(".")]
        for path in entries:
            if path not in folders:
                drops.add(_why_left_out(path) or "file beside the class folders", str(path))
        fingerprint = Fingerprint("folder", *(f.name for f in folders))
        for label, folder in enumerate(folders):
            for path in sorted(folder.iterdir()):
                reason = _why_left_out(path)
                if path.is_dir() and not reason:
                    for deeper in sorted(p for p in path.rglob("*") if not p.is_dir()):
                        drops.add("file in a deeper folder", str(deeper))
                elif reason or path.suffix.lower().lstrip(".") not in (*IMAGE_SUFFIXES, *TOLD_ABOUT):
                    drops.add(reason or "suffix is not that of an image", str(path))
                else:
                    fingerprint.add_file(f"{folder.name}/{path.name}", path)
                    self.files.append((label, path))
        hint = (
            f"; {folders[0].name} is a split, not a class: give --split {folders[0].name}" if _is_split(folders) else ""
        )
        if not self.files:
            raise ValueError(f"{root} has no folder of images for each class; found: {_found(root)}{hint}")
        self.classes = tuple(f.name.replace("_", " ") for f in folders)
        twice = {c for c in self.classes if self.classes.count(c) > 1}
        if twice:
            raise ValueError(f"{root} has two folders for the class {sorted(twice)[0]!r}")
        self.opened(fingerprint, drops)
        if hint:
            log.warning("%s: one class only%s", name, hint)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        label, path = self.files[index]
        return Sample(f"{path.parent.name}/{path.name}", load_image(path), labels=[label])


@DATASETS.register("folder")
def open_folder(location: str, *, split: str | None = None, content: str = "classes") -> SampleSet:
    """One folder of images for each class; "_" in their names is read as a space. Content: classes.

    With ``split`` the class folders lie in a folder of that name. Whatever is not read is counted: hidden files,
    dangling links, files deeper in a class folder or beside the class folders.
    """
    check_offer("folder", "content", content, ["classes"])
    root = need_folder(Path(location), "folder")
    if split is not None:
        inner = [f for f in sorted(root.iterdir()) if f.is_dir()]
        splits = [f.name for f in inner if f.name == split or any(c.is_dir() for c in f.iterdir())]
        check_offer(f"folder:{location}", "split", split, splits or ["all"])
        root = root / split if splits else root
    return ClassFolders(root, f"folder:{location}", split or "all")


def _found(root: Path) -> str:
    names = sorted(p.name + "/" * p.is_dir() for p in root.iterdir())
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "nothing"


def _why_left_out(path: Path) -> str | None:
    if path.name.startswith("."):
        return "hidden file"
    return None if path.exists() else "link to nothing"


def _is_split(folders: list[Path]) -> bool:
    return len(folders) == 1 and folders[0].name.lower() in SPLITS
