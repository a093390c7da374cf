"""Models inside programs that were written for scikit-learn, or for CLIP as the transformers library has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from torch import Tensor, nn

from hyvlm.data.images import load_image
from hyvlm.evaluation.embed import evaluation_mode, progress
from hyvlm.geometry import Modality, Sphere
from hyvlm.models import DualEncoder, Tokenizer, load
from hyvlm.models.hub import WEIGHTS
from hyvlm.models.pretrained import own_folder
from hyvlm.registry import unknown
from hyvlm.types import BadSample

Loaded = tuple[DualEncoder, Callable[[Image.Image], Tensor], Tokenizer]


class TangentFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Images or texts to vectors, for scikit-learn's pipelines.

    The vectors are those of the tangent space at the origin, ``logmap0`` of the points: linear models, scalers and PCA
    assume flat space, where points of a hyperbolic model do not lie. Norm and direction are distance and direction
    from the origin. On the sphere, which has no origin, they are the unit vectors. Distances between them are *not*
    the model's; to rank, use its ``score`` on points.

    Norms are near 1 or below: let a scaler follow. The model is loaded when it is first needed and shared by all
    copies in a process, so that clones, grid searches and pickles carry parameters alone.

    Args:
        model: What :func:`hyvlm.load` takes.
        modality: "image": X holds PIL images or paths of files. "text": X holds texts.
        device: Where the model runs.
        batch_size: Images, or texts, at a time; changes no result beyond rounding.
    """

    def __init__(
        self, model: str | Path, *, modality: Modality = "image", device: str = "cpu", batch_size: int = 64
    ) -> None:
        self.model = model
        self.modality = modality
        self.device = device
        self.batch_size = batch_size

    def fit(self, X: Sequence[Any], y: object = None) -> TangentFeatures:
        """Nothing is learned; the settings are checked.

        Raises:
            ValueError: A setting is out of its range.
        """
        if self.modality not in ("image", "text"):
            raise ValueError(unknown("modality", str(self.modality), ["image", "text"]))
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {self.batch_size}")
        return self

    def transform(self, X: Sequence[Any]) -> NDArray[np.float32]:
        """Vectors ``(N, D)`` of the images, or texts, in ``X``.

        Raises:
            ValueError: ``X`` holds something else, an image cannot be read, or a vector is not finite; says which.
        """
        self.fit(X)
        if isinstance(X, str | bytes | Path | Image.Image):
            raise ValueError(f"X must be a sequence of {self.modality}s, got one {type(X).__name__}")
        model, preprocess, tokenizer = self._loaded()
        rows = []
        with evaluation_mode(model):
            starts = range(0, len(X), self.batch_size)
            for start in progress(starts, f"{self.modality}s", "batch"):
                some = [X[i] for i in range(start, min(start + self.batch_size, len(X)))]
                if self.modality == "image":
                    opened = [_open(item, start + i) for i, item in enumerate(some)]
                    pixels = torch.stack([preprocess(image) for image in opened])
                    points = model.encode_image(pixels.to(self.device))
                else:
                    texts = [_text(item, start + i) for i, item in enumerate(some)]
                    points = model.encode_text(tokenizer(texts).to(self.device))
                rows.append(tangent(model, points).cpu())
        vectors = torch.cat(rows) if rows else torch.empty(0, model.dim)
        bad = (~vectors.isfinite().all(-1)).nonzero().flatten().tolist()
        if bad:
            raise ValueError(f"{len(bad)} of {len(vectors)} vectors are not finite, the first in place {bad[0]}")
        return cast(NDArray[np.float32], vectors.float().numpy())

    def _loaded(self) -> Loaded:
        folder = own_folder(self.model)
        return _load(str(self.model), self.device, (folder / WEIGHTS).stat().st_mtime_ns if folder else 0)

    @property
    def _n_features_out(self) -> int:
        return self._loaded()[0].dim

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = self.modality == "text"
        return tags


def tangent(model: DualEncoder, points: Tensor) -> Tensor:
    """Points ``(..., D)`` as vectors of flat space: ``logmap0``; on the sphere, which has none, the points."""
    if isinstance(model.manifold, Sphere):
        return points
    return cast(Tensor, model.manifold.logmap0(points))  # type: ignore[operator]


class Named(dict[str, Any]):
    """A dictionary whose values are attributes as well, and places: the transformers library's way to hand over."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: str | int) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)

    def to(self, device: torch.device | str) -> Named:
        """The tensors on another device."""
        return Named({key: value.to(device) for key, value in self.items()})


class Processor:
    """Images and texts to a model's inputs, called as ``transformers.CLIPProcessor`` is.

    Pixels are uint8 in 0..255, since models here normalise themselves; texts that are too long are cut, and ids are
    0-padded (``CLIPProcessor`` pads with the end token, which models here need only once).
    """

    def __init__(self, preprocess: Callable[[Image.Image], Tensor], tokenizer: Tokenizer) -> None:
        self.preprocess, self.tokenizer = preprocess, tokenizer

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Processor:
        """That of the model that :func:`hyvlm.load` makes of ``path``."""
        return cls(*load(path)[1:])

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        images: Any = None,
        *,
        return_tensors: str = "pt",
        padding: bool | str = True,
        truncation: bool = True,
    ) -> Named:
        """``input_ids`` and ``attention_mask`` ``(N, L)``, and ``pixel_values`` ``(B, 3, S, S)``, of what is given.

        Args:
            images: One or several: PIL images, paths of files, arrays uint8 ``(H, W, 3)``.
            return_tensors: "pt" for torch, "np" for numpy.
            padding: True or "longest" to the longest text, "max_length" to the context length.
            truncation: Whether a text that is too long is cut; else it is an error.
        Raises:
            ValueError: Nothing, or something else, is given; an image cannot be read; an unknown setting.
        """
        if return_tensors not in ("pt", "np"):
            raise ValueError(f"return_tensors is 'pt' or 'np', got {return_tensors!r}")
        if padding not in (True, "longest", "max_length"):
            raise ValueError(f"padding is True, 'longest' or 'max_length', got {padding!r}")
        if text is None and images is None:
            raise ValueError("give text, images or both")
        found = Named()
        if text is not None:
            texts = [text] if isinstance(text, str) else list(text)
            ids = self.tokenizer(texts)
            lengths = [min(len(self.tokenizer.ids(t)), ids.shape[1]) for t in texts]
            for place, one in enumerate(texts):
                if not truncation and len(self.tokenizer.ids(one)) > ids.shape[1]:
                    raise ValueError(f"the text in place {place} is longer than the context of {ids.shape[1]} tokens")
            mask = (torch.arange(ids.shape[1]) < torch.tensor(lengths).reshape(-1, 1)).long()
            longest = ids.shape[1] if padding == "max_length" else max(lengths, default=1)
            found |= {"input_ids": ids[:, :longest], "attention_mask": mask[:, :longest]}
        if images is not None:
            several = images if isinstance(images, list | tuple) else [images]
            pixels = [self.preprocess(_open(image, place)) for place, image in enumerate(several)]
            if not pixels:
                raise ValueError("images is empty")
            found["pixel_values"] = torch.stack(pixels)
        return found if return_tensors == "pt" else Named({key: value.numpy() for key, value in found.items()})


class Model(nn.Module):
    """A model with the methods of ``transformers.CLIPModel``.

    ``image_embeds``, ``text_embeds`` and the features are *points*, and not normalised: compare them with the logits
    or :meth:`DualEncoder.score`, never by their cosine.

    Args:
        encoder: The model.
        logit_scale: Factor of the logits: one over the temperature, which is a matter of the softmax and not of
            ranking. The objective learns it; a model's files do not hold it. 100 is where CLIP's ends.
    """

    def __init__(self, encoder: DualEncoder, *, logit_scale: float = 100.0) -> None:
        super().__init__()
        self.encoder, self.logit_scale = encoder, logit_scale

    @classmethod
    def from_pretrained(cls, path: str | Path, *, logit_scale: float = 100.0) -> Model:
        """That which :func:`hyvlm.load` makes of ``path``, in eval mode on the CPU."""
        return cls(load(path)[0], logit_scale=logit_scale).eval()

    @property
    def device(self) -> torch.device:
        return self.encoder.pixel_mean.device

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        """Points ``(B, D)``."""
        return self.encoder.encode_image(pixel_values)

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Points ``(N, D)``. The mask is taken because processors give one; ids show where a text ends."""
        return self.encoder.encode_text(input_ids)

    def forward(self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Tensor | None = None) -> Named:
        """``logits_per_image`` ``(B, N)``, ``logits_per_text`` ``(N, B)``, ``text_embeds``, ``image_embeds``.

        Logits are ``logit_scale`` times what the contrast compares: minus the distance, the cosine, or the angle; for
        a model with published read-out, times its score.
        """
        images = self.get_image_features(pixel_values)
        texts = self.get_text_features(input_ids)
        encoder = self.encoder
        if encoder.by_angle or not encoder.as_trained:
            by_image, by_text = encoder.score(images, texts, by="image"), encoder.score(images, texts, by="text").mT
        else:
            by_image = encoder.manifold.similarity(images, texts)
            by_text = by_image.mT
        return Named(
            logits_per_image=self.logit_scale * by_image,
            logits_per_text=self.logit_scale * by_text,
            text_embeds=texts,
            image_embeds=images,
        )


@lru_cache(maxsize=2)
def _load(path: str, device: str, changed: int) -> Loaded:
    """``changed`` is when the weights were written: new weights at the same path are loaded anew."""
    return load(path, device=device)


def _open(item: object, place: int) -> Image.Image:
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 3 and item.shape[2] == 3:
        return Image.fromarray(item)
    if not isinstance(item, str | Path):
        what = f"{item.dtype} {item.shape}" if isinstance(item, np.ndarray) else type(item).__name__
        raise ValueError(f"images are PIL images, paths or uint8 arrays (H, W, 3), got {what} in place {place}")
    try:
        return load_image(item)
    except BadSample as error:
        raise ValueError(f"the image in place {place} cannot be used: {error}") from error


def _text(item: object, place: int) -> str:
    if not isinstance(item, str):
        raise ValueError(f"texts are expected, got {type(item).__name__} in place {place}")
    return item
