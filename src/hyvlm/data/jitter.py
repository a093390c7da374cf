"""Colour jitter of uint8 images: torchvision's draws and formulas, in one pass through float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2

#: Shares of red, green and blue in grey, as torchvision has them (ITU-R BT.601).
GREY = (0.2989, 0.587, 0.114)
_HUGE = 1e30


class FastColorJitter(v2.ColorJitter):
    """As :class:`torchvision.transforms.v2.ColorJitter`, with the same draws, of uint8 ``(3, H, W)``.

    The result is that of torchvision on float images, rounded once at the end; torchvision rounds uint8 images at
    every step, and goes through an 8-bit HSV for PIL's.
    """

    def forward(self, pixels: Tensor) -> Tensor:
        """Draw, and change the colours."""
        return self.transform(pixels, self.make_params([]))

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:
        """Change the colours as the parameters say that :class:`torchvision.transforms.v2.ColorJitter` draws."""
        pixels = inpt.to(torch.float32, memory_format=torch.contiguous_format)
        for step in params["fn_idx"].tolist():
            factor = params[("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")[step]]
            if factor is not None:
                (_brightness, _contrast, _saturation, _hue)[step](pixels, factor)
        return torch.from_numpy(pixels.round_().numpy().astype(np.uint8))  # four times as fast as torch's conversion


def _brightness(x: Tensor, factor: float) -> None:
    x.mul_(factor).clamp_(0, 255)


def _contrast(x: Tensor, factor: float) -> None:
    mean = sum(share * mean for share, mean in zip(GREY, x.mean((1, 2)).tolist(), strict=True))
    x.mul_(factor).add_((1 - factor) * mean).clamp_(0, 255)


def _saturation(x: Tensor, factor: float) -> None:
    red, green, blue = x
    grey = (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])
    for plane in (red, green, blue):
        plane.mul_(factor).add_(grey, alpha=1 - factor).clamp_(0, 255)


def _hue(x: Tensor, factor: float) -> None:
    """Turn the hue by ``factor`` of the circle; the largest and the smallest of the three colours stay.

    Torch's comparisons and ``where`` cost ten times a multiplication here, so that the sector is chosen by numbers that
    are 0 or 1: which colour is the smallest says which third of the circle the hue lies in.
    """
    red, green, blue = x
    high = torch.maximum(red, green)
    high = torch.maximum(high, blue, out=high)
    low = torch.minimum(red, green)
    low = torch.minimum(low, blue, out=low)
    spread = high.sub_(low)
    blue_above = (blue - low).mul_(_HUGE).clamp_(0, 1)
    red_above = (red - low).mul_(_HUGE).clamp_(0, 1)
    from_red = green - red  # hue 0 to 2 (of 6): blue is the smallest
    from_green = (blue - green).add_(spread, alpha=2)  # 2 to 4: red is
    from_blue = (red - blue).add_(spread, alpha=4)  # 4 to 6: green is
    angle = torch.lerp(from_red, torch.lerp(from_green, from_blue, red_above, out=from_green), blue_above)
    angle.div_(spread.clamp(min=1e-6)).add_(1 + 6 * (factor % 1))
    angle.sub_((angle * (1 / 6)).floor_(), alpha=6)
    torch.sub(angle, 3, out=red).abs_().sub_(1)
    torch.sub(angle, 2, out=green).abs_().neg_().add_(2)
    torch.sub(angle, 4, out=blue).abs_().neg_().add_(2)
    for plane in (red, green, blue):
        plane.clamp_(0, 1).mul_(spread).add_(low)
