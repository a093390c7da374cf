"""What the data sets that read folders share: files that must be there, images that may be missing, fingerprints."""

from __future__ import annotations

import hashlib
import json
import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from PIL import Image

from hyvlm.data.catalog import SampleSet
from hyvlm.data.images import load_image
from hyvlm.types import BadSample, Sample, encodable, reasons

log = logging.getLogger("hyvlm.data")

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)

#: Drops keep this many places as examples.
MAX_EXAMPLES = 5


class Drops:
    """Samples left out while a data set is opened: counts by reason, and where the first few are."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []

    def add(self, reason: str, where: str, *, times: int = 1) -> None:
        """Count one sample, file or part, or several of one place."""
        if times == 0:
            return
        self.counts[reason] += times
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{encodable(where)}: {reason}")

    def merge(self, other: Drops) -> None:
        """Add the counts of ``other``."""
        self.counts.update(other.counts)
        self.examples = [*self.examples, *other.examples][:MAX_EXAMPLES]

    def report(self, name: str) -> None:
        """One warning line that says what is missing, if anything is."""
        if self.counts and not _quiet.get():
            why = reasons(dict(self.counts.most_common()))
            log.warning("%s: left out: %s; first: %s", name, why, "; ".join(self.examples))

    def aside(self) -> str:
        """The counts in brackets, to end a sentence that says that nothing is left; "" if nothing was left out."""
        return f" ({reasons(self.counts)})" if self.counts else ""


@contextmanager
def unreported() -> Iterator[None]:
    """Within it, data sets say nothing of what they leave out: for callers that report it themselves, or did before."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def dropped_samples(counts: Mapping[str, int]) -> int:
    """How many samples were dropped; parts, shards, and files and folders of another kind are counted, but are none."""
    return sum(n for why, n in counts.items() if not why.startswith(("part: ", "shard ", "file ", "folder ")))


class NotOffered(ValueError):
    """A data set does not have the content that it was opened for."""


def check_offer(kind: str, what: str, asked: str, offered: Sequence[str]) -> None:
    """Raise ValueError if ``asked`` (a content or a split) is not among ``offered``; of a content, NotOffered."""
    if asked not in offered:
        hint = ": leave the split out (data.split=null)" if what == "split" and list(offered) == ["all"] else ""
        error = NotOffered if what == "content" else ValueError
        raise error(f"{kind} offers the {what}s {', '.join(offered)}, not {asked!r}{hint}")


def need_folder(path: Path, kind: str) -> Path:
    """``path``, if it is a folder.

    Raises:
        ValueError: No location was given.
        FileNotFoundError: There is no such folder.
    """
    if path == Path():
        raise ValueError(f"{kind} needs a folder: {kind}:/path/to/folder")
    if not path.is_dir():
        raise FileNotFoundError(f"{kind}: no folder {path}")
    return path


def read_json(path: Path) -> Any:
    """The content of a JSON file, UTF-8 with or without byte order mark. Raises ValueError with the file's name."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:  # JSON and UTF-8 errors
        raise ValueError(f"{path} is not JSON: {error}") from error


class Fingerprint:
    """Hash over strings and files; a file counts by name, size and time of change, so a hash takes no reading."""

    def __init__(self, *parts: str) -> None:
        self._hash = hashlib.sha256()
        self.update(*parts)

    def update(self, *parts: str) -> None:
        """Add strings."""
        for part in parts:
            self._hash.update(part.encode("utf-8", "surrogateescape") + b"\0")

    def add_file(self, name: str, path: Path) -> tuple[str, ...]:
        """Add a file under a name that does not depend on where the data set lies; empty if it does not exist.

        Returns what was added: name, size and time of change.
        """
        try:
            stat = path.stat()
        except (OSError, ValueError):  # the latter for a name that no file can have
            return ()
        added = (name, str(stat.st_size), str(stat.st_mtime_ns))
        self.update(*added)
        return added

    def hexdigest(self) -> str:
        """The hash, 32 hexadecimal digits."""
        return self._hash.hexdigest()[:32]


#: Image names to what a fingerprint knows of their files.
Existing = dict[str, tuple[str, ...]]


def existing(names: Iterable[str], folder: Path, fingerprint: Fingerprint, drops: Drops) -> Existing:
    """Those of the image ``names`` that exist in ``folder``; the others are counted.

    Raises:
        FileNotFoundError: None of them exists.
    """
    found: Existing = {}
    first_missing = None
    for name in dict.fromkeys(names):
        if added := fingerprint.add_file(name, folder / name):
            found[name] = added
        else:
            first_missing = first_missing or folder / name
            drops.add("image file is missing", name)
    if first_missing and not found:
        raise FileNotFoundError(f"none of the images that are listed exists, such as {first_missing}")
    return found


def existing_boxes(boxes: Mapping[str, int], folder: Path, fingerprint: Fingerprint, drops: Drops) -> Existing:
    """As :func:`existing`, for names of images with the number of their boxes; boxes are counted, not images."""
    found = existing(boxes, folder, fingerprint, Drops())
    for name, number in boxes.items():
        if name not in found:
            drops.add("image file is missing", name, times=number)
    return found


class ImageFolder:
    """Decoded images of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: tuple[str, Image.Image] | None = None

    def load(self, name: str) -> Image.Image:
        """The image, RGB and upright. Raises :class:`BadSample`."""
        return load_image(self.folder / name)

    def load_to_cut(self, name: str) -> Image.Image:
        """As :meth:`load`, but the last image is kept, for crops of one image follow one another: not to be changed."""
        if self._last is None or self._last[0] != name:
            self._last = (name, self.load(name))
        return self._last[1]

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "_last": None}


class FileSet(SampleSet):
    """A sample set that was read from files, some of which may be missing or of no use."""

    def opened(self, fingerprint: Fingerprint, drops: Drops) -> None:
        """Take over what was found while opening, and say what was left out."""
        self.fingerprint = fingerprint.hexdigest()
        self.dropped, self.dropped_examples = drops.counts, drops.examples
        drops.report(self.name)

    def shows(self, names: Iterable[str], found: Existing) -> None:
        """Say which images the samples are, in their order: sets of the same ones share what is computed of them."""
        self.image_fingerprint = Fingerprint("images", *(value for name in names for value in found[name])).hexdigest()


class ObjectImages(FileSet):
    """What sets of images with object boxes share.

    Attributes:
        content: For "classes" a sample is the crop of one object, else a whole image.
        images: One entry an image.
        objects: Image and place in it of every object that can be cut out.
    """

    content: str
    images: Sequence[Any]
    objects: Sequence[tuple[int, int]]

    def finish(self, folder: Path, fingerprint: Fingerprint, drops: Drops) -> None:
        """Take over what was found while opening. Raises ValueError if no sample is left."""
        if not len(self):
            raise ValueError(f"{self.name}: no image of split {self.split!r} has what content {self.content!r} needs")
        self.folder = ImageFolder(folder)
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.objects if self.content == "classes" else self.images)

    def __getitem__(self, index: int) -> Sample:
        return self._crop(*self.objects[index]) if self.content == "classes" else self._whole(index)

    @abstractmethod
    def _whole(self, index: int) -> Sample: ...

    @abstractmethod
    def _crop(self, index: int, number: int) -> Sample: ...


def with_article(name: str) -> str:
    """A class name with its article: "a dog", "an orange"; plurals and substances stay bare."""
    if name in ("skis", "scissors", "broccoli"):
        return name
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def text_fault(text: object) -> str | None:
    """Why ``text`` is of no use as a caption or phrase; None if it is."""
    if not isinstance(text, str):
        return "caption is not text"
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can write half of a surrogate pair
        return "text is not UTF-8"
    # Characters of no width (joiners, marks of direction) show nothing either.
    if not any(character.isprintable() and not character.isspace() for character in text):
        return "empty caption"
    return None


def clean_texts(texts: Iterable[object]) -> list[str]:
    """The texts that are of use, stripped."""
    return [text.strip() for text in texts if isinstance(text, str) and text_fault(text) is None]


def need_caption(texts: Sequence[object], where: str) -> list[str]:
    """As :func:`clean_texts`. Raises :class:`BadSample` if none is left, with the first one's fault."""
    kept = clean_texts(texts)
    if not kept:
        raise BadSample(next(filter(None, map(text_fault, texts)), "empty caption"), where)
    return kept
