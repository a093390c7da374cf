"""The 16 data sets of zero-shot classification by name: where they lie, their splits, classes, names and prompts.

One table, :data:`ZOO`. A set is read from the folders that torchvision reads, or from one folder of images a class
where the published set is laid out so; nothing is downloaded here (:mod:`hyvlm.data.download` does that).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from hyvlm.data.catalog import DATASETS, Opener, SampleSet
from hyvlm.data.class_names import (
    CIFAR100_SUPERCLASSES,
    IMAGENET_HIERARCHY,
    benchmark_names,
    imagenet_names,
    imagenet_synsets,
    readable,
)
from hyvlm.data.files import Drops, FileSet, Fingerprint, check_offer, need_folder
from hyvlm.data.images import load_image
from hyvlm.data.sets import layouts
from hyvlm.data.sets.folder import ClassFolders
from hyvlm.data.sets.layouts import LabelledImages
from hyvlm.types import Sample


def _readable(raw: Sequence[str]) -> list[str]:
    return [readable(name) for name in raw]


def _from_benchmark(key: str, raw: Sequence[str]) -> tuple[str, ...]:
    return benchmark_names(key)


@dataclass(frozen=True)
class ZooSet:
    """One data set.

    Attributes:
        title: Its name in the papers.
        classes: How many there are.
        images: Images of each split, as published; the first split is the default.
        base: What the folder holds, as torchvision or the archive names it; ``{split}`` stands for the split.
        read: Reads what is there; None where there is one folder of images a class in ``base``.
        names: From the class names in the files to those in the prompts.
        folders: One folder a class, named as the class, will do, too.
        prompts: What clip_benchmark calls CLIP's prompts for it; None where it has none.
        hierarchy: File of ``child parent`` lines over the classes.
        remark: What a reader of numbers on it must know.
    """

    title: str
    classes: int
    images: Mapping[str, int]
    base: str
    read: Callable[[Path, str], LabelledImages] | None = None
    names: Callable[[Sequence[str]], Sequence[str]] = _readable
    folders: bool = False
    prompts: str | None = None
    hierarchy: Path | None = None
    remark: str = ""


#: Published numbers of MERU's lineage draw these splits through tensorflow-datasets, in an order of its own.
_OTHER_SPLIT = "the published evaluations of MERU's lineage score another part of it ({}): compare with care"

ZOO: dict[str, ZooSet] = {
    "imagenet": ZooSet(
        "ImageNet", 1000, {"val": 50_000, "train": 1_281_167}, "{split}", prompts="imagenet1k",
        hierarchy=IMAGENET_HIERARCHY,
    ),
    "cifar10": ZooSet(
        "CIFAR-10", 10, {"test": 10_000, "train": 50_000}, "cifar-10-batches-py", layouts.cifar10, folders=True,
        prompts="cifar10",
    ),
    "cifar100": ZooSet(
        "CIFAR-100", 100, {"test": 10_000, "train": 50_000}, "cifar-100-python", layouts.cifar100, folders=True,
        prompts="cifar100", hierarchy=CIFAR100_SUPERCLASSES,
    ),
    "sun397": ZooSet(
        "SUN397", 397, {"test": 19_850, "train": 19_850, "all": 108_754}, "SUN397", layouts.sun397,
        names=lambda raw: [readable(name.replace("/", " ")) for name in raw], prompts="sun397",
    ),
    "caltech101": ZooSet(
        "Caltech-101", 102, {"all": 9144}, "caltech101/101_ObjectCategories",
        names=partial(_from_benchmark, "caltech101"), prompts="caltech101",
        remark=_OTHER_SPLIT.format("6,084 images, drawn at random"),
    ),
    "stl10": ZooSet(
        "STL-10", 10, {"test": 8000, "train": 5000}, "stl10_binary", layouts.stl10, folders=True, prompts="stl10"
    ),
    "food101": ZooSet(
        "Food-101", 101, {"test": 25_250, "train": 75_750}, "food-101", layouts.food101, folders=True,
        prompts="food101",
    ),
    "cub": ZooSet(
        "CUB", 200, {"test": 5794, "train": 5994}, "CUB_200_2011", layouts.cub,
        names=lambda raw: [readable(name.partition(".")[2] or name) for name in raw],
    ),
    "cars": ZooSet(
        "Cars", 196, {"test": 8041, "train": 8144}, "stanford_cars", layouts.cars, folders=True, prompts="cars"
    ),
    "aircraft": ZooSet(
        "Aircraft", 100, {"test": 3333, "val": 3333, "train": 3334, "trainval": 6667}, "fgvc-aircraft-2013b",
        layouts.aircraft, names=list, prompts="fgvc_aircraft",
    ),
    "pets": ZooSet(
        "Pets", 37, {"test": 3669, "trainval": 3680}, "oxford-iiit-pet", layouts.pets, folders=True, prompts="pets"
    ),
    "flowers102": ZooSet(
        "Flowers", 102, {"test": 6149, "train": 1020, "val": 1020}, "flowers-102", layouts.flowers102,
        names=partial(_from_benchmark, "flowers"), prompts="flowers",
    ),
    "dtd": ZooSet(
        "DTD", 47, {"test": 1880, "val": 1880, "train": 1880}, "dtd/dtd", layouts.dtd, folders=True, prompts="dtd"
    ),
    "eurosat": ZooSet(
        "EuroSAT", 10, {"all": 27_000}, "eurosat/2750", names=partial(_from_benchmark, "eurosat"), prompts="eurosat",
        remark=_OTHER_SPLIT.format("5,000 images, in the order of tensorflow-datasets"),
    ),
    "resisc45": ZooSet(
        "RESISC45", 45, {"all": 31_500}, "NWPU-RESISC45", prompts="resisc45",
        remark=_OTHER_SPLIT.format("25,200 images, in the order of tensorflow-datasets"),
    ),
    "country211": ZooSet(
        "Country211", 211, {"test": 21_100, "valid": 10_550, "train": 31_650}, "country211/{split}",
        names=partial(_from_benchmark, "country211"), prompts="country211",
    ),
}  # fmt: skip


class ListedImages(FileSet):
    """The images of a :class:`LabelledImages`, those that are files in the order of the list."""

    def __init__(self, root: Path, name: str, split: str, listing: LabelledImages) -> None:
        self.name, self.split = name, split
        self.arrays: Any = None
        drops, fingerprint = Drops(), Fingerprint("zoo", split, *listing.classes, str(list(listing.labels)))
        self.entries: list[tuple[str, Path | int, int]] = []
        if isinstance(listing.images, list):
            for path, label in zip(listing.images, listing.labels, strict=True):
                key = path.relative_to(root).as_posix()
                if fingerprint.add_file(key, path):
                    self.entries.append((key, path, int(label)))
                else:
                    drops.add("image file is missing", key)
            if not self.entries:
                raise FileNotFoundError(f"{name}: none of the listed images exists, such as {drops.examples[:1]}")
        else:
            self.arrays = listing.images
            self.entries = [(f"{split}/{i}", i, int(label)) for i, label in enumerate(listing.labels)]
            for path in sorted(p for p in root.rglob("*") if p.is_file()):
                fingerprint.add_file(path.relative_to(root).as_posix(), path)
        self.opened(fingerprint, drops)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Sample:
        key, image, label = self.entries[index]
        if isinstance(image, Path):
            return Sample(key, load_image(image), labels=[label])
        picture: Image.Image = self.arrays[image][0]
        return Sample(key, picture.convert("RGB"), labels=[label])


def open_zoo(name: str, location: str, *, split: str | None = None, content: str = "classes") -> SampleSet:
    """Open one of :data:`ZOO` by its name.

    Raises:
        ValueError: No such content or split; the number of classes is not the published one, or a label is none of
            them; a file of the set is broken.
        FileNotFoundError: The folder, or what should be in it, is missing.
        MissingExtra: The class names come from clip_benchmark, which is not installed.
    """
    kind = ZOO[name]
    check_offer(name, "content", content, ["classes"])
    split = split or next(iter(kind.images))
    check_offer(f"{name}:{location}", "split", split, list(kind.images))
    root = need_folder(Path(location), name)
    spec = f"{name}:{location}"
    samples: SampleSet
    if kind.read is not None and (place := _place(root, kind.base)) is not None:
        samples = _listed(name, kind, place, spec, split)
    else:
        samples = _in_folders(name, kind, root, spec, split)
    samples.name, samples.expected = spec, kind.images[split]
    samples.hierarchy = kind.hierarchy
    if kind.remark:
        samples.remarks = [*samples.remarks, kind.remark]
    return samples


def _place(root: Path, base: str) -> Path | None:
    """The folder that holds ``base``: ``root``, or the one that it is reached from if ``root`` is a part of the way."""
    parts, given = Path(base).parts, root.resolve().parts
    for count in range(len(parts) + 1):
        if given[len(given) - count :] == parts[:count] and root.joinpath(*parts[count:]).is_dir():
            return root if count == 0 else root.resolve().parents[count - 1]
    return None


def _listed(name: str, kind: ZooSet, place: Path, spec: str, split: str) -> SampleSet:
    assert kind.read is not None
    try:
        listing = kind.read(place, split)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{name}: {error}; how to get it: hyvlm data prepare {name} {place}") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    names = kind.names(listing.classes)
    _check_count(spec, "class names", len(names), kind)
    wrong = next((label for label in listing.labels if not 0 <= label < len(names)), None)
    if wrong is not None:
        raise ValueError(f"{spec} has the label {wrong}, but its {len(names)} classes are 0 to {len(names) - 1}")
    samples = ListedImages(place / kind.base, spec, split, listing)
    samples.classes = tuple(names)
    return samples


def _in_folders(name: str, kind: ZooSet, root: Path, spec: str, split: str) -> SampleSet:
    """One folder of images for each class, in ``kind.base`` or the end of it, or in ``root`` itself."""
    parts = Path(kind.base.format(split=split)).parts if kind.read is None else (split,)
    inner = [root.joinpath(*parts[i:]) for i in range(len(parts) + 1)]
    folder = next(path for path in inner if path.is_dir())
    count = sum(path.is_dir() and not path.name.startswith(".") for path in folder.iterdir())
    if count == 0 or (kind.read is not None and not (kind.folders and count == kind.classes)):
        raise FileNotFoundError(
            f"{name}: {root} has no {kind.base.format(split=split)}; how to get it: hyvlm data prepare {name} {root}"
        )
    samples = ClassFolders(folder, spec, split)
    if name == "imagenet":
        _name_by_synset(samples)
        return samples
    _check_count(spec, "folders", count, kind)
    names = kind.names(samples.classes)
    _check_count(spec, "class names", len(names), kind)
    samples.classes = tuple(names)
    return samples


def _check_count(spec: str, what: str, found: int, kind: ZooSet) -> None:
    if found != kind.classes:
        raise ValueError(f"{spec} has {found} {what}, but {kind.title} has {kind.classes} classes")


def _name_by_synset(samples: ClassFolders) -> None:
    """ImageNet's folders are synsets; of a subset of them, only these classes are told apart, and a remark says so."""
    place = {synset: i for i, synset in enumerate(imagenet_synsets())}
    unknown = [folder for folder in samples.classes if folder not in place]
    if unknown:
        raise ValueError(
            f"{samples.name}: {unknown[0]!r} is no synset of ImageNet's 1,000 classes, such as 'n01440764'"
        )
    samples.class_ids, names = samples.classes, imagenet_names()
    samples.classes = tuple(names[place[synset]] for synset in samples.class_ids)
    if len(samples.classes) < len(place):
        samples.remarks = [f"{len(samples.classes)} of ImageNet's 1,000 classes are there: told apart are only these"]


def _opener(name: str, kind: ZooSet) -> Opener:
    def opener(location: str, *, split: str | None = None, content: str = "classes") -> SampleSet:
        return open_zoo(name, location, split=split, content=content)

    opener.__doc__ = f"{kind.title}, {kind.classes} classes. Content: classes. Splits: {', '.join(kind.images)}."
    return opener


for _name, _kind in ZOO.items():
    DATASETS.register(_name)(_opener(_name, _kind))
