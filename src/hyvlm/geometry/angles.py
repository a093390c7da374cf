"""Similarity by the exterior angle, which has a direction: it is taken at the points that ask."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

Modality = Literal["image", "text"]


@runtime_checkable
class HasAngles(Protocol):
    """A manifold with an origin, from which rays go outward."""

    def pairwise_exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Exterior angle, in radians, at every ``x`` toward every ``y``; one per factor in a product."""


def angle_similarity(manifold: HasAngles, anchors: Tensor, candidates: Tensor, *, at: Modality) -> Tensor:
    """Exterior angle at every anchor toward every candidate, signed so that higher is closer.

    A text is nearer the origin than its images: they lie outward from it (a small angle, so its negative counts), and
    it lies inward from them (a large one). A product takes the mean over its factors.

    Args:
        anchors, candidates: ``(N, D)`` and ``(M, D)``.
        at: What the anchors are; the candidates are of the other modality.
    Returns:
        ``(N, M)``, in radians: ``ext(image, text)`` at images, ``-ext(text, image)`` at texts.
    Source: Ramasinghe et al. 2024 (Accept the Modality Gap), angle-based similarity.
    """
    angles = manifold.pairwise_exterior_angle(anchors, candidates)
    if angles.ndim > anchors.ndim:
        angles = angles.mean(-1)
    return angles if at == "image" else -angles
