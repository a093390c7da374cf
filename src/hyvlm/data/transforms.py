"""From a decoded image to uint8 pixels of the model's size: one fixed way for evaluation, random ones for training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode

from hyvlm.config import DECODE_CHOICES, check_types
from hyvlm.data.images import JpegOnDemand
from hyvlm.data.jitter import FastColorJitter
from hyvlm.registry import Registry, unknown

#: An image transform: PIL RGB to uint8 ``(3, H, W)``. Random ones draw from torch's global generator.
Transform = Callable[[Image.Image], Tensor]

#: Augmentations by the name that a recipe gives under ``augment.name``; builders take ``image_size`` and the settings,
#: and give modules, the first of which is called with a PIL image.
AUGMENTATIONS: Registry[Callable[..., list[torch.nn.Module]]] = Registry("augmentation")

#: A thinner image is cut to this ratio of its sides, about its centre, before its short side is scaled up.
MAX_ASPECT = 16


class EvalTransform:
    """See :func:`eval_transform`."""

    def __init__(self, image_size: int, resize: str = "squash") -> None:
        if resize not in ("squash", "crop"):
            raise ValueError(f"resize is 'squash' or 'crop', got {resize!r}")
        self.image_size, self.resize = image_size, resize
        size = [image_size, image_size] if resize == "squash" else [image_size]
        self.steps = v2.Compose(
            [v2.Resize(size, InterpolationMode.BICUBIC, antialias=True), v2.CenterCrop(image_size), v2.PILToTensor()]
        )

    def __call__(self, image: Image.Image) -> Tensor:
        if self.resize == "crop":
            image = _bound_aspect(image)
        return self.steps(image.convert("RGB"))

    def __repr__(self) -> str:
        return f"eval_transform(image_size={self.image_size}, resize={self.resize!r})"


def eval_transform(image_size: int, resize: str = "squash") -> EvalTransform:
    """The fixed way from an image to pixels: bicubic with antialiasing, PIL RGB to uint8 ``(3, S, S)``.

    Args:
        image_size: ``S``.
        resize: "squash" scales both sides to ``S`` (retrieval in the released evaluations); "crop" scales the short
            side to ``S`` and cuts the centre (classification). With "crop" an image more than 16 times as long as wide
            first loses its ends, so that scaling it up stays bounded.
    Raises:
        ValueError: Unknown ``resize``.
    """
    return EvalTransform(image_size, resize)


@dataclass(frozen=True)
class Cut:
    """A box of an image that will be ``size`` x ``size`` pixels; an image that is decoded on demand still is not."""

    image: Image.Image
    box: tuple[int, int, int, int]
    size: int

    def pixels(self) -> Tensor:
        """uint8 ``(3, size, size)``, bicubic with antialiasing. Raises :class:`hyvlm.types.BadSample`."""
        cut = self.image.cut if isinstance(self.image, JpegOnDemand) else self.image.crop
        pixels = torch.from_numpy(np.array(cut(self.box))).permute(2, 0, 1)
        # torch's kernel for bytes is many times as fast as PIL's; values differ by 1 in one pixel of 200
        return v2.functional.resize_image(pixels, [self.size, self.size], InterpolationMode.BICUBIC, antialias=True)


#: A training view of an image after all that can be done without its pixels.
Begun = Image.Image | Cut


def random_box(width: int, height: int, scale: tuple[float, float]) -> tuple[int, int, int, int]:
    """A box of an image with a share of its area in ``scale`` and sides from 3:4 to 4:3, all its choices even.

    The distribution of torchvision's RandomResizedCrop (Szegedy et al. 2015), drawn in two calls: ten tries for the
    sides, and the largest box about the centre if none fits.
    """
    low, high = math.log(3 / 4), math.log(4 / 3)
    for share, shape in torch.rand(10, 2).tolist():
        area = width * height * (scale[0] + share * (scale[1] - scale[0]))
        aspect = math.exp(low + shape * (high - low))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            x, y = torch.rand(2).tolist()
            left, top = int(x * (width - across + 1)), int(y * (height - down + 1))
            return left, top, left + across, top + down
    across, down = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down


class CutOut(torch.nn.Module):
    """The whole image, or a random box of it, at the size of the model: PIL RGB to uint8 ``(3, S, S)``.

    Args:
        size: ``S``.
        scale: See :func:`random_box`; None takes the whole image.
    """

    def __init__(self, size: int, scale: tuple[float, float] | None = None) -> None:
        super().__init__()
        self.size, self.scale, self.scaled = size, scale, True

    def begin(self, image: Image.Image) -> Cut:
        """Draw the box and tell the image."""
        box = (0, 0, *image.size) if self.scale is None else random_box(*image.size, self.scale)
        if isinstance(image, JpegOnDemand):
            image.expect(box, self.size, scaled=self.scaled)
        return Cut(image, box, self.size)

    def forward(self, image: Image.Image) -> Tensor:
        """Raises :class:`hyvlm.types.BadSample`."""
        return self.begin(image).pixels()


class TrainTransform:
    """See :func:`train_transform`.

    Several views of one file are cheaper in two steps, :meth:`begin` for all and then :meth:`finish` for all: so it is
    decoded once, as finely as the most demanding of them needs.
    """

    def __init__(self, steps: Sequence[torch.nn.Module], decode: str) -> None:
        first = steps[0] if steps else None
        self.cut_out = first if isinstance(first, CutOut) else None
        if self.cut_out is not None:
            self.cut_out.scaled = decode == "scaled"
        self.rest = [*(steps if self.cut_out is None else steps[1:]), v2.PILToTensor()]

    def begin(self, image: Image.Image) -> Begun:
        """What can be done without pixels."""
        return image if self.cut_out is None else self.cut_out.begin(image)

    def finish(self, begun: Begun) -> Tensor:
        """The pixels. Raises :class:`hyvlm.types.BadSample`."""
        pixels: Any = begun.pixels() if isinstance(begun, Cut) else begun
        for step in self.rest:
            pixels = step(pixels)
        return pixels

    def __call__(self, image: Image.Image) -> Tensor:
        return self.finish(self.begin(image))


def train_transform(augment: Mapping[str, Any], image_size: int, *, decode: str = "scaled") -> TrainTransform:
    """The random way from an image to pixels, as the recipe's ``augment`` section says: PIL RGB to uint8 ``(3, S, S)``.

    ===================  ==========================================================================================
    ``none``             squash to the size, nothing random
    ``crop``             random resized crop of ``scale`` = [0.5, 1.0] of the area, sides 3:4 to 4:3, bicubic
    ``crop_jitter_gray`` crop of [0.8, 1.0]; with p 0.8 colour jitter (brightness, contrast, saturation 0.4, hue 0.1);
                         with p 0.2 grey (UNCHA's released training)
    ===================  ==========================================================================================

    Every call draws anew from torch's global generator; :class:`hyvlm.data.views.TrainViews` seeds it by sample.

    Args:
        decode: Of images that are decoded on demand: "scaled", at the smallest fraction of their size that leaves a
            crop as many pixels as it is resized to, or "full".

    Raises:
        ValueError: Unknown name or setting, or one of another type.
    """
    if decode not in DECODE_CHOICES:
        raise ValueError(unknown("way to decode", decode, list(DECODE_CHOICES)))
    settings = {str(key): value for key, value in augment.items()}
    if "name" not in settings:
        raise ValueError(f"augment needs a name: {', '.join(AUGMENTATIONS)}")
    name = settings.pop("name")
    check_types(AUGMENTATIONS[name], settings, "data.augment")
    try:
        steps = AUGMENTATIONS[name](image_size, **settings)
    except TypeError as error:
        raise ValueError(f"augmentation {name!r} does not take these settings: {', '.join(settings)}") from error
    return TrainTransform(steps, decode)


@AUGMENTATIONS.register("none")
def _none(image_size: int) -> list[torch.nn.Module]:
    return [CutOut(image_size)]


@AUGMENTATIONS.register("crop")
def _crop(image_size: int, scale: tuple[float, float] = (0.5, 1.0)) -> list[torch.nn.Module]:
    low, high = scale
    if not 0 < low <= high <= 1:
        raise ValueError(f"scale of a crop is [low, high] shares of the area, 0 < low <= high <= 1, got {list(scale)}")
    return [CutOut(image_size, (low, high))]


@AUGMENTATIONS.register("crop_jitter_gray")
def _crop_jitter_gray(image_size: int, scale: tuple[float, float] = (0.8, 1.0)) -> list[torch.nn.Module]:
    jitter = FastColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    return [*_crop(image_size, scale), v2.RandomApply([jitter], p=0.8), v2.RandomGrayscale(p=0.2)]


def _bound_aspect(image: Image.Image) -> Image.Image:
    longest = MAX_ASPECT * min(image.size)
    if max(image.size) <= longest:
        return image
    width, height = min(image.width, longest), min(image.height, longest)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
