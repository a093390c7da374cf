"""Scores that rank like one inner product of a query and a candidate, each with a few more coordinates.

With ``u(y) = time(y) - 1/sqrt(c)``, which :func:`~hyvlm.geometry.hyperboloid.time_above_origin` has without
cancellation, the Lorentz inner product is ``x.y - time(x) u(y)`` less a number that only depends on ``x``. So the rows
``[y, u(y)]`` are prepared once, and the queries ``[x, -time(x)]`` rank them by a matrix product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from hyvlm.geometry import Euclidean, Lorentz, Modality, ProductLorentz, Sphere
from hyvlm.geometry.hyperboloid import time, time_above_origin
from hyvlm.geometry.numerics import dot
from hyvlm.models import DualEncoder


class InnerForm(ABC):
    """One score as an inner product: for every query, :meth:`queries` times :meth:`rows` is in the order of the score.

    Attributes:
        name: In the settings of an index.
        extra: How many coordinates are added to the D of a point.
    """

    name: ClassVar[str]
    extra: int

    @abstractmethod
    def rows(self, points: Tensor) -> Tensor:
        """Candidates ``(N, D)`` as rows ``(N, D + extra)``."""

    @abstractmethod
    def queries(self, points: Tensor) -> Tensor:
        """Queries ``(Q, D)`` as rows ``(Q, D + extra)``."""


class LorentzForm(InnerForm):
    """The Lorentz inner product, or the sum of the factors' own (PHyCLIP's published read-out)."""

    name = "lorentz"

    def __init__(self, manifold: Lorentz | ProductLorentz) -> None:
        self.c = manifold.c.detach().double().reshape(-1)
        self.extra = len(self.c)

    def _by_factor(self, points: Tensor) -> tuple[Tensor, Tensor]:
        return points.unflatten(-1, (self.extra, -1)), self.c.to(points)

    def rows(self, points: Tensor) -> Tensor:
        return torch.cat([points, time_above_origin(*self._by_factor(points))], dim=-1)

    def queries(self, points: Tensor) -> Tensor:
        return torch.cat([points, -time(*self._by_factor(points))], dim=-1)


class EuclideanForm(InnerForm):
    """``x.y - |y|^2 / 2``, which falls as the distance rises."""

    name, extra = "euclidean", 1

    def rows(self, points: Tensor) -> Tensor:
        return torch.cat([points, dot(points, points).unsqueeze(-1) / 2], dim=-1)

    def queries(self, points: Tensor) -> Tensor:
        return torch.cat([points, points.new_full((len(points), 1), -1.0)], dim=-1)


class SphereForm(InnerForm):
    """The cosine, as it is."""

    name, extra = "sphere", 0

    def rows(self, points: Tensor) -> Tensor:
        return points

    def queries(self, points: Tensor) -> Tensor:
        return points


def form_of(model: DualEncoder, kind: Modality, by: Modality) -> InnerForm | None:
    """The form of the score that ranks points of ``kind`` for queries of ``by``; None where there is none.

    A product's distance is no inner product, nor is an exterior angle.
    """
    manifold, across = model.manifold, kind != by
    if across and model.by_angle:
        return None
    if isinstance(manifold, Lorentz):
        return LorentzForm(manifold)
    if isinstance(manifold, ProductLorentz) and across and not model.as_trained:
        return LorentzForm(manifold)
    if isinstance(manifold, Euclidean):
        return EuclideanForm()
    return SphereForm() if isinstance(manifold, Sphere) else None


def index_form(model: DualEncoder, kind: Modality) -> InnerForm | None:
    """The form that an index of points of ``kind`` is prepared for: that of queries of the other modality, or else of
    their own."""
    other: Modality = "text" if kind == "image" else "image"
    return form_of(model, kind, other) or form_of(model, kind, kind)
