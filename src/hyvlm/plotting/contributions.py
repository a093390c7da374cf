"""How much each word of a caption, and each patch of its image, contributes to the summary of its modality (Eq. 17).

A token's weight is the softmax over the tokens of its similarity to the other modality's embedding: minus the distance
on hyperbolic manifolds, the cosine on the sphere. Weights of a caption add up to 1, and so do those of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from open_clip.tokenizer import SimpleTokenizer, basic_clean, whitespace_clean
from PIL import Image
from torch import Tensor

from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.losses.midpoint import token_weights

WORD_END = "</w>"


@dataclass(frozen=True)
class Word:
    """A word of a caption with the sum of its tokens' weights.

    Attributes:
        text: As the caption spells it.
        weight: 0 to 1.
        pieces: The byte-pair tokens that make it up, each with its own weight; one, if the word is a token.
        glued: No space stands between it and the word before.
    """

    text: str
    weight: float
    pieces: tuple[tuple[str, float], ...]
    glued: bool


@dataclass(frozen=True)
class Contributions:
    """What one model makes of an image and its caption.

    Attributes:
        words: In reading order.
        cut: The rest of the caption, beyond the model's context; "" if the model read all of it.
        patches: ``(rows, columns)`` weights of the image's patches toward the caption.
        seen: ``(3, H, W)`` uint8, the image as the model saw it, which ``patches`` divides evenly.
    """

    words: list[Word]
    cut: str
    patches: Tensor
    seen: Tensor


def contributions(
    embedder: Embedder, image: Image.Image, caption: str, *, temperature: float = 0.07, resize: str | None = None
) -> Contributions:
    """Weights of the caption's words toward the image, and of the image's patches toward the caption.

    Args:
        temperature: Divides the similarity; the smaller, the fewer tokens carry the weight.
    Raises:
        ValueError: If the temperature is not positive, or the caption has no token.
    """
    check_temperature(temperature)
    model, device = embedder.model, embedder.device
    seen = embedder.transform(resize)(image)
    ids = embedder.tokenizer([caption])
    with evaluation_mode(model):
        image_point, patches = model.encode_image_tokens(seen[None].to(device))
        text_point, tokens = model.encode_text_tokens(ids.to(device))
        if not tokens.mask.any():
            raise ValueError(f"the caption {caption!r} has no token to weigh")
        of_text = token_weights(model.manifold, tokens, image_point, temperature)[0].cpu()
        of_image = token_weights(model.manifold, patches, text_point, temperature)[0].cpu()
    counted = tokens.mask[0].cpu().nonzero().squeeze(1)
    words, cut = words_of(caption, ids[0, counted].tolist(), of_text[counted].tolist())
    rows = seen.shape[1] // model.image_tower.patch
    return Contributions(words, cut, of_image.unflatten(0, (rows, -1)), seen)


def check_temperature(temperature: float) -> None:
    """Raise ValueError unless ``temperature`` is positive."""
    if not temperature > 0:
        raise ValueError(f"the temperature divides similarities and must be positive, got {temperature}")


def words_of(caption: str, ids: Sequence[int], weights: Sequence[float]) -> tuple[list[Word], str]:
    """Byte-pair tokens joined to whole words, spelled as the tokenizer repairs the caption, but with its capitals.

    Returns:
        The words, and what of the caption comes after the last of them.
    """
    caption = whitespace_clean(basic_clean(caption))
    if len(caption.lower()) != len(caption):  # a capital whose small form is two characters
        caption = caption.lower()
    vocabulary, byte_of = _vocabulary()
    words: list[Word] = []
    place = 0
    raw, pieces = bytearray(), list[tuple[str, float]]()
    for i, (token, weight) in enumerate(zip(ids, weights, strict=True)):
        spelled = vocabulary[token]
        part = bytes(byte_of[character] for character in spelled.removesuffix(WORD_END))
        raw += part
        pieces.append((part.decode("utf-8", "replace"), weight))
        if not spelled.endswith(WORD_END) and i + 1 < len(ids):  # the context may end within a word
            continue
        text = raw.decode("utf-8", "ignore")  # the context may end within a character, too
        start = place + (caption[place : place + 1] == " ")
        glued = bool(words) and start == place
        place = start + len(text)
        text = caption[start:place]
        words.append(Word(text, sum(weight for _, weight in pieces), tuple(pieces), glued))
        raw, pieces = bytearray(), []
    return words, caption[place:].strip()


@cache
def _vocabulary() -> tuple[dict[int, str], dict[str, int]]:
    tokenizer = SimpleTokenizer()
    return tokenizer.decoder, tokenizer.byte_decoder


def largest(found: Sequence[Contributions]) -> float:
    """The largest weight of a word among several models' contributions: the end of their common colour scale."""
    return max(word.weight for one in found for word in one.words)


def heat(found: Contributions) -> Tensor:
    """The patches' weights as a number in 0..1 a pixel, ``(H, W)``: the largest is 1, smooth between patch centres."""
    grid = found.patches / found.patches.max()
    resized = torch.nn.functional.interpolate(grid[None, None], size=found.seen.shape[1:], mode="bilinear")
    return resized[0, 0].clamp(0, 1)
