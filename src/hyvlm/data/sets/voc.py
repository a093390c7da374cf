"""PASCAL VOC folders: images with object boxes (Everingham et al. 2010, The PASCAL Visual Object Classes Challenge)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from hyvlm.data.boxes import cut_part
from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import Drops, Fingerprint, ObjectImages, check_offer, existing, need_folder, with_article
from hyvlm.data.sets.masks import BACKGROUND, PaletteMasks
from hyvlm.types import BadSample, Sample

#: The twenty classes as VOC writes them.
VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
#: Images of VOC 2012's val list of masks.
VOC2012_VAL = 1449
READABLE = {"diningtable": "dining table", "pottedplant": "potted plant", "tvmonitor": "tv monitor"}


@dataclass(frozen=True)
class VocObject:
    """One object: class, box with the origin at 0 and the right and lower edge excluded, difficult or not."""

    name: str
    box: tuple[float, ...]
    difficult: bool


class Voc(ObjectImages):
    """Images in the order of the split's list; for content "classes" one crop an object, in the order of the files."""

    def __init__(self, root: Path, name: str, split: str, content: str, ids: list[str]) -> None:
        self.name, self.split, self.content = name, split, content
        drops, fingerprint = Drops(), Fingerprint("voc", split, content, *ids)
        folder = need_folder(root / "JPEGImages", "voc")
        found = existing((f"{key}.jpg" for key in ids), folder, fingerprint, drops)
        self.images: list[tuple[str, list[VocObject]]] = []
        for key in ids:
            if f"{key}.jpg" not in found:
                continue
            try:
                objects = read_annotation(root / "Annotations" / f"{key}.xml")
            except BadSample as bad:
                drops.add(bad.reason, bad.where)
                continue
            fingerprint.update(str(objects))
            if content == "pairs" and not any(not o.difficult for o in objects):
                drops.add("no object to name in a caption", key)
                continue
            self.images.append((key, objects))
        names = {o.name for _, objects in self.images for o in objects}
        raw = VOC_CLASSES if names <= set(VOC_CLASSES) else sorted(names)
        self.classes = tuple(READABLE.get(n, n) for n in raw)
        self._label = {n: i for i, n in enumerate(raw)}
        self.objects = [
            (i, k) for i, (_, objects) in enumerate(self.images) for k, o in enumerate(objects) if not o.difficult
        ]
        if content != "classes":
            self.shows((f"{key}.jpg" for key, _ in self.images), found)
        else:
            for key, objects in self.images:
                drops.add("box marked difficult", key, times=sum(o.difficult for o in objects))
        self.finish(folder, fingerprint, drops)

    def _whole(self, index: int) -> Sample:
        key, objects = self.images[index]
        sample = Sample(key, self.folder.load(f"{key}.jpg"))
        clear = [o for o in objects if not o.difficult]
        if self.content == "labels":
            sample.labels = sorted({self._label[o.name] for o in clear})
            sample.ignored = sorted({self._label[o.name] for o in objects} - set(sample.labels))
            return sample
        names = list(dict.fromkeys(with_article(READABLE.get(o.name, o.name)) for o in clear))
        sample.texts = ["a photo of " + " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))]
        for number, o in enumerate(clear):
            where = f"part {number} of sample {key!r}"
            try:
                sample.parts.append(cut_part(sample.picture, o.box, with_article(READABLE.get(o.name, o.name)), where))
            except BadSample as bad:
                sample.dropped.append(bad)
        return sample

    def _crop(self, index: int, number: int) -> Sample:
        key, objects = self.images[index]
        o = objects[number]
        part = cut_part(self.folder.load_to_cut(f"{key}.jpg"), o.box, o.name, f"object {number} of {key!r}")
        return Sample(f"{key}#{number}", part.image, labels=[self._label[o.name]])


def read_annotation(path: Path) -> list[VocObject]:
    """Objects of one annotation file; its boxes are 1-based and include their last pixel, ours start at 0 and do not.

    Raises:
        BadSample: The file is missing or cannot be read.
    """
    try:
        tree = ElementTree.parse(path)
        objects = []
        for node in tree.iter("object"):
            x0, y0, x1, y1 = (float(_text(node, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax"))
            difficult = (node.findtext("difficult") or "0").strip() == "1"
            objects.append(VocObject(_text(node, "name"), (x0 - 1, y0 - 1, x1, y1), difficult))
    except FileNotFoundError as error:
        raise BadSample("annotation file is missing", str(path)) from error
    except (ElementTree.ParseError, ValueError) as error:
        raise BadSample("annotation cannot be read", str(path)) from error
    return objects


def _text(node: ElementTree.Element, tag: str) -> str:
    text = node.findtext(tag)
    if text is None:
        raise ValueError(f"no {tag}")
    return text.strip()


def split_lists(root: Path) -> dict[str, Path | None]:
    """Splits of a VOC folder to their lists of ids; one split "all" of every annotation where there are no lists."""
    lists = {p.stem: p for p in sorted((root / "ImageSets" / "Main").glob("*.txt"))}
    # VOC ships one more list for every class and split ("dog_train"), with a flag beside each id
    whole = {s: p for s, p in lists.items() if "_" not in s or s.partition("_")[0] not in VOC_CLASSES}
    return dict(whole) or {"all": None}


def open_masks(location: str, split: str | None) -> PaletteMasks:
    """The images of a list in ``ImageSets/Segmentation``, or of every mask; background and the twenty classes."""
    root = need_folder(Path(location), "voc")
    masks = need_folder(root / "SegmentationClass", "voc")
    lists: dict[str, Path | None] = {p.stem: p for p in sorted((root / "ImageSets" / "Segmentation").glob("*.txt"))}
    lists = lists or {"all": None}
    if split is None:
        split = next((s for s in ("val", "all", "trainval", "train") if s in lists), next(iter(lists)))
    check_offer(f"voc:{location}", "split", split, list(lists))
    path = lists[split]
    ids = [p.stem for p in sorted(masks.glob("*.png"))] if path is None else read_ids(path)
    folders = need_folder(root / "JPEGImages", "voc"), masks
    classes = [BACKGROUND, *(READABLE.get(name, name) for name in VOC_CLASSES)]
    files = {f"{key}.jpg": f"{key}.png" for key in ids}
    fingerprint = Fingerprint("voc", split, "masks", *ids)
    opened = PaletteMasks(f"voc:{location}", split, classes, folders, files, fingerprint)
    opened.expected = VOC2012_VAL if split == "val" else None
    return opened


def read_ids(path: Path) -> list[str]:
    """The ids in a list of a split: the first word of each line."""
    return [line.split()[0] for line in path.read_text(encoding="utf-8-sig").splitlines() if line.split()]


@DATASETS.register("voc")
def open_voc(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """A PASCAL VOC folder. Content: pairs (parts are boxes), classes (crops of boxes), labels (class sets), masks.

    VOC has no captions: pairs get "a photo of a dog, a cat and a person", each class once. Objects marked difficult
    are no parts and no crops (as crops they are counted); a class that only they show is ignored in the labels.
    ``split`` is a list in ``ImageSets/Main``, by default the first of test, val, all, trainval, train that exists.
    Masks are those of ``SegmentationClass`` over background and the twenty classes; their splits are the lists in
    ``ImageSets/Segmentation``, by default the first of val, all, trainval, train.
    """
    check_offer("voc", "content", content, ["pairs", "classes", "labels", "masks"])
    if content == "masks":
        return open_masks(location, split)
    root = need_folder(Path(location), "voc")
    annotations = need_folder(root / "Annotations", "voc")
    lists = split_lists(root)
    if split is None:
        split = next((s for s in ("test", "val", "all", "trainval", "train") if s in lists), next(iter(lists)))
    check_offer(f"voc:{location}", "split", split, list(lists))
    path = lists[split]
    ids = [p.stem for p in sorted(annotations.glob("*.xml"))] if path is None else read_ids(path)
    return Voc(root, f"voc:{location}", split, content, ids)
