"""One folder of images for each class."""

from __future__ import annotations

from pathlib import Path

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, Fingerprint, check_offer, need_folder
from hyvlm.data.images import IMAGE_SUFFIXES, load_image
from hyvlm.types import Sample


class ClassFolders(SampleSet):
    """Images in folders named after their class, in the order of the sorted names."""

    def __init__(self, root: Path, name: str, split: str) -> None:
        self.name, self.split = name, split
        folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
        drops, self.files = Drops(), []
        fingerprint = Fingerprint("folder", *(f.name for f in folders))
        for label, folder in enumerate(folders):
            for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")):
                if path.suffix.lower().lstrip(".") in (*IMAGE_SUFFIXES, "heic", "heif"):  # the latter are told about
                    fingerprint.add_file(f"{folder.name}/{path.name}", path)
                    self.files.append((label, path))
                else:
                    drops.add("suffix is not that of an image", str(path))
        if not self.files:
            raise ValueError(f"{root} has no folder of images for each class; found: {_found(root)}")
        self.classes = tuple(f.name.replace("_", " ") for f in folders)
        twice = {c for c in self.classes if self.classes.count(c) > 1}
        if twice:
            raise ValueError(f"{root} has two folders for the class {sorted(twice)[0]!r}")
        self.fingerprint = fingerprint.hexdigest()
        self.dropped, self.dropped_examples = drops.counts, drops.examples
        drops.report(name)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        label, path = self.files[index]
        return Sample(f"{path.parent.name}/{path.name}", load_image(path), labels=[label])


@DATASETS.register("folder")
def open_folder(location: str, *, split: str | None = None, content: str = "classes") -> SampleSet:
    """One folder of images for each class; "_" in their names is read as a space. Content: classes.

    With ``split`` the class folders lie in a folder of that name.
    """
    check_offer("folder", "content", content, ["classes"])
    root = need_folder(Path(location), "folder")
    if split is not None:
        inner = [f.name for f in sorted(root.iterdir()) if f.is_dir()]
        check_offer(f"folder:{location}", "split", split, inner)
        root = root / split
    return ClassFolders(root, f"folder:{location}", split or "all")


def _found(root: Path) -> str:
    names = sorted(p.name + "/" * p.is_dir() for p in root.iterdir())
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "nothing"
