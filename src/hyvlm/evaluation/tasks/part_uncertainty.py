"""Whether parts that say much of their whole are those of low uncertainty (UNCHA, Fig. 4b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor
from torch.nn.functional import cosine_similarity

from hyvlm.data.catalog import SampleSet
from hyvlm.data.crops import RandomCrops
from hyvlm.evaluation.embed import Embedder, evaluation_mode
from hyvlm.evaluation.task import TASKS, Outcome, Task
from hyvlm.geometry import Manifold
from hyvlm.losses import HasRadius, uncertainty
from hyvlm.methods.relations import check_measure
from hyvlm.models import DualEncoder

#: Resampled sets of wholes behind an interval.
RESAMPLES = 1000
#: What each coefficient does to a variable before the products of deviations are taken.
CORRELATIONS = {"pearson": np.asarray, "spearman": rankdata}


@dataclass(frozen=True)
class PartUncertainty:
    """Of M parts; all ``(M,)``.

    Attributes:
        similarity: Minus the geodesic distance of part and whole, in units of length.
        cosine: Of the angle between their tangent vectors at the origin, which no distance from it enters.
        uncertainty: Of the part, ``log(1 + exp(-r))``.
        owner: The whole of each part.
    """

    similarity: NDArray[np.float64]
    cosine: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    owner: NDArray[np.int64]


def part_uncertainty(
    manifold: Manifold, wholes: Tensor, parts: Tensor, owner: Tensor, *, measure: str = "norm"
) -> PartUncertainty:
    """How close parts ``(M, D)`` are to their wholes, rows ``owner`` of ``(N, D)``, and how uncertain they are.

    Args:
        measure: What the uncertainty is a function of: the space "norm", or the "radius".
    Raises:
        ValueError: The manifold has no origin, as the sphere; an unknown measure.
    """
    check_origin(manifold)
    whole = wholes[owner]
    flat_whole, flat_part = (manifold.logmap0(points) for points in (whole, parts))  # type: ignore[operator]
    return PartUncertainty(
        similarity=_array(-manifold.distance(parts, whole)),
        cosine=_array(cosine_similarity(flat_whole, flat_part, dim=-1)),
        uncertainty=_array(uncertainty(parts, manifold, measure)),
        owner=owner.cpu().numpy(),
    )


def _array(rows: Tensor) -> NDArray[np.float64]:
    return rows.detach().double().cpu().numpy()


def check_origin(manifold: Manifold) -> None:
    """Raise ValueError unless points differ in their distance from an origin."""
    if not isinstance(manifold, HasRadius):
        raise ValueError(f"uncertainty is a distance from the origin: points of a {type(manifold).__name__} have none")


@dataclass(frozen=True)
class Correlation:
    """A coefficient of correlation with its 95 % interval; NaN where a variable is constant."""

    value: float
    interval: tuple[float, float]


def correlation(
    x: NDArray[np.float64], y: NDArray[np.float64], owner: NDArray[np.int64], *, kind: str = "pearson", seed: int = 0
) -> Correlation:
    """Pearson's or Spearman's coefficient of x and y, both ``(M,)``.

    The interval is a percentile bootstrap over wholes, each drawn with all its parts, as parts of one whole are not
    independent.

    Raises:
        ValueError: Fewer than three pairs, or two wholes.
    """
    wholes, first = np.unique(np.sort(owner), return_index=True)
    if len(x) < 3 or len(wholes) < 2:
        raise ValueError(f"a correlation needs at least 3 parts of 2 wholes, got {len(x)} of {len(wholes)}")
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return Correlation(float("nan"), (float("nan"), float("nan")))
    prepare = CORRELATIONS[kind]

    def statistic(some: NDArray[np.float64], other: NDArray[np.float64]) -> float:
        return float(np.corrcoef(prepare(some), prepare(other))[0, 1])

    rows_of = np.split(np.argsort(owner, kind="stable"), first[1:])
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLES):
        rows = np.concatenate([rows_of[i] for i in generator.integers(len(wholes), size=len(wholes))])
        if np.ptp(x[rows]) and np.ptp(y[rows]):
            drawn.append(statistic(x[rows], y[rows]))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Correlation(statistic(x, y), (float(low), float(high)))


@TASKS.register("uncertainty")
@dataclass(frozen=True, kw_only=True)
class Uncertainty(Task):
    """Correlation of a part's closeness to its whole with its uncertainty; strongly negative is what UNCHA trains for.

    Closeness is minus the geodesic distance, which the distance from the origin enters, and for "_cosine" the cosine of
    the tangent vectors, which it does not.

    Attributes:
        crops: Random crops of an image that stand for its parts; None takes the parts of the set.
        measure: The uncertainty is a function of the space "norm", or of the "radius".
        part_size: Side of part crops in pixels; None is that of the images.
        seed: Of the random crops.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "pairs"
    parts: ClassVar[bool] = True

    crops: int | None = None
    measure: str = "norm"
    part_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_measure(self.measure)
        if self.crops is not None and self.crops < 1:
            raise ValueError(f"an image is cut into at least 1 random crop, got {self.crops}")

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        self.check_size("part_size", self.part_size, model)
        check_origin(model.manifold)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        if self.crops is not None:
            samples = RandomCrops(samples, self.crops, seed=self.seed)
        images = embedder.images(
            samples, resize=self.resize, image_size=self.image_size, parts=True, part_size=self.part_size
        )
        if not len(images.part_owner):
            raise ValueError(f"no image of {samples.name} has a part: set crops to cut random ones")
        with evaluation_mode(embedder.model):
            found = part_uncertainty(
                embedder.model.manifold, images.points, images.part_points, images.part_owner, measure=self.measure
            )
        by_name = {
            f"{kind}{suffix}": correlation(values, found.uncertainty, found.owner, kind=kind)
            for suffix, values in (("", found.similarity), ("_cosine", found.cosine))
            for kind in CORRELATIONS
        }
        scores = {name: one.value for name, one in by_name.items()}
        return Outcome(
            scores=scores,
            units={},
            n=len(np.unique(found.owner)),
            total=images.total,
            skipped=images.skipped,
            skipped_examples=images.examples,
            intervals={name: one.interval for name, one in by_name.items() if not np.isnan(one.value)},
            undefined={name: "a variable is constant" for name, value in scores.items() if np.isnan(value)},
            details={
                "parts": len(found.owner),
                "uncertainty_quantiles": np.quantile(found.uncertainty, (0.05, 0.5, 0.95)).tolist(),
                "similarity": "minus the geodesic distance; _cosine: of tangent vectors at the origin",
                "interval": f"bootstrap over wholes, {RESAMPLES} draws",
            },
        )
