"""What both data sets of ``low_dimension.py`` share: regimes, embeddings in few dimensions, and their training."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from hyvlm.config import TrainConfig
from hyvlm.geometry import Euclidean, Lorentz
from hyvlm.methods import OBJECTIVES, Objective
from hyvlm.methods.method import Scale
from hyvlm.training.optim import build_optimizer, learning_rate
from hyvlm.types import Views


@dataclass(frozen=True, kw_only=True)
class Regime:
    """What curvature and temperature may do. Vectors start at a length r near 1, so ``sqrt(c) r`` near ``sqrt(c)``.

    Attributes:
        c: Curvature magnitude at the start.
        learn: Whether it learns; else it is held.
        bounds: Of the curvature that learns.
        sharpest: Bound of the inverse temperature. The lineage's 100 lets the loss tell points apart that are close
            together, where space is flat; under a bound of 1, as in Nickel and Kiela's loss, they must move far apart.
    """

    c: float = 1.0
    learn: bool = True
    bounds: tuple[float, float] | None = (0.1, 10.0)
    sharpest: float = 100.0

    def manifold(self) -> Lorentz:
        return Lorentz(c=self.c, learn=self.learn, bounds=self.bounds)

    def objective(self, name: str) -> Objective:
        temperature = max(0.07, 1 / self.sharpest)
        objective = OBJECTIVES[name](temperature=temperature)
        objective.scales["global"] = Scale(init_temperature=temperature, max_log_scale=math.log(self.sharpest))
        return objective


class Embedding(nn.Module):
    """Points in few dimensions. Tangent vectors are scaled, by at most 1 as in the lineage, and lifted.

    Attributes:
        objective: Name of the objective it is trained with.
    """

    objective: ClassVar[str]

    def __init__(self, manifold: Lorentz | Euclidean) -> None:
        super().__init__()
        self.manifold = manifold

    @abstractmethod
    def views(self, draws: torch.Generator) -> Views:
        """Points of a batch drawn by lot."""

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Scores, by name."""

    @torch.no_grad()
    def constrain_(self) -> None:
        for name, parameter in self.named_parameters(recurse=False):
            if "log_scale" in name:
                parameter.clamp_(max=0.0)
        self.manifold.constrain_()

    def where(self, points: Tensor) -> dict[str, float]:
        """How far out points lie (median), and the share of saturated cones."""
        found = {
            "radius": self.manifold.radius(points).median().item(),
            "saturated": self.manifold.saturated(points).double().mean().item(),
        }
        if isinstance(self.manifold, Lorentz):
            c = self.manifold.c
            found |= {"c": c.item(), "sqrt_c_x": (c.sqrt() * points.norm(dim=-1)).median().item()}
        return found

    def cone_margins(self, general: Tensor, specific: Tensor) -> np.ndarray:
        """Half-aperture at every general point minus the angle toward every specific one, ``(specific, general)``."""
        angles = self.manifold.pairwise_exterior_angle(general, specific)
        return (self.manifold.half_aperture(general).unsqueeze(-1) - angles).T.double().numpy()

    def distances(self, x: Tensor, y: Tensor) -> np.ndarray:
        return self.manifold.pairwise_distance(x, y).double().numpy()


def starting_log_scale(dim: int) -> nn.Parameter:
    """That of ``1 / sqrt(dim)``, where the lineage starts: vectors of standard normal entries get a length near 1."""
    return nn.Parameter(torch.tensor(-0.5 * math.log(dim)))


def fit(embedding: Embedding, regime: Regime, *, lr: float, steps: int, seed: int) -> dict[str, Any]:
    """Train with AdamW, without decay (it would pull points to the origin, where space is flat), and measure."""
    objective = regime.objective(embedding.objective)
    config = TrainConfig(steps=steps, batch_size=0, lr=lr, weight_decay=0.0, warmup_steps=steps // 20)
    optimizer = build_optimizer([*embedding.named_parameters(), *objective.named_parameters()], config)
    draws = torch.Generator().manual_seed(seed)
    total = torch.tensor(math.nan)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        total = objective(embedding.manifold, embedding.views(draws)).total
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        embedding.constrain_()
        objective.constrain_()
    if not total.isfinite():
        raise ArithmeticError(f"the loss is {total.item()} after {steps} steps at a rate of {lr}")
    with torch.no_grad():
        scores = embedding.measure()
    sharpness = objective.log_scale["global"].exp().item()
    return {"loss": total.item(), "inverse_temperature": sharpness, **scores}
