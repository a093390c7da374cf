"""Weights of other projects: how their keys are called here. A table per source, and nothing taken silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class KeyMap:
    """What becomes of each key of a source's state dict. An entry that ends in a dot stands for all keys below it.

    Args:
        rename: Source name to name in a :class:`hyvlm.models.DualEncoder`.
        drop: Source name to the reason why it has no place in a model.
    """

    rename: Mapping[str, str]
    drop: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same tensors under our names. Raises ValueError for a key that the table does not know."""
        converted = {}
        for key, value in weights.items():
            entry = next(
                (e for e in (*self.rename, *self.drop) if key == e or (e[-1] == "." and key.startswith(e))), None
            )
            if entry is None:
                raise ValueError(f"unknown key '{key}': these weights are not of the source that the key table is for")
            if entry in self.rename:
                converted[self.rename[entry] + key.removeprefix(entry)] = value
        return converted


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
}
