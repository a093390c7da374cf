"""Images with captions as a file or folder of annotations lists them: what the published caption sets share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hyvlm.data.files import Drops, FileSet, Fingerprint, ImageFolder, clean_texts, existing, need_caption, text_fault
from hyvlm.types import BadSample, Sample

UNREADABLE = "annotation cannot be read"


@dataclass(slots=True)
class Captioned:
    """One image: its name, where it is (relative to the set's folder), its captions and some that are false of it."""

    key: str
    image: str
    texts: list[str]
    negatives: list[str] = field(default_factory=list)


class Captions:
    """Collects :class:`Captioned` entries; what is of no use, or named a second time, is counted in ``drops``."""

    def __init__(self) -> None:
        self.drops = Drops()
        self._entries: dict[str, Captioned] = {}

    def add(
        self,
        image: object,
        texts: Sequence[object],
        where: str,
        key: object = None,
        negatives: Sequence[object] = (),
    ) -> None:
        """Add one image by its place; ``key`` is its name, by default the place."""
        key = image if key is None else key
        if not isinstance(image, str) or not image.strip() or not isinstance(key, str | int):
            self.drops.add(UNREADABLE, where)
        elif str(key) in self._entries:
            self.drops.add("second sample of the same key", where)
        else:
            try:
                kept = need_caption(texts, where)
            except BadSample as bad:
                self.drops.add(bad.reason, bad.where)
                return
            self._entries[str(key)] = Captioned(str(key), image, kept, clean_texts(negatives))
            for fault in filter(None, map(text_fault, [*texts, *negatives])):
                self.drops.add(f"part: {fault}", where)

    def placed(self, folder: Path, options: Sequence[str]) -> list[Captioned]:
        """The entries, each image looked for in the folders ``options`` below ``folder``, in that order."""
        listing = Listing(folder)
        for entry in self._entries.values():
            places = [os.path.join(option, entry.image) for option in options]
            entry.image = next((place for place in places if place in listing), places[0])
        return list(self._entries.values())

    @property
    def entries(self) -> list[Captioned]:
        """The entries, in the order in which they were added."""
        return list(self._entries.values())


class Listing:
    """Which files lie below a folder, by one listing of each folder that is asked about: much less than a look at each
    file where there are many, above all over a network."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[str, set[str]] = {}

    def __contains__(self, place: str) -> bool:
        folder, name = os.path.split(place)
        if folder not in self._names:
            try:
                self._names[folder] = set(os.listdir(self.root / folder))
            except (OSError, ValueError):  # the latter for a name that no folder can have
                self._names[folder] = set()
        return name in self._names[folder]


class CaptionedImages(FileSet):
    """Images with captions, in the given order; for content "texts" without the images, which need not exist then.

    Args:
        name, split: See :class:`SampleSet`.
        content: "pairs", "negatives" or "texts".
        entries: The samples; images that do not exist are left out and counted.
        folder: What their places are relative to.
        drops: What was left out while the annotations were read.
        expected: How many samples the published set has.
    Raises:
        FileNotFoundError: None of the images exists.
        ValueError: There is no entry.
    """

    def __init__(
        self,
        name: str,
        split: str,
        content: str,
        entries: Iterable[Captioned],
        folder: Path,
        drops: Drops,
        *,
        expected: int | None = None,
    ) -> None:
        self.name, self.split, self.content, self.expected = name, split, content, expected
        fingerprint = Fingerprint("captioned", split, content)
        self.entries = list(entries)
        if content != "texts":
            found = existing((entry.image for entry in self.entries), folder, fingerprint, drops)
            self.entries = [entry for entry in self.entries if entry.image in found]
        if not self.entries:
            raise ValueError(f"{name}: no image of split {split!r} has a caption{drops.aside()}")
        if content != "texts":
            self.shows((entry.image for entry in self.entries), found)
        for entry in self.entries:
            fingerprint.update(entry.key, *entry.texts, *entry.negatives)
        self.folder = ImageFolder(folder)
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Sample:
        entry = self.entries[index]
        image = self.folder.load(entry.image) if self.content != "texts" else None
        negatives = list(entry.negatives) if self.content == "negatives" else []
        return Sample(entry.key, image, texts=list(entry.texts), negatives=negatives)


def need_file(location: str, kind: str, *suffixes: str) -> Path:
    """The path of a file with one of the ``suffixes``.

    Raises:
        ValueError: No location was given, or it has another suffix.
        FileNotFoundError: There is no such file.
    """
    example = f"{kind}:/path/to/file{suffixes[0]}"
    if not location.strip():
        raise ValueError(f"{kind} needs a file: {example}")
    path = Path(location)
    if path.is_dir() or (path.suffix.lower() not in suffixes):
        raise ValueError(f"{kind} needs a {' or '.join(suffixes)} file, such as {example}; got {location}")
    if not path.is_file():
        raise FileNotFoundError(f"{kind}: no file {path}")
    return path
