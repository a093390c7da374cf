"""What a task is, what it returns, and the registry of tasks. A new task is one file with one registered class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from hyvlm.data.catalog import SampleSet
from hyvlm.data.transforms import eval_transform
from hyvlm.evaluation.embed import Embedder
from hyvlm.models import DualEncoder
from hyvlm.registry import Registry, unknown


@dataclass
class Outcome:
    """What a task measured on one sample set.

    Attributes:
        scores: Metric name to value, in the order in which they are shown; NaN where a metric is not defined.
        units: Metric name to unit ("%", "edges"); none for a plain number.
        n: Samples scored.
        total: Samples in the set.
        skipped: Samples (and parts) left out, by reason.
        skipped_examples: Where the first few of them are.
        ties: Queries that a tie decided, by kind; ties go against the model.
        intervals: 95% interval of some metrics.
        undefined: Why a metric is NaN, by name.
        details: Further facts that the numbers depend on (hashes, counts, sizes).
        notes: Remarks that a reader of the numbers must see.
    """

    scores: dict[str, float]
    units: dict[str, str]
    n: int
    total: int
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_examples: list[str] = field(default_factory=list)
    ties: dict[str, int] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A measurement of a model on a sample set; subclasses add their settings as fields.

    Attributes:
        version: Goes up when a number would move.
        content: What the sample set must hold, see :func:`hyvlm.data.open_data`.
        parts: Whether the task looks at part crops; such tasks run first, so that one pass serves the others, too.
        resize: ``"squash"`` or ``"crop"``; the published evaluations of the MERU lineage squash for retrieval and crop
            for classification.
        image_size: Side of the images in pixels; None is the model's own.
    """

    version: ClassVar[int]
    content: ClassVar[str]
    parts: ClassVar[bool] = False

    resize: str = "squash"
    image_size: int | None = None

    @property
    def opens(self) -> str:
        """The content to open a sample set for: ``content``, unless it depends on the settings."""
        return self.content

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        """Raise ValueError (or FileNotFoundError) for what can be known to be wrong before any image is read."""
        self.check_size("image_size", self.image_size, model)
        eval_transform(self.image_size or 1, resize=self.resize)

    def side(self, own: int) -> int:
        """Side in pixels of the images that a model of the size ``own`` is shown."""
        return self.image_size or own

    @staticmethod
    def check_size(name: str, size: int | None, model: DualEncoder) -> None:
        """Raise ValueError unless the side ``size`` is None or a multiple of the model's patch, as its images are."""
        patch = int(model.config["model"]["image"]["patch"])
        if size is not None and (size < 1 or size % patch):
            raise ValueError(f"{name} must be a positive multiple of the model's patch of {patch} pixels, got {size}")

    @abstractmethod
    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        """Measure. Raises ValueError for samples or scores that cannot be measured."""


TASKS: Registry[type[Task]] = Registry("task")

#: Which of an image's captions a task looks at: functions of the list of all its captions.
CAPTIONS: Mapping[str, Callable[[list[str]], list[str]]] = MappingProxyType(
    {
        "all": list,
        "first": lambda texts: texts[:1],
        "last": lambda texts: texts[-1:],
        "joined": lambda texts: [" ".join(texts)] if texts else [],
    }
)


def choice_of_captions(name: str) -> Callable[[list[str]], list[str]]:
    """The function from all captions of an image to those that ``name`` stands for; ValueError if it stands for none.

    "joined" is one text: all captions, one after the other.
    """
    if name not in CAPTIONS:
        raise ValueError(unknown("choice of captions", name, list(CAPTIONS)))
    return CAPTIONS[name]


def size_notes(samples: SampleSet, n: int, captions: int | None = None) -> list[str]:
    """Notes if ``n`` samples, or ``captions``, were used, but the published set has another number of them."""
    counts = (("samples", n, samples.expected), ("captions", captions, samples.expected_captions))
    return [
        f"{used:,} of the {published:,} published {what} of {samples.name}: not comparable"
        for what, used, published in counts
        if used is not None and published not in (None, used)
    ]


def percent(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares, 0 to 1, in percent."""
    return {name: 100 * share for name, share in shares.items()}


def percent_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """An interval of a share in percent."""
    return 100 * interval[0], 100 * interval[1]
