"""Random crops of images as parts, for sets without parts, and for more of them than anyone would draw boxes of."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hyvlm.data.catalog import SampleSet
from hyvlm.types import Part, Sample

#: Area of a crop as a share of its image's, and its width over its height.
AREA = (0.02, 0.5)
ASPECT = (3 / 4, 4 / 3)


def random_boxes(width: int, height: int, count: int, *, seed: int | Sequence[int]) -> list[tuple[int, int, int, int]]:
    """``count`` boxes x0, y0, x1, y1 inside an image, with areas and log-aspects spread evenly over their ranges.

    Raises:
        ValueError: If ``count`` is not positive.
    """
    if count < 1:
        raise ValueError(f"an image is cut into at least 1 random crop, got {count}")
    generator = random.Random(f"crops {[seed] if isinstance(seed, int) else list(seed)}")
    boxes = []
    for _ in range(count):
        area = generator.uniform(*AREA) * width * height
        aspect = math.exp(generator.uniform(*map(math.log, ASPECT)))
        across = min(max(round(math.sqrt(area * aspect)), 1), width)
        down = min(max(round(math.sqrt(area / aspect)), 1), height)
        left, top = generator.randint(0, width - across), generator.randint(0, height - down)
        boxes.append((left, top, left + across, top + down))
    return boxes


class RandomCrops(SampleSet):
    """The samples of another set with ``count`` random crops in place of their parts; the phrase of a crop is empty."""

    def __init__(self, samples: SampleSet, count: int, *, seed: int = 0) -> None:
        random_boxes(1, 1, count, seed=seed)  # checks the count
        self.samples, self.count, self.seed = samples, count, seed
        self.name, self.split, self.classes, self.parents = (
            samples.name,
            samples.split,
            samples.classes,
            samples.parents,
        )
        self.dropped, self.dropped_examples = samples.dropped, samples.dropped_examples
        self.fingerprint = f"{samples.fingerprint}, {count} crops, seed {seed}"
        self.image_fingerprint = getattr(samples, "image_fingerprint", samples.fingerprint)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        sample = self.samples[index]
        image = sample.picture
        boxes = random_boxes(*image.size, self.count, seed=(self.seed, index))
        parts = [Part(image.crop(box), "") for box in boxes]
        return Sample(sample.key, image, list(sample.texts), parts, list(sample.labels), list(sample.ignored))
