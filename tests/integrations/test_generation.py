from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image
from torch import nn

from hyvlm.data.catalog import SampleSet
from hyvlm.errors import MissingExtra
from hyvlm.integrations import generation
from hyvlm.integrations.generation import (
    SDXLPainter,
    clip_similarity,
    evaluate_generation,
    load_extractor,
    paint,
    score_table,
)
from hyvlm.integrations.prompts import PromptSet, sample_prompts
from hyvlm.models import Tokenizer
from hyvlm.types import Sample

BENCH = PromptSet("bench", ("a red car", "a dog", "two cats"), ("Colors", "DALL-E", "Colors"))


class Noise:
    """Paints noise that prompt, seed and settings decide; keeps the seeds that it was asked with."""

    def __init__(self, **settings: float) -> None:
        self.settings, self.seeds = settings, list[int]()

    @property
    def drawn(self) -> int:
        return len(self.seeds)

    def __call__(self, prompt: str, seed: int) -> Image.Image:
        self.seeds.append(seed)
        depends = f"{prompt} {sorted(self.settings.items())}".encode()
        generator = np.random.default_rng([seed, *hashlib.sha256(depends).digest()[:4]])
        return Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8))


class Photos(SampleSet):
    name, split, fingerprint = "photos", "test", "photos"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Sample:
        return Sample(str(index), Noise()(f"photo {index}", index), texts=[f"photo {index}"])


class Means(nn.Module):
    """The mean of each channel: three features."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.dtype == torch.uint8
        return images.double().mean((2, 3))


@pytest.fixture(scope="module")
def judge(tiny_model):
    return tiny_model(manifold="sphere", context=77), Tokenizer(77)


def test_images_that_are_there_are_kept(tmp_path: Path) -> None:
    painter = Noise(steps=1)
    files = paint("noise", painter, BENCH, tmp_path)
    assert painter.seeds == [0, 1, 2]
    assert [file.name[:6] for file in files] == ["00000-", "00001-", "00002-"]
    before = files[1].stat().st_mtime_ns
    files[0].unlink()
    assert paint("noise", painter, BENCH, tmp_path) == files
    assert painter.drawn == 4
    assert files[1].stat().st_mtime_ns == before
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize(
    ("name", "painter", "prompts", "seed"),
    [
        ("noise", Noise(steps=2), BENCH, 0),
        ("other", Noise(steps=1), BENCH, 0),
        ("noise", Noise(steps=1), BENCH, 1),
        ("noise", Noise(steps=1), PromptSet("bench", ("a", "b", "c")), 0),
    ],
)
def test_another_setting_has_files_of_its_own(tmp_path: Path, name, painter, prompts, seed) -> None:
    first = paint("noise", Noise(steps=1), BENCH, tmp_path)
    assert not set(paint(name, painter, prompts, tmp_path, seed=seed)) & set(first)
    assert painter.drawn == 3


def test_similarity_is_the_cosine_of_image_and_prompt(tmp_path: Path, judge) -> None:
    model, tokenizer = judge
    files = paint("noise", Noise(), BENCH, tmp_path)
    similarity = clip_similarity(model, tokenizer, files, BENCH.prompts, batch_size=2)
    pixels = torch.from_numpy(np.stack([np.asarray(Image.open(file)) for file in files])).permute(0, 3, 1, 2)
    with torch.no_grad():
        images, texts = model.encode_image(pixels), model.encode_text(tokenizer(BENCH.prompts))
    torch.testing.assert_close(similarity, (images * texts).sum(1).double(), rtol=1e-5, atol=1e-6)


def test_evaluation_of_two_painters_on_two_sets(tmp_path: Path, judge) -> None:
    photos = sample_prompts(Photos(), count=8)
    painters = {"plain": Noise(alpha=0), "ours, α=1": Noise(alpha=1)}
    scores = evaluate_generation(painters, [photos, BENCH], *judge, out=tmp_path, extractor=Means(), image_size=16)
    assert [(s.data, s.painter) for s in scores] == [(d, p) for d in ("photos", "bench") for p in painters]

    def features(images) -> np.ndarray:
        return np.stack([np.asarray(image.convert("RGB"), dtype=float).mean((0, 1)) for image in images])

    real = features(photos.images())
    for score in scores[:2]:
        drawn = features(Image.open(tmp_path / file) for file in score.files)
        mixed = scipy.linalg.sqrtm(np.cov(real.T) @ np.cov(drawn.T)).real
        between = ((real.mean(0) - drawn.mean(0)) ** 2).sum()
        assert score.fid == pytest.approx(between + np.trace(np.cov(real.T) + np.cov(drawn.T) - 2 * mixed), rel=1e-4)
        assert score.notes == []
    bench = scores[2]
    assert np.isnan(bench.fid)
    assert bench.notes == ["no FID: the prompts have no images of their own"]
    by_prompt = clip_similarity(*judge, [tmp_path / f for f in bench.files], BENCH.prompts)
    assert bench.similarity == pytest.approx(by_prompt.mean().item())
    assert bench.by_category["Colors"] == pytest.approx(by_prompt[[0, 2]].mean().item())
    written = json.loads((tmp_path / "generation.json").read_text())
    assert [row["fid"] for row in written][2:] == [None, None]
    assert written[0]["settings"]["alpha"] == 0

    table = score_table(scores).splitlines()
    assert table[0] == "| model | FID photos | CLIP similarity photos | CLIP similarity bench |"
    assert table[2] == f"| plain | {scores[0].fid:.2f} | {scores[0].similarity:.3f} | {bench.similarity:.3f} |"
    assert len(table) == 4

    again = evaluate_generation(painters, [photos, BENCH], *judge, out=tmp_path, extractor=Means(), image_size=16)
    assert [(s.fid, s.similarity) for s in again][:2] == [(s.fid, s.similarity) for s in scores][:2]
    assert [painter.drawn for painter in painters.values()] == [11, 11]


def test_too_few_images_for_the_extractor_are_noted(tmp_path: Path, judge) -> None:
    (score,) = evaluate_generation(
        {"plain": Noise()}, [sample_prompts(Photos(), count=3)], *judge, out=tmp_path, extractor=Means(), image_size=16
    )
    assert score.notes == ["the FID's covariances have less than full rank: 3 images, 3 features"]


def test_a_cut_prompt_is_counted(tmp_path: Path, judge) -> None:
    long = PromptSet("long", ("a red car beside " * 30, "a dog"))
    (score,) = evaluate_generation({"plain": Noise()}, [long], *judge, out=tmp_path)
    assert score.prompts_cut == 1


@pytest.mark.parametrize("sets", [[], [BENCH, BENCH]])
def test_sets_need_names_of_their_own(tmp_path: Path, judge, sets) -> None:
    with pytest.raises(ValueError, match="different names"):
        evaluate_generation({"plain": Noise()}, sets, *judge, out=tmp_path)


def test_stable_diffusion_xl_paints(tmp_path: Path, tiny_pipe, tiny_model) -> None:
    rows = {"own": SDXLPainter(tiny_pipe, steps=1)}
    rows |= {f"alpha {a}": SDXLPainter(tiny_pipe, tiny_model(), alpha=a, steps=1, size=16) for a in (0.0, 1.0)}
    first = {name: painter("a red car", 3) for name, painter in rows.items()}
    assert all(image.size == (16, 16) for image in first.values())
    assert first["own"].tobytes() == first["alpha 0.0"].tobytes() != first["alpha 1.0"].tobytes()
    assert first["own"].tobytes() == rows["own"]("a red car", 3).tobytes() != rows["own"]("a red car", 4).tobytes()
    assert len({json.dumps(dict(painter.settings), sort_keys=True) for painter in rows.values()}) == 3


def test_inception_comes_from_a_local_file(tmp_path: Path, monkeypatch) -> None:
    """Random weights, drawn where the file would be read, are written to one and read back."""
    fidelity = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    monkeypatch.setattr(fidelity, "load_state_dict_from_url", lambda *_, **__: pytest.fail("a download"))
    path = tmp_path / "inception.pth"
    path.touch()
    with monkeypatch.context() as patch:
        patch.setattr(fidelity.torch, "load", lambda *_, **__: {})
        patch.setattr(fidelity.FeatureExtractorInceptionV3, "load_state_dict", lambda self, _: self)
        drawn = load_extractor(path)
    torch.save(drawn.state_dict(), path)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    features = load_extractor(path)(images)
    assert features.shape == (2, 2048)
    torch.testing.assert_close(features, drawn(images))


@pytest.mark.parametrize("content", [b"", b"no weights", None])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content) -> None:
    pytest.importorskip("torch_fidelity")
    if content is None:
        torch.save({"weight": torch.zeros(1)}, tmp_path / "other.pth")
    else:
        (tmp_path / "other.pth").write_bytes(content)
    with pytest.raises(ValueError, match="does not hold torch-fidelity's weights"):
        load_extractor(tmp_path / "other.pth")


def test_a_missing_extractor_is_named(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        load_extractor(tmp_path / "none.pth")
    (tmp_path / "inception.pth").write_bytes(b"")
    monkeypatch.setattr("torchmetrics.image.fid._TORCH_FIDELITY_AVAILABLE", False)
    with pytest.raises(MissingExtra, match=r"torch-fidelity: pip install 'hyvlm\[sdxl\]'"):
        generation.load_extractor(tmp_path / "inception.pth")
