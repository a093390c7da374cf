"""Where a traversal begins or ends: a text, a picture, or what a collection has under a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from hyvlm.data.images import load_image
from hyvlm.geometry import Modality
from hyvlm.models import DualEncoder, Tokenizer
from hyvlm.retrieval.collection import Collection
from hyvlm.retrieval.traverse import Candidates, Traversal, traverse
from hyvlm.types import BadSample, encodable


@dataclass(frozen=True)
class Place:
    """A point with what it is.

    Attributes:
        point: ``(D,)``.
        kind: "image" or "text".
        name: The text, the image's key, or its file.
        picture: Of an image, RGB; None for a text.
    """

    point: Tensor
    kind: Modality
    name: str
    picture: Image.Image | None = None


@dataclass(frozen=True)
class Places:
    """Finds places for a collection, with its model: ``Places(collection, *collection.load_model())``."""

    collection: Collection
    model: DualEncoder
    preprocess: Callable[[Image.Image], Tensor]
    tokenizer: Tokenizer

    @torch.inference_mode()
    def of_text(self, text: str) -> Place:
        """Any text. Raises ValueError if it is empty."""
        if not text.strip():
            raise ValueError("the text is empty")
        return Place(self.model.encode_text(self.tokenizer([text]).to(self._device))[0], "text", text)

    def of_image(self, file: str | Path) -> Place:
        """Any picture on disk. Raises FileNotFoundError, or ValueError if it is no picture."""
        if not Path(file).is_file():
            raise FileNotFoundError(f"there is no picture {file}")
        try:
            picture = load_image(Path(file))
        except BadSample as error:
            raise ValueError(f"{file} is no picture that can be read: {error.reason}") from error
        return self.of_picture(picture, str(file))

    @torch.inference_mode()
    def of_picture(self, picture: Image.Image, name: str) -> Place:
        """A picture, RGB, that is called ``name``."""
        point = self.model.encode_image(self.preprocess(picture).unsqueeze(0).to(self._device))[0]
        return Place(point, "image", name, picture)

    def of_key(self, key: str) -> Place:
        """The image, or else the text, of a key; the picture stays None if it cannot be read any more.

        Raises:
            ValueError: If there is none.
        """
        key = encodable(key)  # as keys are stored: a file name need not be UTF-8
        for group in (self.collection.images, self.collection.texts):
            if group is not None and key in group.keys:
                row = group.keys.index(key)
                point = torch.tensor(group.points[row], dtype=torch.float32, device=self._device)
                if group.texts is not None:
                    return Place(point, "text", group.texts[row])
                return Place(point, "image", key, picture_of(self.collection, row))
        raise ValueError(f"neither an image nor a text of {self.collection.folder} has the key {key!r}")

    def walk(
        self,
        start: Place,
        end: Place | None = None,
        *,
        within: str | None = None,
        steps: int = 50,
        by: str = "geodesic",
        entailed: bool | None = None,
    ) -> Traversal:
        """:func:`~hyvlm.retrieval.traverse.traverse` among the collection's points, the ends themselves left out.

        Args:
            within: "texts", "images", "both", or None for what the collection has.
        """
        candidates = Candidates.of(self.collection, within)
        ends = [place for place in (start, end) if place is not None]
        out = [row for place in ends for row in candidates.rows(place.name, place.kind)]
        return traverse(
            self.model,
            start.point,
            candidates,
            end=None if end is None else end.point,
            kind=start.kind,
            steps=steps,
            by=by,
            entailed=entailed,
            leave_out=out,
        )

    @property
    def _device(self) -> torch.device:
        return self.model.pixel_mean.device


def picture_of(collection: Collection, row: int) -> Image.Image | None:
    """A row's picture, or None where it cannot be read any more."""
    try:
        return collection.image(row)
    except (BadSample, ValueError):
        return None
