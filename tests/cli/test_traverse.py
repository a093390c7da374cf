"""``hyvlm traverse``: from and to images and texts of a small collection; one line for what the user can mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from hyvlm.cli.main import main
from hyvlm.models import build_model, save_model
from hyvlm.retrieval import Collection


def collection(home: Path, manifold: dict[str, Any], groups: tuple[str, ...] = ("images", "texts")) -> Path:
    torch.manual_seed(0)
    image = {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2}
    text = {"width": 16, "depth": 1, "heads": 2}
    built = build_model({"model": {"image": image, "text": text, "dim": 8}, "manifold": manifold})
    folder = save_model(built, home / "model")
    sources = [part for group in groups for part in (f"--{group}", "scenes:6")]
    options = ["--split", "val", "--num-workers", "0", "--out", str(home / "points")]
    assert main(["embed", str(folder), *sources, *options]) == 0
    return home / "points"


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collection(tmp_path_factory.mktemp("curved"), {"name": "lorentz"})


@pytest.fixture(scope="module")
def sphere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collection(tmp_path_factory.mktemp("round"), {"name": "sphere"})


def lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    capsys.readouterr()
    code = main(["traverse", *map(str, arguments)])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out.splitlines()


def found(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    return dict(json.loads("\n".join(lines(capsys, *arguments, "--json"))))


def test_from_an_image_to_the_root(points: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "new" / "walk.png"
    asked = ["--from-key", "scene-val-000000", "--any", "--figure", figure]
    head, first, *steps, last, summary, drawn = lines(capsys, points, *asked)
    assert head.split() == ["radius", "distance"]
    assert first.split()[1:] == ["from", "scene-val-000000"]
    assert last.endswith("[ROOT]")
    assert {step.split()[2] for step in steps} == {"image", "text"}
    assert not any("scene-val-000000" in step for step in steps)
    assert summary == "the nearest of all, at 50 steps"
    assert drawn == f"figure: {figure}"
    with Image.open(figure) as picture:
        assert picture.height > 300


def test_json_holds_what_the_table_shows(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = found(capsys, points, "--from-key", "scene-val-000001#0", "--in", "texts", "--by", "radius", "--steps", "4")
    opened = Collection.open(points)
    assert opened.texts is not None
    text = opened.texts.texts[opened.texts.keys.index("scene-val-000001#0")]
    assert told["from"] == {"kind": "text", "name": text}
    assert (told["to"], told["by"], told["entailed"], told["looked"]) == (None, "radius", False, 4)
    assert told["steps"][-1]["name"] == "[ROOT]"
    assert all(step["kind"] == "text" and step["name"] != text for step in told["steps"][:-1])
    by_default = found(capsys, points, "--from-text", "a red ball")
    assert by_default["entailed"]


def test_from_a_picture_on_disk_to_a_text(points: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Image.new("RGB", (40, 20), "red").save(tmp_path / "red.png")
    told = found(
        capsys,
        points,
        "--from-image",
        tmp_path / "red.png",
        "--to-text",
        "Красный мяч",
        "--in",
        "images",
        "--steps",
        "9",
    )
    assert told["to"] == {"kind": "text", "name": "Красный мяч"}
    assert not told["entailed"]
    assert {step["kind"] for step in told["steps"]} == {"image"}
    table = lines(capsys, points, "--from-image", tmp_path / "red.png", "--to-key", "scene-val-000002")
    assert table[-2].split()[1:] == ["to", "scene-val-000002"]


def test_on_a_sphere_only_between_points(sphere: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ends = ["--from-key", "scene-val-000000", "--to-key", "scene-val-000003"]
    table = lines(capsys, sphere, *ends, "--figure", tmp_path / "walk.svg")
    assert "scene-val-000003" in table[-3]
    assert main(["traverse", str(sphere), "--from-key", "scene-val-000000"]) == 2
    assert "a sphere, the manifold of CLIP, has no root" in capsys.readouterr().err


def test_a_picture_that_is_gone_is_listed_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = collection(tmp_path, {"name": "lorentz"}, ("images",))
    monkeypatch.setattr(Collection, "image", lambda *_: (_ for _ in ()).throw(ValueError("gone")))
    figure = tmp_path / "walk.png"
    assert main(["traverse", str(folder), "--from-text", "a ball", "--any", "--figure", str(figure)]) == 0
    printed = capsys.readouterr()
    assert "pictures cannot be read any more" in printed.err
    assert figure.is_file()
    assert main(["traverse", str(folder), "--from-text", "a ball", "--in", "texts"]) == 2
    assert "has no texts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give one of --from-text, --from-image and --from-key, got 0"),
        (["--from-text", "a", "--from-key", "b"], "give one of --from-text, --from-image and --from-key, got 2"),
        (["--from-text", "a", "--to-text", "a", "--to-key", "b"], "at most one of --to-text"),
        (["--from-text", " "], "the text is empty"),
        (["--from-key", "nowhere"], "has the key 'nowhere'"),
        (["--from-image", "no.png"], "there is no picture no.png"),
        (["--from-image", __file__], "is no picture that can be read"),
        (["--from-text", "a", "--by", "radii"], "unknown way 'radii'"),
        (["--from-text", "a", "--in", "text"], "unknown groups to look in 'text'. Did you mean 'texts'"),
        (["--from-text", "a", "--figure", "walk.txt"], "--figure must end in .png, .svg or .pdf"),
        (["--from-text", "a", "--steps", "1"], "steps"),
    ],
)
def test_what_can_be_mended(points: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traverse", str(points), *options]) == 2
    assert says in capsys.readouterr().err
