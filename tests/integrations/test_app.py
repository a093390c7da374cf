"""The app: what its page shows, what its server refuses, and the page in a browser."""

from __future__ import annotations

import io
import json
import re
import socket
import struct
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

pytest.importorskip("faiss")
pytest.importorskip("matplotlib")
gradio = pytest.importorskip("gradio", minversion="6", reason="needs gradio (pip install 'hyvlm[app]')")

from hyvlm.cli.main import main  # noqa: E402
from hyvlm.integrations import app  # noqa: E402
from hyvlm.integrations.app_views import Query, Views  # noqa: E402
from hyvlm.models import save_model  # noqa: E402
from hyvlm.retrieval.embed import embed  # noqa: E402
from hyvlm.retrieval.search import Searcher  # noqa: E402

shared = Path(__file__).parents[1] / "retrieval" / "collections_of_points.py"
fixtures = SimpleNamespace(**run_path(str(shared)))

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 60), "blue": (30, 60, 220), "grey": (120, 120, 120)}
TEXTS = ["a red square", "grün & <b>groß</b>", "一个蓝色的正方形", "مربع رمادي"]


def png(colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def bomb() -> bytes:
    """A PNG of a few bytes that says it has 60,000 x 60,000 pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures and four texts, embedded by an untrained model."""
    root = tmp_path_factory.mktemp("app")
    (root / "pictures").mkdir()
    for name, colour in COLOURS.items():
        (root / "pictures" / f"{name}.png").write_bytes(png(colour))
    (root / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    model = save_model(fixtures.tiny("lorentz"), root / "model")
    embed(
        str(model),
        out=root / "found",
        images=str(root / "pictures"),
        texts=str(root / "texts.txt"),
        workers=0,
        device="cpu",
    )
    return root / "found"


@pytest.fixture(scope="module")
def views(folder: Path) -> Views:
    return Views.open(folder, device="cpu")


def test_images_are_shown_best_first_with_their_pictures_inside(views: Views, folder: Path) -> None:
    shown = views.search(Query("text", "a red square"), group="images", k=3)
    point = views.places.of_text("a red square").point.unsqueeze(0)
    rows = Searcher(views.collection, views.places.model).search(point, by="text", k=3).rows[0].tolist()
    assert re.findall(r'<div class="key">(.*?)</div>', shown) == [
        views.collection.group("images").keys[r] for r in rows
    ]
    assert shown.count('src="data:image/jpeg;base64,') == 3
    assert "3 of 4 images" in shown
    assert str(folder.parent) not in shown


@pytest.mark.parametrize("text", ["red", *TEXTS, "🚲", "a" * 3000])
def test_texts_are_a_table_in_any_script(text: str, views: Views) -> None:
    shown = views.search(Query("text", text), group="texts")
    assert shown.count("<tr><td") == 4
    assert "一个蓝色的正方形" in shown
    assert "&lt;b&gt;groß" in shown
    assert "<b>groß" not in shown


def test_an_uploaded_picture_finds_itself(views: Views) -> None:
    shown = views.search(Query("picture", upload=png(COLOURS["blue"])), group="images", k=2)
    assert "blue.png" in re.findall(r'<div class="key">(.*?)</div>', shown)[0]
    assert 'alt="The query"' in shown
    key = views.collection.group("images").keys[0]
    assert key in re.findall(r'<div class="key">(.*?)</div>', views.search(Query("key", key=key), group="images"))[0]


@pytest.mark.parametrize(
    ("query", "asked", "hint"),
    [
        (Query("text", "  "), {}, "an empty text"),
        (Query("text", None), {}, "an empty text"),
        (Query("key", key=""), {}, "an empty key"),
        (Query("key", key="nothing"), {}, "has the key 'nothing'"),
        (Query("picture"), {}, "has no picture"),
        (Query("picture", upload=b"not a picture"), {}, "of no known format"),
        (Query("picture", upload=png((1, 2, 3))[:60]), {}, "cut short|broken"),
        (Query("picture", upload=bomb()), {}, "too large"),
        (Query("sound"), {}, "unknown kind of query 'sound'"),
        (Query("text", "red"), {"k": 0}, "1 to 100 results"),
        (Query("text", "red"), {"k": 101}, "1 to 100 results"),
        (Query("text", "red"), {"radius_min": 3.0, "radius_max": 0.001}, "radii must be"),
        (Query("text", "red"), {"group": "sounds"}, "images and texts"),
    ],
)
def test_mistakes_are_a_sentence(views: Views, query: Query, asked: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        views.search(query, **{"group": "images", **asked})
    shown = app.told(lambda: views.search(query, **{"group": "images", **asked}))()
    assert re.search(hint, shown.replace("&#x27;", "'"), re.IGNORECASE)
    assert 'role="alert"' in shown


def test_filters_leave_out_and_their_limits_do_not(views: Views) -> None:
    low, high = views.radius_limits
    query = Query("text", "red")
    whole = views.search(query, group="images", radius_min=low, radius_max=high)
    assert whole == views.search(query, group="images")
    shown = views.search(query, group="images", radius_max=low / 2)
    assert "None of the 4 images passes the filters" in shown
    inside = views.search(query, group="images", within="a red square")
    apex = views.places.of_text("a red square").point
    allowed = Searcher(views.collection, views.places.model).allowed(within=apex)
    assert allowed is not None
    assert inside.count('class="numbers"') == int(allowed.sum())


def test_ways_lead_to_the_root_or_to_another_place(views: Views) -> None:
    shown = views.walk(Query("text", "a red square"))
    assert "[ROOT]" in shown
    assert "start, radius" in shown
    key = views.collection.group("images").keys[0]
    shown = views.walk(Query("key", key=key), Query("picture", upload=png((9, 9, 9))), within="both", entailed=False)
    assert "[ROOT]" not in shown
    assert shown.count("<img") >= 2
    assert "end, radius" in shown
    with pytest.raises(ValueError, match="the end is an empty text"):
        views.walk(Query("text", "red"), Query("text", ""))
    with pytest.raises(ValueError, match="2 to 200 steps"):
        views.walk(Query("text", "red"), steps=10_000)


def test_the_map_holds_every_point_and_is_drawn_once(views: Views) -> None:
    shown = views.map
    assert "4 of 4 images and 4 of 4 texts in the Poincaré disk" in shown
    assert 'sandbox="allow-scripts"' in shown
    assert views.map is shown


def test_without_an_origin_there_is_no_root(tmp_path: Path) -> None:
    model = fixtures.tiny("sphere")
    views = Views.open(
        fixtures.write_collection(tmp_path / "flat", model, images=fixtures.clustered(model, 20)), device="cpu"
    )
    assert not views.has_origin
    assert views.radius_limits == (0.0, 0.0)
    shown = views.search(Query("text", "red"), group="images")
    assert "to the root" not in shown
    assert "radius" not in shown
    assert "cannot be read any more" in shown  # the source is made up
    assert "of the way" in views.walk(Query("key", key="image-0"), Query("key", key="image-9"))
    with pytest.raises(ValueError, match=r"root|origin"):
        views.walk(Query("text", "red"))
    with pytest.raises(ValueError, match="origin"):
        views.search(Query("text", "red"), group="images", within="red")
    app.build(views)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_what_cannot_be_served_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = fixtures.tiny("lorentz")
    with torch.no_grad():
        other.manifold.log_c.fill_(0.5)
    save_model(other, tmp_path / "other")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port, free = str(taken.getsockname()[1]), str(free_port())
        for arguments, hint in [
            ([str(folder), "--port", port], f"port {port} of 127.0.0.1 is taken"),
            ([str(folder), "--port", free, "--host", "203.0.113.7"], "cannot be used"),
            ([str(folder), "--port", free, "--model", str(tmp_path / "other")], "is of another model"),
            ([str(folder), "--port", free, "--model", str(tmp_path / "none")], "none"),
            ([str(folder), "--port", free, "--max-upload-mb", "0"], "must be positive"),
            ([str(tmp_path / "none"), "--port", free], "no collection at"),
        ]:
            assert main(["app", *arguments]) == 2
            error = capsys.readouterr().err.strip()
            assert hint in error
            assert len(error.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["app", str(folder)]) == 2
    assert "hyvlm[app]" in capsys.readouterr().err


def test_another_address_than_this_machine_is_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app.threading, "Event", lambda: SimpleNamespace(wait=interrupted))
    monkeypatch.setattr(app.signal, "signal", lambda *_: None)
    monkeypatch.setattr(app, "running", lambda *_, host, **__: pytest.MonkeyPatch.context())
    for host, warned in (("0.0.0.0", 1), ("127.0.0.1", 0)):
        app.serve(folder, host=host, port=free_port(), device="cpu")
        assert capsys.readouterr().err.count("lets other machines in") == warned


@pytest.fixture(scope="module")
def address(views: Views) -> Iterator[str]:
    with app.running(views, port=free_port(), max_upload_mb=0.1) as found:
        yield found


def status(request: str | urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_server_gives_out_nothing_but_the_page(address: str, folder: Path) -> None:
    with urllib.request.urlopen(address, timeout=20) as answer:
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert str(folder.parent) not in answer.read().decode()
    for path in [
        f"gradio_api/file={folder / 'collection.json'}",
        "gradio_api/file=/etc/hostname",
        "gradio_api/file=http://203.0.113.7/x",
        "gradio_api/proxy=https://example.hf.space/x",
        f"gradio_api/file/{folder / 'collection.json'}",
        "gradio_api/deep_link",
        "gradio_api/info",
        "gradio_api/run/predict",
        "gradio_api/runs",
        "monitoring/summary",
        "static/../../../../etc/hostname",
        "static/%2e%2e/%2e%2e/%2e%2e/etc/hostname",
    ]:
        assert status(address + path) == 404, path


def upload(address: str, content: bytes) -> urllib.request.Request:
    edge = b'--edge\r\nContent-Disposition: form-data; name="files"; filename="x.png"\r\n\r\n'
    body = edge + content + b"\r\n--edge--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    return urllib.request.Request(address + "gradio_api/upload", body, headers)


def test_large_uploads_are_refused(address: str) -> None:
    assert status(upload(address, b"0" * 50_000)) == 200
    assert status(upload(address, b"0" * 200_000)) == 413


def ask(address: str, session: str, data: list[Any]) -> dict[str, Any]:
    """What the page's first search answers to these values, without a browser."""
    with urllib.request.urlopen(address + "config", timeout=20) as answer:
        functions = json.load(answer)["dependencies"]
    index = next(f["id"] for f in functions if len(f["inputs"]) == len(data))
    body = json.dumps({"data": data, "fn_index": index, "session_hash": session, "event_data": None}).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(address + "gradio_api/queue/join", body, headers), timeout=20).close()
    with urllib.request.urlopen(f"{address}gradio_api/queue/data?session_hash={session}", timeout=20) as stream:
        for line in stream:
            if line.startswith(b"data:") and (said := json.loads(line[5:]))["msg"] == "process_completed":
                return dict(said)
    raise AssertionError("no answer")


def test_no_file_of_the_machine_can_be_named_as_an_upload(address: str, folder: Path) -> None:
    secret = folder.parent / "pictures" / "red.png"
    file = {"path": str(secret), "orig_name": "red.png", "meta": {"_type": "gradio.FileData"}}
    said = ask(address, "outside", ["picture", "", file, "", "images", 4, 0.0, 100.0, ""])
    assert not said["success"]
    assert "base64" not in json.dumps(said)
    with urllib.request.urlopen(upload(address, secret.read_bytes()), timeout=20) as answer:
        file["path"] = json.load(answer)[0]
    low, high = 0.0, 0.0
    with urllib.request.urlopen(address + "config", timeout=20) as answer:
        for component in json.load(answer)["components"]:
            if component["props"].get("elem_id") in ("search-low", "search-high"):
                low, high = component["props"]["minimum"], component["props"]["maximum"]
    said = ask(address, "inside", ["picture", "", file, "", "images", 4, low, high, ""])
    assert said["success"]
    assert "base64" in json.dumps(said)


def test_the_page_searches_walks_and_maps(address: str, open_page: Callable[..., Any], sticks_out: Any) -> None:
    page = open_page(address)
    field = page.locator("#search-text textarea")
    field.fill("")
    field.press("Enter")  # by keyboard alone
    page.locator("#search-results [role=alert]").wait_for()
    assert "empty text" in page.locator("#search-results").inner_text()
    field.fill("一个红色的正方形")
    field.press("Enter")
    page.locator("#search-results .hits").wait_for()
    assert page.locator(".hits li").count() == 4
    page.locator(".hits [data-do=search]").nth(2).press("Enter")
    key = page.locator(".hits .key").nth(2).inner_text()
    page.locator(f"#search-results .facts:has-text('for {key}')").wait_for()
    assert page.locator("#search-key input, #search-key textarea").input_value() == key
    page.locator(".hits [data-do=walk]").first.click()
    page.locator("#walk-results .strip").wait_for()
    assert page.locator("#walk-results .strip li").last.inner_text().startswith("[ROOT]")
    page.get_by_role("tab", name="Map").click()
    frame = page.frame_locator("iframe")
    frame.locator(".stage[data-ready]").wait_for()
    frame.locator(".over").focus()
    page.keyboard.press("ArrowRight")
    assert frame.locator(".tip").is_visible()
    asked = page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert all(url.startswith((address, "data:", "blob:")) for url in asked)
    assert page.problems == []


def test_a_narrow_page_takes_pictures_and_says_what_is_wrong_with_them(
    address: str, open_page: Callable[..., Any], sticks_out: Callable[[Any], int], tmp_path: Path
) -> None:
    (tmp_path / "good.png").write_bytes(png(COLOURS["green"]))
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    page = open_page(address, width=400, height=800)
    page.locator("#search-kind label:has-text('picture')").click()
    chooser = page.locator("#search-upload input[type=file]")
    for name, shown in (("bad.png", "[role=alert]"), ("good.png", ".hits")):
        chooser.set_input_files(tmp_path / name)
        page.locator(f"#search-upload >> text={name.split('.')[0]}").first.wait_for()
        page.locator("#search-button").click()
        page.locator(f"#search-results {shown}").wait_for()
        assert sticks_out(page) <= 0
        if name == "bad.png":
            assert "no known format" in page.locator("#search-results").inner_text()
            page.locator(
                "#search-upload button[aria-label*='lear'], #search-upload button[aria-label*='emove']"
            ).first.click()
    assert "green.png" in page.locator(".hits .key").first.inner_text()
    assert page.problems == []
