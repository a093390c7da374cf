"""A page in the browser to search a collection in, walk through it and see its map (``hyvlm app``).

The server is gradio's. :class:`Guard` stands before it: what the page does not need, files of this machine among it, is
answered with 404, and the browser is told to ask nothing of any other machine.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyvlm.data.images import IMAGE_SUFFIXES
from hyvlm.errors import MissingExtra
from hyvlm.integrations.app_views import CONES, KINDS, MOST_HITS, MOST_STEPS, STYLE, Query, Views, message

LOCAL = ("127.0.0.1", "::1", "localhost")
#: Addresses that the page needs.
ROUTES = re.compile(
    r"/|/(static|assets|svelte)/[^?]*|/(config|theme\.css|favicon\.ico|robots\.txt)/?"
    r"|/gradio_api/(queue/(join|data)|upload|upload_progress|heartbeat/\w+|startup-events|cancel|reset)/?"
)
#: What the browser may load and do: only what comes from here. Gradio makes functions of strings.
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
#: Buttons inside results: what they do is the name of an event of the component.
LISTEN = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-do]");
  if (button) trigger(button.dataset.do === "walk" ? "select" : "click", { ...button.dataset });
});
"""
#: Uploads are deleted after so many seconds; it is looked so often.
KEEP, LOOK = 3600, 600


def gradio() -> Any:
    """The package, which reports nothing to anyone. Raises :class:`MissingExtra`."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise MissingExtra("the app", "gradio", "app") from error
    return gradio


class Guard:
    """ASGI middleware: only :data:`ROUTES` are answered, under :data:`POLICY`."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":  # the life of the server
            await self.app(scope, receive, send)
            return

        async def with_policy(sent: Any) -> None:
            if sent["type"] == "http.response.start":
                headers = [(b"content-security-policy", POLICY.encode()), (b"referrer-policy", b"no-referrer")]
                sent = {**sent, "headers": [*sent.get("headers", []), *headers]}
            await send(sent)

        if ROUTES.fullmatch(scope["path"]) and ".." not in scope["path"]:
            await self.app(scope, receive, with_policy)
            return
        await with_policy({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"not found"})


def told(view: Callable[..., str]) -> Callable[..., str]:
    """The same, where what the user can mend becomes a sentence on the page."""

    def shown(*values: Any) -> str:
        try:
            return view(*values)
        except (ValueError, FileNotFoundError) as error:
            return message(f"{error}.")

    return shown


@dataclass(frozen=True)
class _Form:
    """The components that ask for a place."""

    kind: Any
    text: Any
    upload: Any
    key: Any

    @property
    def fields(self) -> list[Any]:
        return [self.kind, self.text, self.upload, self.key]


def _form(label: str, name: str, *, root: bool = False) -> _Form:
    """A choice of what to give, and the field for it."""
    gr = gradio()
    kinds = [*(["the root"] if root else []), *KINDS]
    kind = gr.Radio(kinds, value=kinds[0], label=label, elem_id=f"{name}-kind")
    text = gr.Textbox(label="Text, in any script", visible=not root, max_lines=4, elem_id=f"{name}-text")
    suffixes = [f".{suffix}" for suffix in IMAGE_SUFFIXES]
    upload = gr.File(
        label="Picture", type="binary", file_types=suffixes, height=130, visible=False, elem_id=f"{name}-upload"
    )
    key = gr.Textbox(label="Key of an image or a text", visible=False, max_lines=1, elem_id=f"{name}-key")

    def show(chosen: str) -> list[Any]:
        return [gr.update(visible=chosen == kind) for kind in KINDS]

    kind.change(show, kind, [text, upload, key], api_visibility="private", show_progress="hidden")
    return _Form(kind, text, upload, key)


def build(views: Views) -> Any:
    """The page, a ``gradio.Blocks``; it is served by :func:`serve`."""
    gr = gradio()
    settings = {"api_visibility": "private", "concurrency_id": "model", "concurrency_limit": 1}
    with gr.Blocks(title="hyvlm", analytics_enabled=False, delete_cache=(LOOK, KEEP)) as page:
        gr.Markdown(f"# hyvlm\n{_plain(views.summary)}")
        with gr.Tabs() as tabs:
            with gr.Tab("Search", id="search"):
                looked_for, search = _search_tab(views)
            with gr.Tab("Traversal", id="traversal"):
                start, walk = _walk_tab(views)
            with gr.Tab("Map", id="map") as map_tab:
                drawn, shown = gr.State(False), gr.HTML(message("The map is being drawn.", role="status"))
        results = search.output

        def picked(event: Any) -> list[Any]:
            return _fill(event._data)

        def picked_to_walk(event: Any) -> list[Any]:
            return [gr.Tabs(selected="traversal"), *_fill(event._data)]

        for listener in (picked, picked_to_walk):  # by their annotation gradio knows what to pass
            listener.__annotations__["event"] = gr.EventData
        fill = {"api_visibility": "private", "show_progress": "hidden"}
        results.click(picked, None, [looked_for.kind, looked_for.text, looked_for.key], **fill).then(
            search.run, search.inputs, search.output, **settings
        )
        results.select(picked_to_walk, None, [tabs, start.kind, start.text, start.key], **fill).then(
            walk.run, walk.inputs, walk.output, **settings
        )
        for form, action in ((looked_for, search), (start, walk)):
            gr.on(
                [action.button.click, form.text.submit, form.key.submit],
                action.run,
                action.inputs,
                action.output,
                **settings,
            )

        def draw(done: bool) -> tuple[Any, Any]:  # once a session: it is megabytes, and keeps its zoom
            return (gr.skip(), gr.skip()) if done else (True, told(lambda: views.map)())

        map_tab.select(draw, drawn, [drawn, shown], **settings)
    page.queue(max_size=64)
    return page


@dataclass(frozen=True)
class _Action:
    """What a tab does: a function of its inputs whose result its output shows."""

    run: Callable[..., str]
    inputs: list[Any]
    output: Any
    button: Any


def _search_tab(views: Views) -> tuple[_Form, _Action]:
    gr = gradio()
    low, high = views.radius_limits
    filtered = views.has_origin and low < high
    with gr.Row():
        with gr.Column(scale=3, min_width=260):
            form = _form("Look for", "search")
        with gr.Column(scale=2, min_width=260):
            group = gr.Radio(views.groups, value=views.groups[0], label="Among", elem_id="search-group")
            k = gr.Slider(1, MOST_HITS, value=12, step=1, label="How many", elem_id="search-k")
    with gr.Accordion("Filters", open=False, visible=views.has_origin), gr.Row():
        step = {"step": 0.001, "visible": filtered, "minimum": low, "maximum": max(high, low + 0.001)}
        lowest = gr.Slider(value=low, label="Radius, at least", elem_id="search-low", **step)
        highest = gr.Slider(value=high, label="Radius, at most", elem_id="search-high", **step)
        within = gr.Textbox(label="Within the cone of", info="a text; empty: anywhere", elem_id="search-within")
    button = gr.Button("Search", variant="primary", elem_id="search-button")
    output = gr.HTML(js_on_load=LISTEN, apply_default_css=False, elem_id="search-results")

    @told
    def run(kind: str, text: str, upload: bytes, key: str, among: str, k: int, *filters: Any) -> str:
        low, high, cone = filters
        query = Query(kind, text, upload, key)
        return views.search(query, group=among, k=int(k), radius_min=low, radius_max=high, within=cone or "")

    return form, _Action(run, [*form.fields, group, k, lowest, highest, within], output, button)


def _walk_tab(views: Views) -> tuple[_Form, _Action]:
    gr = gradio()
    among = [*views.groups, *(["both"] if len(views.groups) > 1 else [])]
    with gr.Row():
        with gr.Column(min_width=260):
            start = _form("From", "start")
        with gr.Column(min_width=260):
            end = _form("To", "end", root=views.has_origin)
    with gr.Accordion("How", open=False), gr.Row():
        within = gr.Radio(among, value=among[-1], label="What may be met", elem_id="walk-among")
        steps = gr.Slider(2, MOST_STEPS, value=50, step=1, label="Points of the way", elem_id="walk-steps")
        by = gr.Radio(["geodesic", "radius"], value="geodesic", label="By", visible=views.has_origin)
        cones = gr.Radio(list(CONES), value="as usual", label="Cones", visible=views.has_origin)
    button = gr.Button("Walk", variant="primary", elem_id="walk-button")
    output = gr.HTML(apply_default_css=False, elem_id="walk-results")

    @told
    def run(*values: Any) -> str:
        first, last, (among, steps, by, cone) = Query(*values[:4]), Query(*values[4:8]), values[8:]
        goal = None if last.kind == "the root" else last
        return views.walk(first, goal, within=among, steps=int(steps), by=by, entailed=CONES[cone])

    return start, _Action(run, [*start.fields, *end.fields, within, steps, by, cones], output, button)


def _fill(picked: dict[str, Any]) -> list[Any]:
    """Kind, text and key of a form, from the data of a button of a hit."""
    gr = gradio()
    kind, name = str(picked.get("kind")), str(picked.get("name"))
    fields = [gr.update(value=name) if kind == field else gr.skip() for field in ("text", "key")]
    return [kind if kind in KINDS else gr.skip(), *fields]


def _plain(text: str) -> str:
    """Text in which Markdown finds nothing to do."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>~$])", r"\\\1", text)


def _theme(gr: Any) -> Any:
    """Fonts that every machine has, and buttons that white letters can be read on."""
    theme = gr.themes.Default(primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace"])
    fills = {f"button_primary_background_fill{'_dark' * dark}": "*primary_700" for dark in (0, 1)}
    fills |= {f"button_primary_background_fill_hover{'_dark' * dark}": "*primary_800" for dark in (0, 1)}
    return theme.set(**fills)


def check_port(host: str, port: int) -> None:
    """Raise ValueError if nothing can listen there."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise ValueError(f"port {port} of {host} {why}: choose another with --port or --host") from None


@contextmanager
def running(views: Views, *, host: str = "127.0.0.1", port: int = 7860, max_upload_mb: float = 10) -> Iterator[str]:
    """Serve the page inside the block; gives its address.

    Raises:
        ValueError: The port is taken, or the limit of uploads is not positive.
        MissingExtra: gradio is not installed.
    """
    if max_upload_mb <= 0:
        raise ValueError(
            f"--max-upload-mb is the largest picture that is taken and must be positive, got {max_upload_mb:g}"
        )
    check_port(host, port)
    gr = gradio()
    from starlette.middleware import Middleware

    with tempfile.TemporaryDirectory(prefix="hyvlm-app-") as uploads:
        os.environ["GRADIO_TEMP_DIR"] = uploads  # and not where other users' are
        page = build(views)
        try:
            _, address, _ = page.launch(
                server_name=host,
                server_port=port,
                share=False,
                prevent_thread_lock=True,
                quiet=True,
                max_file_size=int(max_upload_mb * 2**20),
                app_kwargs={"middleware": [Middleware(Guard)]},
                theme=_theme(gr),
                css=STYLE,
                footer_links=[],
                run_history=False,
                enable_monitoring=False,
                mcp_server=False,
                ssr_mode=False,
                pwa=False,
                inline=False,
            )
            yield str(address)
        finally:
            page.close(verbose=False)


def serve(
    folder: str | Path,
    *,
    model: str | None = None,
    host: str = "127.0.0.1",
    port: int = 7860,
    max_upload_mb: float = 10,
    device: str | None = None,
) -> None:
    """Serve the app of a collection until it is interrupted.

    Args:
        folder: What ``hyvlm embed`` wrote.
        model: Where its model is now; None takes the path that the collection names.
        host: Another address than that of this machine alone makes the app reachable, for which a warning is printed.
        max_upload_mb: Larger pictures are refused.
    Raises:
        ValueError, FileNotFoundError: The collection, its model or the port cannot be used.
        MissingExtra: gradio, or what a collection needs, is not installed.
    """
    gradio()
    check_port(host, port)  # before a model is loaded
    views = Views.open(folder, model=model, device=device)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that uploads are removed then, too
    if host not in LOCAL:
        print(f"hyvlm: warning: {host} lets other machines in, and the app asks no one for a password", file=sys.stderr)
    with running(views, host=host, port=port, max_upload_mb=max_upload_mb) as address:
        print(f"app: {address} ({views.summary}); Ctrl-C ends it", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("hyvlm: the app has ended", file=sys.stderr)
