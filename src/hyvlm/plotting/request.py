"""What ``hyvlm plot`` asks of a picture, and the pictures there are."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.tasks.segmentation import Segmentation
from hyvlm.plotting.contributions import check_temperature
from hyvlm.plotting.figures import Files
from hyvlm.plotting.gather import Gathered, gather
from hyvlm.registry import Registry
from hyvlm.types import reasons


@dataclass(frozen=True)
class Request:
    """What to draw.

    Attributes:
        embedders: Models by the names that the picture gives them, in its order.
        samples: Images with captions (content "pairs").
        sample: Place in ``samples`` of the image that the picture is about.
        captions: Which of an image's captions is its (long) text: "first", "last", or all of them "joined".
        limit: Images of the data set that take part, the chosen one included, at the most.
        temperature: Of the tokens' weights (Eq. 17).
        seed: Of perturbations, of HoroPCA's draw of points and of t-SNE.
        resize: "squash" images to a square, or "crop" the centre; None is each model's own way.
        texts: What is looked for in the image (similarity); none is its caption.
        templates, background: Of the classes (segmentation), as of the task.
        extrapolation: Factor of the texts' distance from the origin (similarity, segmentation), where there is one.

    Raises:
        ValueError: The temperature or the extrapolation is not positive.
    """

    embedders: Mapping[str, Embedder]
    samples: SampleSet
    sample: int = 0
    captions: str = "joined"
    limit: int = 500
    temperature: float = 0.07
    seed: int = 0
    resize: str | None = None
    texts: tuple[str, ...] = ()
    templates: str = Segmentation.templates
    background: str = Segmentation.background
    extrapolation: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not 0 < self.extrapolation < math.inf:
            raise ValueError(f"extrapolation must be a positive number, got {self.extrapolation}")

    def gather(self) -> Gathered:
        """The images that take part, the chosen one first, and their points; what was passed over goes to stderr."""
        gathered = gather(
            self.embedders,
            self.samples,
            sample=self.sample,
            captions=self.captions,
            limit=self.limit,
            resize=self.resize,
        )
        if gathered.skipped:
            skipped = gathered.skipped
            print(f"hyvlm: {skipped.total()} samples were passed over: {reasons(skipped)}", file=sys.stderr)
        return gathered


PICTURES: Registry[Callable[[Request], Files]] = Registry("picture")
