"""One point for the tokens of an image or a text: their midpoint, weighted by closeness to the other modality.

HyFL-CLIP, Section 4.4.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from hyvlm.geometry import Manifold
from hyvlm.types import Tokens


@runtime_checkable
class HasMidpoint(Protocol):
    """A manifold that knows the weighted midpoint of points."""

    def midpoint(self, x: Tensor, weights: Tensor | None = None, dim: int = -2) -> Tensor:
        """Midpoint along axis ``dim``."""


def token_weights(manifold: Manifold, tokens: Tokens, toward: Tensor, temperature: float) -> Tensor:
    """Softmax over the tokens of each row of their similarity to one point (Eq. 17); 0 where a token does not count.

    Args:
        manifold: Gives the similarity: minus the distance, on the sphere the cosine.
        tokens: Points ``(N, T, D)``.
        toward: ``(N, D)``, the embedding of the other modality.
        temperature: Divides the similarity.
    Returns:
        ``(N, T)``; rows add up to 1, to 0 where no token counts.
    """
    similarity = manifold.similarity(toward.unsqueeze(-2), tokens.values).squeeze(-2)
    lowest = torch.finfo(similarity.dtype).min
    weights = (similarity / temperature).masked_fill(~tokens.mask, lowest).softmax(-1)
    return weights.masked_fill(~tokens.mask, 0.0)


def token_midpoint(manifold: HasMidpoint, tokens: Tokens, weights: Tensor) -> Tensor:
    """Weighted midpoint of the tokens of each row (Eq. 18).

    The paper's Eq. 9 mixes two conventions of the Klein ball, which is right at c = 1 alone; the midpoint here is right
    at every curvature, and the same at c = 1.

    Args:
        tokens: Points ``(N, T, D)``.
        weights: ``(N, T)``, 0 where a token does not count.
    Returns:
        Points ``(N, D)``; the origin where no token counts.
    """
    return manifold.midpoint(tokens.values.masked_fill(~tokens.mask.unsqueeze(-1), 0.0), weights)
