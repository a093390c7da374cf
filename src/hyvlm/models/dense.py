"""Features of every patch for segmentation without training: the last block attends to neighbours, as in NACLIP."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from hyvlm.models.dual_encoder import DualEncoder
from hyvlm.models.towers import ImageTower

#: Width of the Gaussian, in patches, that NACLIP uses throughout.
GAUSSIAN_STD = 5.0


def neighbour_bias(grid: tuple[int, int], std: float) -> Tensor:
    """What is added to the attention logits of a class token and ``rows * columns`` patches, ``(1 + T, 1 + T)``.

    ``exp(-d^2 / (2 std^2))`` between patches at a distance of ``d`` patches; 0 from and to the class token.
    """
    places = [torch.arange(n, dtype=torch.float64) for n in grid]
    by_axis = [(at[:, None] - at).square() for at in places]
    squares = by_axis[0][:, None, :, None] + by_axis[1][None, :, None, :]
    near = torch.exp(-squares / (2 * std**2)).reshape(grid[0] * grid[1], -1)
    return pad(near, (1, 0, 1, 0))


def dense_tokens(tower: ImageTower, pixels: Tensor, *, gaussian_std: float | None = GAUSSIAN_STD) -> Tensor:
    """Outputs of the patches after the final norm, ``(B, rows * columns, width)``, of normalised pixels.

    All blocks but the last are as they are. The last is its attention alone, without the residual and the MLP, and
    its logits are ``k k^T / sqrt(d)`` plus :func:`neighbour_bias`.
    """
    embedded = tower.patch_embed(pixels)  # (B, rows, columns, width)
    x = tower.norm_pre(tower._pos_embed(embedded))
    *blocks, last = tower.blocks
    for block in blocks:
        x = block(x)
    attention = last.attn
    qkv = attention.qkv(last.norm1(x)).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    key, value = attention.k_norm(qkv[1]), qkv[2]
    bias = None
    if gaussian_std is not None:
        bias = neighbour_bias((embedded.shape[1], embedded.shape[2]), gaussian_std).to(key)
    mixed = scaled_dot_product_attention(key, key, value, attn_mask=bias, scale=attention.scale)
    return cast(Tensor, tower.norm(attention.proj(mixed.transpose(1, 2).flatten(2))[:, 1:]))


def dense_image_features(model: DualEncoder, pixels: Tensor, *, gaussian_std: float | None = GAUSSIAN_STD) -> Tensor:
    """Tangent vectors of the patches before scaling, ``(B, rows * columns, D)``, row by row.

    They are comparable with text features, as the image's own are; ``model.lift_image`` makes them points.

    Args:
        pixels: As of :meth:`DualEncoder.image_features`; positions are interpolated where H and W are not the model's.
        gaussian_std: Width of the Gaussian that favours near patches, in patches; None leaves the Gaussian out.
    Raises:
        TypeError, ValueError: As :meth:`DualEncoder.image_features`; or the width is not positive.
    Source: Hajimiri et al., Pay Attention to Your Neighbours (NACLIP), WACV 2025.
    """
    if gaussian_std is not None and not gaussian_std > 0:
        raise ValueError(f"gaussian_std is a width in patches and must be positive, got {gaussian_std}")
    normalised = model._normalised(pixels)
    return cast(Tensor, model.image_projection(dense_tokens(model.image_tower, normalised, gaussian_std=gaussian_std)))
