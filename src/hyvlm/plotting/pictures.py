"""Pictures of what models make of a data set, by name; ``hyvlm plot KIND MODEL [MODEL] --data ...`` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import hyvlm
from hyvlm.data.catalog import open_data
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.runner import choose_device
from hyvlm.evaluation.tasks.segmentation import Segmentation
from hyvlm.files import check_folder
from hyvlm.plotting import caption_pictures, part_pictures, pixel_pictures  # noqa: F401  (they register)
from hyvlm.plotting.checkpoints import Checkpoints
from hyvlm.plotting.figures import missing_letters, save
from hyvlm.plotting.request import PICTURES, Request

#: What the samples of a picture must hold, where that is not captions.
CONTENTS = {"segmentation": "masks"}
#: Pictures of a run's checkpoints, of which one at a time is held.
OVER_TRAINING = ("distances",)


def draw(
    kind: str,
    models: Sequence[str],
    data: str,
    out: str | Path,
    *,
    split: str | None = None,
    sample: int = 0,
    captions: str = "joined",
    limit: int = 500,
    temperature: float = 0.07,
    seed: int = 0,
    resize: str | None = None,
    texts: Sequence[str] = (),
    templates: str = Segmentation.templates,
    background: str = Segmentation.background,
    extrapolation: float = 1.0,
    device: str | None = None,
    batch_size: int = 64,
) -> list[Path]:
    """Draw one picture and write it into the folder ``out``, as ``KIND-SAMPLE.png`` (tokens: and ``.html``).

    Args:
        kind: A name in :data:`PICTURES`.
        models: What :func:`hyvlm.load` takes, one or more; they are drawn side by side, under their last name.
        data: Data set with captions (segmentation: with masks), as :func:`hyvlm.data.open_data` takes it.
        device: Where models run; None is the fastest.
        batch_size: Images, or texts, at a time.
    Returns:
        The files.
    Raises:
        ValueError, FileNotFoundError: One sentence on what is wrong with a name, the data or a model.
    """
    picture = PICTURES[kind]
    if not models:
        raise ValueError(f"the picture {kind!r} needs at least one model")
    check_folder(out, "the folder for pictures")
    samples = open_data(data, split=split, content=CONTENTS.get(kind, "pairs"))
    place_of = choose_device(device)
    embedders: dict[str, Embedder] = {}
    for name, path in zip(short_names(models), [] if kind in OVER_TRAINING else models, strict=False):
        model, _, tokenizer = hyvlm.load(path, device=place_of)
        embedders[name] = Embedder(model, tokenizer, batch_size=batch_size)
    request = Request(
        embedders or Checkpoints(models, place_of, batch_size),
        samples,
        sample,
        captions,
        limit,
        temperature,
        seed,
        resize,
        tuple(texts),
        templates,
        background,
        extrapolation,
    )
    with missing_letters():
        return save(picture(request), Path(out), f"{kind}-{sample}")


def short_names(models: Sequence[str]) -> list[str]:
    """The last part of each model's path, or the whole paths where two would be called the same.

    Raises:
        ValueError: If the same model is given twice.
    """
    if len(set(models)) < len(models):
        raise ValueError(f"each model once, got {', '.join(models)}")
    names = [model.rstrip("/").rsplit("/", 1)[-1] or model for model in models]
    return names if len(set(names)) == len(names) else list(models)
