"""A few samples of a large set."""

from __future__ import annotations

from hyvlm.data.catalog import SampleSet
from hyvlm.types import Sample


class Subset(SampleSet):
    """``count`` samples at even distances, so that a set sorted by class keeps most of its classes."""

    def __init__(self, samples: SampleSet, count: int) -> None:
        self.samples = samples
        self.places = [i * len(samples) // count for i in range(count)]
        self.name, self.split = samples.name, samples.split
        self.classes, self.parents, self.expected = samples.classes, samples.parents, samples.expected
        images = getattr(samples, "image_fingerprint", samples.fingerprint)
        self.fingerprint = f"{samples.fingerprint}, {count} of {len(samples)}"
        self.image_fingerprint = f"{images}, {count} of {len(samples)}"

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[self.places[index]]


def spread(samples: SampleSet, limit: int | None) -> SampleSet:
    """At most ``limit`` of the samples, at even distances; all of them for None.

    Raises:
        ValueError: A limit below 2.
    """
    if limit is not None and limit < 2:
        raise ValueError(f"a diagnosis needs at least 2 samples, got a limit of {limit}")
    return samples if limit is None or limit >= len(samples) else Subset(samples, limit)
