"""Objectives as their papers write them: whole matrices, torch's own functions, autograd. A baseline for speed.

Features are lifted, distances are ``acosh`` and angles ``acos`` of the textbook formulas, a caption is repeated for
every part of its image, and every direction of a contrast is a cross entropy of its own matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-8


class Plain:
    """The hyperboloid of curvature ``-c`` and three objectives on features ``(B, D)`` and parts ``(M, D)``."""

    def __init__(self, log_c: Tensor, log_scale: dict[str, Tensor]) -> None:
        self.c = log_c.exp()
        self.scale = {name: value.exp() for name, value in log_scale.items()}

    def lift(self, v: Tensor) -> Tensor:
        r = self.c.sqrt() * v.norm(dim=-1, keepdim=True)
        return torch.sinh(r) * v / r

    def time(self, x: Tensor) -> Tensor:
        return (1 / self.c + x.square().sum(-1)).sqrt()

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        argument = self.c * (self.time(x)[:, None] * self.time(y)[None] - x @ y.T)
        return torch.acosh(argument.clamp(min=1 + EPS)) / self.c.sqrt()

    def contrast(self, x: Tensor, y: Tensor, scale: str, u: Tensor | None = None) -> Tensor:
        logits = -self.distances(x, y) * self.scale[scale]
        if u is not None:
            logits = logits * torch.exp(-u.detach() / 2)[:, None]
        return F.cross_entropy(logits, torch.arange(len(x)))

    def to_wholes(self, x: Tensor, y: Tensor, owner: Tensor, scale: str) -> Tensor:
        return F.cross_entropy(-self.distances(x, y) * self.scale[scale], owner)

    def angle(self, x: Tensor, y: Tensor) -> Tensor:
        tx, ty = self.time(x), self.time(y)
        inner = self.c * ((x * y).sum(-1) - tx * ty)
        below = x.norm(dim=-1) * (inner.square() - 1).clamp(min=EPS).sqrt() + EPS
        return torch.acos(((ty + tx * inner) / below).clamp(-1 + EPS, 1 - EPS))

    def aperture(self, x: Tensor) -> Tensor:
        return torch.asin((0.2 / (self.c.sqrt() * x.norm(dim=-1) + EPS)).clamp(max=1 - EPS))

    def residual(self, general: Tensor, specific: Tensor, eta: float, alpha: float = 0.0) -> Tensor:
        angle = self.angle(general, specific)
        return (angle - eta * self.aperture(general)).relu() + alpha * angle

    def meru(self, image: Tensor, text: Tensor) -> Tensor:
        image, text = self.lift(image), self.lift(text)
        contrast = (self.contrast(image, text, "global") + self.contrast(text, image, "global")) / 2
        return contrast + 0.2 * self.residual(text, image, 1.0).mean()

    def hycoclip(self, image: Tensor, text: Tensor, part_image: Tensor, part_text: Tensor, owner: Tensor) -> Tensor:
        image, text, part_image, part_text = map(self.lift, (image, text, part_image, part_text))
        contrast = self.contrast(image, text, "global") + self.contrast(text, image, "global")
        contrast = contrast + self.to_wholes(part_image, text, owner, "global")
        contrast = contrast + self.to_wholes(part_text, image, owner, "global")
        inter = self.residual(text, image, 0.7).mean() + self.residual(part_text, part_image, 0.7).mean()
        intra = self.residual(part_image, image[owner], 1.2).mean() + self.residual(part_text, text[owner], 1.2).mean()
        return contrast / 4 + 0.1 * (inter + intra)

    def uncha(self, image: Tensor, text: Tensor, part_image: Tensor, part_text: Tensor, owner: Tensor) -> Tensor:
        image, text, part_image, part_text = map(self.lift, (image, text, part_image, part_text))
        u_image, u_text = (F.softplus(-x.norm(dim=-1)) for x in (part_image, part_text))
        contrast = self.contrast(image, text, "global") + self.contrast(text, image, "global")
        contrast = contrast + self.contrast(part_image, part_text, "local")
        contrast = contrast + self.contrast(part_text, part_image, "local")
        contrast = contrast + self.contrast(part_image, text[owner], "global_local", u_image)
        contrast = contrast + self.contrast(part_text, image[owner], "global_local", u_text)
        inter = self.residual(text, image, 0.7, 0.1).mean() + self.residual(part_text, part_image, 0.7, 0.1).mean()
        total = contrast / 2 + 0.1 * inter
        for part, whole, u in ((part_image, image, u_image), (part_text, text, u_text)):
            residual = self.residual(part, whole[owner], 1.2, 0.1)
            p = u.softmax(0)
            calibration = 0.5 * (residual.detach() / (u.exp() + 1e-6) + u)
            total = total + 0.05 * residual.mean() + 2 * (calibration.mean() - (p * (p + 1e-8).log()).sum())
        return total
