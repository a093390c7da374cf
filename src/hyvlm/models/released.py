"""Checkpoints as other projects released them: which layout a file has, what sizes, and the model that it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hyvlm.models.convert import KEY_MAPS, KeyMap, listed
from hyvlm.models.dual_encoder import DualEncoder, build_model
from hyvlm.models.openclip import OPEN_CLIP, architectures_like, load_open_clip
from hyvlm.models.weight_files import read_weights
from hyvlm.registry import unknown

#: Heads of image towers by their width: no tensor tells. The lineage's ViT-S has 12, timm's has 6.
_LINEAGE_HEADS = {384: 12, 768: 12, 1024: 16}
_TIMM_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16}
TEXT_HEAD_WIDTH = 64
ATMG_CURVATURE = 0.1

#: Where the sizes are read from, and how many axes these tensors have.
_NEEDED = {
    "image_tower.cls_token": 3,
    "image_tower.pos_embed": 3,
    "image_tower.patch_embed.proj.weight": 4,
    "image_tower.blocks.0.mlp.fc1.weight": 2,
    "image_projection.weight": 2,
    "text_tower.positional_embedding": 2,
    "text_tower.token_embedding.weight": 2,
    "text_tower.transformer.resblocks.0.mlp.c_fc.weight": 2,
}


def _lorentz(_: Mapping[str, Tensor]) -> dict[str, Any]:
    return {"name": "lorentz", "c": 1.0, "learn": True, "bounds": [0.1, 10.0]}


def _atmg(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    log_c = weights.get("manifold.log_c")
    if log_c is not None and not log_c.is_meta and not math.isclose(log_c.exp(), ATMG_CURVATURE, rel_tol=1e-3):
        raise ValueError(f"c = {log_c.exp():.4g}, but ATMG's is fixed at {ATMG_CURVATURE}: is it a model of MERU?")
    return {"name": "lorentz", "c": ATMG_CURVATURE, "learn": False}


def _product(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    factors = weights["manifold.factor.log_c"].numel() if "manifold.factor.log_c" in weights else 1
    return {"name": "product", "factors": factors, "c": 1.0, "learn": True, "bounds": [0.1, 10.0]}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a project's files call their tensors, and what the files do not say.

    Attributes:
        of: Whose files have it.
        sign: A key that no earlier layout has; "" if it has none and must be asked for.
        keys: Its table of keys.
        manifold: The recipe's ``manifold`` section, from the weights under our names.
        heads: Heads of the image tower by its width.
        model: Keys of the ``model`` section that differ from the defaults.
    """

    of: str
    sign: str = ""
    keys: KeyMap
    manifold: Callable[[Mapping[str, Tensor]], dict[str, Any]] = _lorentz
    heads: Mapping[int, int] = field(default_factory=lambda: _LINEAGE_HEADS)
    model: Mapping[str, Any] = field(default_factory=dict)


#: In the order in which their signs are looked for.
LAYOUTS: dict[str, Layout] = {
    "hyper3": Layout(
        of="Hyper3-CLIP",
        sign="vision_encoder.backbone.cls_token",
        keys=KEY_MAPS["hyper3"],
        heads=_TIMM_HEADS,
        model={"text": {"activation": "quick_gelu"}},  # that of CLIP's configuration in transformers
    ),
    "phyclip": Layout(of="PHyCLIP", sign="curvs.0", keys=KEY_MAPS["phyclip"], manifold=_product),
    "uncha": Layout(of="UNCHA", sign="global_logit_scale", keys=KEY_MAPS["uncha"]),
    "meru": Layout(of="MERU or HyCoCLIP", sign="curv", keys=KEY_MAPS["meru"]),
    "hycoclip": Layout(of="HyCoCLIP", keys=KEY_MAPS["hycoclip"]),
    "atmg": Layout(
        of="ATMG",
        keys=KEY_MAPS["meru"],
        manifold=_atmg,
        model={"score": "exterior_angle", "readout": "published"},
    ),
    "clip": Layout(
        of="the CLIP baseline of MERU's lineage",
        sign="textual.token_embed.weight",
        keys=KEY_MAPS["clip"],
        manifold=lambda _: {"name": "sphere"},
    ),
}
_OPEN_CLIP_SIGN = "visual.conv1.weight"
_STRANGERS = {
    "image_tower.": "they are hyvlm's, whose config.json must lie beside them under the name that it had",
    "vision_model.": "they are of a CLIP of transformers; open_clip's layout can be read",
}


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What became of a file's contents.

    Attributes:
        file: The file.
        of: Whose layout it has.
        others: Entries beside the weights, such as an optimizer's state; not used.
        dropped: Weights that have no place in a model, with the reason.
        assumed: What the file does not say and was taken from the project's code.
    """

    file: str
    of: str
    others: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()

    def __str__(self) -> str:
        reasons: dict[str, list[str]] = {}
        for key, reason in self.dropped.items():
            reasons.setdefault(reason, []).append(key)
        left = [f"{', '.join(keys)} ({reason})" for reason, keys in reasons.items()]
        left += [f"{', '.join(self.others)} (of training)"] if self.others else []
        text = f"'{self.file}' has the layout of {self.of}"
        text += f"; assumed: {', '.join(self.assumed)}" if self.assumed else ""
        return text + (f"; left out: {'; '.join(left)}" if left else "")


def read_released(
    file: str | Path, *, layout: str | None = None, image_heads: int | None = None, text_heads: int | None = None
) -> tuple[DualEncoder, Imported]:
    """The model in a file that one of the known projects released, or that its code trained.

    Sizes come from the tensors, pixel statistics from the file where it has them.

    Args:
        file: As for :func:`hyvlm.models.weight_files.read_weights`.
        layout: One of :data:`LAYOUTS`; None detects it from the keys. ATMG's files have MERU's keys, so that "atmg"
            must be said.
        image_heads, text_heads: Attention heads, which no tensor tells; None takes the project's for that width.
    Returns:
        The model in eval mode and float32, and what of the file was used.
    Raises:
        FileNotFoundError: No such file.
        ValueError: A file that is cut short, holds code, or is of no known layout; unknown or missing keys, all in one
            line; heads that are not known.
    """
    weights, others = read_weights(file)
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(unknown("layout", layout, list(LAYOUTS)))
    if layout is None and _OPEN_CLIP_SIGN in weights:
        return _read_open_clip(file, weights, others)
    try:
        chosen = LAYOUTS[layout or detect(weights)]
        config, tensors = plan(weights, chosen, image_heads=image_heads, text_heads=text_heads)
    except ValueError as error:
        raise ValueError(f"'{file}': {error}") from None
    model = build_model(config)
    model.load_state_dict(model.state_dict() | tensors)  # pixel statistics that the file lacks stay as built
    assumed = [] if "pixel_mean" in tensors else [f"pixel mean {_numbers(model.pixel_mean)}"]
    assumed += [f"{model.image_tower.blocks[0].attn.num_heads} heads of images"] if image_heads is None else []
    report = Imported(
        file=str(file),
        of=chosen.of,
        others=tuple(others),
        dropped=chosen.keys.dropped(weights),
        assumed=tuple(assumed),
    )
    return model.eval(), report


def detect(weights: Mapping[str, Tensor]) -> str:
    """The name in :data:`LAYOUTS` that the keys speak for. Raises ValueError if none is it."""
    for name, layout in LAYOUTS.items():
        if layout.sign and layout.sign in weights:
            return name
    hint = next((text for start, text in _STRANGERS.items() if any(key.startswith(start) for key in weights)), None)
    known = ", ".join([*LAYOUTS, "open_clip"])
    raise ValueError(
        f"weights of no layout that is known ({known}); its keys: {listed(weights)}" + (f"; {hint}" if hint else "")
    )


def plan(
    weights: Mapping[str, Tensor],
    layout: Layout,
    *,
    image_heads: int | None = None,
    text_heads: int | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration of the model that ``weights`` are of, and the weights under our names.

    Nothing is computed from values but the curvature's check and pixel statistics: weights may be on the meta device.

    Raises:
        ValueError: Keys or shapes that do not make a model, all in one line; heads that are not known.
    """
    tensors, strange = layout.keys.split(weights)
    wrong = [key for key, axes in _NEEDED.items() if key in tensors and tensors[key].ndim != axes]
    missing = [key for key in _NEEDED if key not in tensors]
    config: dict[str, Any] = {}
    if not wrong and not missing:
        section = sizes(tensors, layout.heads, image_heads=image_heads, text_heads=text_heads)
        for key, value in layout.model.items():
            section[key] = {**section[key], **value} if isinstance(value, Mapping) else value
        config = {"model": section, "manifold": layout.manifold(tensors)}
        with torch.device("meta"):
            expected = {key: value.shape for key, value in build_model(config).state_dict().items()}
        missing = [key for key in expected if key not in tensors and not key.startswith("pixel_")]
        strange += [layout.keys.source_name(key) for key in tensors if key not in expected]
        wrong = [key for key in expected if key in tensors and tensors[key].shape != expected[key]]
    problems = [f"unknown keys {listed(strange)}"] if strange else []
    problems += [f"missing keys {listed(map(layout.keys.source_name, missing))}"] if missing else []
    problems += [f"keys of another shape {listed(map(layout.keys.source_name, wrong))}"] if wrong else []
    if problems:
        raise ValueError(f"not a whole model in the layout of {layout.of}: {'; '.join(problems)}")
    return config, tensors


def sizes(
    tensors: Mapping[str, Tensor],
    heads: Mapping[int, int],
    *,
    image_heads: int | None = None,
    text_heads: int | None = None,
) -> dict[str, Any]:
    """The ``model`` section with the sizes of tensors under our names, and the pixel statistics among them.

    Raises:
        ValueError: Positions that are no square of patches, or heads that are not known.
    """
    shape = {key: tuple(value.shape) for key, value in tensors.items()}
    patches, width = shape["image_tower.pos_embed"][1] - 1, shape["image_tower.cls_token"][2]
    side, patch = math.isqrt(max(patches, 0)), shape["image_tower.patch_embed.proj.weight"][3]
    if side * side != patches or not side:
        raise ValueError(f"{patches} positions of patches are no square")
    pooled = "mean" if "image_tower.fc_norm.weight" in shape else "class"
    context, text_width = shape["text_tower.positional_embedding"]
    section: dict[str, Any] = {
        "image": {
            "image_size": side * patch,
            "patch": patch,
            "width": width,
            "depth": _depth(tensors, "image_tower.blocks."),
            "heads": image_heads or _known_heads(width, heads),
            "mlp_ratio": shape["image_tower.blocks.0.mlp.fc1.weight"][0] / width,
            "pooling": pooled,
            # Hyper3-CLIP's published models of mean-pooled images have timm's own norms and learned positions.
            "norm_eps": 1e-6 if pooled == "mean" else 1e-5,
            "positions": "learned" if pooled == "mean" else "sincos",
        },
        "text": {
            "context_length": context,
            "vocab_size": shape["text_tower.token_embedding.weight"][0],
            "width": text_width,
            "depth": _depth(tensors, "text_tower.transformer.resblocks."),
            "heads": text_heads or _known_text_heads(text_width),
            "mlp_ratio": shape["text_tower.transformer.resblocks.0.mlp.c_fc.weight"][0] / text_width,
        },
        "dim": shape["image_projection.weight"][0],
        "projection_bias": "image_projection.bias" in shape,
    }
    for key in ("pixel_mean", "pixel_std"):
        if shape.get(key) == (3, 1, 1) and not tensors[key].is_meta:
            section[key] = tensors[key].flatten().tolist()
    return section


def _depth(tensors: Mapping[str, Tensor], blocks: str) -> int:
    numbers = [key.removeprefix(blocks).partition(".")[0] for key in tensors if key.startswith(blocks)]
    return 1 + max(int(number) for number in numbers if number.isdigit())


def _known_heads(width: int, heads: Mapping[int, int]) -> int:
    if width not in heads:
        raise ValueError(
            f"how many heads an image tower of width {width} has cannot be read from weights; "
            "say it: hyvlm convert FILE OUT --image-heads N"
        )
    return heads[width]


def _known_text_heads(width: int) -> int:
    if width % TEXT_HEAD_WIDTH:
        raise ValueError(
            f"how many heads a text tower of width {width} has cannot be read from weights; "
            "say it: hyvlm convert FILE OUT --text-heads N"
        )
    return width // TEXT_HEAD_WIDTH


def _numbers(values: Tensor) -> str:
    return " ".join(f"{value:.3g}" for value in values.flatten().tolist())


def _read_open_clip(file: str | Path, weights: Mapping[str, Tensor], others: list[str]) -> tuple[DualEncoder, Imported]:
    """A file of open_clip, if its sizes are those of one architecture alone: its activation leaves no trace."""
    names = architectures_like(weights)
    if len(names) != 1:
        specs = " or ".join(f"{OPEN_CLIP}{name}/{file}" for name in names)
        reason = (
            f"several architectures have these sizes, name the one: {specs}"
            if names
            else (f"no supported architecture has its sizes; name one: {OPEN_CLIP}NAME/{file}")
        )
        raise ValueError(
            f"'{file}' has the layout of open_clip, which does not tell its activation and heads; {reason}"
        )
    report = Imported(file=str(file), of=f"open_clip's {names[0]}", others=tuple(others))
    return load_open_clip(f"{OPEN_CLIP}{names[0]}/{file}"), report
