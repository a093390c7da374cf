"""COCO-format folders: images, captions and object boxes. Lin et al. 2014, "Microsoft COCO"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from hyvlm.data.boxes import cut_part
from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import (
    Drops,
    Fingerprint,
    ObjectImages,
    check_offer,
    clean_texts,
    existing,
    existing_boxes,
    need_folder,
    read_json,
    text_fault,
    with_article,
)
from hyvlm.data.sets.captioned import UNREADABLE
from hyvlm.types import BadSample, Sample

#: Published sizes by split: images with captions.
SIZES = {"val2017": 5000, "train2017": 118_287}


@dataclass
class CocoImage:
    """What the annotation files say of one image; boxes are ``[x, y, width, height]`` in pixels, as in the files.

    ``crowds`` counts the boxes of crowds of a class.
    """

    name: str
    captions: list[object] = field(default_factory=list)
    objects: list[tuple[int, list[float]]] = field(default_factory=list)
    crowds: Counter[int] = field(default_factory=Counter)


class Coco(ObjectImages):
    """Images in the order of their ids; for content "classes" one crop an object, in the order of the file."""

    def __init__(self, files: CocoFiles, name: str, split: str, content: str) -> None:
        self.name, self.split, self.content = name, split, content
        drops = Drops()
        self.expected = SIZES.get(split) if content in ("pairs", "texts") and not files.flat else None
        self.images, self.classes, self.parents = files.read(split, drops)
        folder = files.root if content == "texts" else files.image_folder(split)
        fingerprint = Fingerprint("coco", split, content)
        for path in (files.captions(split), files.instances(split)):
            if path.is_file():
                fingerprint.add_file(path.name, path)
        if content == "classes":
            found = existing_boxes({i.name: len(i.objects) for i in self.images}, folder, fingerprint, drops)
        elif content != "texts":
            found = existing((image.name for image in self.images), folder, fingerprint, drops)
        if content != "texts":
            self.images = [image for image in self.images if image.name in found]
        if content in ("pairs", "texts"):
            for image in self.images:
                if not clean_texts(image.captions):
                    drops.add("no caption", image.name)
            self.images = [image for image in self.images if clean_texts(image.captions)]
        if content in ("pairs", "labels"):
            self.shows((image.name for image in self.images), found)
        if content == "classes":
            for image in self.images:
                drops.add("box of a crowd", image.name, times=image.crowds.total())
        self.objects = [(i, k) for i, image in enumerate(self.images) for k in range(len(image.objects))]
        self.finish(folder, fingerprint, drops)

    def _whole(self, index: int) -> Sample:
        image = self.images[index]
        if self.content == "texts":
            return Sample(image.name, None, texts=clean_texts(image.captions))
        sample = Sample(image.name, self.folder.load(image.name))
        if self.content == "labels":
            sample.labels = sorted({label for label, _ in image.objects})
            sample.ignored = sorted(set(image.crowds) - set(sample.labels))
            return sample
        sample.texts = clean_texts(image.captions)
        for number, (label, box) in enumerate(image.objects):
            where = f"part {number} of sample {image.name!r}"
            try:
                sample.parts.append(cut_part(sample.picture, _corners(box), with_article(self.classes[label]), where))
            except BadSample as bad:
                sample.dropped.append(bad)
        return sample

    def _crop(self, index: int, number: int) -> Sample:
        image = self.images[index]
        label, box = image.objects[number]
        where = f"object {number} of {image.name!r}"
        part = cut_part(self.folder.load_to_cut(image.name), _corners(box), self.classes[label], where)
        return Sample(f"{image.name}#{number}", part.image, labels=[label])


class CocoFiles:
    """Where the files of a COCO folder are: the published layout, or all images in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = need_folder(root, "coco")
        self.flat = (root / "instances.json").is_file() or (root / "captions.json").is_file()
        stems = (p.stem for p in sorted((root / "annotations").glob("*.json")))
        named = {s.partition("_")[2] for s in stems if s.startswith(("captions_", "instances_"))}
        if not self.flat and not named:
            raise FileNotFoundError(
                f"coco: {root} has neither captions.json or instances.json nor annotations/captions_SPLIT.json "
                "or annotations/instances_SPLIT.json"
            )
        self._named = sorted(named)

    @cached_property
    def splits(self) -> list[str]:
        """Splits on offer: those of the file names; in a flat folder "all" and what its images name."""
        if not self.flat:
            return self._named
        files = [p for p in (self.captions("all"), self.instances("all")) if p.is_file()]
        images = [image for path in files for image in self._document(path)["images"]]
        return ["all", *sorted({str(i["split"]) for i in images if isinstance(i, dict) and "split" in i})]

    def default_split(self) -> str:
        """The whole of a flat folder; "val2017" or the only split of the published layout."""
        if self.flat:
            return "all"
        if "val2017" in self.splits:
            return "val2017"
        if len(self.splits) == 1:
            return self.splits[0]
        raise ValueError(f"coco:{self.root} has the splits {', '.join(self.splits)}: say which")

    def captions(self, split: str) -> Path:
        """The captions file; may not exist."""
        return self.root / ("captions.json" if self.flat else f"annotations/captions_{split}.json")

    def instances(self, split: str) -> Path:
        """The file of boxes; may not exist."""
        return self.root / ("instances.json" if self.flat else f"annotations/instances_{split}.json")

    def image_folder(self, split: str) -> Path:
        """The folder with the images. Raises FileNotFoundError."""
        options = ["images"] if self.flat else [split, f"images/{split}", "images"]
        for option in options:
            if (self.root / option).is_dir():
                return self.root / option
        raise FileNotFoundError(f"coco: no image folder {' or '.join(str(self.root / o) for o in options)}")

    def image_name(self, entry: dict[str, Any]) -> object:
        """The file of an image, relative to :meth:`image_folder`, from its entry."""
        return entry.get("file_name")

    def read(self, split: str, drops: Drops) -> tuple[list[CocoImage], tuple[str, ...], dict[str, str]]:
        """Images of ``split`` by id, class names, and the class taxonomy (class to supercategory).

        Entries that cannot be read are counted in ``drops``.
        """
        images: dict[int | str, CocoImage] = {}
        classes: tuple[str, ...] = ()
        parents: dict[str, str] = {}
        path = self.instances(split)
        if path.is_file():
            document = self._document(path)
            self._add_images(document, split, images, drops, path)
            categories = _categories(document, path)
            classes = tuple(c["name"] for c in categories)
            parents = {
                c["name"]: c["supercategory"] for c in categories if c.get("supercategory", c["name"]) != c["name"]
            }
            label_of = {c["id"]: i for i, c in enumerate(categories)}
            for image, entry in _annotations(document, images, drops, path):
                label, box = label_of.get(_scalar(entry.get("category_id"))), entry.get("bbox")
                if label is not None and entry.get("iscrowd"):
                    image.crowds[label] += 1
                elif label is not None and _is_box(box):
                    image.objects.append((label, box))
                else:
                    drops.add(UNREADABLE, _where(entry, path))
        path = self.captions(split)
        if path.is_file():
            document = self._document(path)
            self._add_images(document, split, images, drops, path)
            for image, entry in _annotations(document, images, drops, path):
                fault = text_fault(entry.get("caption"))
                if fault in (None, "empty caption"):  # the latter counts only if the image is left with none
                    image.captions.append(entry["caption"])
                else:
                    drops.add(UNREADABLE if fault == "caption is not text" else str(fault), _where(entry, path))
        return [images[i] for i in sorted(images, key=lambda i: (isinstance(i, str), i))], classes, parents

    def _add_images(
        self, document: dict[str, Any], split: str, images: dict[int | str, CocoImage], drops: Drops, path: Path
    ) -> None:
        listed: set[int | str] = set()
        for number, entry in enumerate(document["images"]):
            entry = entry if isinstance(entry, dict) else {}
            key, name = _scalar(entry.get("id")), self.image_name(entry)
            if key is None or not isinstance(name, str):
                drops.add("image entry cannot be read", f"image {number} (id {entry.get('id')!r}) of {path}")
            elif key in listed:  # annotations name the id alone
                drops.add("image id is taken by an earlier image", f"image {number} (id {key!r}) of {path}")
            elif not self.flat or split in ("all", entry.get("split")):
                listed.add(key)
                images.setdefault(key, CocoImage(name))

    def _document(self, path: Path) -> dict[str, Any]:
        document = read_json(path)
        missing = {"images", "annotations"} - set(document if isinstance(document, dict) else ())
        if missing:
            raise ValueError(f"{path} is not in COCO format: it lacks {' and '.join(sorted(missing))}")
        for field_name in ("images", "annotations"):
            if not isinstance(document[field_name], list):
                raise ValueError(f"{path} is not in COCO format: its {field_name} are not a list")
        return document


def _categories(document: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """Categories in the order of their ids."""
    try:
        categories = sorted(document["categories"], key=lambda c: c["id"])
        sound = all(isinstance(c["name"], str) and _scalar(c["id"]) is not None for c in categories)
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise ValueError(f"{path} is not in COCO format: its categories are not a list of entries with id and name")
    refuse_twins(categories, path)
    return categories


def refuse_twins(categories: Collection[Mapping[str, Any]], path: Path) -> None:
    """Raise ValueError if two categories share an id or a name: what is labelled as one would count as the other."""
    for key in ("id", "name"):
        twice = [value for value, times in Counter(c[key] for c in categories).items() if times > 1]
        if twice:
            raise ValueError(f"{path} has two categories with the {key} {twice[0]!r}: each must have its own")


def _annotations(
    document: dict[str, Any], images: dict[int | str, CocoImage], drops: Drops, path: Path
) -> Iterator[tuple[CocoImage, dict[str, Any]]]:
    """Annotations with their images; those of the images of other splits are passed over."""
    for number, entry in enumerate(document["annotations"]):
        key = _scalar(entry.get("image_id")) if isinstance(entry, dict) else None
        if key is None:
            drops.add(UNREADABLE, _where(entry, path) if isinstance(entry, dict) else f"annotation {number} of {path}")
        elif key in images:
            yield images[key], entry


def _where(entry: dict[str, Any], path: Path) -> str:
    return f"annotation with id {entry.get('id')!r} of {path}"


def _scalar(key: object) -> int | str | None:
    return key if isinstance(key, int | str) else None


def _is_box(box: object) -> TypeGuard[list[float]]:
    return isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) for v in box)


def _corners(box: list[float]) -> list[float]:
    x, y, width, height = box
    return [x, y, x + width, y + height]


@DATASETS.register("coco")
def open_coco(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """A COCO-format folder. Content: pairs (captions; parts are boxes), classes (crops of boxes), labels, texts.

    Read are ``annotations/captions_SPLIT.json``, ``annotations/instances_SPLIT.json`` and ``SPLIT/`` or
    ``images/SPLIT/`` as published, or ``captions.json``, ``instances.json`` and ``images/``, whose images may name
    their "split". Crowds (``iscrowd``) are no parts and no crops; a class that only a crowd shows is ignored in the
    labels. Phrases of parts are class names with their article ("a dog"). Texts are the captions; they need no images.
    """
    check_offer("coco", "content", content, ["pairs", "classes", "labels", "texts"])
    files = CocoFiles(Path(location))
    if split is None:
        split = files.default_split()
    else:
        check_offer(f"coco:{location}", "split", split, files.splits)
    needed = files.captions(split) if content in ("pairs", "texts") else files.instances(split)
    if not needed.is_file():
        raise FileNotFoundError(f"coco: content {content!r} needs {needed}, which does not exist")
    return Coco(files, f"coco:{location}", split, content)
