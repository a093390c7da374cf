"""Texts without images: folders of text files by class, and long descriptions with their parts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, FileSet, Fingerprint, check_offer, clean_texts, need_folder, text_fault
from hyvlm.data.sets.captioned import need_file
from hyvlm.data.sets.table import read_rows
from hyvlm.types import Sample


class Texts(FileSet):
    """Samples of texts alone: ``(key, texts, labels)``, in the given order."""

    def __init__(
        self,
        name: str,
        split: str,
        rows: Iterable[tuple[str, list[str], list[int]]],
        drops: Drops,
        classes: tuple[str, ...] = (),
    ) -> None:
        self.name, self.split, self.classes = name, split, classes
        self.rows = list(rows)
        if not self.rows:
            raise ValueError(f"{name}: no text in split {split!r}{drops.aside()}")
        fingerprint = Fingerprint("texts", split, *classes)
        for key, texts, labels in self.rows:
            fingerprint.update(key, *texts, *map(str, labels))
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        key, texts, labels = self.rows[index]
        return Sample(key, None, texts=list(texts), labels=list(labels))


@DATASETS.register("text-folder")
def open_text_folder(location: str, *, split: str | None = None, content: str = "texts") -> SampleSet:
    """One folder of text files for each class, whatever their suffix; "_" in a folder's name is read as a space.

    The layouts of 20 Newsgroups by date (``20news-bydate-test/sci.med/59001``) and of IMDB
    (``aclImdb/test/pos/0_2.txt``) are of this kind. With ``split`` the class folders lie in a folder of that name. A
    file is UTF-8 or, if it is not, Latin-1 as a whole, as which every file can be read; nothing of it is removed, mail
    headers included. Empty files are left out and counted, and so is what lies beside the class folders or deeper.
    Content: texts (one text and one label a sample).
    """
    check_offer("text-folder", "content", content, ["texts"])
    root = need_folder(Path(location), "text-folder")
    if split is not None:
        splits = sorted(f.name for f in root.iterdir() if f.is_dir() and any(c.is_dir() for c in f.iterdir()))
        check_offer(f"text-folder:{location}", "split", split, splits or ["all"])
        root = root / split if splits else root
    drops, rows = Drops(), list[tuple[str, list[str], list[int]]]()
    folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
    for path in sorted(set(root.iterdir()) - set(folders)):
        drops.add("file beside the class folders", str(path))
    for label, folder in enumerate(folders):
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or not path.is_file():
                drops.add("hidden file" if path.name.startswith(".") else "not a file of a class folder", str(path))
                continue
            text = _decoded(path.read_bytes()).strip()
            if text:
                rows.append((f"{folder.name}/{path.name}", [text], [label]))
            else:
                drops.add("empty text", str(path))
    classes = tuple(folder.name.replace("_", " ") for folder in folders)
    return Texts(f"text-folder:{location}", split or "all", rows, drops, classes)


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


#: Fields of a row of long captions, in the order of its texts: the first that is there is the description.
_FIELDS = ("text", "caption", "docci", "iiw", "objects", "steps")


@DATASETS.register("long-captions")
def open_long_captions(location: str, *, split: str | None = None, content: str = "texts") -> SampleSet:
    """JSON lines of long descriptions with their parts or with other descriptions. Content: texts.

    The texts of a row are those of its fields ``text``, ``caption``, ``docci``, ``iiw``, ``objects`` (of each the
    ``description``) and ``steps``, in this order, as far as it has them; so the description comes first. A text that
    the row already has, but for white space, is left out. ``image`` is the key.
    """
    check_offer("long-captions", "content", content, ["texts"])
    check_offer("long-captions", "split", split or "all", ["all"])
    path, drops = need_file(location, "long-captions", ".jsonl", ".jsonlines"), Drops()
    rows = list[tuple[str, list[str], list[int]]]()
    for number, row in read_rows(path, ()):
        where = f"row {number} of {path}"
        found = [text for field in _FIELDS if field in row for text in _field_texts(row[field])]
        for fault in filter(None, map(text_fault, found)):
            drops.add(f"part: {fault}", where)
        texts = dict[str, str]()
        for text in clean_texts(found):
            texts.setdefault(" ".join(text.split()), text)
        if texts:
            rows.append((str(row.get("image") or f"row {number}"), list(texts.values()), []))
        else:
            drops.add("no caption", where)
    return Texts(f"long-captions:{location}", "all", rows, drops)


def _field_texts(value: Any) -> list[object]:
    """A text, a list of texts, or a list of objects with descriptions, as a list of what should be texts."""
    values = value if isinstance(value, list) else [value]
    return [v.get("description") if isinstance(v, dict) else v for v in values]
