"""Stable Diffusion XL, conditioned on a model's token features in place of CLIP-L's (HyFL-CLIP, S1.4 and S5.3.1).

SDXL's cross attention reads, at every token position, CLIP-L's hidden state (768 channels) beside bigG's (1280). Here
the first D of the 768 are replaced by the D features of a model of this library, or mixed with them; all else is the
pipeline's own. The pipeline is an object that the caller has; nothing of it is changed for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hyvlm.evaluation.embed import evaluation_mode
from hyvlm.geometry import Sphere
from hyvlm.models import DualEncoder
from hyvlm.models.long_text import stretch_positions
from hyvlm.registry import unknown

#: What stands behind a prompt's end: its end token's feature again, or what the pipeline has there.
PADDING = ("end", "original")


def conditioning(
    pipe: Any,
    model: DualEncoder,
    prompt: str | Sequence[str],
    negative_prompt: str | Sequence[str] | None = None,
    *,
    prompt_2: str | Sequence[str] | None = None,
    negative_prompt_2: str | Sequence[str] | None = None,
    alpha: float = 1.0,
    padding: str = "end",
    match_norm: bool = False,
) -> dict[str, Tensor]:
    """The text conditioning of ``prompt``, for ``pipe(**conditioning(...), num_inference_steps=30)``.

    In the first D channels, ``(1 - alpha) * original + alpha * features``: with ``alpha`` 0 it is exactly what the
    pipeline makes of the prompt. The other channels, bigG's and the pooled embedding are the pipeline's, bit for bit.

    Prompts whose tokens fit into the pipeline (77) take its usual path. If one text is longer, all of the call, which
    must be of one length, are encoded with :func:`stretched_positions` at the model's context length. A negative
    prompt is treated like a prompt; without one, the pipeline's rule holds: zeros, or an empty text.

    Args:
        pipe: A ``diffusers.StableDiffusionXLPipeline``, or another pipeline with its two text encoders and its
            ``encode_prompt`` (image to image, inpainting).
        model: Over CLIP's vocabulary, at most as wide as CLIP-L; what it gives: :func:`prompt_features`.
        prompt, negative_prompt: One text, or one per image; a single negative prompt goes with every prompt.
        prompt_2, negative_prompt_2: Other texts for bigG, as in the pipeline.
        padding: What stands behind a prompt's end. ``"end"`` repeats the feature of its end token; ``"original"`` keeps
            the pipeline's channels, in which CLIP-L has read all of the prompt.
        match_norm: Give every feature the norm that the original has in the same channels; a hyperbolic model's tangent
            vectors have norms near 1, far below those of CLIP-L's hidden states.
    Returns:
        ``prompt_embeds`` and ``negative_prompt_embeds`` ``(B, L, 2048)``, ``pooled_prompt_embeds`` and
        ``negative_pooled_prompt_embeds`` ``(B, 1280)``, in the pipeline's dtype and on its device.
    Raises:
        ValueError: The pipeline has no CLIP-L, the model does not fit it, a setting is unknown, or a prompt holds a
            token that the model does not know (a textual inversion).
    """
    _check(pipe, model, alpha, padding)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    if not prompts:
        raise ValueError("there is no prompt to encode")
    negatives = _texts("negative_prompt", negative_prompt, len(prompts))
    embeds, negative_embeds, pooled, negative_pooled = _encode(
        pipe,
        model.text_tower.context_length,
        prompt=prompts,
        negative_prompt=negatives,
        prompt_2=_texts("prompt_2", prompt_2, len(prompts)),
        negative_prompt_2=_texts("negative_prompt_2", negative_prompt_2, len(prompts)),
    )
    settings: dict[str, Any] = {"alpha": alpha, "padding": padding, "match_norm": match_norm}
    if negatives is not None or not pipe.config.force_zeros_for_empty_prompt:
        negative_embeds = _inject(pipe, model, negatives or [""] * len(prompts), negative_embeds, **settings)
    return {
        "prompt_embeds": _inject(pipe, model, prompts, embeds, **settings),
        "negative_prompt_embeds": negative_embeds,
        "pooled_prompt_embeds": pooled,
        "negative_pooled_prompt_embeds": negative_pooled,
    }


def prompt_features(model: DualEncoder, ids: Tensor, end_id: int) -> tuple[Tensor, Tensor]:
    """What a model says of every token of prompts, as vectors of flat space.

    The tower's output at the token after the final norm, through the projection; then scaled, lifted and mapped back
    by the log map at the origin (HyFL-CLIP, Eq. 7). On a sphere there is no such map: the features themselves.

    Args:
        ids: ``(B, L)``, start and end included; what stands behind the first ``end_id`` does not matter.
    Returns:
        ``(B, L, D)``: start, words and end at their places, and the end's again behind it; ``(B, L)`` bool, False
        behind the end.
    """
    end = (ids == end_id).int().argmax(-1, keepdim=True)
    place = torch.arange(ids.shape[1], device=ids.device)
    inside = place <= end
    with evaluation_mode(model):
        _, words = model.text_tower.tokens(ids.masked_fill(~inside, 0))
        vectors = model.text_projection(words)
        if not isinstance(model.manifold, Sphere):
            manifold: Any = model.manifold  # all but the sphere have an origin
            vectors = manifold.logmap0(model.lift_text(vectors))
    nearest = torch.minimum(place, end).unsqueeze(-1).expand(-1, -1, vectors.shape[-1])
    return vectors.gather(1, nearest), inside


@contextmanager
def stretched_positions(pipe: Any, length: int) -> Iterator[None]:
    """Inside, both text encoders and tokenizers of ``pipe`` take ``length`` tokens; afterwards all is as before.

    The first 20 rows of a table of positions are kept, the others stretched by linear interpolation (HyFL-CLIP,
    S5.3.1); see :func:`hyvlm.models.long_text.stretch_positions`. While inside, the pipeline must not be used by
    another thread.

    Raises:
        ValueError: A table's weights are not in memory (sequential offloading).
    """
    encoders = [encoder for encoder in (pipe.text_encoder, pipe.text_encoder_2) if encoder is not None]
    tokenizers = [tokenizer for tokenizer in (pipe.tokenizer, pipe.tokenizer_2) if tokenizer is not None]
    modules = [m for encoder in encoders for m in encoder.modules() if hasattr(m, "position_embedding")]
    if any(m.position_embedding.weight.is_meta for m in modules):
        raise ValueError(
            "long prompts need the text encoders in memory, the pipeline offloads them layer by layer: "
            "use enable_model_cpu_offload instead of enable_sequential_cpu_offload"
        )
    before = [(m, m.position_embedding, m.position_ids) for m in modules]
    limits = [(tokenizer, tokenizer.model_max_length) for tokenizer in tokenizers]
    try:
        for module, table, ids in before:
            stretched = stretch_positions(table.weight.detach(), length)
            module.position_embedding = nn.Embedding.from_pretrained(stretched)
            module.position_ids = torch.arange(length, device=ids.device)[None]
        for tokenizer, _ in limits:
            tokenizer.model_max_length = length
        yield
    finally:
        for module, table, ids in before:
            module.position_embedding, module.position_ids = table, ids
        for tokenizer, limit in limits:
            tokenizer.model_max_length = limit


def _check(pipe: Any, model: DualEncoder, alpha: float, padding: str) -> None:
    """Raise ValueError unless the settings exist and the pipeline has a CLIP-L that the model's features fit into."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be 0 (the pipeline's own) to 1 (the model's features), got {alpha}")
    if padding not in PADDING:
        raise ValueError(unknown("padding", padding, list(PADDING)))
    if getattr(pipe, "text_encoder", None) is None or getattr(pipe, "text_encoder_2", None) is None:
        raise ValueError(f"the pipeline must have SDXL's two text encoders, {type(pipe).__name__} lacks one")
    width, tower = int(pipe.text_encoder.config.hidden_size), model.text_tower
    if model.dim > width:
        raise ValueError(f"the model's features are {model.dim} wide, the pipeline's CLIP-L has {width} channels")
    if pipe.tokenizer.eos_token_id != tower.vocab_size - 1:
        raise ValueError(
            f"model and pipeline must share a vocabulary: the pipeline's end token is {pipe.tokenizer.eos_token_id}, "
            f"the model's {tower.vocab_size - 1}"
        )
    if tower.context_length < pipe.tokenizer.model_max_length:
        raise ValueError(
            f"the model reads at most {tower.context_length} tokens, the pipeline {pipe.tokenizer.model_max_length}"
        )


def _texts(what: str, texts: str | Sequence[str] | None, count: int) -> list[str] | None:
    """A list of ``count`` texts; a single one is repeated. Raises ValueError if there are more or fewer."""
    if texts is None:
        return None
    rows = [texts] * count if isinstance(texts, str) else list(texts)
    if len(rows) != count:
        raise ValueError(f"{what} must be one text or as many as there are prompts, {count}, got {len(rows)}")
    return rows


def _encode(pipe: Any, context: int, **texts: list[str] | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The pipeline's own conditioning; if a text is too long for it, at length ``context``."""
    usual = int(pipe.tokenizer.model_max_length)
    longest = _longest(pipe, [text for given in texts.values() for text in given or ()])
    stretched = longest > usual and context > usual
    with torch.no_grad(), stretched_positions(pipe, context) if stretched else nullcontext():
        encoded: tuple[Tensor, Tensor, Tensor, Tensor] = pipe.encode_prompt(**texts, do_classifier_free_guidance=True)
    return encoded


def _longest(pipe: Any, texts: Sequence[str]) -> int:
    """Most tokens, start and end included, that either tokenizer makes of a text."""
    rows = [
        row
        for tokenizer in (pipe.tokenizer, pipe.tokenizer_2)
        for row in tokenizer([pipe.maybe_convert_prompt(text, tokenizer) for text in texts], verbose=False).input_ids
    ]
    return max(len(row) for row in rows)


def _inject(
    pipe: Any, model: DualEncoder, texts: list[str], embeds: Tensor, *, alpha: float, padding: str, match_norm: bool
) -> Tensor:
    """``embeds`` ``(B, L, C)`` with the model's features of ``texts`` mixed into the first channels."""
    tokens = pipe.tokenizer(
        [pipe.maybe_convert_prompt(text, pipe.tokenizer) for text in texts],
        padding="max_length",
        max_length=embeds.shape[1],
        truncation=True,
        return_tensors="pt",
        verbose=False,
    ).input_ids
    strange = int(tokens.max())
    if strange >= model.text_tower.vocab_size:
        raise ValueError(
            f"the prompt holds {pipe.tokenizer.convert_ids_to_tokens(strange)!r}, which was added to the pipeline's "
            "vocabulary; the model does not know it"
        )
    ours, inside = prompt_features(model, tokens.to(model.pixel_mean.device), pipe.tokenizer.eos_token_id)
    exact = torch.promote_types(embeds.dtype, torch.float32)
    original = embeds[..., : model.dim].to(exact)
    ours = ours.to(original)
    if match_norm:
        ours = original.norm(dim=-1, keepdim=True) * nn.functional.normalize(ours, dim=-1)
    mixed = torch.lerp(original, ours, alpha)
    if padding == "original":
        mixed = torch.where(inside.to(mixed.device).unsqueeze(-1), mixed, original)
    return torch.cat([mixed.to(embeds.dtype), embeds[..., model.dim :]], dim=-1)
