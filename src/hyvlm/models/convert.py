"""Weights of other projects: how their keys are called here. A table per source, and nothing taken silently."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class KeyMap:
    """What becomes of each key of a source's state dict.

    An entry that ends in a dot stands for all keys below it; a ``*``, at most one, for the number of a block.

    Args:
        rename: Source name to name in a :class:`hyvlm.models.DualEncoder`.
        drop: Source name to the reason why it has no place in a model.
        change: Source name (a key of ``rename``) to what its tensors need to have our shape.
    """

    rename: Mapping[str, str]
    drop: Mapping[str, str] = field(default_factory=dict)
    change: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same tensors under our names. Raises ValueError for a key that the table does not know."""
        converted = {}
        for key, value in weights.items():
            entry = next((e for e in (*self.rename, *self.drop) if match(e, key)), None)
            if entry is None:
                raise ValueError(f"unknown key '{key}': these weights are not of the source that the key table is for")
            if entry in self.rename:
                number, below = match(entry, key) or ("", "")
                value = self.change[entry](value) if entry in self.change else value
                converted[self.rename[entry].replace("*", number) + below] = value
        return converted


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

_BLOCK = "visual.transformer.resblocks.*"

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
