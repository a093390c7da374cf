"""JSON files that hold one long list, read entry by entry, so that a file larger than memory can be used."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

CHUNK = 2**20  # bytes read at a time
_BLANK = re.compile(r"[ \t\r\n]*")
_TAIL = 16  # characters: an error so near to the end of what was read may be the end's, not the file's


class Place(NamedTuple):
    """Where an entry stands in its file, in bytes."""

    start: int
    length: int


def entries(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a JSON list of objects with their places; the file is UTF-8, with or without byte order mark.

    Raises:
        ValueError: The file is anything else, or is cut short; names the byte.
    """
    with path.open("rb") as file:
        text = _Text(file, path)
        text.take("[")
        if text.peek() == "]":
            return
        while True:
            yield text.take_object()
            if text.take(",]") == "]":
                return


def read_entry(path: Path, place: Place) -> dict[str, Any]:
    """The entry at ``place``. Raises ValueError if there is none, for the file has changed."""
    with path.open("rb") as file:
        file.seek(place.start)
        entry = json.loads(file.read(place.length))
    if not isinstance(entry, dict):
        raise ValueError(f"{path} has no entry at byte {place.start} any more")
    return entry


class _Text:
    """A file's text from ``cursor`` on, as far as it was read; ``at`` is the cursor's place in bytes."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self.text, self.cursor, self.ended = "", 0, False
        self.at = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
        file.seek(self.at)
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._scan = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that is not white space; "" at the end of the file."""
        while True:
            end = _BLANK.match(self.text, self.cursor).end()  # type: ignore[union-attr]  # it matches everywhere
            self.at += end - self.cursor
            self.cursor = end
            if end < len(self.text) or self.ended:
                return self.text[end : end + 1]
            self._read_on()

    def take(self, options: str) -> str:
        """The next character, which must be one of ``options``."""
        found = self.peek()
        if not found or found not in options:
            raise self._fault(f"{found!r} found" if found else "the file ends", f"where {' or '.join(options)} was due")
        self.cursor, self.at = self.cursor + 1, self.at + 1
        return found

    def take_object(self) -> tuple[Place, dict[str, Any]]:
        """The object that begins here."""
        if self.peek() != "{":
            raise self._fault(f"{self.peek()!r} found" if self.peek() else "the file ends", "where an object was due")
        while True:
            try:
                entry, end = self._scan(self.text, self.cursor)
                break
            except json.JSONDecodeError as error:
                at_end = error.pos > len(self.text) - _TAIL or error.msg.startswith("Unterminated string")
                if self.ended or not at_end:
                    raise self._fault("an entry is broken", f"({error.msg})") from error
            self._read_on()
        place = Place(self.at, len(self.text[self.cursor : end].encode()))
        self.cursor, self.at = end, self.at + place.length
        return place, entry

    def _read_on(self) -> None:
        left = self.text[self.cursor :]
        chunk = self.file.read(max(CHUNK, len(left)))  # twice as much each time, for an entry longer than a chunk
        self.ended = not chunk
        try:
            self.text, self.cursor = left + self._decode(chunk, self.ended), 0
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path} is not UTF-8 (byte 0x{error.object[error.start]:02x})") from error

    def _fault(self, what: str, why: str) -> ValueError:
        return ValueError(f"{self.path} is not a JSON list of objects: {what} at byte {self.at} {why}")
