"""sDCI: images and crops of their parts, each with short captions and captions that a language model made false."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import (
    Drops,
    FileSet,
    Fingerprint,
    ImageFolder,
    check_offer,
    clean_texts,
    existing,
    need_folder,
    read_json,
)
from hyvlm.data.sets.captioned import UNREADABLE, Listing
from hyvlm.types import BadSample, Sample, reasons

#: Which tests an entry belongs to: those of whole images alone, those of whole images and parts.
MATCHING_TESTS = ("base", "all")
#: A part counts if both sides of its bounds have so many pixels; its crop is widened by this share on every side.
LEAST_SIDE = 224
MARGIN = 0.15

Box: TypeAlias = tuple[int, int, int, int]


@dataclass(slots=True)
class _Entry:
    """A whole image (``box`` None) or the crop of a part."""

    key: str
    image: str
    box: Box | None
    texts: list[str]
    negatives: list[str]
    labels: list[int]


class SummarizedDCI(FileSet):
    """Whole images, each followed by the crops of its parts, in the order of the files.

    ``texts`` are the summaries. ``negatives`` are the first of the kind "swaps", all others, and once more, as the last
    one, that which CLIP ViT-B/32 scored highest, as the files tell. ``labels`` are indices into ``MATCHING_TESTS``.
    """

    #: The last negative is the hardest one; a set without this leaves the choice to the model.
    hardest_last = True
    classes = MATCHING_TESTS

    def __init__(self, files: Sequence[Path], folder: Path, name: str, split: str) -> None:
        self.name, self.split = name, split
        drops, fingerprint, listing = Drops(), Fingerprint("sdci", split), Listing(folder)
        entries: list[_Entry] = []
        for path in files:
            try:
                entries += _entries(path, listing)
            except BadSample as bad:
                drops.add(bad.reason, bad.where)
        found = existing((entry.image for entry in entries), folder, fingerprint, drops)
        self.entries = [entry for entry in entries if entry.image in found]
        if not self.entries:
            why = reasons(drops.counts) or "none is listed"
            raise ValueError(f"{name}: no image of split {split!r} has summaries and negatives ({why})")
        for entry in self.entries:
            fingerprint.update(entry.key, repr(entry.box), *entry.texts, *entry.negatives)
        self.folder = ImageFolder(folder)
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Sample:
        entry = self.entries[index]
        whole = self.folder.load_to_cut(entry.image)
        image = whole.copy() if entry.box is None else _cut(whole, entry.box, entry.key)
        texts, labels, negatives = list(entry.texts), list(entry.labels), list(entry.negatives)
        return Sample(entry.key, image, texts=texts, labels=labels, negatives=negatives)


def _cut(whole: Any, box: Box, key: str) -> Any:
    """The crop with its margin, inside the image."""
    x0, y0, x1, y1 = box
    across, down = int((x1 - x0) * MARGIN), int((y1 - y0) * MARGIN)
    window = max(x0 - across, 0), max(y0 - down, 0), min(x1 + across, whole.width), min(y1 + down, whole.height)
    if window[0] >= window[2] or window[1] >= window[3]:
        raise BadSample("part lies outside its image", key)
    return whole.crop(window)


def _entries(path: Path, listing: Listing) -> Iterator[_Entry]:
    """The entries of one annotation file. Raises :class:`BadSample` where the authors' loader skips the image."""
    try:
        document = read_json(path)
        image, masks = str(document["image"]), list(document["mask_data"].values())
        captions, negatives = document["summaries"], document["negatives"]
        boxes = {f"m-{mask['idx']}-sc": _box(mask["bounds"]) for mask in masks}
    except (ValueError, TypeError, KeyError, AttributeError, OSError, IndexError) as error:
        raise BadSample(UNREADABLE, f"{path} ({error})") from error
    image = next((place for place in (f"photos/{image}", image) if place in listing), f"photos/{image}")
    large = {key: box for key, box in boxes.items() if min(box[2] - box[0], box[3] - box[1]) >= LEAST_SIDE}
    alone = len(negatives) == 1  # then nothing is known of its parts
    found = []
    for key, box in [("base", None), *([] if alone else large.items())]:
        where = f"{key} of {path}"
        given = captions.get(key)
        texts = clean_texts([given] if isinstance(given, str) else given or [])
        if not texts:
            raise BadSample("an entry has no summary", where)
        labels = [1] if box is not None else [0] if alone else [0, 1]
        pool = _pool(negatives.get(key), document.get("clip_scores", {}).get(key), where)
        found.append(_Entry(f"{path.stem}/{key}", image, box, texts, pool, labels))
    yield from found


def _pool(by_kind: Any, scores: Any, where: str) -> list[str]:
    """The first swap, the other negatives, and the one of the highest score; of equal ones the last."""
    by_kind, scores = by_kind or {}, scores or {}
    named = {f"{kind}_{i}": text for kind, texts in by_kind.items() for i, text in enumerate(texts)}
    if not clean_texts([named.get("swaps_0")]):
        raise BadSample("an entry has no negative of the kind swaps", where)
    if len(clean_texts(named.values())) < len(named):
        raise BadSample("an entry has an empty negative", where)
    if not scores.keys() >= named.keys():
        raise BadSample("negatives have no CLIP scores", where)
    hardest = max(reversed(named), key=lambda name: float(scores[name]))
    first = named.pop("swaps_0")
    return clean_texts([first, *named.values(), first if hardest == "swaps_0" else named[hardest]])


def _box(bounds: Any) -> Box:
    """x0, y0, x1, y1 of bounds as ``{"topLeft": {"x", "y"}, "bottomRight": ...}`` or as two pairs of x and y."""
    if isinstance(bounds, dict):
        corners = [bounds["topLeft"], bounds["bottomRight"]]
        bounds = [[corner["x"], corner["y"]] for corner in corners]
    (x0, y0), (x1, y1) = bounds
    return int(x0), int(y0), int(x1), int(y1)


@DATASETS.register("sdci")
def open_sdci(location: str, *, split: str | None = None, content: str = "negatives") -> SampleSet:
    """Summaries and negatives of DCI (Urbanek et al. 2024), whole images and parts. Content: negatives.

    Read are ``complete/*.json`` with "image", "mask_data", "summaries", "negatives" and "clip_scores", ``photos/`` and
    ``splits.json`` with the splits train, valid and test (the default); the split "all" needs no such file.
    """
    check_offer("sdci", "content", content, ["negatives"])
    folder = need_folder(Path(location), "sdci")
    inner = folder / "densely_captioned_images"
    folder = inner if inner.is_dir() else folder
    if not (folder / "complete").is_dir():
        raise FileNotFoundError(f"sdci: {folder} has no folder complete")
    split = split or "test"
    if split == "all":
        files = sorted((folder / "complete").glob("*.json"))
    else:
        listed = read_json(folder / "splits.json") if (folder / "splits.json").is_file() else {}
        if not isinstance(listed, dict) or not all(isinstance(names, list) for names in listed.values()):
            raise ValueError(f"{folder / 'splits.json'} is not an object of lists of annotation files")
        check_offer("sdci", "split", split, [*listed, "all"])
        files = [folder / "complete" / str(name) for name in listed[split]]
    return SummarizedDCI(files, folder, f"sdci:{location}", split)
