"""Between which views an objective measures distances, angles and cones, and which objective a model had."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hyvlm.config import build, load_config
from hyvlm.geometry import Lorentz
from hyvlm.methods import OBJECTIVES, Calibration, Contrast, Entailment, Objective, Term
from hyvlm.methods.aligned import finer_group
from hyvlm.models.pretrained import find_model, own_folder
from hyvlm.types import GROUP_OF_VIEW, Views

QUANTITIES = ("distance", "exterior_angle", "aperture")


@dataclass(frozen=True)
class Pair:
    """Two views whose rows belong to each other.

    Attributes:
        general, specific: Angles and cones open at the first; a distance is the same both ways.
        quantities: Those of :data:`QUANTITIES` that the objective measures between them.
        ordered: Whether the objective wants the second in the cone of the first.
    """

    general: str
    specific: str
    quantities: tuple[str, ...]
    ordered: bool = False

    @property
    def name(self) -> str:
        """As relations are written: "text ⊒ image", or "part_image -> text" where the two are not ordered."""
        return f"{self.general} {'⊒' if self.ordered else '->'} {self.specific}"

    def rows(self, views: Views) -> tuple[Tensor, Tensor]:
        """The matched points, ``(n, D)`` each; a part meets the whole that owns it."""
        group = finer_group(self.general, self.specific)
        general, specific = (
            views.points[view] if GROUP_OF_VIEW[view] == group else views.points[view][views.owner[group]]
            for view in (self.general, self.specific)
        )
        return general, specific


@dataclass(frozen=True)
class Relations:
    """The pairs of views of an objective.

    Attributes:
        pairs: Those whose two views are at hand, each once.
        left_out: Every other term of the objective, with the reason.
    """

    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class KnownObjective:
    """The objective that a model is looked at with.

    Attributes:
        source: Where it is known from, in words for the reader.
        trained: Whether its temperatures are those that were trained with the model.
    """

    objective: Objective
    source: str
    trained: bool


class _Recorder(Lorentz):
    """Notes what a loss asks of its manifold."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        self.asked.add("distance")
        return super().distance(x, y)

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        self.asked.add("exterior_angle")
        return super().exterior_angle(x, y)

    def half_aperture(self, x: Tensor) -> Tensor:
        self.asked.add("aperture")
        return super().half_aperture(x)


@torch.no_grad()
def quantities_of(loss: nn.Module) -> set[str]:
    """Which of :data:`QUANTITIES` an entailment loss asks of its manifold."""
    recorder = _Recorder()
    loss(recorder, torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    return recorder.asked


def why_left_out(term: Term, available: Collection[str]) -> str | None:
    """Why ``term`` cannot be computed from points of the views that are ``available``; None if it can."""
    if tokens := getattr(term, "token_views", ()):
        return f"needs single tokens of {', '.join(tokens)}, which are not collected"
    if teacher := getattr(term, "teacher_views", ()):
        return f"needs a teacher's features of {', '.join(teacher)}, which are not collected"
    missing = [view for view in term.views if view not in available or GROUP_OF_VIEW[view] == "query"]
    return f"needs points of {', '.join(dict.fromkeys(missing))}, which are not collected" if missing else None


def relations_of(objective: Objective, available: Collection[str]) -> Relations:
    """The pairs of views between which ``objective`` measures something.

    A contrast asks both ways for one distance; where an angle opens between its two views, it joins that pair.

    Args:
        available: The views that have points.
    """
    asked: list[tuple[tuple[str, str], set[str]]] = []
    ordered, left_out = set(), []
    for term in objective.terms:
        reason = why_left_out(term, available)
        if reason is None and isinstance(term, Contrast):
            asked.append(((term.anchor, term.candidate), {term.similarity}))
        elif reason is None and isinstance(term, Entailment | Calibration):
            asked.append(((term.general, term.specific), quantities_of(term.loss)))
            ordered.add((term.general, term.specific))
        else:
            left_out.append(f"{term.name}: {reason or 'relates no two views'}")
    found: dict[tuple[str, str], set[str]] = {}
    for ends, quantities in sorted(asked, key=lambda entry: entry[1] == {"distance"}):  # stable: cones and angles first
        turned = ends[::-1]
        same_pair = turned if quantities == {"distance"} and ends not in found and turned in found else ends
        found.setdefault(same_pair, set()).update(quantities)
    pairs = [
        Pair(*ends, quantities=tuple(q for q in QUANTITIES if q in quantities), ordered=ends in ordered)
        for ends, quantities in found.items()
    ]
    return Relations(tuple(pairs), tuple(left_out))


def run_of(model: str | Path) -> Path | None:
    """The run folder whose checkpoint ``model`` leads to; None if it leads to another model.

    Raises:
        FileNotFoundError: If it leads to no model.
    """
    folder = own_folder(model)
    if folder is None:
        return None
    run = folder.parent.parent
    return run if folder.parent.name == "checkpoints" and (run / "config.yaml").is_file() else None


def objective_of(model: str | Path, *, name: str | None = None, parts: bool = False) -> KnownObjective:
    """The objective that ``model`` was trained with, if it is a checkpoint of a run; else the one of that ``name``.

    Without either it is assumed: that of MERU, or with ``parts`` that of HyCoCLIP.

    Args:
        model: As for :func:`hyvlm.load`.
        name: Registered name of an objective, with its default settings; it goes before another one of the run.
        parts: Whether the data have parts.
    Raises:
        FileNotFoundError: ``model`` leads to no model.
        ValueError: Unknown name, or a run folder whose files are damaged.
    """
    run = run_of(model)
    if run is not None:
        section = load_config(str(run / "config.yaml")).objective
        if name in (None, section.get("name")):
            objective = build(OBJECTIVES, section, "objective")
            trained = _load_temperatures(objective, find_model(model) / "objective.safetensors")
            return KnownObjective(objective, f"{section['name']}, which trained {run.name}", trained)
    if name is not None:
        return KnownObjective(OBJECTIVES[name](), f"{name}, as asked for", False)
    assumed = "hycoclip" if parts else "meru"
    source = f"{assumed}, assumed: the run that trained the model is not known"
    return KnownObjective(OBJECTIVES[assumed](), source, False)


def _load_temperatures(objective: Objective, file: Path) -> bool:
    """Give ``objective`` what was trained of it; False if there is no such file."""
    if not file.is_file():
        return False
    try:
        saved = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"'{file}' is cut short or not a safetensors file: {error}") from error
    own = objective.state_dict()
    objective.load_state_dict(own | {k: v for k, v in saved.items() if k in own and own[k].shape == v.shape})
    return True
