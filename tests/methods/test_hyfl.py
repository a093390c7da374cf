"""The HyFL-CLIP objective against a reading of its printed equations that shares no code with the library.

The reference works on plain numbers, sample by sample: explicit time components, the inverse hyperbolic cosine as a
logarithm, midpoints through Klein coordinates, angles by arccos. Its functions come from ``math`` or from mpmath, so
the same lines give float64 and 50 digits.
"""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from hyvlm.geometry import Lorentz, Sphere
from hyvlm.methods import OBJECTIVES, Objective
from hyvlm.types import LossOutput, Tokens, Views

Point = list[Any]  # space components, float or mpf

CONTRAST = ("image -> text", "text -> image")
SHORT_CONTRAST = ("image -> short_text", "short_text -> image")
DISTILL = "distillation short_text -> image"
ENTAIL = {"text": "tokens of text ⊒ text", "image": "tokens of image ⊒ image"}
ENTROPY = "minus radius entropy text"

Options = dict[str, Any]
WEIGHTS = ("short_weight", "distill_weight", "entail_weight", "entropy_weight")
TEMPERATURES = ("temperature", "teacher_temperature", "distill_temperature", "entail_temperature")


def options_of(weights: tuple[float, ...], temperatures: tuple[float, ...], eta: float) -> Options:
    """Formulation "lineage": the mean of Eq. 13's rows, the positive among the keys. "paper": as printed."""
    values = zip(WEIGHTS + TEMPERATURES, weights + temperatures, strict=True)
    return {**dict(values), "eta": eta, "formulation": "lineage"}


PAPER = options_of((0.1, 0.05, 0.1, 0.1), (0.07, 0.005, 0.005, 0.07), 1.2)  # section S2.2
GENTLE = options_of((0.7, 0.2, 3.0, 2.0), (0.3, 0.4, 0.6, 0.5), 0.9)  # no term hides another
VARIANTS = {
    "default": PAPER,
    "paper": PAPER | {"formulation": "paper"},
    "gentle": GENTLE,
    "gentle paper": GENTLE | {"formulation": "paper"},
}


@dataclasses.dataclass
class Inputs:
    """A batch as nested lists; tokens are ``[sample][token]``, masks in the same order."""

    points: dict[str, list[Point]]
    tokens: dict[str, list[list[Point]]]
    masks: dict[str, list[list[bool]]]
    teacher: dict[str, list[Point]]
    c: Any


class Reference:
    """Equations 3, 4, 8 to 23; ``fn`` is ``math`` or ``mpmath.mp``."""

    def __init__(self, inputs: Inputs, options: Options, fn: Any = math) -> None:
        self.fn, self.s, self.x, self.c = fn, SimpleNamespace(**options), inputs, inputs.c

    def dot(self, p: Point, q: Point) -> Any:
        return self.fn.fsum(a * b for a, b in zip(p, q, strict=True))

    def norm(self, p: Point) -> Any:
        return self.fn.sqrt(self.dot(p, p))

    def time(self, p: Point) -> Any:  # Eq. 3
        return self.fn.sqrt(1 / self.c + self.dot(p, p))

    def minus_inner(self, p: Point, q: Point) -> Any:  # Eq. 1, times -c
        return self.c * (self.time(p) * self.time(q) - self.dot(p, q))

    def distance(self, p: Point, q: Point) -> Any:  # Eq. 4
        z = self.minus_inner(p, q)
        return self.fn.log(z + self.fn.sqrt(z * z - 1)) / self.fn.sqrt(self.c)

    def log_softmax(self, logits: list[Any]) -> list[Any]:  # Eq. 11
        top = max(logits)
        log_sum = top + self.fn.log(self.fn.fsum(self.fn.exp(value - top) for value in logits))
        return [value - log_sum for value in logits]

    def contrast(self, query: str, key: str) -> Any:  # Eq. 13
        rows = []
        for i, p in enumerate(self.x.points[query]):
            logits = [-self.distance(p, q) / self.s.temperature for q in self.x.points[key]]
            if self.s.formulation == "paper":
                negatives = [value for k, value in enumerate(logits) if k != i]
                top = max(negatives)
                log_sum = top + self.fn.log(self.fn.fsum(self.fn.exp(value - top) for value in negatives))
                rows.append(log_sum - logits[i])
            else:
                rows.append(-self.log_softmax(logits)[i])
        total = self.fn.fsum(rows)
        return total if self.s.formulation == "paper" else total / len(rows)

    def distill(self) -> Any:  # Eqs. 10 to 12
        rows = []
        for feature, point in zip(self.x.teacher["short_text"], self.x.points["short_text"], strict=True):
            cosines = [self.dot(feature, v) / (self.norm(feature) * self.norm(v)) for v in self.x.teacher["image"]]
            teacher = self.log_softmax([cosine / self.s.teacher_temperature for cosine in cosines])
            distances = [self.distance(point, v) for v in self.x.points["image"]]
            student = self.log_softmax([-d / self.s.distill_temperature for d in distances])
            rows.append(self.fn.fsum(self.fn.exp(p) * (p - q) for p, q in zip(teacher, student, strict=True)))
        return self.fn.fsum(rows) / len(rows)

    def weights(self, view: str, i: int) -> list[Any]:  # Eq. 17
        other = self.x.points["image" if view == "text" else "text"][i]
        logits = [-self.distance(token, other) / self.s.entail_temperature for token in self.kept(view, i)]
        return [self.fn.exp(value) for value in self.log_softmax(logits)]

    def kept(self, view: str, i: int) -> list[Point]:
        return [token for token, valid in zip(self.x.tokens[view][i], self.x.masks[view][i], strict=True) if valid]

    def midpoint(self, view: str, i: int) -> Point:  # Eq. 18; the Lorentz factor of a unit Klein ball (right for all c)
        tokens = self.kept(view, i)
        klein = [[a / self.time(token) for a in token] for token in tokens]
        gammas = [1 / self.fn.sqrt(1 - self.dot(k, k)) for k in klein]
        mass = [w * g for w, g in zip(self.weights(view, i), gammas, strict=True)]
        mean = [self.dot(mass, list(axis)) / self.fn.fsum(mass) for axis in zip(*klein, strict=True)]
        back = self.fn.sqrt(self.c * (1 - self.dot(mean, mean)))  # Eq. 8
        return [a / back for a in mean]

    def exterior_angle(self, p: Point, q: Point) -> Any:
        z = self.minus_inner(p, q)
        return self.fn.acos((self.time(q) - self.time(p) * z) / (self.norm(p) * self.fn.sqrt(z * z - 1)))

    def over_norm(self, p: Point) -> Any:  # the sine of Eq. 19 with K = 1; the cone is saturated where it is over 1
        return 2 / (self.fn.sqrt(self.c) * self.norm(p))

    def excess(self, view: str, i: int) -> Any:  # Eq. 20 before the maximum
        parent = self.midpoint(view, i)
        aperture = self.fn.asin(min(1, self.over_norm(parent)))
        return self.exterior_angle(parent, self.x.points[view][i]) - self.s.eta * aperture

    def entail(self, view: str) -> Any:  # Eq. 20
        rows = [max(0, self.excess(view, i)) for i in range(len(self.x.points[view]))]
        return self.fn.fsum(rows) / len(rows)

    def minus_entropy(self) -> Any:  # Eq. 23
        log_p = self.log_softmax([self.distance(p, [0 * a for a in p]) for p in self.x.points["text"]])
        return self.fn.fsum(self.fn.exp(value) * value for value in log_p)

    def terms(self) -> dict[str, Any]:
        s = self.s
        terms = {name: self.contrast(*name.split(" -> ")) for name in CONTRAST}
        if s.short_weight:
            terms |= {name: self.contrast(*name.split(" -> ")) for name in SHORT_CONTRAST}
        if s.distill_weight:
            terms[DISTILL] = self.distill()
        if s.entail_weight:
            terms |= {name: self.entail(view) for view, name in ENTAIL.items()}
        if s.entropy_weight:
            terms[ENTROPY] = self.minus_entropy()
        return terms

    def total(self) -> Any:  # Eqs. 14 to 16, 21 and 22
        terms, s = self.terms(), self.s
        long, short = (sum(terms.get(name, 0) for name in names) / 2 for names in (CONTRAST, SHORT_CONTRAST))
        entail = sum(terms.get(name, 0) for name in ENTAIL.values())
        distill, minus_entropy = terms.get(DISTILL, 0), terms.get(ENTROPY, 0)
        contrast = long + s.short_weight * short
        return s.distill_weight * distill + contrast + s.entail_weight * entail + s.entropy_weight * minus_entropy


def random_inputs(c: float, seed: int = 0, dim: int = 3, tokens: int = 4) -> Inputs:
    """Four samples at growing radius: the first cones are saturated (``sqrt(c) |x| < 2``), the last are not."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    norms = torch.tensor([0.6, 1.4, 3.5, 6.0], dtype=torch.float64)[:, None] / math.sqrt(c)
    centre = torch.nn.functional.normalize(normal(4, dim), dim=-1) * norms
    around = {view: centre + 0.4 * norms * normal(4, dim) for view in ("image", "text", "short_text")}
    words = {view: centre[:, None] + 0.3 * norms[:, None] * normal(4, tokens, dim) for view in ("image", "text")}
    text_mask = [[k <= i for k in range(tokens)] for i in range(4)]
    text_mask[2] = [True, False, True, False]
    image_mask = [[True] * tokens for _ in range(3)] + [[False, True, True, True]]
    shared = normal(4, dim + 2)
    return Inputs(
        points={view: points.tolist() for view, points in around.items()},
        tokens={view: points.tolist() for view, points in words.items()},
        masks={"text": text_mask, "image": image_mask},
        teacher={"short_text": (shared + 0.3 * normal(4, dim + 2)).tolist(), "image": (3 * shared).tolist()},
        c=c,
    )


def tensors(inputs: Inputs) -> tuple[Views, Lorentz]:
    """The same batch for the library, every tensor a leaf that asks for its gradient."""

    def leaf(rows: list[Any]) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64, requires_grad=True)

    views = Views.single(
        **{view: leaf(rows) for view, rows in inputs.points.items()},
        owner=None,
        tokens={view: Tokens(leaf(rows), torch.tensor(inputs.masks[view])) for view, rows in inputs.tokens.items()},
        teacher={view: leaf(rows) for view, rows in inputs.teacher.items()},
    )
    return views, lorentz(inputs.c)


def lorentz(c: float) -> Lorentz:
    manifold = Lorentz(c=c, aperture_constant=1.0).double()
    with torch.no_grad():
        manifold.log_c.fill_(math.log(c))  # made in float32
    return manifold


def library(options: Options) -> Objective:
    objective = OBJECTIVES["hyfl"](**options).double()
    with torch.no_grad():
        objective.log_scale["global"].fill_(-math.log(options["temperature"]))  # made in float32
    return objective


def evaluate(inputs: Inputs, options: Options) -> LossOutput:
    views, manifold = tensors(inputs)
    output: LossOutput = library(options)(manifold, views)
    return output


@pytest.mark.parametrize("c", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_term_and_the_total_follow_the_equations(variant: str, c: float) -> None:
    inputs, options = random_inputs(c), VARIANTS[variant]
    reference = Reference(inputs, options)
    for view in ENTAIL:  # the batch exercises both sides of both kinks
        sines = [reference.over_norm(reference.midpoint(view, i)) for i in range(4)]
        assert min(sines) < 1 < max(sines)
        assert reference.entail(view) > 0
    assert min(reference.excess(view, i) for view in ENTAIL for i in range(4)) < 0
    output = evaluate(inputs, options)
    expected = reference.terms()
    assert {name: value.item() for name, value in output.terms.items()} == pytest.approx(expected, rel=1e-9, abs=0)
    assert output.total.item() == pytest.approx(reference.total(), rel=1e-9, abs=0)


def test_the_defaults_are_the_papers() -> None:
    inputs = random_inputs(1.0)
    views, manifold = tensors(inputs)
    output = OBJECTIVES["hyfl"]().double()(manifold, views)  # the float32 temperature costs 1e-8
    assert output.total.item() == pytest.approx(Reference(inputs, PAPER).total(), rel=1e-6)


STENCIL = ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60))  # central, exact up to the sixth power of the step


def derivative(inputs: Inputs, options: Options, holder: Any, key: Any, step: float) -> float:
    """Central difference of the reference's total for the number at ``holder[key]``, which is put back."""
    kept, slope = holder[key], 0.0
    for k, weight in STENCIL:
        for sign in (1, -1):
            holder[key] = kept + sign * k * step
            slope += sign * weight * Reference(inputs, options).total()
    holder[key] = kept
    return slope / step


def differences(inputs: Inputs, options: Options, rows: list[Any], step: float) -> list[Any]:
    if isinstance(rows[0], list):
        return [differences(inputs, options, row, step) for row in rows]
    return [derivative(inputs, options, rows, k, step) for k in range(len(rows))]


@pytest.mark.parametrize("variant", ["default", "gentle paper", "gentle"])
def test_gradients_are_the_differences_of_the_reference(variant: str) -> None:
    options, step = dict(VARIANTS[variant]), 2e-5 if variant == "default" else 3e-4
    inputs = random_inputs(1.7, seed=2)
    reference = Reference(inputs, options)
    for view in ENTAIL:  # no kink within reach of the stencil
        assert all(abs(reference.excess(view, i)) > 0.02 for i in range(4))
        assert all(abs(reference.over_norm(reference.midpoint(view, i)) - 1) > 0.02 for i in range(4))
    views, manifold = tensors(inputs)
    objective = library(options | {"learn_temperature": True})
    objective(manifold, views).total.backward()

    def check(what: str, gradient: Tensor | None, expected: Any) -> None:
        assert gradient is not None, what
        wanted = torch.tensor(expected, dtype=torch.float64)
        assert wanted.abs().max() > 1e-6, f"{what}: nothing to compare"
        assert (gradient - wanted).abs().max() < 1e-6 * wanted.abs().max(), what

    for view, points in inputs.points.items():
        check(view, views.points[view].grad, differences(inputs, options, points, step))
    for view, tokens in inputs.tokens.items():
        gradient = views.tokens[view].values.grad
        check(f"tokens of {view}", gradient, differences(inputs, options, tokens, step))
        assert gradient is not None
        assert (gradient[~views.tokens[view].mask] == 0).all()
    log_c_slope = inputs.c * derivative(inputs, options, vars(inputs), "c", step)
    check("log_c", manifold.log_c.grad, log_c_slope)
    slope = derivative(inputs, options, options, "temperature", step)
    check("log_scale", objective.log_scale["global"].grad, -options["temperature"] * slope)


def test_the_teacher_and_a_fixed_temperature_get_no_gradient() -> None:
    views, manifold = tensors(random_inputs(1.0))
    objective = library(PAPER)
    output = objective(manifold, views)
    assert output.terms[DISTILL] > 0
    output.total.backward()
    assert all(features.grad is None for features in views.teacher.values())
    assert objective.log_scale["global"].grad is None
    student = views.points["short_text"].grad
    assert student is not None
    assert student.abs().max() > 0


NEEDS = {  # what is absent, the weights that then must be zero, and what the full objective says of it
    "short_text": (("short_weight", "distill_weight"), "view 'short_text'"),
    "tokens": (("entail_weight",), "tokens of 'image'"),
    "teacher": (("distill_weight",), "a teacher's features of 'image'"),
}


@pytest.mark.parametrize("absent", [["short_text"], ["tokens"], ["teacher"], ["short_text", "tokens", "teacher"]])
@pytest.mark.parametrize("entropy_weight", [0.1, 0.0])
def test_a_term_of_weight_zero_needs_no_views(absent: list[str], entropy_weight: float) -> None:
    inputs = random_inputs(1.0)
    views, manifold = tensors(inputs)
    less = dataclasses.replace(
        views,
        points={view: points for view, points in views.points.items() if view not in absent},
        tokens={} if "tokens" in absent else views.tokens,
        teacher={} if {"teacher", "short_text"} & set(absent) else views.teacher,
    )
    options = PAPER | {name: 0.0 for what in absent for name in NEEDS[what][0]} | {"entropy_weight": entropy_weight}
    output, reference = library(options)(manifold, less), Reference(inputs, options)
    assert set(output.terms) == set(reference.terms())
    assert output.total.item() == pytest.approx(reference.total(), rel=1e-9)
    with pytest.raises(ValueError, match=f"^the objective needs {NEEDS[absent[0]][1]}"):
        library(PAPER)(manifold, less)


def test_distillation_is_zero_where_the_student_has_the_teachers_logits() -> None:
    frame, radius = torch.eye(3, dtype=torch.float64), 1.3
    points = frame * math.sinh(radius)
    apart = math.acosh(math.cosh(radius) ** 2)  # of two points at that radius, at a right angle (c = 1)
    temperatures = {"teacher_temperature": 0.3, "distill_temperature": 0.3 * apart}
    options = PAPER | {"short_weight": 0.0, "entail_weight": 0.0} | temperatures
    teacher = {"short_text": 2 * frame, "image": frame}  # cosines of 1 and 0

    def distillation(short_text: Tensor) -> float:
        views = Views.single(image=points, text=points, owner=None, short_text=short_text, teacher=teacher)
        return library(options)(lorentz(1.0), views).terms[DISTILL].item()

    assert distillation(points) == pytest.approx(0, abs=1e-14)
    assert distillation(points.roll(1, 0)) > 1
    assert distillation(0.9 * points) > 1e-4


def test_the_entropy_term_is_least_where_the_radii_are_equal() -> None:
    options = PAPER | dict.fromkeys(("short_weight", "distill_weight", "entail_weight"), 0.0)
    generator = torch.Generator().manual_seed(3)
    directions = torch.nn.functional.normalize(torch.randn(5, 4, generator=generator, dtype=torch.float64), dim=-1)

    def minus_entropy(text: Tensor) -> float:
        return library(options)(lorentz(0.7), Views.single(image=directions, text=text)).terms[ENTROPY].item()

    assert minus_entropy(1.5 * directions) == pytest.approx(-math.log(5), rel=1e-13)
    for row in range(5):
        moved = 1.5 * directions
        moved[row] *= 1.2
        assert minus_entropy(moved) > -math.log(5) + 1e-4


TINY = Inputs(  # numbers that float64 holds exactly
    points={
        "image": [[1.0, 0.25], [-2.0, 1.0]],
        "text": [[0.25, 0.5], [-3.0, 0.25]],
        "short_text": [[0.5, -0.25], [0.25, 3.0]],
    },
    tokens={
        "text": [[[1.0, 0.0], [0.25, 1.0], [9.0, 9.0]], [[2.0, 0.25], [2.0, 2.0], [1.0, 3.0]]],
        "image": [[[0.25, 0.25], [0.0, -1.0]], [[3.0, 1.0], [2.0, -0.25]]],
    },
    masks={"text": [[True, True, False], [True, True, True]], "image": [[True, True], [True, True]]},
    teacher={"short_text": [[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]], "image": [[1.0, 1.0, 0.25], [0.0, 1.0, 2.0]]},
    c=1.5,
)
TINY_OPTIONS = options_of((0.1, 0.05, 0.1, 0.1), (0.5, 0.25, 0.5, 0.5), 1.25)
TINY_VALUES = {
    "image -> text": "0.13941222807862900955543736544440700017467502314359",
    "text -> image": "0.10193991660104104207772881212690754773784826312427",
    "image -> short_text": "0.53555014264862081779669707434755462770158062922791",
    "short_text -> image": "0.60836137603521349406193448567555364424941286335831",
    "distillation short_text -> image": "0.24343596664937315708862071750422043081428011397679",
    "tokens of text ⊒ text": "0.65267039337479107010102352180834545835322943409582",
    "tokens of image ⊒ image": "0.89340106269185276504165751055282282577213706486514",
    "minus radius entropy text": "-0.5572158598151452338215504007494621815229372712026",
}


def exact(value: Any) -> Any:
    """The numbers of nested lists and dicts for mpmath; switches and words stay."""
    if isinstance(value, list):
        return [exact(item) for item in value]
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    return value if isinstance(value, bool | str) else mpmath.mpf(value)


def test_fifty_digits_of_a_tiny_batch() -> None:
    with mpmath.workdps(50):
        inputs = Inputs(**exact(vars(TINY)))
        expected = Reference(inputs, exact(TINY_OPTIONS), mpmath.mp).terms()
        for name, digits in TINY_VALUES.items():  # written down, so that a slip in the reference shows
            assert mpmath.almosteq(expected[name], mpmath.mpf(digits), rel_eps=mpmath.mpf(10) ** -48)
    terms = evaluate(TINY, TINY_OPTIONS).terms
    assert set(terms) == set(TINY_VALUES)
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(
        {name: float(digits) for name, digits in TINY_VALUES.items()}, rel=1e-13, abs=0
    )


def test_the_saturated_share_is_counted_over_midpoints() -> None:
    def along(norms: list[float]) -> Tensor:
        return torch.tensor([[norm, 0.0] for norm in norms], dtype=torch.float64)

    c = 4.0  # a cone is saturated where sqrt(c) |x| <= 2, that is |x| <= 1
    image, text = along([5.0, 0.5, 5.0, 0.5]), along([0.1, 7.0, 0.1, 0.1])
    words = torch.stack([along([0.4, 0.9, 1.1, 3.0]), along([9.0, 9.0, 9.0, 9.0])], dim=1)
    patches = along([0.5, 1.2, 2.0, 6.0])[:, None]
    tokens = {
        "text": Tokens(words, torch.tensor([[True, False]] * 4)),  # one token counts and so is the midpoint
        "image": Tokens(patches, torch.ones(4, 1, dtype=torch.bool)),
    }
    options = PAPER | {"short_weight": 0.0, "distill_weight": 0.0}
    output = library(options)(lorentz(c), Views.single(image=image, text=text, tokens=tokens))
    shares = {name: share.item() for name, share in output.stat_shares.items()}
    assert shares == {"saturated/tokens of text": 0.5, "saturated/tokens of image": 0.25}


def test_a_manifold_without_cones_is_refused() -> None:
    views, _ = tensors(random_inputs(1.0))
    with pytest.raises(ValueError, match="cones") as error:
        library(PAPER)(Sphere().double(), views)
    assert "\n" not in str(error.value)
