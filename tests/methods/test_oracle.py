"""Every method and every switch against a naive reading of the formulas, in float64.

The oracle shares no code with the library: it loops over rows, writes distances with acosh and angles with acos,
repeats a whole once per part where the released UNCHA does, and lets autograd give the gradients.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from hyvlm.geometry import MANIFOLDS
from hyvlm.losses import tiled
from hyvlm.methods import OBJECTIVES
from hyvlm.types import Views

DIM = 5
PARTS = (2, 0, 1, 3, 1)  # per sample
QUERIES = (3, 2, 0, 4, 1)  # per sample
PARENTS = (-1, 0, 1, -1, 3, -1, 5, 5, 6, -1)
WEIGHTS = (1.0, 1.0, 0.5, 0.0, 0.75, 0.0, 0.5, 0.0, 0.75, 0.0)  # a root does not count, whatever its weight
RANKS = ((0, 1, 2), (3, 4))  # the samples of two processes
CONE = 2 * 0.1 / math.sqrt(0.1)  # radius of the ball without cones, flat


class Hyperbolic:
    def __init__(self, log_c: Tensor) -> None:
        self.c = log_c.exp()

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum() - self.time(x) * self.time(y)

    def time(self, x: Tensor) -> Tensor:
        return (1 / self.c + (x * x).sum()).sqrt()

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        return -torch.acosh(-self.c * self.inner(x, y)) / self.c.sqrt()

    def radius(self, x: Tensor) -> Tensor:
        return torch.acosh(self.c.sqrt() * self.time(x)) / self.c.sqrt()

    def angle(self, x: Tensor, y: Tensor) -> Tensor:
        ci = self.c * self.inner(x, y)
        return torch.acos((self.time(y) + self.time(x) * ci) / (x.norm() * (ci**2 - 1).sqrt()))

    def aperture(self, x: Tensor) -> Tensor:
        return torch.asin(0.2 / (self.c.sqrt() * x.norm()))


class Flat:
    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        return -((x - y) ** 2).sum().sqrt()

    def radius(self, x: Tensor) -> Tensor:
        return x.norm()

    def angle(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.acos((x * (y - x)).sum() / (x.norm() * (y - x).norm()))

    def aperture(self, x: Tensor) -> Tensor:
        return torch.asin(CONE / x.norm())


class Round:
    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum() / (x.norm() * y.norm())


@dataclass
class World:
    """Points as leaves: one tensor a view, and which samples (and so which parts) each process owns."""

    points: dict[str, Tensor]
    geometry: Any
    scales: dict[str, Tensor]
    ranks: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        self.owner = [sample for sample, n in enumerate(PARTS) for _ in range(n)]
        self.query_owner = [sample for sample, n in enumerate(QUERIES) for _ in range(n)]

    def counting(self, samples: tuple[int, ...]) -> list[int]:
        return [q for q, o in enumerate(self.query_owner) if o in samples and PARENTS[q] >= 0 and WEIGHTS[q] > 0]

    def own(self, view: str, samples: tuple[int, ...]) -> list[int]:
        return [j for j, o in enumerate(self.owner) if o in samples] if "part" in view else list(samples)

    def over_ranks(self, value: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
        return sum(value(samples) for samples in self.ranks) / len(self.ranks)


def mean(values: list[Tensor]) -> Tensor:
    return sum(values) / len(values)


def cross_entropy(logits: list[Tensor], target: int, without_positive: bool) -> Tensor:
    denominator = sum(s.exp() for k, s in enumerate(logits) if not (without_positive and k == target))
    return -torch.log(logits[target].exp() / denominator)


def contrast(
    w: World,
    anchor: str,
    candidate: str,
    scale: str,
    *,
    repeated: bool = False,
    paper: bool = False,
    temper: str = "",
    by: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    def one_process(samples: tuple[int, ...]) -> Tensor:
        rows = []
        for i in w.own(anchor, samples):
            x = w.points[anchor][i]
            inverse_temperature = w.scales[scale]
            if temper:
                inverse_temperature = inverse_temperature / torch.exp(uncertainty(w, x, temper).detach() / 2)
            columns = [w.points[candidate][k] for k in (w.owner if repeated else range(len(w.points[candidate])))]
            same = repeated or ("part" in anchor) == ("part" in candidate)
            target = i if same else w.owner[i]
            logits = [inverse_temperature * (by or w.geometry.similarity)(x, y) for y in columns]
            rows.append(cross_entropy(logits, target, paper))
        return sum(rows) if paper else mean(rows)

    return w.over_ranks(one_process)


def uncertainty(w: World, x: Tensor, measure: str) -> Tensor:
    return torch.log(1 + torch.exp(-(x.norm() if measure == "norm" else w.geometry.radius(x))))


def pair(w: World, general: str, specific: str, i: int) -> tuple[Tensor, Tensor]:
    partner = w.owner[i] if "part" in general and "part" not in specific else i
    return w.points[general][i], w.points[specific][partner]


def residual(w: World, a: Tensor, b: Tensor, eta: float, alpha: float) -> Tensor:
    angle = w.geometry.angle(a, b)
    return torch.maximum(torch.zeros(()), angle - eta * w.geometry.aperture(a)) + alpha * angle


def entailment(w: World, general: str, specific: str, eta: float, alpha: float = 0.0) -> Tensor:
    return w.over_ranks(
        lambda samples: mean([residual(w, *pair(w, general, specific, i), eta, alpha) for i in w.own(general, samples)])
    )


def clip(w: World, parts: bool = False) -> Tensor:
    wholes = (contrast(w, "image", "text", "global") + contrast(w, "text", "image", "global")) / 2
    if not parts:
        return wholes
    crops = contrast(w, "part_image", "part_text", "global") + contrast(w, "part_text", "part_image", "global")
    return wholes + crops / 2


def meru(w: World, entail_weight: float = 0.2, eta: float = 1.0) -> Tensor:
    return clip(w) + entail_weight * entailment(w, "text", "image", eta)


def wholes_and_parts(w: World) -> Tensor:
    return (
        contrast(w, "image", "text", "global")
        + contrast(w, "text", "image", "global")
        + contrast(w, "part_image", "text", "global")
        + contrast(w, "part_text", "image", "global")
    ) / 4


def hycoclip(w: World, entail_weight: float = 0.1, eta_inter: float = 0.7, eta_intra: float = 1.2) -> Tensor:
    hinges = (
        entailment(w, "text", "image", eta_inter)
        + entailment(w, "part_text", "part_image", eta_inter)
        + entailment(w, "part_image", "image", eta_intra)
        + entailment(w, "part_text", "text", eta_intra)
    )
    return wholes_and_parts(w) + entail_weight * hinges


def phyclip(w: World, parts: bool = True, entail_weight: float = 0.1, eta_inter: float = 0.7) -> Tensor:
    return hycoclip(w, entail_weight, eta_inter) if parts else meru(w, 2 * entail_weight, eta_inter)


def atmg(w: World) -> Tensor:
    to_text = contrast(w, "image", "text", "global", by=w.geometry.angle)
    to_image = contrast(w, "text", "image", "global", by=lambda x, y: -w.geometry.angle(x, y))
    return (to_text + to_image) / 2


def argent(
    w: World,
    entail_weight: float = 0.1,
    norm_weight: float = 0.1,
    beta: float = math.pi / 4,
    through_weight: bool = True,
) -> Tensor:
    def huber(general: str, specific: str, i: int) -> Tensor:
        a, b = pair(w, general, specific, i)
        z = w.geometry.angle(a, b)
        if general.split("_")[-1] == specific.split("_")[-1]:
            h = 1 - torch.exp(w.geometry.similarity(a, b))
            z = z * (h if through_weight else h.detach())
        return z**2 / 2 if z <= beta else beta * (z - beta / 2)

    def one_process(samples: tuple[int, ...]) -> Tensor:
        value = torch.zeros(())
        for a, b in (("text", "image"), ("part_text", "part_image"), ("part_image", "image"), ("part_text", "text")):
            value = value + entail_weight * mean([huber(a, b, i) for i in w.own(a, samples)])
        own = [w.points[v][i] for v in ("image", "text", "part_image", "part_text") for i in w.own(v, samples)]
        return value + norm_weight * mean([(x * x).sum() - torch.log(x.norm()) for x in own])

    return wholes_and_parts(w) + w.over_ranks(one_process)


def uncha(
    w: World,
    uncertainty_temperature: bool = True,
    calibration: bool = True,
    entropy: bool = True,
    uncertainty: str = "norm",
    alpha: float = 0.1,
    eta_inter: float = 0.7,
    eta_intra: float = 1.2,
    entail_weight: float = 0.2,
    intra_weight: float = 0.5,
    calibration_weight: float = 10.0,
    formulation: str = "released",
) -> Tensor:
    paper = formulation == "paper"
    temper = uncertainty if uncertainty_temperature else ""
    con = torch.zeros(())
    for a, b, scale in (("image", "text", "global"), ("part_image", "part_text", "local")):
        con = con + contrast(w, a, b, scale, paper=paper) + contrast(w, b, a, scale, paper=paper)
    for part, whole in (("part_image", "text"), ("part_text", "image")):
        con = con + contrast(w, part, whole, "global_local", repeated=True, paper=paper, temper=temper)

    inter = entailment(w, "text", "image", eta_inter, alpha)
    inter = inter + entailment(w, "part_text", "part_image", eta_inter, alpha)
    intra = entailment(w, "part_image", "image", eta_intra, alpha)
    intra = intra + entailment(w, "part_text", "text", eta_intra, alpha)
    cal = torch.zeros(())
    if calibration:
        for part, whole in (("part_image", "image"), ("part_text", "text")):
            cal = cal + calibrated(w, part, whole, uncertainty, eta_intra, alpha, paper, entropy)
    if paper:
        return con + entail_weight * (inter + intra_weight * intra + calibration_weight * cal)
    return con / 2 + entail_weight * (inter / 2 + intra_weight * intra / 2 + calibration_weight * cal)


def calibrated(
    w: World, part: str, whole: str, measure: str, eta: float, alpha: float, paper: bool, entropy: bool
) -> Tensor:
    def one_process(samples: tuple[int, ...]) -> Tensor:
        values, exps = [], []
        for i in w.own(part, samples):
            u = uncertainty(w, w.points[part][i], measure)
            exps.append(u.exp())
            r = residual(w, *pair(w, part, whole, i), eta, alpha).detach()
            values.append(r * torch.exp(-u) + u if paper else 0.5 * r / (u.exp() + 1e-6) + 0.5 * u)
        h = torch.zeros(())
        for e in exps if entropy else []:
            p = e / sum(exps)
            h = h - p * torch.log(p if paper else p + 1e-8)
        return mean(values) + h

    return w.over_ranks(one_process)


def hyper3(
    w: World,
    image_text_weight: float = 1.0,
    visual_weight: float = 1.0,
    text_weight: float = 1.0,
    visual_order: str = "released",
    query_reduction: str = "",
    uncertainty: str = "norm",
    formulation: str = "released",
) -> Tensor:
    paper = formulation == "paper"
    weights = (image_text_weight, visual_weight, text_weight)
    mean_over_queries = (query_reduction or ("sum" if paper else "mean")) == "mean"
    queries = w.over_ranks(
        lambda samples: query_loss(
            w, samples, weights, visual_order == "reversed", mean_over_queries, uncertainty, paper
        )
    )
    if paper:
        return uncha(w, formulation="paper", uncertainty=uncertainty) + 0.2 * queries

    everything = World(
        w.points, w.geometry, w.scales, (tuple(range(len(PARTS))),)
    )  # parts: means over the global batch
    con = contrast(w, "image", "text", "global") + contrast(w, "text", "image", "global")
    for a, b in (("part_image", "part_text"), ("part_text", "part_image")):
        con = con + contrast(everything, a, b, "local")
    for a, b in (("part_image", "text"), ("part_text", "image")):
        con = con + contrast(everything, a, b, "global_local", repeated=True, temper=uncertainty)
    ent = entailment(w, "text", "image", 0.7) + entailment(w, "part_text", "part_image", 0.7)
    for a, b in (("part_image", "image"), ("part_text", "text")):
        ent = (
            ent
            + entailment(w, a, b, 1.2)
            + w.over_ranks(lambda samples, a=a, b=b: halved(w, a, b, uncertainty, samples))
        )
    return con / 2 + 0.2 * (ent + queries)


def halved(w: World, part: str, whole: str, measure: str, samples: tuple[int, ...]) -> Tensor:
    rows = []
    for i in w.own(part, samples):
        u = uncertainty(w, w.points[part][i], measure)
        rows.append(10 * (0.5 * residual(w, *pair(w, part, whole, i), 1.2, 0.0).detach() * torch.exp(-u) + 0.5 * u))
    return mean(rows)


def query_loss(
    w: World,
    samples: tuple[int, ...],
    weights: tuple[float, float, float],
    reverse: bool,
    mean_over_queries: bool,
    measure: str,
    paper: bool,
) -> Tensor:
    alpha, half = (0.1, 1.0) if paper else (0.0, 0.5)
    counting = w.counting(samples)
    value = torch.zeros(())
    for q in counting:
        image, text = w.points["query_image"][q], w.points["query_text"][q]
        whole, parent = w.points["image"][w.query_owner[q]], w.points["query_text"][PARENTS[q]]
        value = value + weights[0] * WEIGHTS[q] * residual(w, text, image, 0.7, alpha)
        visual = (whole, image) if reverse else (image, whole)
        for weight, (general, specific) in ((weights[1], visual), (weights[2], (text, parent))):
            e = residual(w, general, specific, 1.2, alpha)
            u = uncertainty(w, general, measure)
            value = value + weight * WEIGHTS[q] * (e + 10 * half * (e.detach() * torch.exp(-u) + u))
    if mean_over_queries:
        value = value / max(len(counting), 1)
    if paper:  # UNCHA's entropy belongs to the calibration
        visual_points = w.points["image"][list(samples)] if reverse else w.points["query_image"][counting]
        for weight, points in ((weights[1], visual_points), (weights[2], w.points["query_text"][counting])):
            exps = [uncertainty(w, x, measure).exp() for x in points]
            for e in exps:
                value = value - weight * 10 * e / sum(exps) * torch.log(e / sum(exps))
    return value


ORACLES = {
    "clip": clip,
    "meru": meru,
    "hycoclip": hycoclip,
    "uncha": uncha,
    "hyper3": hyper3,
    "phyclip": phyclip,
    "atmg": atmg,
    "argent": argent,
}
HYPER3_SWITCHES: list[dict[str, Any]] = [
    {},
    {"image_text_weight": 0.0, "text_weight": 0.5},
    {"visual_order": "reversed", "uncertainty": "radius"},
]
UNCHA_SWITCHES: list[dict[str, Any]] = [
    {},
    {"uncertainty_temperature": False},
    {"calibration": False},
    {"entropy": False},
    {"uncertainty": "radius"},
    {"uncertainty": "radius", "uncertainty_temperature": False, "entropy": False},
    {"alpha": 0.0, "eta_inter": 1.0, "eta_intra": 0.9},
    {"entail_weight": 0.3, "intra_weight": 0.7, "calibration_weight": 9.0},
]
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("clip", {}),
    ("clip", {"parts": True}),
    ("meru", {}),
    ("meru", {"entail_weight": 0.5, "eta": 0.8}),
    ("hycoclip", {}),
    ("hycoclip", {"entail_weight": 0.3, "eta_inter": 1.1, "eta_intra": 0.6}),
    *(("uncha", switch) for switch in UNCHA_SWITCHES),
    *(("uncha", switch | {"formulation": "paper"}) for switch in UNCHA_SWITCHES),
    *(("hyper3", switch) for switch in HYPER3_SWITCHES),
    *(("hyper3", switch | {"formulation": "paper"}) for switch in HYPER3_SWITCHES),
    ("hyper3", {"formulation": "paper", "query_reduction": "mean"}),
    ("phyclip", {"entail_weight": 0.2}),
    ("phyclip", {"parts": False, "eta_inter": 0.9}),
    ("atmg", {}),
    ("argent", {}),
    ("argent", {"through_weight": False, "beta": 0.6}),
    ("argent", {"entail_weight": 0.4, "norm_weight": 0.7, "beta": 1.5}),
]


def label(value: object) -> str | None:
    return ",".join(f"{k}={v}" for k, v in value.items()) or "default" if isinstance(value, dict) else None


def sizes() -> dict[str, int]:
    wholes = {"image": len(PARTS), "text": len(PARTS)}
    return (
        wholes
        | {"part_image": sum(PARTS), "part_text": sum(PARTS)}
        | dict.fromkeys(("query_image", "query_text"), sum(QUERIES))
    )


def views_of(points: dict[str, Tensor]) -> Views:
    samples = torch.arange(len(PARTS))
    return Views.single(
        **points,
        owner=samples.repeat_interleave(torch.tensor(PARTS)),
        query_owner=samples.repeat_interleave(torch.tensor(QUERIES)),
        query_parent=torch.tensor(PARENTS),
        query_weight=torch.tensor(WEIGHTS),
    )


def shares_of(views: Views, first: int) -> list[Views]:
    """The views as two processes see them; the first of them has ``first`` samples."""
    ends = {"whole": first, "part": sum(PARTS[:first]), "query": sum(QUERIES[:first])}
    halves = (
        {group: slice(0, end) for group, end in ends.items()},
        {group: slice(end, len(views.owner[group])) for group, end in ends.items()},
    )
    return [dataclasses.replace(views, local=local, world_size=2) for local in halves]


def leaf(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_()


@pytest.fixture(params=["whole matrix", "panels"], autouse=True)
def _form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contrast with its matrix, as batches of this size are computed, and in panels of a few rows, as large ones."""
    if request.param == "panels":
        monkeypatch.setattr(tiled, "FROM", 1)
        monkeypatch.setattr(tiled, "PANEL", 20)


@pytest.fixture(scope="module", autouse=True)
def _float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("reduction", ["global", "per_rank"])
@pytest.mark.parametrize(
    ("method", "options", "geometry"),
    [
        ("clip", {}, "sphere"),
        ("clip", {"parts": True}, "sphere"),
        *((*setting, geometry) for setting in SETTINGS for geometry in ("lorentz", "euclidean")),
    ],
    ids=label,
)
def test_value_and_gradients(method: str, options: dict[str, Any], geometry: str, reduction: str) -> None:
    generator = torch.Generator().manual_seed(3)
    points = {view: torch.randn(n, DIM, generator=generator) for view, n in sizes().items()}
    for x in points.values():  # outside the ball without cones, where the oracle's asin is smooth
        x *= (0.8 + 0.9 * torch.rand(len(x), 1, generator=generator)) / x.norm(dim=-1, keepdim=True)
    objective = OBJECTIVES[method](**options, reduction=reduction)
    manifold = MANIFOLDS[geometry]()
    if geometry == "lorentz":
        with torch.no_grad():
            manifold.log_c.fill_(math.log(0.8))
    if geometry == "sphere":
        points = {view: x / x.norm(dim=-1, keepdim=True) for view, x in points.items()}

    # the library: as one process, or as two that share the batch
    mine = {view: leaf(x) for view, x in points.items()}
    total = sum(objective(manifold, share).total for share in shares_of(views_of(mine), len(RANKS[0])))
    total.backward()

    log_c = leaf(torch.tensor(math.log(0.8)))
    log_scale = {name: leaf(p) for name, p in objective.log_scale.items()}
    theirs = {view: leaf(x) for view, x in points.items()}
    shapes = {"lorentz": lambda: Hyperbolic(log_c), "euclidean": Flat, "sphere": Round}
    ranks = RANKS if reduction == "per_rank" else (tuple(range(len(PARTS))),)
    world = World(theirs, shapes[geometry](), {name: s.exp() for name, s in log_scale.items()}, ranks)
    expected = ORACLES[method](world, **options)
    expected.backward()

    close = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(total, expected, **close)
    for view in objective.views:
        expected_grad = theirs[view].grad
        if geometry == "sphere":  # the library takes points on the sphere as they are; the oracle normalises them
            x = points[view]
            mine[view].grad = mine[view].grad - (mine[view].grad * x).sum(-1, keepdim=True) * x
        torch.testing.assert_close(mine[view].grad, expected_grad, **close)
    for name, s in log_scale.items():
        torch.testing.assert_close(objective.log_scale[name].grad, s.grad, **close)
    if geometry == "lorentz":
        torch.testing.assert_close(manifold.log_c.grad, log_c.grad, **close)


@pytest.mark.parametrize("geometry", ["lorentz", "euclidean"])
@pytest.mark.parametrize(("method", "options"), SETTINGS, ids=label)
def test_one_process_equals_two_shares(method: str, options: dict[str, Any], geometry: str) -> None:
    """One process computes both directions from one matrix; the shares above did not."""
    generator = torch.Generator().manual_seed(5)
    views = views_of({view: torch.randn(n, DIM, generator=generator) for view, n in sizes().items()})
    objective, manifold = OBJECTIVES[method](**options), MANIFOLDS[geometry]()
    alone = objective(manifold, views)
    shares = [objective(manifold, share) for share in shares_of(views, len(PARTS) - 1)]
    torch.testing.assert_close(alone.total, shares[0].total + shares[1].total, rtol=1e-12, atol=1e-12)
    for name, value in alone.terms.items():
        torch.testing.assert_close(value, shares[0].terms[name] + shares[1].terms[name], rtol=1e-12, atol=1e-12)
