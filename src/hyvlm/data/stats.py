"""How many parts the samples of a data set have, and what a cap on them keeps (Hyper3-CLIP, Sec. 4.3 and Fig. 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import index as whole_number
from types import MappingProxyType
from typing import Any

import numpy as np

from hyvlm.data.catalog import SampleSet, open_data
from hyvlm.data.sets.scenes import ScenePairs
from hyvlm.data.sets.scenes.world import objects_in
from hyvlm.data.sets.shards import Shards
from hyvlm.types import BadSample, reasons


@dataclass(frozen=True)
class PartStatistics:
    """The distribution of the number of parts a sample.

    Attributes:
        histogram: Number of parts to how many samples have it, in rising order; numbers that no sample has are absent.
        skipped: Samples that could not be counted, by reason; parts that could not be used under "part: REASON".
    Raises:
        ValueError: There is no sample, or none has a part.
    """

    histogram: Mapping[int, int]
    skipped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        left_out = f"; left out: {reasons(self.skipped)}" if self.skipped else ""
        if not self.samples:
            raise ValueError(f"there is no sample to count the parts of{left_out}")
        if min(self.histogram) < 0:
            raise ValueError(f"a sample has 0 parts or more, got {min(self.histogram)}")
        if not self.parts:
            raise ValueError(f"none of {self.samples:,} samples has a part{left_out}")

    @property
    def samples(self) -> int:
        """How many samples were counted."""
        return sum(self.histogram.values())

    @property
    def parts(self) -> int:
        """How many parts they have."""
        return sum(parts * samples for parts, samples in self.histogram.items())

    @property
    def mean(self) -> float:
        """Parts a sample, on average."""
        return self.parts / self.samples

    @property
    def max(self) -> int:
        """Most parts of one sample."""
        return max(self.histogram)

    def share(self, parts: int) -> float:
        """Share of the samples that have exactly so many parts, 0 to 1."""
        return self.histogram.get(parts, 0) / self.samples

    def retained(self, cap: int) -> float:
        """Share of all parts that is left if no sample keeps more than ``cap``, 0 to 1."""
        return sum(min(parts, cap) * samples for parts, samples in self.histogram.items()) / self.parts

    def whole(self, cap: int) -> float:
        """Share of the samples that lose no part to ``cap``, 0 to 1."""
        return sum(samples for parts, samples in self.histogram.items() if parts <= cap) / self.samples

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON holds it, with every cap from 1 to the largest number of parts; shares are 0 to 1."""
        return {
            "samples": self.samples,
            "parts": self.parts,
            "mean": self.mean,
            "max": self.max,
            "histogram": {str(parts): samples for parts, samples in self.histogram.items()},
            "share_of_samples": {str(parts): self.share(parts) for parts in self.histogram},
            "caps": {
                str(cap): {"parts_retained": self.retained(cap), "samples_whole": self.whole(cap)}
                for cap in range(1, self.max + 1)
            },
            "skipped": dict(self.skipped),
        }


def part_statistics(counts: Iterable[int], skipped: Mapping[str, int] | None = None) -> PartStatistics:
    """The statistics of the numbers of parts of some samples, one number a sample.

    Raises:
        ValueError: There is no number, all are 0, or one is negative.
        TypeError: One is no whole number.
    """
    tally = Counter(map(whole_number, counts))
    return PartStatistics(MappingProxyType(dict(sorted(tally.items()))), MappingProxyType(dict(skipped or {})))


def scan_parts(
    spec: str, split: str | None = None, *, show: Callable[[Iterable[int]], Iterable[int]] = iter
) -> PartStatistics:
    """The statistics of a data set with parts, before any cap.

    Processed shards (GRIT) are counted by the names of their members, without a look into them, and so are the built-in
    scenes; then parts that cannot be decoded count. Samples of other sets are opened, one after the other.

    Args:
        spec: The data set, as :func:`hyvlm.data.open_data` takes it.
        split: Which split.
        show: Iterates over the list of the samples that are opened; for a progress bar.
    Raises:
        ValueError: The set has no parts; or as ``open_data``.
        FileNotFoundError: As ``open_data``.
    """
    samples = open_data(spec, split=split)
    counts, unknown = _listed(samples)
    skipped = Counter(samples.dropped)
    usable = np.ones(len(samples), dtype=bool)
    for number in show(unknown.tolist()):
        try:
            sample = samples[number]
        except BadSample as bad:
            skipped[bad.reason] += 1
            usable[number] = False
            continue
        counts[number] = len(sample.parts)
        skipped.update(f"part: {bad.reason}" for bad in sample.dropped)
    try:
        return part_statistics(counts[usable].tolist(), skipped)
    except ValueError as error:
        raise ValueError(f"{spec}: {error}") from error


def _listed(samples: SampleSet) -> tuple[np.ndarray, np.ndarray]:
    """``(N,)`` numbers of parts as far as the set lists them, and the indices of the samples that must be opened."""
    if isinstance(samples, ScenePairs):
        return np.array([objects_in(number) for number in range(len(samples))]), np.empty(0, dtype=np.int64)
    if isinstance(samples, Shards):
        counts = np.concatenate([shard.samples["parts"] for shard in samples.shards])
        with_document = np.concatenate([shard.samples["json"][:, 1] > 0 for shard in samples.shards])
        return counts, np.flatnonzero(with_document)  # the boxes of raw GRIT stand in its json
    return np.zeros(len(samples), dtype=np.int64), np.arange(len(samples))
