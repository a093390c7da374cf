"""Images with a mask of classes each: what sets for semantic segmentation share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hyvlm.data.files import Drops, FileSet, Fingerprint, ImageFolder, existing
from hyvlm.types import BadSample, Sample

#: The label of pixels that are not scored: borders, and what the annotators left open.
IGNORED = 255
#: The name of class 0, what is no object of any other class.
BACKGROUND = "background"


class MaskImages(FileSet):
    """Images that have a mask, in the order of ``files``; those without one are counted as dropped.

    Args:
        files: Image file to mask file, names in the two folders.
    Raises:
        FileNotFoundError: None of the images exists.
        ValueError: No image has a mask.
    """

    def __init__(
        self,
        name: str,
        split: str,
        classes: Sequence[str],
        folders: tuple[Path, Path],
        files: Mapping[str, str],
        fingerprint: Fingerprint,
    ) -> None:
        self.name, self.split, self.classes = name, split, tuple(classes)
        self.folder, self.mask_folder = ImageFolder(folders[0]), folders[1]
        drops = Drops()
        found = existing(files, folders[0], fingerprint, drops)
        self.files: list[tuple[str, str]] = []
        for image, mask in files.items():
            if image in found and fingerprint.add_file(f"masks/{mask}", folders[1] / mask):
                self.files.append((image, mask))
            elif image in found:
                drops.add("no mask", image)
        if not self.files:
            raise ValueError(f"{name}: no image of split {split!r} has a mask in {folders[1]}")
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        image_name, mask_name = self.files[index]
        image = self.folder.load(image_name)
        mask = self.read_mask(self.mask_folder / mask_name)
        if mask.shape != (image.height, image.width):
            raise BadSample("mask and image differ in size", image_name)
        return Sample(Path(image_name).stem, image, mask=Image.fromarray(mask))

    @abstractmethod
    def read_mask(self, path: Path) -> NDArray[np.uint8]:
        """Classes of the pixels ``(H, W)``, :data:`IGNORED` where there is none. Raises :class:`BadSample`."""


class PaletteMasks(MaskImages):
    """Masks whose palette (or grey) values are the classes, as those of PASCAL VOC."""

    def read_mask(self, path: Path) -> NDArray[np.uint8]:
        """As :meth:`MaskImages.read_mask`."""
        return read_png(path, ("P", "L"))


def read_png(path: Path, modes: Sequence[str]) -> NDArray[np.uint8]:
    """The raw values of a PNG of one of these PIL modes. Raises :class:`BadSample`."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.mode not in modes:
                raise BadSample(f"mask is a PNG of mode {image.mode}, not {' or '.join(modes)}", str(path))
            return np.array(image)
    except FileNotFoundError as error:
        raise BadSample("no mask", str(path)) from error
    except BadSample:
        raise
    except Exception as error:  # decoders of untrusted bytes raise nearly anything
        raise BadSample("mask is broken", str(path)) from error
