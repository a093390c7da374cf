"""Models of open_clip as dual encoders: ``open_clip:NAME/WEIGHTS``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import open_clip
from open_clip.model import CLIPTextCfg, CLIPVisionCfg, convert_to_custom_text_state_dict
from safetensors import SafetensorError
from torch import Tensor

from hyvlm.models.convert import KEY_MAPS, check_state_dict
from hyvlm.models.dual_encoder import DualEncoder, build_model
from hyvlm.registry import unknown

#: What a text that names a model of open_clip begins with.
OPEN_CLIP = "open_clip:"

#: Settings of open_clip that have a counterpart here. Any other that is not at its default is out of reach.
_KNOWN = {"embed_dim", "quick_gelu", "custom_text", "vision_cfg", "text_cfg"}
_KNOWN_IMAGE = {"layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size"}
_KNOWN_TEXT = {"context_length", "width", "heads", "layers", "mlp_ratio"}

#: open_clip's way to bring an image to size, as ``resize`` of :func:`hyvlm.data.transforms.eval_transform`.
_RESIZE = {"shortest": "crop", "squash": "squash"}


def load_open_clip(spec: str) -> DualEncoder:
    """A model of open_clip on the unit sphere; its features are open_clip's, to rounding.

    Args:
        spec: ``open_clip:NAME/WEIGHTS``. NAME is an architecture of open_clip whose towers are its VisionTransformer
            and TextTransformer in their plain form, with CLIP's tokenizer (:func:`supported_models`). WEIGHTS is one of
            open_clip's tags for it, which open_clip fetches, or a local file (.pt, .bin, .safetensors) of its state
            dict, read without running code. ``open_clip:NAME`` gives random weights, from torch's generator.
            A tag brings its pixel statistics and its activation; for a file NAME tells the activation: weights that
            were trained with QuickGELU need a NAME that ends in ``-quickgelu``.
    Returns:
        The model; its configuration has open_clip's pixel statistics and way to bring images to size.
    Raises:
        ValueError: An unknown NAME or tag, a NAME that is not supported, or a file with other weights.
        FileNotFoundError: No such file.
        ConnectionError: The weights of a tag cannot be fetched.
    """
    name, _, weights = spec.removeprefix(OPEN_CLIP).partition("/")
    _check_supported(name)
    file, card = _find_weights(name, weights) if weights else (None, {})
    quick_gelu = bool(card.get("quick_gelu")) or bool(open_clip.get_model_config(name).get("quick_gelu"))
    try:
        source = open_clip.create_model(
            name, pretrained=file, force_quick_gelu=quick_gelu, force_preprocess_cfg=card, weights_only=True
        )
    except Exception as error:
        if file is None:
            raise
        # Which error depends on what the file is instead; torch's for pickled code advises to run it.
        plain = isinstance(error, RuntimeError | AssertionError | SafetensorError)
        reason = _brief(error) if plain else f"no state dict is found in it ({type(error).__name__})"
        raise ValueError(f"'{file}' does not hold weights of open_clip's {name}: {reason}") from error
    pixels = open_clip.get_model_preprocess_cfg(source)
    if pixels["interpolation"] != "bicubic" or pixels["resize_mode"] not in _RESIZE:
        raise ValueError(
            f"open_clip's {name} resizes images by {pixels['interpolation']} interpolation in mode "
            f"'{pixels['resize_mode']}'; supported are bicubic, in the modes {', '.join(_RESIZE)}"
        )
    model = build_model({"model": _section(name, quick_gelu, pixels), "manifold": {"name": "sphere"}})
    converted = KEY_MAPS["open_clip"](convert_to_custom_text_state_dict(source.state_dict()))
    converted |= {"pixel_mean": model.pixel_mean, "pixel_std": model.pixel_std}  # part of open_clip's preprocessing
    check_state_dict(model, converted, f"open_clip's {name}")
    model.load_state_dict(converted)
    return model


def supported_models() -> list[str]:
    """Names of open_clip's architectures that :func:`load_open_clip` takes."""
    return [name for name in open_clip.list_models() if not _obstacles(open_clip.get_model_config(name))]


def architectures_like(weights: Mapping[str, Tensor]) -> list[str]:
    """Supported architectures that a state dict of open_clip fits in by its sizes; activations and heads aside."""
    text = "text." if "text.positional_embedding" in weights else ""
    image_blocks = {key.split(".")[3] for key in weights if key.startswith("visual.transformer.resblocks.")}
    text_blocks = {k.removeprefix(text).split(".")[2] for k in weights if k.startswith(f"{text}transformer.resblocks.")}
    keys = {
        "visual.conv1.weight": (0, 3),
        "visual.positional_embedding": (0,),
        "visual.transformer.resblocks.0.mlp.c_fc.weight": (0,),
        f"{text}positional_embedding": (0, 1),
        f"{text}token_embedding.weight": (0,),
        f"{text}transformer.resblocks.0.mlp.c_fc.weight": (0,),
        f"{text}text_projection": (1,),
    }
    if any(key not in weights or weights[key].ndim <= max(axes) for key, axes in keys.items()):
        return []
    found = [len(image_blocks), len(text_blocks), *(weights[key].shape[i] for key, axes in keys.items() for i in axes)]
    return [name for name in supported_models() if _sizes(open_clip.get_model_config(name)) == found]


def _sizes(config: Mapping[str, Any]) -> list[int]:
    """Those that :func:`architectures_like` compares, in its order."""
    image, text = CLIPVisionCfg(**config["vision_cfg"]), CLIPTextCfg(**config["text_cfg"])
    assert isinstance(image.layers, int)
    assert isinstance(image.image_size, int)
    positions = (image.image_size // image.patch_size) ** 2 + 1
    hidden = [int(tower.width * tower.mlp_ratio) for tower in (image, text)]
    shape = [image.width, image.patch_size, positions, hidden[0]]
    return [
        image.layers,
        text.layers,
        *shape,
        text.context_length,
        text.width,
        text.vocab_size,
        hidden[1],
        config["embed_dim"],
    ]


def _check_supported(name: str) -> None:
    config = open_clip.get_model_config(name)
    if config is None:
        raise ValueError(unknown("open_clip model", name, supported_models()))
    obstacles = _obstacles(config)
    if obstacles:
        raise ValueError(
            f"open_clip's {name} is not supported ({', '.join(obstacles)}): supported are its models of a plain "
            "VisionTransformer and a plain TextTransformer with CLIP's tokenizer, such as ViT-B-16; no ResNet, CoCa, "
            "SigLIP, timm or Hugging Face towers"
        )


def _obstacles(config: Mapping[str, Any]) -> list[str]:
    """Settings of an architecture that have no counterpart here."""
    found = sorted(set(config) - _KNOWN)
    if not isinstance(config["vision_cfg"].get("layers", 12), int):
        found.append("vision_cfg.layers")
    towers = (
        ("vision_cfg", asdict(CLIPVisionCfg()), _KNOWN_IMAGE),
        ("text_cfg", asdict(CLIPTextCfg()), _KNOWN_TEXT),
    )
    for tower, defaults, known in towers:
        found += [f"{tower}.{k}" for k, v in config[tower].items() if k not in known and v != defaults.get(k)]
    return found


def _find_weights(name: str, weights: str) -> tuple[str, dict[str, Any]]:
    """The file of a tag or path, and what open_clip's card of a tag says (pixel statistics, activation)."""
    tags = open_clip.list_pretrained_tags_by_model(name)
    if weights not in tags:
        if Path(weights).is_file():
            return weights, {}
        if "/" in weights or Path(weights).suffix or Path(weights).exists():
            known = ", ".join(tags) or "none"
            raise FileNotFoundError(f"no weights at '{weights}'; open_clip's tags for {name}: {known}")
        raise ValueError(unknown(f"weights of open_clip's {name}", weights, tags))
    card = open_clip.get_pretrained_cfg(name, weights)
    try:
        return open_clip.download_pretrained(card), card
    except Exception as error:  # the clients of the hubs raise errors of their own
        raise ConnectionError(
            f"cannot fetch '{weights}' for open_clip's {name} ({_brief(error)}); "
            f"name a local file instead: {OPEN_CLIP}{name}/FILE"
        ) from error


def _brief(error: Exception) -> str:
    """One line of an error, with enough of a list of differences to show the first."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + " ..."


def _section(name: str, quick_gelu: bool, pixels: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's ``model`` section for an architecture of open_clip."""
    config = open_clip.get_model_config(name)
    image, text = CLIPVisionCfg(**config["vision_cfg"]), CLIPTextCfg(**config["text_cfg"])
    activation = "quick_gelu" if quick_gelu else "gelu"
    return {
        "image": {
            "image_size": image.image_size,
            "patch": image.patch_size,
            "width": image.width,
            "depth": image.layers,
            "heads": image.width // image.head_width,
            "mlp_ratio": image.mlp_ratio,
            "positions": "learned",
            "pre_norm": True,
            "activation": activation,
        },
        "text": {
            "context_length": text.context_length,
            "vocab_size": text.vocab_size,
            "width": text.width,
            "depth": text.layers,
            "heads": text.heads,
            "mlp_ratio": text.mlp_ratio,
            "activation": activation,
        },
        "dim": config["embed_dim"],
        "pixel_mean": list(pixels["mean"]),
        "pixel_std": list(pixels["std"]),
        "resize": _RESIZE[pixels["resize_mode"]],
    }
