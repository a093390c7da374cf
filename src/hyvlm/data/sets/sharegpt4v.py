"""ShareGPT4V: 1.2 million images with long captions in one JSON file. Chen et al. 2023."""

from __future__ import annotations

import hashlib
import os
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, FileSet, Fingerprint, ImageFolder, check_offer, need_caption
from hyvlm.data.sets.captioned import UNREADABLE, Listing, need_file
from hyvlm.data.sets.jsonlist import Place, entries, read_entry
from hyvlm.types import BadSample, Sample, reasons

#: So many entries at the head of the file are kept for evaluation (HyFL-CLIP and Long-CLIP).
TEST_ENTRIES = 1000
#: Where images are looked for, relative to the file's folder.
_ROOTS = ("", "images", os.pardir)


class ShareGpt4v(FileSet):
    """Image-caption pairs in the order of the file. Of each sample, 17 bytes stay in memory: where its entry stands."""

    def __init__(self, path: Path, name: str, split: str, content: str) -> None:
        self.name, self.split, self.content, self.path = name, split, content, path
        self.expected = TEST_ENTRIES if split == "test" else None
        drops = Drops()
        self._starts, self._lengths, self._roots = self._index(drops)
        if not len(self):
            held = f"the first {TEST_ENTRIES:,} entries are the split 'test'" if split == "train" else ""
            why = "; ".join(filter(None, (reasons(drops.counts), held)))
            raise ValueError(f"{name}: no entry of split {split!r} can be used" + (f" ({why})" if why else ""))
        fingerprint = Fingerprint("sharegpt4v", split, content)
        fingerprint.add_file(path.name, path)
        fingerprint.update(hashlib.sha256(self._starts.tobytes() + self._roots.tobytes()).hexdigest())
        self.folders = [ImageFolder(path.parent / root) for root in _ROOTS]
        self.opened(fingerprint, drops)

    def _index(self, drops: Drops) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """Start and length in bytes of every entry that can be used, and which root its image is under.

        Raises:
            FileNotFoundError: None of the images exists.
        """
        listing, rows, missing = Listing(self.path.parent), array("q"), None
        for number, (place, entry) in enumerate(entries(self.path)):
            if (number < TEST_ENTRIES) != (self.split == "test"):
                if self.split == "test":
                    break
                continue
            where = f"entry {number} of {self.path}"
            try:
                image, _ = _read(entry, where)
            except BadSample as bad:
                drops.add(bad.reason, bad.where)
                continue
            places = [os.path.join(root, image) for root in _ROOTS]
            root = next((i for i, found in enumerate(places) if found in listing), None)
            if root is None and self.content == "pairs":
                missing = missing or image
                drops.add("image file is missing", image)
            else:
                rows.extend((*place, root or 0))
        if missing and not rows:
            raise FileNotFoundError(f"none of the images that are listed exists, such as {self.path.parent / missing}")
        table = np.frombuffer(rows, dtype=np.int64).reshape(-1, 3)
        return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].astype(np.uint8)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Sample:
        try:
            entry = read_entry(self.path, Place(int(self._starts[index]), int(self._lengths[index])))
        except ValueError as error:  # the file is another one by now
            raise BadSample(UNREADABLE, f"sample {index} of {self.path}") from error
        image, text = _read(entry, f"sample {index} of {self.path}")
        picture = self.folders[self._roots[index]].load(image) if self.content == "pairs" else None
        return Sample(image, picture, texts=[text])


def _read(entry: dict[str, Any], where: str) -> tuple[str, str]:
    """Image and caption of an entry: the first answer in its conversation. Raises :class:`BadSample`."""
    image, turns = entry.get("image"), entry.get("conversations")
    if not isinstance(image, str) or not image or not isinstance(turns, list):
        raise BadSample(UNREADABLE, where)
    answers = [turn.get("value") for turn in turns if isinstance(turn, dict) and turn.get("from") == "gpt"]
    if not answers:
        raise BadSample("no caption", where)
    return image, need_caption(answers[:1], where)[0]


@DATASETS.register("sharegpt4v")
def open_sharegpt4v(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """ShareGPT4V's JSON: ``[{"id", "image", "conversations": [{"from": "gpt", "value": CAPTION}, ...]}, ...]``.

    Images are relative to the file's folder, to ``images/`` in it, or to the folder above, as published. The first
    1,000 entries are the split "test" (the default), the others "train". Content: pairs, texts. The file is read once
    from end to end when it is opened; each folder of images is listed once, instead of a look at every image, so the
    fingerprint does not follow a change within an image.
    """
    check_offer("sharegpt4v", "content", content, ["pairs", "texts"])
    split = split or "test"
    check_offer("sharegpt4v", "split", split, ["train", "test"])
    return ShareGpt4v(need_file(location, "sharegpt4v", ".json"), f"sharegpt4v:{location}", split, content)
