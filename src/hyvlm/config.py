"""A run is one typed config: a recipe (YAML), the recipe it may build on below it, ``key=value`` overrides above it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from hyvlm.registry import Registry, unknown

T = TypeVar("T")

#: Which of a sample's captions a visit uses; "joined" is all of them, one after the other.
CAPTION_CHOICES = ("random", "first", "last", "joined")
#: Where a short text comes from: a sentence of the caption that the visit uses, or another caption.
SHORT_TEXT_CHOICES = ("first_sentence", "random_sentence", "first_caption", "random_caption")

#: Which scale of a JPEG training decodes: the smallest one that has the pixels its crops need, or the full one.
DECODE_CHOICES = ("scaled", "full")

#: Whose rules cut queries from a caption, see :mod:`hyvlm.data.queries`.
QUERY_RULES = ("paper", "released")


@dataclass
class PartsConfig:
    """Which parts of a sample are used at a visit: at most ``max``, the ``first`` ones or a ``random`` choice."""

    max: int = 5
    choice: str = "random"


@dataclass
class QueriesConfig:
    """How queries are cut from a caption and its phrases: by the ``paper``'s or ``released`` rules, at most ``cap``."""

    rules: str = "paper"
    cap: int = 6


@dataclass
class DataConfig:
    """Training data, and how a sample becomes tensors. Sizes are in pixels."""

    train: str = MISSING
    split: str | None = None
    image_size: int = 224
    part_size: int = 224
    augment: dict[str, Any] = field(default_factory=lambda: {"name": "crop", "scale": [0.5, 1.0]})
    parts: PartsConfig = field(default_factory=PartsConfig)
    caption: str = "random"
    short_text: str = "first_sentence"
    queries: QueriesConfig = field(default_factory=QueriesConfig)
    decode: str = "scaled"
    workers: int = 2


@dataclass
class TrainConfig:
    """Optimizer, schedule and bookkeeping.

    Attributes:
        batch_size: Global, over all processes.
        micro_batch_size: How many samples pass the towers of a process at a time; None takes its whole share at once.
    """

    steps: int = MISSING
    batch_size: int = MISSING
    micro_batch_size: int | None = None
    lr: float = 5.0e-4
    weight_decay: float = 0.2
    decay_gains_and_biases: bool = False
    decay_scalars: bool = False
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1.0e-8
    warmup_steps: int = 4000
    max_grad_norm: float | None = None
    precision: str = "fp32"
    compile: bool = False
    seed: int = 0
    log_every: int = 20
    save_every: int = 5000
    keep_checkpoints: int = 2
    eval_every: int = 0


@dataclass
class EvalConfig:
    """One evaluation: a task on a data set. None leaves a setting at the task's or the data set's default.

    Attributes:
        task: Name in ``hyvlm list tasks``.
        data: ``"NAME"`` or ``"NAME:LOCATION"``, or (in Python) an open sample set.
        split: Which split of ``data``.
        templates: Prompt set by name, or a file of one template a line; for "prompt-audit" several with commas between.
        hierarchy: File of ``child parent`` lines.
        captions: Which captions of an image count: ``"all"``, ``"first"``, ``"last"`` or ``"joined"``.
        seeds: How often captions are perturbed.
        negatives: Where false captions come from: ``"given"`` or ``"generate"`` for "hard-negatives", ``"sampled"``,
            ``"first_100"`` or ``"given"`` for "entailment".
        negatives_per_image: How many false captions an image meets at the most.
        seed: Of the draws of false captions, or of the split for "multi-object".
        normalize: What is done to the scores of "multilabel": ``"none"``, ``"softmax"``, ``"min_max"``, ``"z_score"``
            or ``"z_score_class"``.
        features: What "multi-object" trains on: ``"tangent"`` or ``"tower"``.
        crops: Random crops of an image that stand for its parts in "uncertainty"; None takes those of the data set.
        measure: What uncertainty is a function of: ``"norm"`` or ``"radius"``.
        cone: What entailment ranks by: ``"angle"`` or ``"margin"``.
        vqa: Folder or hub name of BLIP's VQA model.
        background: What stands for the background of masks: ``"scenery"``, ``"name"``, or a file of one name a line.
        extrapolation: Factor of the texts' distance from the origin in segmentation, or ``"auto"``.
        resize: ``"squash"`` or ``"crop"``; None is the model's own way, or the task's where the model has none.
        image_size, part_size: Side in pixels of images and of part crops.
    """

    task: str = MISSING
    data: Any = MISSING
    split: str | None = None
    templates: str | None = None
    hierarchy: str | None = None
    captions: str | None = None
    seeds: int | None = None
    negatives: str | None = None
    negatives_per_image: int | None = None
    seed: int | None = None
    normalize: str | None = None
    features: str | None = None
    crops: int | None = None
    measure: str | None = None
    cone: str | None = None
    vqa: str | None = None
    background: str | None = None
    extrapolation: str | None = None
    resize: str | None = None
    image_size: int | None = None
    part_size: int | None = None


@dataclass
class Config:
    """All that a run depends on. ``objective``, ``manifold`` and ``model`` name an entry and its settings."""

    objective: dict[str, Any] = MISSING
    manifold: dict[str, Any] = MISSING
    model: dict[str, Any] = MISSING
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: list[EvalConfig] = field(default_factory=list)


def recipe_names() -> list[str]:
    """Names of the recipes that ship with the library; files with a leading underscore are only built on."""
    folder = resources.files("hyvlm.recipes")
    files = (p.name for p in folder.iterdir() if p.name.endswith(".yaml"))
    return sorted(name.removesuffix(".yaml") for name in files if not name.startswith("_"))


def read_recipe(name: str, *, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The settings of a shipped recipe or of a YAML file, its ``base`` recipe merged below it.

    Args:
        above: The recipes that build on this one.
    Raises:
        ValueError: No such recipe, a file that is not a YAML mapping, or recipes that build on one another in a circle.
        FileNotFoundError: A path that does not exist.
    """
    if name in above:
        raise ValueError(f"recipes build on one another in a circle: {' -> '.join([*above, name])}")
    shipped = resources.files("hyvlm.recipes") / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"recipe file {name} does not exist")
        text = path.read_text(encoding="utf-8")
    elif shipped.is_file():
        text = shipped.read_text(encoding="utf-8")
    else:
        raise ValueError(unknown("recipe", name, recipe_names(), "List them: hyvlm list recipes"))
    try:
        read = OmegaConf.to_container(OmegaConf.create(text))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"recipe {name} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(read, dict):
        raise ValueError(f"recipe {name} must be a mapping of sections, found {type(read).__name__}")
    settings = {str(key): value for key, value in read.items()}
    base = settings.pop("base", None)
    if base is None:
        return settings
    if str(base).endswith((".yaml", ".yml")):
        base = Path(name).parent / base  # beside the recipe that names it
    return merge_settings(read_recipe(str(base), above=(*above, name)), settings)


def merge_settings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` laid over ``below``, mapping by mapping; a section that names another entry replaces the one below.

    So does a model that begins as another (``init``) one that is new (``preset``), and the other way round.
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            same_entry = all(value.get(k, old.get(k)) == old.get(k) for k in ("name", "preset"))
            new_kind = ("init" in value and "preset" in old) or ("preset" in value and "init" in old)
            value = merge_settings(old, value) if same_entry and not new_kind else dict(value)
        merged[key] = value
    return merged


def load_config(recipe: str | Mapping[str, Any], overrides: list[str] | None = None) -> Config:
    """The config of a run.

    Args:
        recipe: A shipped recipe's name, a YAML file, or the settings themselves.
        overrides: ``key=value`` with a dotted key; the value is YAML (``train.steps=100``, ``data.parts={max: 1}``).
    Raises:
        ValueError: An unknown recipe or key, or a value of the wrong type; says which and what would be right.
    """
    settings = read_recipe(recipe) if isinstance(recipe, str) else dict(recipe)
    for override in overrides or []:
        if not override.partition("=")[0] or "=" not in override:
            raise ValueError(f"override {override!r} is not of the form key=value, such as train.steps=100")
        try:
            nested = OmegaConf.to_container(OmegaConf.from_dotlist([override]))
        except (yaml.YAMLError, OmegaConfBaseException) as error:
            raise ValueError(f"the value of {override!r} is not valid YAML") from error
        assert isinstance(nested, dict)
        settings = merge_settings(settings, {str(key): value for key, value in nested.items()})
    check_keys(settings, Config, "")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), settings)
        config = OmegaConf.to_object(merged)
    except MissingMandatoryValue as error:
        raise ValueError(f"{error.full_key} is not set; say {error.full_key}=VALUE") from error
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"the value of {error.full_key or 'a setting'} does not fit: {reason}") from error
    assert isinstance(config, Config)
    check_values(config)
    return config


def check_keys(settings: Mapping[str, Any], schema: type, prefix: str) -> None:
    """Raise ValueError at the first key that ``schema`` does not have, or that is a section and has another value."""
    types = get_type_hints(schema)
    for key, value in settings.items():
        if key not in types:
            raise ValueError(unknown("config key", f"{prefix}{key}", [f"{prefix}{name}" for name in types]))
        kind, name = types[key], f"{prefix}{key}"
        own = list(getattr(kind, "__dataclass_fields__", ()))
        if not isinstance(value, Mapping) and (own or get_origin(kind) is dict):
            known = f" ({', '.join(own)})" if own else ""
            raise ValueError(f"{name} is a section{known}; say {name}.KEY=VALUE, got {value!r}")
        if isinstance(value, Mapping) and own:
            check_keys(value, kind, f"{name}.")
        if get_origin(kind) is list and hasattr(get_args(kind)[0], "__dataclass_fields__"):
            if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
                raise ValueError(f"{name} is a list of sections, such as [{{KEY: VALUE}}], got {value!r}")
            for number, entry in enumerate(value):
                check_keys(entry, get_args(kind)[0], f"{name}[{number}].")


def check_values(config: Config) -> None:
    """Raise ValueError for values that no run can use."""
    positive = {
        "train.steps": config.train.steps,
        "train.batch_size": config.train.batch_size,
        "train.lr": config.train.lr,
        "train.log_every": config.train.log_every,
        "train.save_every": config.train.save_every,
        "train.keep_checkpoints": config.train.keep_checkpoints,
        "data.image_size": config.data.image_size,
        "data.part_size": config.data.part_size,
        "data.queries.cap": config.data.queries.cap,
    }
    if config.train.micro_batch_size is not None:
        positive["train.micro_batch_size"] = config.train.micro_batch_size
    for key, value in positive.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{key} must be positive, got {value}")
    for key, value in {"data.parts.max": config.data.parts.max, "data.workers": config.data.workers}.items():
        if value < 0:
            raise ValueError(f"{key} must not be negative, got {value}")
    choices = {
        "train.precision": (config.train.precision, ["fp32", "bf16", "fp16"]),
        "data.parts.choice": (config.data.parts.choice, ["random", "first"]),
        "data.caption": (config.data.caption, list(CAPTION_CHOICES)),
        "data.short_text": (config.data.short_text, list(SHORT_TEXT_CHOICES)),
        "data.queries.rules": (config.data.queries.rules, list(QUERY_RULES)),
        "data.decode": (config.data.decode, list(DECODE_CHOICES)),
    }
    for key, (choice, known) in choices.items():
        if choice not in known:
            raise ValueError(unknown(key, choice, known))


def to_yaml(config: Config) -> str:
    """The resolved config as YAML, as a run folder keeps it; :func:`load_config` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def to_dict(config: Config) -> dict[str, Any]:
    """The resolved config as plain containers."""
    plain = OmegaConf.to_container(OmegaConf.structured(config))
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def build(registry: Registry[Callable[..., T]], section: Mapping[str, Any], where: str, key: str = "name") -> T:
    """Call the registry entry that ``section[key]`` names with the rest of the section as keywords.

    Raises:
        ValueError: No or an unknown name, or a setting that the entry does not take or that is of another type.
    """
    if key not in section:
        raise ValueError(f"config section {where} needs a {key}; known: {', '.join(registry)}")
    builder = registry[str(section[key])]
    settings = {str(k): v for k, v in section.items() if k != key}
    known = [p.name for p in inspect.signature(builder).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in settings:
        if name not in known:
            raise ValueError(unknown(f"setting of {where} {section[key]!r}", name, known))
    check_types(builder, settings, where)
    return builder(**settings)


#: What a setting of a type must be, as a message says it.
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "null"}


def check_types(builder: Callable[..., object], settings: Mapping[str, Any], where: str) -> None:
    """Raise ValueError, naming the key, at the first setting that is not of the type that ``builder`` declares for it.

    Types other than numbers, texts, truth values and lists of them are left to the builder.
    """
    declared = get_type_hints(builder.__init__ if inspect.isclass(builder) else builder)
    for name, value in settings.items():
        if name in declared and not _fits(declared[name], value):
            raise ValueError(f"{where}.{name} must be {_words(declared[name])}, got {value!r}")


def _fits(kind: Any, value: object) -> bool:
    """Whether a value from YAML is of a declared type; a whole number is also a number, a list also a tuple."""
    if kind in _WORDS:
        types = (int, float) if kind is float else kind
        return isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(one, value) for one in of)
    if origin in (tuple, list, Sequence):
        fixed = origin is tuple and Ellipsis not in of
        if not isinstance(value, list | tuple) or (fixed and len(value) != len(of)):
            return False
        return all(_fits(of[i] if fixed else of[0], entry) for i, entry in enumerate(value))
    return True


def _words(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_words, get_args(kind)))
    if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
        return f"a list of {len(get_args(kind))}"
    return _WORDS.get(kind, "a list")
