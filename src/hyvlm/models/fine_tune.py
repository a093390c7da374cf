"""Models that begin as another model: the same towers, on a manifold and with a context length of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hyvlm.geometry import Lorentz, Manifold, ProductLorentz
from hyvlm.models.dual_encoder import DualEncoder, build_model
from hyvlm.models.long_text import KEEP, stretch_positions
from hyvlm.models.pretrained import load


def start_model(init: object) -> DualEncoder:
    """The model to fine-tune, in eval mode on the CPU.

    Args:
        init: ``open_clip:NAME/WEIGHTS``, a run folder, a checkpoint or a saved model: what :func:`hyvlm.load` takes.
    Raises:
        ValueError: ``init`` is no text; or as :func:`hyvlm.load`.
        FileNotFoundError, ConnectionError: As :func:`hyvlm.load`.
    """
    if not isinstance(init, str) or not init.strip():
        raise ValueError(f"model.init names a model, such as open_clip:ViT-B-16/FILE or a run folder, got {init!r}")
    return load(init)[0]


def fine_tuned_from(
    start: DualEncoder,
    manifold: Mapping[str, Any],
    *,
    context_length: int | None = None,
    keep_positions: int = KEEP,
    **scoring: str,
) -> DualEncoder:
    """A new model with the towers, projections and pixel statistics of ``start``, which stays as it is.

    On a manifold of the start's own kind, scales and curvature continue as well, whatever ``manifold.c`` says. On
    another kind scales begin at ``1 / sqrt(D)`` and the curvature at ``manifold.c`` (HyFL-CLIP, supplement).

    Args:
        start: Where to begin, for instance from :func:`start_model`.
        manifold: A recipe's ``manifold`` section.
        context_length: Most tokens of a text; None for the start's. Positions are stretched to it, or cut.
        keep_positions: Of these, the first positions stay as they are (:func:`stretch_positions`).
        scoring: ``score`` and ``readout`` of :class:`~hyvlm.models.presets.ModelConfig`, if they change.
    Raises:
        ValueError: A section that describes no manifold; a context length or number of kept positions that is out of
            range; a start whose curvature lies outside ``manifold.bounds``.
    """
    positions = start.text_tower.positional_embedding.detach()
    length = start.text_tower.context_length if context_length is None else context_length
    for key, value, least in (("context_length", length, 2), ("keep_positions", keep_positions, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"model.text.{key} must be a whole number, {least} or more, got {value!r}")
    section = {**start.config["model"], **scoring, "text": {**start.config["model"]["text"], "context_length": length}}
    model = build_model({"model": section, "manifold": manifold})
    weights = start.state_dict()
    weights["text_tower.positional_embedding"] = stretch_positions(positions, length, keep=keep_positions)
    if continues(start.manifold, model.manifold):
        _check_curvature(start.manifold, model.manifold)
    else:
        own = model.state_dict()
        weights = {key: value for key, value in weights.items() if not _of_geometry(key)}
        weights |= {key: value for key, value in own.items() if _of_geometry(key)}
    model.load_state_dict(weights)
    return model


def continues(start: Manifold, manifold: Manifold) -> bool:
    """Whether scales and curvature of a model on ``start`` mean the same on ``manifold``."""
    factors = [getattr(m, "factors", 1) for m in (start, manifold)]
    return type(start) is type(manifold) and factors[0] == factors[1]


def _of_geometry(key: str) -> bool:
    return key.startswith("manifold.") or key in ("image_log_scale", "text_log_scale")


def _check_curvature(start: Manifold, manifold: Manifold) -> None:
    """Raise ValueError if the curvature that continues is not one that the new bounds allow."""
    if not isinstance(start, Lorentz | ProductLorentz) or not isinstance(manifold, Lorentz | ProductLorentz):
        return
    bounds = (manifold.factor if isinstance(manifold, ProductLorentz) else manifold).bounds
    if bounds is None:
        return
    slack = 1e-6  # a curvature on its bound may have been rounded across it
    c = torch.atleast_1d(start.c.detach())
    outside = c[(c < bounds[0] * (1 - slack)) | (c > bounds[1] * (1 + slack))]
    if len(outside):
        raise ValueError(
            f"the starting model's curvature c = {outside[0]:.4g} lies outside manifold.bounds {bounds[0]:g} to "
            f"{bounds[1]:g}, where it is to continue; give wider bounds"
        )
