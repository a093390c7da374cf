"""What a pipeline's images are worth: Fréchet distance and CLIP similarity in the layout of HyFL-CLIP's Table S10.

Images are PNG files named by prompt and settings, so that an interrupted evaluation goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
from PIL import Image
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance, NoTrainInceptionV3

from hyvlm.data.transforms import eval_transform
from hyvlm.errors import MissingExtra
from hyvlm.evaluation.embed import evaluation_mode, progress
from hyvlm.files import check_folder, write_text
from hyvlm.integrations.prompts import PromptSet
from hyvlm.integrations.sdxl import conditioning
from hyvlm.models import DualEncoder, Tokenizer, fingerprint

T = TypeVar("T")
RESULTS = "generation.json"


class Painter(Protocol):
    """Prompts to images; the row of a table."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values that an image depends on, apart from prompt and seed: part of its file's name."""

    def __call__(self, prompt: str, seed: int) -> Image.Image:
        """One RGB image; the same arguments give the same image."""


@dataclass
class SDXLPainter:
    """Stable Diffusion XL, with its own text encoders or conditioned by :func:`hyvlm.integrations.sdxl.conditioning`.

    Attributes:
        pipe: The pipeline. In the settings it goes by its class, its ``name_or_path`` and its scheduler; give the row
            of the table another name if you change its weights.
        model: None leaves the pipeline as it is, which cuts prompts at 77 tokens; to compare with its own encoders on
            all of a long prompt, give a model and ``alpha`` 0.
        alpha, padding, match_norm: As in ``conditioning``.
        steps: Of the sampler.
        size: Side of the image in pixels; None is the pipeline's.
    """

    pipe: Any
    model: DualEncoder | None = None
    alpha: float = 1.0
    padding: str = "end"
    match_norm: bool = False
    negative_prompt: str | None = None
    steps: int = 30
    guidance_scale: float = 5.0
    size: int | None = None
    settings: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        own = {"model": fingerprint(self.model)} if self.model is not None else {"model": None}
        names = ["negative_prompt", "steps", "guidance_scale", "size"]
        if self.model is not None:
            names += ["alpha", "padding", "match_norm"]
        pipe = [type(self.pipe).__name__, self.pipe.name_or_path, type(self.pipe.scheduler).__name__]
        scheduler = {key: repr(value) for key, value in sorted(self.pipe.scheduler.config.items())}
        self.settings = {**own, **{name: getattr(self, name) for name in names}, "pipe": pipe, "scheduler": scheduler}

    def __call__(self, prompt: str, seed: int) -> Image.Image:
        """The noise comes from a generator on the CPU, so that it is the same on every device."""
        given: dict[str, Any] = {"prompt": prompt, "negative_prompt": self.negative_prompt}
        if self.model is not None:
            mix: dict[str, Any] = {"alpha": self.alpha, "padding": self.padding, "match_norm": self.match_norm}
            given = conditioning(self.pipe, self.model, **given, **mix)
        image: Image.Image = self.pipe(
            **given,
            num_inference_steps=self.steps,
            guidance_scale=self.guidance_scale,
            height=self.size,
            width=self.size,
            generator=torch.Generator().manual_seed(seed),
        ).images[0]
        return image


def paint(name: str, painter: Painter, prompts: PromptSet, folder: str | Path, *, seed: int = 0) -> list[Path]:
    """Draw every prompt into ``folder``, unless its file is there already; prompt i starts from noise ``seed + i``.

    Args:
        name: Of the painter.
    Returns:
        The files, ``PLACE-DIGEST.png``; the digest is of name, prompt, seed and the painter's settings.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings, files = json.dumps(dict(painter.settings), sort_keys=True), list[Path]()
    for i, prompt in enumerate(progress(prompts.prompts, f"images of {prompts.name} by {name}", "image")):
        depends = json.dumps([name, prompt, seed + i, settings])
        files.append(folder / f"{i:05d}-{hashlib.sha256(depends.encode()).hexdigest()[:12]}.png")
        if not files[-1].exists():
            draft = files[-1].with_name(f".{files[-1].name}.{os.getpid()}")
            painter(prompt, seed + i).save(draft, format="PNG")
            os.replace(draft, files[-1])
    return files


@dataclass
class Score:
    """One painter on one set of prompts.

    Attributes:
        painter, data: Row and column.
        n: Prompts.
        fid: Fréchet distance to the prompts' own images, lower is better; NaN if there is no image or no extractor.
        similarity: Mean over the prompts of :func:`clip_similarity`.
        by_category: The same by category.
        settings: The painter's.
        skipped: What the set of prompts left out, by reason.
        prompts_cut: Prompts longer than the judge's context, of which it read the beginning.
        notes: Remarks that a reader of the numbers must see.
        files: The images.
    """

    painter: str
    data: str
    n: int
    fid: float
    similarity: float
    by_category: dict[str, float]
    settings: dict[str, Any]
    skipped: dict[str, int]
    prompts_cut: int
    notes: list[str]
    files: list[str]


def evaluate_generation(
    painters: Mapping[str, Painter],
    prompt_sets: Sequence[PromptSet],
    judge: DualEncoder,
    tokenizer: Tokenizer,
    *,
    out: str | Path,
    extractor: nn.Module | str | Path | None = None,
    image_size: int = 299,
    seed: int = 0,
    batch_size: int = 32,
) -> list[Score]:
    """Draw every set of prompts with every painter, and score the images (HyFL-CLIP, S5.3.2 and Table S10).

    The Fréchet distance compares as many drawn images with the prompts' own ones. Both are squashed to ``image_size``
    (bicubic, antialiased) before the extractor. Which model judged the paper's similarity is not printed.

    Args:
        painters: Rows by name.
        judge, tokenizer: The CLIP model of the similarity, from :func:`hyvlm.load` ("open_clip:..." takes open_clip's).
        out: Folder for ``images/SET/PAINTER/*.png``, which are kept and used again, and ``generation.json``.
        extractor: Module from uint8 ``(N, 3, S, S)`` to ``(N, F)``, or a file for :func:`load_extractor`; None leaves
            the distance out.
        seed: Prompt i starts from noise ``seed + i``, whoever draws it.
        batch_size: Images that judge and extractor see at a time.
    Returns:
        A score for every set and painter; :func:`score_table` prints them.
    Raises:
        ValueError: Two sets of one name, no painter or set, or ``out`` cannot be a folder.
    """
    names = [prompts.name for prompts in prompt_sets]
    if not painters or not names or len(set(names)) < len(names):
        raise ValueError(f"an evaluation needs painters and sets of prompts with different names, got {names}")
    out = Path(out)
    check_folder(out, "the results folder")
    module = load_extractor(extractor) if isinstance(extractor, str | Path) else extractor
    common, scores = {"seed": seed, "image_size": image_size, "judge": fingerprint(judge)}, list[Score]()
    for prompts in prompt_sets:
        distance = _Distance(module, prompts, image_size, batch_size)
        for name, painter in painters.items():
            folder, cut = out / "images" / _file_name(prompts.name) / _file_name(name), tokenizer.truncated
            files = paint(name, painter, prompts, folder, seed=seed)
            similarity = clip_similarity(judge, tokenizer, files, prompts.prompts, batch_size=batch_size)
            fid, notes = distance.of(files)
            score = Score(
                painter=name,
                data=prompts.name,
                n=len(prompts),
                fid=fid,
                similarity=similarity.mean().item(),
                by_category=_by_category(similarity, prompts.categories),
                settings={**painter.settings, **common},
                skipped=dict(prompts.skipped),
                prompts_cut=tokenizer.truncated - cut,
                notes=notes,
                files=[str(file.relative_to(out)) for file in files],
            )
            scores.append(score)
            write_text(out / RESULTS, json.dumps([_plain(score) for score in scores], indent=2) + "\n")
    return scores


def clip_similarity(
    judge: DualEncoder, tokenizer: Tokenizer, files: Sequence[Path], prompts: Sequence[str], *, batch_size: int = 32
) -> Tensor:
    """Cosine of every image and its prompt, ``(N,)``, from -1 to 1 (torchmetrics' CLIPScore is 100 times as large).

    It is that of the features before scaling and lift, on whatever manifold the judge's points lie. Images are
    squashed to its size; a prompt longer than its context loses its end.
    """
    transform, device, rows = (
        eval_transform(judge.image_tower.image_size, judge.resize or "squash"),
        judge.pixel_mean.device,
        list[Tensor](),
    )
    with evaluation_mode(judge):
        for part in progress(_batches(zip(files, prompts, strict=True), batch_size), "images judged"):
            pixels = torch.stack([transform(image) for image in _open(file for file, _ in part)])
            images = judge.image_features(pixels.to(device))
            texts = judge.text_features(tokenizer([prompt for _, prompt in part]).to(device))
            rows.append(torch.cosine_similarity(images.double(), texts.double()).cpu())
    return torch.cat(rows)


def load_extractor(path: str | Path) -> nn.Module:
    """Inception v3 as the Fréchet distance wants it, 2048 features, from a local file of torch-fidelity's weights.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file holds something else.
        MissingExtra: torch-fidelity, which has the architecture, is not installed.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no weights of a feature extractor at '{path}'")
    try:
        return NoTrainInceptionV3("inception-v3-compat", ["2048"], feature_extractor_weights_path=str(path))
    except ModuleNotFoundError as error:
        raise MissingExtra("the Inception of the Fréchet distance", "torch-fidelity", "sdxl") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"'{path}' does not hold torch-fidelity's weights of Inception v3") from error


def score_table(scores: Sequence[Score]) -> str:
    """The scores as a Markdown table in the layout of Table S10: a row a painter, the sets as columns, both metrics."""
    sets = list(dict.fromkeys(score.data for score in scores))
    with_fid = [data for data in sets if any(score.data == data and not math.isnan(score.fid) for score in scores)]
    by_place = {(score.painter, score.data): score for score in scores}
    header = ["model", *(f"FID {data}" for data in with_fid), *(f"CLIP similarity {data}" for data in sets)]
    lines = [header, ["---"] * len(header)]
    for painter in dict.fromkeys(score.painter for score in scores):
        distances = [f"{by_place[painter, data].fid:.2f}" for data in with_fid]
        lines.append([painter, *distances, *(f"{by_place[painter, data].similarity:.3f}" for data in sets)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


class _Distance:
    """Fréchet distance of drawn images to a set's own, which are read once."""

    def __init__(self, extractor: nn.Module | None, prompts: PromptSet, image_size: int, batch_size: int) -> None:
        self.transform, self.batch_size, self.reason = eval_transform(image_size), batch_size, ""
        if prompts.samples is None:
            self.reason = "no FID: the prompts have no images of their own"
        elif len(prompts) < 2:
            self.reason = "no FID: it needs two prompts or more"
        elif extractor is None:
            self.reason = "no FID: no feature extractor was given"
        else:
            size = (3, image_size, image_size)
            self.metric = FrechetInceptionDistance(_Extractor(extractor), False, input_img_size=size)
            self._update(prompts.images(), real=True)

    def of(self, files: Sequence[Path]) -> tuple[float, list[str]]:
        """The distance, and what a reader should know of it."""
        if self.reason:
            return math.nan, [self.reason]
        self.metric.reset()  # of the drawn images alone
        self._update(_open(files), real=False)
        features = len(self.metric.real_features_sum)
        note = f"the FID's covariances have less than full rank: {len(files)} images, {features} features"
        return float(self.metric.compute()), [note] if len(files) <= features else []

    def _update(self, images: Iterable[Image.Image], *, real: bool) -> None:
        with evaluation_mode(self.metric):
            for part in progress(_batches(images, self.batch_size), "images compared"):
                self.metric.update(torch.stack([self.transform(image) for image in part]), real=real)


class _Extractor(nn.Module):
    """Features on the CPU, where the metric keeps its float64 sums, of a module that may be elsewhere."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        parameter = next(self.module.parameters(), None)
        return cast(Tensor, self.module(images if parameter is None else images.to(parameter.device))).cpu()


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


def _open(files: Iterable[Path]) -> Iterator[Image.Image]:
    for file in files:
        with Image.open(file) as image:
            yield image.convert("RGB")


def _by_category(similarity: Tensor, categories: Sequence[str]) -> dict[str, float]:
    places: dict[str, list[int]] = {}
    for i, category in enumerate(categories):
        places.setdefault(category, []).append(i)
    return {category: similarity[rows].mean().item() for category, rows in places.items()}


def _file_name(name: str) -> str:
    """A folder's name for any text: what is not plain becomes a line, and a digest keeps two such names apart."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name).strip(".") or "-"
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _plain(score: Score) -> dict[str, Any]:
    """For JSON, which has no NaN."""
    return {**asdict(score), "fid": None if math.isnan(score.fid) else score.fid}
