"""Names, downloads and uploads, with the hub's functions replaced or its cache built here: no network."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub import errors

import hyvlm
from hyvlm.cli.catalog import models as listed_models
from hyvlm.cli.main import main
from hyvlm.config import load_config, to_yaml
from hyvlm.diagnostics.relations import run_of
from hyvlm.models import DualEncoder, build_model, fingerprint, model_card, push_to_hub, save_model
from hyvlm.models.convert import KEY_MAPS
from hyvlm.models.hub import RELEASED, Place, fetch, on_hub
from hyvlm.models.released import LAYOUTS

COMMITS = {"main": "a" * 40, "v1": "b" * 40}
SHAPE = {
    "image": {"image_size": 32, "patch": 16, "width": 384, "depth": 1, "heads": 12},
    "text": {"vocab_size": 600, "width": 64, "depth": 1, "heads": 1},
    "dim": 16,
    "pixel_mean": [0.229, 0.224, 0.225],
}


def small(seed: int = 0, manifold: dict[str, Any] | None = None, **model: Any) -> DualEncoder:
    torch.manual_seed(seed)
    return build_model({"model": {**SHAPE, **model}, "manifold": manifold or {"name": "lorentz"}}).eval()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub; the network is off."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def cached(cache: Path, repo: str, revision: str = "main") -> Path:
    """The folder of a revision in the cache, as the hub's client lays it out."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).write_text(COMMITS[revision])
    snapshot = folder / "snapshots" / COMMITS[revision]
    snapshot.mkdir(parents=True, exist_ok=True)
    return snapshot


def test_every_released_name_has_a_layout_and_is_listed() -> None:
    assert {place.layout for place in RELEASED.values()} <= set(LAYOUTS)
    listing = listed_models()
    assert set(RELEASED) <= set(listing)
    assert "avik-pal/hycoclip, hycoclip_vit_b.pth" in listing["hycoclip-vit-b-16"]
    assert "not for commercial use" in listing["hycoclip-vit-b-16"]
    assert "vit-b-16" in listing  # presets are still there


@pytest.mark.parametrize(
    ("name", "repo", "file", "revision"),
    [
        ("hycoclip-vit-b-16", "avik-pal/hycoclip", "hycoclip_vit_b.pth", None),
        ("hycoclip_vit_s", "avik-pal/hycoclip", "hycoclip_vit_s.pth", None),
        ("UNCHA-ViT-B", "hayeonkim/uncha", "uncha_vit_b.pth", None),
        ("meru-vit-s-16@v1", "avik-pal/hycoclip", "meru_vit_s.pth", "v1"),
        ("hyper3-clip-v0.5", "hyper3labs/hyper3-clip-v1", "model.safetensors", None),
        ("hf-hub:me/mine", "me/mine", "", None),
        ("hf-hub:me/mine/sub/w.pth@v1", "me/mine", "sub/w.pth", "v1"),
    ],
)
def test_a_name_leads_to_a_place(name: str, repo: str, file: str, revision: str | None) -> None:
    place = on_hub(name)
    assert place is not None
    assert (place.repo, place.file, place.revision) == (repo, file, revision)


def test_other_texts_name_no_place() -> None:
    assert on_hub("runs/uncha-tiny") is None
    assert on_hub("hycoclip") is None
    with pytest.raises(ValueError, match=r"named hf-hub:OWNER/REPO\[/FILE\]\[@REVISION\], got 'hf-hub:mine'"):
        on_hub("hf-hub:mine")


def test_a_released_name_is_loaded_from_the_cache_without_network(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {}
    for seed, revision in enumerate(COMMITS):
        model = small(seed)
        weights = {KEY_MAPS["hycoclip"].source_name(key): value for key, value in model.state_dict().items()}
        torch.save(
            {"model": weights, "iteration": 5}, cached(cache, "avik-pal/hycoclip", revision) / "hycoclip_vit_s.pth"
        )
        expected[revision] = model.state_dict()
    for name, revision in (("hycoclip-vit-s-16", "main"), ("hycoclip-vit-s-16@v1", "v1")):
        found = hyvlm.load(name)[0]
        assert found.pixel_mean.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])
        assert all(torch.equal(value, expected[revision][key]) for key, value in found.state_dict().items())
        said = capsys.readouterr().err
        assert "has the layout of HyCoCLIP; assumed: 12 heads of images; left out: iteration (of training)" in said
        assert said.endswith("licence of the weights: CC BY-NC (not for commercial use)\n")
    assert run_of("hycoclip-vit-s-16") is None
    commit = f"hf-hub:avik-pal/hycoclip/hycoclip_vit_s.pth@{COMMITS['v1']}"
    assert fingerprint(hyvlm.load(commit)[0]) == fingerprint(found)


def test_a_published_model_comes_back_whole(cache: Path) -> None:
    model = small(manifold={"name": "product", "factors": 2, "bounds": [0.2, 5.0]}, readout="published")
    save_model(model, cached(cache, "me/mine"))
    assert fingerprint(hyvlm.load("hf-hub:me/mine")[0]) == fingerprint(model)


def test_a_name_that_is_not_in_the_cache_is_one_line(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConnectionError, match=r"'uncha_vit_s.pth' of hayeonkim/uncha is not in .*cache, and the hub"):
        hyvlm.load("uncha-vit-s-16")
    assert main(["convert", "uncha-vit-s-16", str(cache / "out")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["convert", "unchaa-vit-s-16", str(cache / "out")]) == 2
    assert "Did you mean 'uncha-vit-s-16'" in capsys.readouterr().err


def failing(kind: type[Exception], status: int) -> Exception:
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    return kind(f"first line\n{status}", response=response)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("error", "raised", "complaint"),
    [
        (
            failing(errors.GatedRepoError, 403),
            PermissionError,
            "o/r on the hub asks for an agreement: .* 'hf auth login'",
        ),
        (
            failing(errors.RepositoryNotFoundError, 404),
            FileNotFoundError,
            "the hub has no 'f.pth' in o/r at revision 'v9'",
        ),
        (failing(errors.RevisionNotFoundError, 404), FileNotFoundError, "at revision 'v9'"),
        (failing(errors.HfHubHTTPError, 500), ConnectionError, "cannot fetch 'f.pth' of o/r: first line 500"),
        (errors.EntryNotFoundError("no"), FileNotFoundError, "the hub has no 'f.pth' in o/r"),
        (OSError("no route to host"), ConnectionError, "cannot fetch 'f.pth' of o/r: no route to host"),
        (errors.HFValidationError("bad name"), ValueError, "the hub knows no such name: bad name"),
    ],
)
def test_what_the_hub_answers_is_one_line(
    error: Exception, raised: type[Exception], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(repo: str, file: str, *, revision: str | None) -> str:
        assert (repo, file, revision) == ("o/r", "f.pth", "v9")
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(raised, match=complaint) as found:
        fetch(Place(repo="o/r", file="f.pth", revision="v9"))
    assert "\n" not in str(found.value)


def test_a_repository_of_weights_alone_is_read_by_their_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, file: str, *, revision: str | None) -> str:
        if file == "config.json":
            raise errors.EntryNotFoundError("none")
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert fetch(Place(repo="o/r")) == tmp_path / "model.safetensors"


class Hub:
    """What a model is pushed to: keeps the files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.made: list[tuple[str, bool | None]] = []
        self.error: Exception | None = None

    def __call__(self, **_: str) -> "Hub":
        return self

    def create_repo(self, repo: str, *, private: bool | None, exist_ok: bool) -> None:
        assert exist_ok
        self.made.append((repo, private))
        if self.error:
            raise self.error

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str, revision: str | None) -> Any:
        self.files = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        return SimpleNamespace(commit_url=f"https://hub.invalid/{repo_id}/{revision}/{commit_message}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", hub)
    return hub


def test_what_is_pushed_can_be_loaded(hub: Hub, cache: Path) -> None:
    model = small()
    url = push_to_hub(model, "me/mine", licence="cc-by-nc-4.0", private=True, revision="v1", message="First")
    assert url == "https://hub.invalid/me/mine/v1/First"
    assert hub.made == [("me/mine", True)]
    assert sorted(hub.files) == ["README.md", "config.json", "model.safetensors"]
    for name, content in hub.files.items():
        (cached(cache, "me/mine", "v1") / name).write_bytes(content)
    assert fingerprint(hyvlm.load("hf-hub:me/mine@v1")[0]) == fingerprint(model)


@pytest.mark.parametrize(
    ("error", "raised", "complaint"),
    [
        (errors.LocalTokenNotFoundError("x"), PermissionError, "no token to write to me/mine: run 'hf auth login'"),
        (failing(errors.HfHubHTTPError, 403), PermissionError, "cannot write to me/mine on the hub: first line 403"),
        (failing(errors.HfHubHTTPError, 500), ConnectionError, "cannot write to me/mine on the hub: first line 500"),
        (errors.OfflineModeIsEnabled("off"), ConnectionError, "cannot write to me/mine on the hub: off"),
        (errors.HFValidationError("x"), ValueError, "a repository on the hub is named OWNER/NAME, got 'me/mine'"),
    ],
)
def test_a_push_that_fails_is_one_line(hub: Hub, error: Exception, raised: type[Exception], complaint: str) -> None:
    hub.error = error
    with pytest.raises(raised, match=complaint) as found:
        push_to_hub(small(), "me/mine")
    assert "\n" not in str(found.value)
    assert not hub.files


def parsed(card: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The head of a card and the rows of its tables."""
    _, head, body = card.split("---\n", 2)
    rows = [
        line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| ") and line.count("|") == 3
    ]
    return yaml.safe_load(head), {row[0]: row[1] for row in rows if len(row) == 2}


def test_a_card_says_what_the_model_is_and_how_it_was_trained(tmp_path: Path) -> None:
    config = load_config("phyclip-vit-s-16", ["data.train=/data/grit/{00..10}.tar", "train.seed=4"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    model = small(manifold={"name": "product", "factors": 2, "c": [0.5, 2.0]}, readout="published")
    head, rows = parsed(model_card(model, "me/mine", run=tmp_path, licence="mit"))
    assert head["license"] == "mit"
    assert head["library_name"] == "hyvlm"
    assert rows["manifold"] == "product"
    assert rows["curvatures -c"] == "2 factors, c from 0.5 to 2"
    assert rows["read-out"] == "published"
    assert rows["parameters"] == f"{sum(p.numel() for p in model.parameters()):,}"
    assert (rows["objective"], rows["training data"], rows["seed"]) == ("phyclip", "{00..10}.tar", "4")
    assert rows["batch size"] == str(config.train.batch_size)
    assert 'hyvlm.load("hf-hub:me/mine")' in model_card(model, "me/mine")


def test_a_card_does_not_invent(tmp_path: Path) -> None:
    head, rows = parsed(card := model_card(small(manifold={"name": "sphere"}), "me/mine"))
    assert "license" not in head
    assert "No licence is stated." in card
    assert "The run that trained this model is not recorded." in card
    assert not {"curvature -c", "objective"} & set(rows)
    fixed = parsed(model_card(small(manifold={"name": "lorentz", "c": 0.1, "learn": False}), "me/mine"))[1]
    assert fixed["curvature -c"] == "c = 0.1, fixed"
    with pytest.raises(FileNotFoundError, match=r"is no run folder: it has no config\.yaml"):
        model_card(small(), "me/mine", run=tmp_path)
