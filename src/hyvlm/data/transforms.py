"""From a decoded image to uint8 pixels of the model's size: one fixed way for evaluation, random ones for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode

from hyvlm.config import check_types
from hyvlm.registry import Registry

#: An image transform: PIL RGB to uint8 ``(3, H, W)``. Random ones draw from torch's global generator.
Transform = Callable[[Image.Image], Tensor]

#: Augmentations by the name that a recipe gives under ``augment.name``; builders take ``image_size`` and the settings.
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


def train_transform(augment: Mapping[str, Any], image_size: int) -> Transform:
    """The random way from an image to pixels, as the recipe's ``augment`` section says: PIL RGB to uint8 ``(3, S, S)``.

    ===================  ==========================================================================================
    ``none``             squash to the size, nothing random
    ``crop``             random resized crop of ``scale`` = [0.5, 1.0] of the area, sides 3:4 to 4:3, bicubic
    ``crop_jitter_gray`` crop of [0.8, 1.0]; with p 0.8 colour jitter (brightness, contrast, saturation 0.4, hue 0.1);
                         with p 0.2 grey (UNCHA's released training)
    ===================  ==========================================================================================

    Every call draws anew from torch's global generator; :class:`hyvlm.data.views.TrainViews` seeds it by sample.

    Raises:
        ValueError: Unknown name or setting, or one of another type.
    """
    settings = {str(key): value for key, value in augment.items()}
    if "name" not in settings:
        raise ValueError(f"augment needs a name: {', '.join(AUGMENTATIONS)}")
    name = settings.pop("name")
    check_types(AUGMENTATIONS[name], settings, "data.augment")
    try:
        steps = AUGMENTATIONS[name](image_size, **settings)
    except TypeError as error:
        raise ValueError(f"augmentation {name!r} does not take these settings: {', '.join(settings)}") from error
    return v2.Compose([*steps, v2.PILToTensor()])


@AUGMENTATIONS.register("none")
def _none(image_size: int) -> list[torch.nn.Module]:
    return [v2.Resize([image_size, image_size], InterpolationMode.BICUBIC, antialias=True)]


@AUGMENTATIONS.register("crop")
def _crop(image_size: int, scale: tuple[float, float] = (0.5, 1.0)) -> list[torch.nn.Module]:
    low, high = scale
    if not 0 < low <= high <= 1:
        raise ValueError(f"scale of a crop is [low, high] shares of the area, 0 < low <= high <= 1, got {list(scale)}")
    return [v2.RandomResizedCrop(image_size, (low, high), interpolation=InterpolationMode.BICUBIC, antialias=True)]


@AUGMENTATIONS.register("crop_jitter_gray")
def _crop_jitter_gray(image_size: int, scale: tuple[float, float] = (0.8, 1.0)) -> list[torch.nn.Module]:
    jitter = v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    return [*_crop(image_size, scale), v2.RandomApply([jitter], p=0.8), v2.RandomGrayscale(p=0.2)]


def _bound_aspect(image: Image.Image) -> Image.Image:
    longest = MAX_ASPECT * min(image.size)
    if max(image.size) <= longest:
        return image
    width, height = min(image.width, longest), min(image.height, longest)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
