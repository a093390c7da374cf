"""One registry class; every extensible thing of the library (methods, manifolds, data sets, tasks) lives in one."""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Names to builders, with errors that say what the reader may have meant.

    Args:
        kind: What the entries are, in the singular, for messages ("method", "dataset").
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that stores the decorated object under ``name``; a second entry of one name is an error."""

        def store(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return store

    def __getitem__(self, name: str) -> T:
        load_plugins()
        if name not in self._entries:
            raise ValueError(unknown(self.kind, name, self._entries))
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        load_plugins()
        return name in self._entries


def unknown(kind: str, name: str, known: Mapping[str, object] | list[str], hint: str = "") -> str:
    """The one-line message for a name that is not known: the nearest names, else all of them, then a hint."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"unknown {kind} {name!r}. Did you mean {' or '.join(map(repr, near))}?{hint and f' {hint}'}"
    return f"unknown {kind} {name!r}. Known: {', '.join(names) or 'none'}{hint and f'. {hint}'}"


@cache
def load_plugins() -> None:
    """Import every package that announces itself under the entry-point group ``hyvlm.plugins``; importing registers."""
    for entry in importlib.metadata.entry_points(group="hyvlm.plugins"):
        entry.load()
