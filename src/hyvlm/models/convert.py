"""Weights of other projects: how their keys are called here. A table per source, and nothing taken silently."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

#: Names that a message lists at the most.
LISTED = 6


@dataclass(frozen=True, kw_only=True)
class KeyMap:
    """What becomes of each key of a source's state dict.

    An entry that ends in a dot stands for all keys below it; a ``*``, at most one, for the number of a block.

    Args:
        rename: Source name to name in a :class:`hyvlm.models.DualEncoder`.
        drop: Source name to the reason why it has no place in a model.
        change: Source name (a key of ``rename``) to what its tensors need to have our shape.
        prepare: What joins tensors that are one here, before any other step: names and tensors of the source in and
            out.
    """

    rename: Mapping[str, str]
    drop: Mapping[str, str] = field(default_factory=dict)
    change: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    prepare: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict

    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same tensors under our names. Raises ValueError that lists the keys that the table does not know."""
        converted, strange = self.split(weights)
        if strange:
            raise ValueError(
                f"unknown key {listed(strange)}: these weights are not of the source that the key table is for"
            )
        return converted

    def split(self, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """The tensors under our names, and the keys that the table does not know."""
        converted, strange = {}, []
        for key, value in self.prepare(weights).items():
            entry = self._entry(key)
            if entry is None:
                strange.append(key)
            elif entry in self.rename:
                number, below = match(entry, key) or ("", "")
                value = self.change[entry](value) if entry in self.change else value
                converted[self.rename[entry].replace("*", number) + below] = value
        return converted, strange

    def dropped(self, weights: Mapping[str, Tensor]) -> dict[str, str]:
        """The entries of ``drop`` that occur in ``weights``, with their reasons."""
        found = {self._entry(key) for key in self.prepare(weights)}
        return {entry: reason for entry, reason in self.drop.items() if entry in found}

    def source_name(self, key: str) -> str:
        """What the source calls our ``key``; ``key`` itself if it has no name for it."""
        for entry, ours in self.rename.items():
            found = match(ours, key)
            if found:
                return entry.replace("*", found[0]) + found[1]
        return key

    def _entry(self, key: str) -> str | None:
        return next((entry for entry in (*self.rename, *self.drop) if match(entry, key)), None)


def listed(names: Iterable[str]) -> str:
    """Names in quotes for one line of text, of many the first few and how many more there are."""
    names = list(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(f"'{name}'" for name in names[:LISTED]) + more


def match(entry: str, key: str) -> tuple[str, str] | None:
    """The block number and the rest of ``key`` below ``entry``, "" where it has none; None if it is another key."""
    pattern = re.escape(entry).replace(r"\*", r"(?P<number>\d+)") + ("(?P<below>.+)" if entry.endswith(".") else "")
    found = re.fullmatch(pattern, key)
    return (found.groupdict().get("number", ""), found.groupdict().get("below", "")) if found else None


def check_state_dict(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError that names the first difference if ``weights``, read from ``source``, do not fit ``model``."""
    expected = model.state_dict()
    for key, value in expected.items():
        if key not in weights:
            raise ValueError(f"{source} lacks '{key}', which the configuration needs with shape {tuple(value.shape)}")
        if weights[key].shape != value.shape:
            found, wanted = tuple(weights[key].shape), tuple(value.shape)
            raise ValueError(f"{source} has '{key}' with shape {found}, but the configuration needs {wanted}")
    surplus = [key for key in weights if key not in expected]
    if surplus:
        raise ValueError(f"{source} has '{surplus[0]}' ({len(surplus)} such keys), for which the model has no place")


_TOWERS = {
    "visual.": "image_tower.",
    "visual_proj.": "image_projection.",
    "textual.token_embed.": "text_tower.token_embedding.",
    "textual.posit_embed": "text_tower.positional_embedding",
    "textual.resblocks.": "text_tower.transformer.resblocks.",
    "textual.ln_final.": "text_tower.ln_final.",
    "textual_proj.": "text_projection.",
    # Released HyCoCLIP and UNCHA files hold unusual pixel statistics, and were trained with them.
    "pixel_mean": "pixel_mean",
    "pixel_std": "pixel_std",
}
_LIFT = {"curv": "manifold.log_c", "visual_alpha": "image_log_scale", "textual_alpha": "text_log_scale"}
_UNUSED = {
    "textual.attn_mask": "the causal mask is built with the tower",
    "logit_scale": "a temperature belongs to the objective",
}

#: A projection scale is at most 1, and Hyper3-CLIP's curvature 0.1 to 10, where the released code reads them.
_AT_MOST_1 = {key: lambda log: log.clamp(max=0.0) for key in ("visual_alpha", "textual_alpha")}
_BLOCK = "visual.transformer.resblocks.*"
_HYPER3_TEXT = "text_encoder.backbone."
_HYPER3_LAYER = f"{_HYPER3_TEXT}encoder.layers.*"
_TEXT_LAYER = "text_tower.transformer.resblocks.*"


def _stack_factors(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """PHyCLIP's scalars of each factor, ``curvs.0``, ``curvs.1`` ..., as one vector ``curvs``."""
    joined = dict(weights)
    for name in ("curvs", "visual_concept_alphas", "textual_concept_alphas"):
        keys = [f"{name}.{i}" for i in range(sum(key.startswith(f"{name}.") for key in weights))]
        if keys and all(key in weights and not weights[key].ndim for key in keys):  # else they stay, as unknown keys
            joined[name] = torch.stack([joined.pop(key) for key in keys])
    return joined


def _join_attention(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Query, key and value projections of Hugging Face's CLIP text tower as one tensor each of weights and biases.

    The segment ``text_model.``, which transformers 4 writes and 5 does not, is left out.
    """
    plain = {key.replace(f"{_HYPER3_TEXT}text_model.", _HYPER3_TEXT): value for key, value in weights.items()}
    for key in list(plain):
        found = re.fullmatch(r"(.+\.self_attn\.)q_proj\.(weight|bias)", key)
        parts = [f"{found[1]}{part}_proj.{found[2]}" for part in "qkv"] if found else []
        if found and all(part in plain and plain[part].shape == plain[key].shape for part in parts):
            plain[f"{found[1]}in_proj_{found[2]}"] = torch.cat([plain.pop(part) for part in parts])
    return plain


KEY_MAPS: dict[str, KeyMap] = {
    "clip": KeyMap(rename=_TOWERS, drop=_UNUSED),
    "meru": KeyMap(rename=_TOWERS | _LIFT, drop=_UNUSED),
    "hycoclip": KeyMap(rename=_TOWERS | _LIFT, drop=_UNUSED),
    "uncha": KeyMap(
        rename=_TOWERS | _LIFT,
        drop={
            **_UNUSED,
            "global_logit_scale": "a temperature belongs to the objective",
            "global_local_logit_scale": "a temperature belongs to the objective",
            "local_logit_scale": "a temperature belongs to the objective",
            "textual.min_radius_head.": "the released code never calls it",
        },
    ),
    "phyclip": KeyMap(
        rename=_TOWERS
        | {
            "curvs": "manifold.factor.log_c",
            "visual_concept_alphas": "image_log_scale",
            "textual_concept_alphas": "text_log_scale",
        },
        drop=_UNUSED | dict.fromkeys(_LIFT, "unused: every factor has its own"),
        prepare=_stack_factors,
    ),
    "hyper3": KeyMap(
        rename={
            "vision_encoder.backbone.": "image_tower.",
            f"{_HYPER3_TEXT}embeddings.token_embedding.": "text_tower.token_embedding.",
            f"{_HYPER3_TEXT}embeddings.position_embedding.weight": "text_tower.positional_embedding",
            f"{_HYPER3_LAYER}.layer_norm1.": f"{_TEXT_LAYER}.ln_1.",
            f"{_HYPER3_LAYER}.self_attn.in_proj_weight": f"{_TEXT_LAYER}.attn.in_proj_weight",
            f"{_HYPER3_LAYER}.self_attn.in_proj_bias": f"{_TEXT_LAYER}.attn.in_proj_bias",
            f"{_HYPER3_LAYER}.self_attn.out_proj.": f"{_TEXT_LAYER}.attn.out_proj.",
            f"{_HYPER3_LAYER}.layer_norm2.": f"{_TEXT_LAYER}.ln_2.",
            f"{_HYPER3_LAYER}.mlp.fc1.": f"{_TEXT_LAYER}.mlp.c_fc.",
            f"{_HYPER3_LAYER}.mlp.fc2.": f"{_TEXT_LAYER}.mlp.c_proj.",
            f"{_HYPER3_TEXT}final_layer_norm.": "text_tower.ln_final.",
            "image_proj.": "image_projection.",
            "text_proj.": "text_projection.",
            "log_curv": "manifold.log_c",
            "visual_alpha": "image_log_scale",
            "textual_alpha": "text_log_scale",
        },
        drop={
            f"{_HYPER3_TEXT}embeddings.position_ids": "0, 1, 2, ...",
            "query_pooling.": "belongs to the objective",
            "logit_scale": "a temperature belongs to the objective",
            "global_logit_scale": "a temperature belongs to the objective",
            "global_local_logit_scale": "a temperature belongs to the objective",
            "local_logit_scale": "a temperature belongs to the objective",
        },
        change=_AT_MOST_1 | {"log_curv": lambda log: log.clamp(math.log(0.1), math.log(10.0))},
        prepare=_join_attention,
    ),
    # The state dict of open_clip's own model, with the text tower under "text." as in its CustomTextCLIP.
    "open_clip": KeyMap(
        rename={
            "visual.class_embedding": "image_tower.cls_token",
            "visual.positional_embedding": "image_tower.pos_embed",
            "visual.conv1.": "image_tower.patch_embed.proj.",
            "visual.ln_pre.": "image_tower.norm_pre.",
            f"{_BLOCK}.ln_1.": "image_tower.blocks.*.norm1.",
            f"{_BLOCK}.attn.in_proj_weight": "image_tower.blocks.*.attn.qkv.weight",
            f"{_BLOCK}.attn.in_proj_bias": "image_tower.blocks.*.attn.qkv.bias",
            f"{_BLOCK}.attn.out_proj.": "image_tower.blocks.*.attn.proj.",
            f"{_BLOCK}.ln_2.": "image_tower.blocks.*.norm2.",
            f"{_BLOCK}.mlp.c_fc.": "image_tower.blocks.*.mlp.fc1.",
            f"{_BLOCK}.mlp.c_proj.": "image_tower.blocks.*.mlp.fc2.",
            "visual.ln_post.": "image_tower.norm.",
            "visual.proj": "image_projection.weight",
            "text.token_embedding.": "text_tower.token_embedding.",
            "text.positional_embedding": "text_tower.positional_embedding",
            "text.transformer.resblocks.": "text_tower.transformer.resblocks.",
            "text.ln_final.": "text_tower.ln_final.",
            "text.text_projection": "text_projection.weight",
        },
        drop={"logit_scale": "a temperature belongs to the objective"},
        change={
            "visual.class_embedding": lambda row: row.view(1, 1, -1),
            "visual.positional_embedding": lambda table: table.unsqueeze(0),
            "visual.proj": lambda matrix: matrix.T,
            "text.text_projection": lambda matrix: matrix.T,
        },
    ),
}
