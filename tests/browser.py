"""The system's Chromium for tests of pages; they are skipped, with the reason, where it or playwright is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser (``playwright.sync_api.Browser``)."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install 'hyvlm[dev]')")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: there is no chromium on the path")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, address: str | Path, *, width: int = 1280, height: int = 900, **context: Any) -> Iterator[Any]:
    """A page (``playwright.sync_api.Page``) of a file or an address.

    Its ``problems`` are what was said on the console as an error or a warning, uncaught exceptions and, for a file,
    requests of anything but that file and what it holds.
    """
    local = isinstance(address, Path)
    where = address.resolve().as_uri() if isinstance(address, Path) else address
    session = browser.new_context(viewport={"width": width, "height": height}, **context)
    page = session.new_page()
    page.set_default_timeout(20_000)
    page.problems = []
    page.on("console", lambda said: page.problems.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    if local:
        page.on("request", lambda r: None if r.url == where or r.url[:5] == "data:" else page.problems.append(r.url))
    try:
        page.goto(where)
        yield page
    finally:
        session.close()


def sticks_out(page: Any) -> int:
    """By how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
