"""One whole training step on the CPU, against the plain way: ``python benchmarks/training_step.py``.

ViT-S/16 (196 patches, 12 heads) with a text tower of 12 layers of width 512, 16 images with captions of 12 to 20
tokens; UNCHA with 24 parts (1 and 2 an image in turn), HyCoCLIP with 16, phrases of 3 to 6 tokens. Plain is timm's and
open_clip's own forward passes with texts padded to 77, captions apart from phrases, the matrix of scores under
autograd, torch's default optimizer and matrix product, in float32. All take turns in one process.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from _runner import Row, alternate, row, write_rows
from open_clip.transformer import TextTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import pad

from hyvlm.config import Config, load_config
from hyvlm.geometry.matmul import matmul_report
from hyvlm.losses import tiled
from hyvlm.models.towers import ImageTower, TextTower
from hyvlm.training.optim import build_optimizer
from hyvlm.training.train_step import TrainStep
from hyvlm.training.trainer import build_objective, new_model
from hyvlm.types import Batch, LossOutput

SAMPLES = 16
#: Method to parts of each sample, and to what the whole step should reach in float32 and in bf16.
PARTS = {"uncha": [1, 2] * (SAMPLES // 2), "hycoclip": [1] * SAMPLES}
ASKED = {"uncha": (2.5, 3.4), "hycoclip": (1.7, 2.3)}


class PlainTexts(TextTransformer):
    """open_clip's own text transformer with a tower's weights, every text padded to the context length."""

    def __init__(self, tower: TextTower) -> None:
        blocks = tower.transformer.resblocks
        super().__init__(
            context_length=tower.context_length,
            vocab_size=tower.vocab_size,
            width=tower.width,
            heads=tower.heads,
            layers=len(blocks),
            mlp_ratio=blocks[0].mlp.c_fc.out_features / tower.width,
            proj_type="none",
        )
        self.load_state_dict(tower.state_dict())

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(pad(tokens, (0, self.context_length - tokens.shape[1])))


class PlainImages(VisionTransformer):
    """timm's own vision transformer with a tower's weights."""

    def __init__(self, tower: ImageTower) -> None:
        super().__init__(
            img_size=tower.image_size,
            patch_size=tower.patch,
            embed_dim=tower.embed_dim,
            depth=len(tower.blocks),
            num_heads=tower.blocks[0].attn.num_heads,
            num_classes=0,
            norm_layer=partial(nn.LayerNorm, eps=tower.norm.eps),
            dynamic_img_size=True,
        )
        self.load_state_dict(tower.state_dict())
        self.pos_embed.requires_grad_(False)
        self.patch = tower.patch


class PlainStep(TrainStep):
    """The same step of the same weights, every view by itself, the plain way."""

    def __init__(self, step: TrainStep) -> None:
        model = copy.deepcopy(step.model)
        model.image_tower, model.text_tower = PlainImages(model.image_tower), PlainTexts(model.text_tower)
        super().__init__(model, copy.deepcopy(step.objective))

    def text_outputs(self, batch: Batch) -> dict[str, Tensor]:
        views = [view for view in self.objective.views if view.endswith("text")]
        return {view: self.model.text_outputs(getattr(batch, view)) for view in views}

    def forward(self, batch: Batch) -> LossOutput:
        with patch.object(tiled, "FROM", math.inf):  # the whole matrix of scores
            return super().forward(batch)


def plain_optimizer(step: nn.Module, config: Config) -> torch.optim.Optimizer:
    """AdamW with the same groups and otherwise torch's defaults."""
    groups = build_optimizer(step.named_parameters(), config.train).param_groups
    own = [{key: group[key] for key in ("params", "weight_decay", "lr", "betas", "eps")} for group in groups]
    return torch.optim.AdamW(own)


def read(method: str) -> Config:
    """The method's recipe; its data are not opened."""
    return load_config(f"{method}-vit-s-16", ["data.train=scenes"])


def draw(parts: list[int], size: int, *, seed: int = 0) -> Batch:
    """Random images of ``size`` pixels and texts, with as many parts of each as ``parts`` says."""
    generator = torch.Generator().manual_seed(seed)

    def pixels(n: int) -> Tensor:
        return torch.randint(0, 256, (n, 3, size, size), generator=generator, dtype=torch.uint8)

    def texts(n: int, low: int, high: int) -> Tensor:
        lengths = torch.randint(low, high + 1, (n,), generator=generator)
        ids = torch.randint(1, 49406, (n, high), generator=generator)
        ids[:, 0], ids[torch.arange(n), lengths - 1] = 49406, 49407
        return ids.masked_fill(torch.arange(high) >= lengths[:, None], 0)

    n = len(parts)
    return Batch(
        image=pixels(n),
        text=texts(n, 12, 20),
        part_image=pixels(sum(parts)),
        part_text=texts(sum(parts), 3, 6),
        owner=torch.arange(n).repeat_interleave(torch.tensor(parts)),
        keys=[str(i) for i in range(n)],
    )


def step_work(step: TrainStep, optimizer: torch.optim.Optimizer, batch: Batch, *, bf16: bool) -> Callable[[], float]:
    """A whole step on the batch; returns the loss."""

    def work() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = step(batch)
        output.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.constrain_()
        return float(output.total.detach())

    return work


def both_steps(config: Config) -> dict[str, tuple[TrainStep, torch.optim.Optimizer]]:
    """The library's step and the plain one, with equal weights."""
    ours = TrainStep(new_model(config), build_objective(config))
    plain = PlainStep(ours)
    return {
        "ours": (ours, build_optimizer(ours.named_parameters(), config.train)),
        "plain": (plain, plain_optimizer(plain, config)),
    }


def in_both_precisions(
    what: str, size: str, times: dict[str, list[float]], asked: tuple[float, float] | None
) -> list[Row]:
    """Rows of "ours" and "ours, bf16", each against the plain way in float32."""
    rows = []
    for at, (name, precision) in enumerate((("ours", "float32"), ("ours, bf16", "bf16 (plain: float32)"))):
        words = f"at least {asked[at]} times faster than plain" if asked else ""
        rows.append(row(what, f"{size}, {precision}", {"ours": times[name], "plain": times["plain"]}, asked=words))
    return rows


def whole_steps(method: str, rounds: int) -> list[Row]:
    """Rows of the whole step."""
    config = read(method)
    batch = draw(PARTS[method], config.data.image_size)
    steps = both_steps(config)
    variants = {
        "ours": step_work(*steps["ours"], batch, bf16=False),
        "ours, bf16": step_work(*steps["ours"], batch, bf16=True),
        "plain": step_work(*steps["plain"], batch, bf16=False),
    }
    size = f"{len(PARTS[method])} images, {sum(PARTS[method])} parts"
    return in_both_precisions(f"{method}, training step", size, alternate(variants, rounds), ASKED[method])


def towers(rounds: int) -> list[Row]:
    """Rows of each tower alone, forward and backward, on the batch of UNCHA's step."""
    config = read("uncha")
    batch = draw(PARTS["uncha"], config.data.image_size)
    steps = {name: step for name, (step, _) in both_steps(config).items()}

    def texts(step: TrainStep) -> Tensor:
        return torch.cat(list(step.text_outputs(batch).values()))

    def images(step: TrainStep) -> Tensor:
        return torch.cat([step.model.image_features(pixels) for pixels in (batch.image, batch.part_image)])

    def both_ways(run: Callable[[TrainStep], Tensor], step: TrainStep, bf16: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            features = run(step)
        features.float().square().sum().backward()
        step.zero_grad()

    def measured(run: Callable[[TrainStep], Tensor]) -> dict[str, list[float]]:
        variants = {
            "ours": partial(both_ways, run, steps["ours"], False),
            "ours, bf16": partial(both_ways, run, steps["ours"], True),
            "plain": partial(both_ways, run, steps["plain"], False),
        }
        return alternate(variants, rounds)

    count, tokens = len(batch.text) + len(batch.part_text), 0
    for ids in (batch.text, batch.part_text):
        tokens += int((ids.argmax(-1) + 1).sum())
    return [
        *in_both_precisions("text tower", f"{count} texts, {tokens} tokens", measured(texts), None),
        *in_both_precisions(
            "image tower", f"{count} images of {config.data.image_size} pixels", measured(images), None
        ),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.manual_seed(0)
    found = [*whole_steps("uncha", given.rounds), *whole_steps("hycoclip", given.rounds), *towers(given.rounds)]
    write_rows("training_step", found, matmul=matmul_report())
