"""Masks of COCO's 80 object classes with background, from its panoptic annotations (Kirillov et al. 2019)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Fingerprint, check_offer, need_folder, read_json
from hyvlm.data.sets.coco import refuse_twins
from hyvlm.data.sets.masks import BACKGROUND, IGNORED, MaskImages, read_png
from hyvlm.types import BadSample


class PanopticMasks(MaskImages):
    """Masks whose colours ``R + 256 G + 65536 B`` are segments; ``segments`` says the label of each, by mask file."""

    segments: dict[str, dict[int, int]]

    def read_mask(self, path: Path) -> NDArray[np.uint8]:
        """As :meth:`MaskImages.read_mask`; pixels of no segment are ignored."""
        colours = read_png(path, ("RGB",)).astype(np.int64) @ np.array([1, 256, 65536])
        known = self.segments[path.name]
        values, places = np.unique(colours, return_inverse=True)
        strange = [int(value) for value in values if value and int(value) not in known]
        if strange:
            raise BadSample("mask has a segment that is not listed", f"{path}, segment {strange[0]}")
        labels = np.array([known.get(int(value), IGNORED) for value in values], dtype=np.uint8)
        return labels[places.reshape(colours.shape)]


@DATASETS.register("coco-panoptic")
def open_coco_panoptic(location: str, *, split: str | None = None, content: str = "masks") -> SampleSet:
    """COCO's object classes as masks. Content: masks; things keep their class, stuff is background, void is ignored.

    Read are ``annotations/panoptic_SPLIT.json``, ``annotations/panoptic_SPLIT/`` (or ``panoptic_SPLIT/``) and
    ``SPLIT/`` or ``images/SPLIT/`` as published, or ``panoptic.json``, ``panoptic/`` and ``images/`` (split "all").
    The default split is val2017, or the only one.
    """
    check_offer("coco-panoptic", "content", content, ["masks"])
    root = need_folder(Path(location), "coco-panoptic")
    flat = (root / "panoptic.json").is_file()
    named = sorted(p.stem.partition("_")[2] for p in (root / "annotations").glob("panoptic_*.json"))
    splits = ["all"] if flat else named
    if not splits:
        raise FileNotFoundError(f"coco-panoptic: {root} has neither panoptic.json nor annotations/panoptic_SPLIT.json")
    if split is None:
        split = "val2017" if "val2017" in splits else splits[0]
    check_offer(f"coco-panoptic:{location}", "split", split, splits)
    file = root / ("panoptic.json" if flat else f"annotations/panoptic_{split}.json")
    masks = ["panoptic"] if flat else [f"annotations/panoptic_{split}", f"panoptic_{split}"]
    images = ["images"] if flat else [split, f"images/{split}", "images"]
    folders = _first_folder(root, images), _first_folder(root, masks)
    try:
        document = read_json(file)
        refuse_twins(document["categories"], file)
        classes, files, segments = _read(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not in COCO's panoptic format: {type(error).__name__} {error}") from error
    fingerprint = Fingerprint("coco-panoptic", split)
    fingerprint.add_file(file.name, file)
    opened = PanopticMasks(f"coco-panoptic:{location}", split, classes, folders, files, fingerprint)
    opened.segments = segments
    opened.expected = 5000 if split == "val2017" and not flat else None
    return opened


def _first_folder(root: Path, options: list[str]) -> Path:
    for option in options:
        if (root / option).is_dir():
            return root / option
    raise FileNotFoundError(f"coco-panoptic: no folder {' or '.join(str(root / option) for option in options)}")


def _read(document: Any) -> tuple[list[str], dict[str, str], dict[str, dict[int, int]]]:
    """Class names, image file to mask file, and the label of every segment by mask file."""
    things = sorted((c["id"], c["name"]) for c in document["categories"] if c["isthing"])
    label = {c["id"]: 0 for c in document["categories"]} | {key: i for i, (key, _) in enumerate(things, start=1)}
    image_file = {image["id"]: image["file_name"] for image in document["images"]}
    files, segments = {}, {}
    for entry in sorted(document["annotations"], key=lambda entry: entry["image_id"]):
        files[image_file[entry["image_id"]]] = entry["file_name"]
        segments[entry["file_name"]] = {s["id"]: label[s["category_id"]] for s in entry["segments_info"]}
    for text in (*(name for _, name in things), *files, *files.values()):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} stands where a name should be")
    return [BACKGROUND, *(name for _, name in things)], files, segments
