"""One thread a process, since pytest runs several, and no network. Read when torch loads, so before any test module."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium, headless (``playwright.sync_api.Browser``); tests are skipped where it is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install 'hyvlm[dev]')")
    if CHROMIUM is None:
        pytest.skip("needs a browser: there is no chromium on the path")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file or an address as a ``playwright.sync_api.Page``, closed after the test.

    Its ``problems`` are what was said on the console as an error, exceptions that nothing caught and, for
    a file, requests of anything but that file and what it holds.
    """
    sessions = []

    def opener(address: str | Path, *, width: int = 1280, height: int = 900, **context: Any) -> Any:
        where = address.resolve().as_uri() if isinstance(address, Path) else address
        sessions.append(browser.new_context(viewport={"width": width, "height": height}, **context))
        page = sessions[-1].new_page()
        page.set_default_timeout(20_000)
        page.problems = []
        page.on("console", lambda said: page.problems.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        if isinstance(address, Path):
            page.on(
                "request", lambda r: None if r.url == where or r.url[:5] == "data:" else page.problems.append(r.url)
            )
        page.goto(where)
        return page

    yield opener
    for session in sessions:
        session.close()


@pytest.fixture(scope="session")
def sticks_out() -> Callable[[Any], int]:
    """By how many pixels a page is wider than its window."""
    return lambda page: page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
