"""Ctrl-C between two steps, so that what is saved is a state that the run really was in."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether the user asked to stop."""

    requested = False


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Within it the first Ctrl-C sets ``requested``; a second one interrupts at once. Other threads are left alone."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.getsignal(signal.SIGINT)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if interrupt.requested:
            raise KeyboardInterrupt
        interrupt.requested = True

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
