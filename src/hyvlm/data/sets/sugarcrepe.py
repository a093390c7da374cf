"""SugarCrepe: images with a true caption and one that a small change makes false. Hsieh et al. 2023."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, FileSet, Fingerprint, ImageFolder, check_offer, existing, read_json, text_fault
from hyvlm.data.sets.captioned import UNREADABLE, Listing, need_file
from hyvlm.types import Sample

#: Where images are looked for, relative to the folder of the files and to the folder above it.
_IMAGE_FOLDERS = ("", "images", "val2017", "images/val2017")


@dataclass(slots=True)
class _Pair:
    key: str
    image: str
    caption: str
    negative: str
    label: int


class SugarCrepe(FileSet):
    """Pairs in the order of the files; classes are the kinds of change, the files' names."""

    def __init__(self, files: list[Path], name: str) -> None:
        self.name, self.split = name, "all"
        self.classes = tuple(path.stem for path in files)
        drops, fingerprint = Drops(), Fingerprint("sugarcrepe", *self.classes)
        pairs = [pair for label, path in enumerate(files) for pair in _pairs(path, label, drops)]
        base, inner = files[0].absolute().parents[1], files[0].absolute().parent.name
        options, listing = [*(f"{inner}/{o}" for o in _IMAGE_FOLDERS), *_IMAGE_FOLDERS], Listing(base)
        for pair in pairs:
            places = [os.path.join(option, pair.image) for option in options]
            pair.image = next((place for place in places if place in listing), places[1])
        found = existing((pair.image for pair in pairs), base, fingerprint, drops)
        self.pairs = [pair for pair in pairs if pair.image in found]
        if not self.pairs:
            raise ValueError(f"{name}: no entry with filename, caption and negative_caption")
        for pair in self.pairs:
            fingerprint.update(pair.key, pair.caption, pair.negative)
        self.folder = ImageFolder(base)
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        pair = self.pairs[index]
        image = self.folder.load(pair.image)
        return Sample(pair.key, image, texts=[pair.caption], labels=[pair.label], negatives=[pair.negative])


def _pairs(path: Path, label: int, drops: Drops) -> list[_Pair]:
    document = read_json(path)
    if isinstance(document, list):
        document = dict(enumerate(document))
    if not isinstance(document, dict):
        raise ValueError(f"{path} is not SugarCrepe's JSON: an object of entries was due")
    pairs = []
    for index, entry in document.items():
        where, entry = f"entry {index} of {path}", entry if isinstance(entry, dict) else {}
        image, texts = entry.get("filename"), [entry.get("caption"), entry.get("negative_caption")]
        fault = next(filter(None, map(text_fault, texts)), None)
        if not isinstance(image, str) or not image:
            drops.add(UNREADABLE, where)
        elif fault:
            drops.add(fault, where)
        else:
            caption, negative = (str(text).strip() for text in texts)
            pairs.append(_Pair(f"{path.stem}/{index}", image, caption, negative, label))
    return pairs


@DATASETS.register("sugarcrepe")
def open_sugarcrepe(location: str, *, split: str | None = None, content: str = "negatives") -> SampleSet:
    """A file of SugarCrepe's (index to filename, caption, negative_caption) or a folder of them. Content: negatives.

    Images are in ``images/`` or ``val2017/`` in the folder of the files or beside that folder.
    """
    check_offer("sugarcrepe", "content", content, ["negatives"])
    check_offer("sugarcrepe", "split", split or "all", ["all"])
    path = Path(location)
    if location.strip() and path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise FileNotFoundError(f"sugarcrepe: {path} has no .json file")
    else:
        files = [need_file(location, "sugarcrepe", ".json")]
    return SugarCrepe(files, f"sugarcrepe:{location}")
