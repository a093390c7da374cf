"""Model configurations: what a recipe's ``model`` section may say, and the presets it may start from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from open_clip import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD

from hyvlm.registry import Registry, unknown

Readout = Literal["trained", "published"]
READOUTS = get_args(Readout)
STEM_STRIDE = 8  # three convolutions of stride 2


@dataclass(frozen=True, kw_only=True)
class ImageTowerConfig:
    """Arguments of :class:`hyvlm.models.towers.ImageTower`, which explains them."""

    image_size: int = 224
    patch: int = 16
    width: int
    depth: int
    heads: int
    stem: bool = False
    positions: Literal["sincos", "learned"] = "sincos"
    pre_norm: bool = False
    activation: Literal["gelu", "quick_gelu"] = "gelu"
    mlp_ratio: float = 4.0
    pooling: Literal["class", "mean"] = "class"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width % 4:
            raise ValueError(
                f"model.image.width must be divisible by 4 and by model.image.heads, got {self.width} and {self.heads}"
            )
        if self.image_size % self.patch:
            raise ValueError(
                f"model.image.image_size must be divisible by model.image.patch, got {self.image_size} and {self.patch}"
            )
        if self.stem and self.patch != STEM_STRIDE:
            raise ValueError(f"model.image.patch must be {STEM_STRIDE}, the stem's stride, got {self.patch}")


@dataclass(frozen=True, kw_only=True)
class TextTowerConfig:
    """Arguments of :class:`hyvlm.models.towers.TextTower`, which explains them."""

    context_length: int = 77
    vocab_size: int = 49408
    width: int = 512
    depth: int = 12
    heads: int = 8
    activation: Literal["gelu", "quick_gelu"] = "gelu"
    mlp_ratio: float = 4.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                f"model.text.width must be divisible by model.text.heads, got {self.width} and {self.heads}"
            )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Both towers, the width of the common embedding, and how images become pixels.

    Attributes:
        projection_bias: Whether the projections to the common embedding add a bias (Hyper3-CLIP as released).
        pixel_mean, pixel_std: What pixels in [0, 1] are normalised with.
        resize: How evaluation brings images to size, see :func:`hyvlm.data.transforms.eval_transform`. "by_task" leaves
            it to the task: the MERU lineage squashes for retrieval and crops for classification.
        score: What pairs are ranked by: "distance" is minus the manifold's distance (on the sphere the cosine),
            "exterior_angle" ATMG's angle, which has a direction.
        readout: "trained" ranks by what contrast was trained on, "published" by what the method's released evaluation
            uses where that ranks differently: the sum of the factors' inner products for a product of Lorentz factors
            (PHyCLIP), the angle at the other side for "exterior_angle" (ATMG).
    """

    image: ImageTowerConfig
    text: TextTowerConfig = field(default_factory=TextTowerConfig)
    dim: int = 512
    projection_bias: bool = False
    pixel_mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    pixel_std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    resize: Literal["by_task", "squash", "crop"] = "by_task"
    score: Literal["distance", "exterior_angle"] = "distance"
    readout: Readout = "trained"

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, as YAML and JSON know them."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


PRESETS: Registry[ModelConfig] = Registry("model preset")

PRESETS.register("tiny")(
    ModelConfig(
        image=ImageTowerConfig(image_size=64, patch=STEM_STRIDE, width=128, depth=3, heads=4, stem=True),
        text=TextTowerConfig(width=128, depth=2, heads=4),
        dim=128,
    )
)
PRESETS.register("vit-s-16")(ModelConfig(image=ImageTowerConfig(width=384, depth=12, heads=12)))
PRESETS.register("vit-b-16")(ModelConfig(image=ImageTowerConfig(width=768, depth=12, heads=12)))
PRESETS.register("vit-l-16")(ModelConfig(image=ImageTowerConfig(width=1024, depth=24, heads=16)))
PRESETS.register("vit-l-14")(ModelConfig(image=ImageTowerConfig(patch=14, width=1024, depth=24, heads=16)))


def _open_clip(patch: int, *, width: int = 768, depth: int = 12, heads: int = 12, dim: int = 512) -> ModelConfig:
    """A model of open_clip's catalogue: learned positions, a norm before the blocks, CLIP's own way with pixels."""
    image = ImageTowerConfig(patch=patch, width=width, depth=depth, heads=heads, positions="learned", pre_norm=True)
    text = TextTowerConfig(width=dim, heads=dim // 64)
    mean, std = OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
    return ModelConfig(image=image, text=text, dim=dim, pixel_mean=mean, pixel_std=std, resize="crop")


PRESETS.register("open-clip-vit-b-32")(_open_clip(32))
PRESETS.register("open-clip-vit-b-16")(_open_clip(16))
PRESETS.register("open-clip-vit-l-14")(_open_clip(14, width=1024, depth=24, heads=16, dim=768))


def resolve_model(section: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a recipe's ``model`` section describes.

    Args:
        section: ``preset`` names where to start from; every other key (those of :class:`ModelConfig`, with the towers'
            keys nested under ``image`` and ``text``) overrides it. Without a preset nothing is assumed beyond the
            defaults that the classes above show.
    Raises:
        ValueError: For an unknown preset or key, a missing key, a value of another type, or shapes that do not fit.
    """
    for key in section:
        if key not in (known := [*get_type_hints(ModelConfig), "preset"]):
            raise ValueError(unknown("model key", str(key), known))
    values = dict(section)
    preset = values.pop("preset", None)
    if preset is not None:
        start = PRESETS[str(preset)].to_dict()
        for key, value in values.items():
            nested = isinstance(value, Mapping) and isinstance(start.get(key), dict)
            start[key] = {**start[key], **value} if nested else value
        values = start
    return _parse(ModelConfig, values, "model")


T = TypeVar("T")


def _parse(cls: type[T], values: Any, where: str) -> T:
    """``cls`` from plain values, with errors that name the key."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must be a section with keys, got {values!r}")
    types = get_type_hints(cls)
    for key in values:
        if key not in types:
            raise ValueError(unknown(f"{where} key", str(key), types))
    for f in fields(cls):  # type: ignore[arg-type]
        if f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{where}.{f.name} is missing; give it or name a model.preset ({', '.join(PRESETS)})")
    return cls(**{key: _parse_value(types[key], value, f"{where}.{key}") for key, value in values.items()})


def _parse_value(kind: Any, value: Any, where: str) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise ValueError(f"{where} must be true or false, got {value!r}")
    if kind is int:
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        raise ValueError(f"{where} must be a positive whole number, got {value!r}")
    if kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        raise ValueError(f"{where} must be a positive number, got {value!r}")
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(f"{where} must be {' or '.join(map(repr, get_args(kind)))}, got {value!r}")
    if kind == tuple[float, float, float]:
        if isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(v, int | float) for v in value):
            return tuple(float(v) for v in value)
        raise ValueError(f"{where} must be three numbers, one a colour channel, got {value!r}")
    return _parse(kind, value, where)
