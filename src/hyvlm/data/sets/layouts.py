"""How data sets for classification lie on disk: their images with one label each, through torchvision where it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchvision import datasets

#: torchvision's way of saying that files are missing ends with advice for its own callers.
TORCHVISION_ADVICE = "You can use download=True"


@dataclass
class LabelledImages:
    """What a data set holds.

    Attributes:
        classes: Class names as the files write them, in the order of the labels.
        labels: The class of every image, an index into ``classes``.
        images: A file for every image, or a torchvision data set that holds the decoded images.
    """

    classes: Sequence[str]
    labels: Sequence[int]
    images: Any


def _torchvision(kind: Callable[..., Any], root: Path, **options: object) -> Any:
    """A data set of torchvision, which checks some files by their MD5 and never downloads here.

    Raises:
        FileNotFoundError: Files are missing or not the published ones.
        ValueError: A file cannot be read as what it should be.
    """
    try:
        return kind(str(root), **options)
    except RuntimeError as error:
        reason = str(error).partition(TORCHVISION_ADVICE)[0].strip()
        raise FileNotFoundError(f"{reason or error} (in {root})") from error
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename or error} is missing") from error
    except (KeyError, ValueError, TypeError, EOFError, OSError) as error:
        raise ValueError(f"a file in {root} is broken: {type(error).__name__}: {error}") from error


def cifar10(root: Path, split: str) -> LabelledImages:
    """``cifar-10-batches-py/``."""
    data = _torchvision(datasets.CIFAR10, root, train=split == "train")
    return LabelledImages(data.classes, data.targets, data)


def cifar100(root: Path, split: str) -> LabelledImages:
    """``cifar-100-python/``."""
    data = _torchvision(datasets.CIFAR100, root, train=split == "train")
    return LabelledImages(data.classes, data.targets, data)


def stl10(root: Path, split: str) -> LabelledImages:
    """``stl10_binary/``."""
    data = _torchvision(datasets.STL10, root, split=split)
    names = root / "stl10_binary" / "class_names.txt"
    if not names.is_file():
        raise FileNotFoundError(f"{names} is missing")
    return LabelledImages(data.classes, [int(label) for label in data.labels], data)


def _listed(kind: Callable[..., Any]) -> Callable[[Path, str], LabelledImages]:
    def read(root: Path, split: str) -> LabelledImages:
        data = _torchvision(kind, root, split=split)
        # torchvision offers no other way to the names of the files than to decode them
        files = data._images if kind is datasets.OxfordIIITPet else data._image_files
        return LabelledImages(getattr(data, "classes", ()), data._labels, [Path(file) for file in files])

    return read


#: ``food-101/``, ``dtd/dtd/``, ``flowers-102/``, ``fgvc-aircraft-2013b/`` and ``oxford-iiit-pet/``.
food101, dtd, flowers102 = _listed(datasets.Food101), _listed(datasets.DTD), _listed(datasets.Flowers102)
aircraft, pets = _listed(datasets.FGVCAircraft), _listed(datasets.OxfordIIITPet)


def cars(root: Path, split: str) -> LabelledImages:
    """``stanford_cars/``."""
    data = _torchvision(datasets.StanfordCars, root, split=split)
    return LabelledImages(
        data.classes, [int(label) for _, label in data._samples], [Path(file) for file, _ in data._samples]
    )


def sun397_lists(root: Path, split: str) -> list[Path]:
    """Where the list of an official split may lie: in ``SUN397/``, or beside it, where its archive unpacks to."""
    name = {"test": "Testing_01.txt", "train": "Training_01.txt"}[split]
    return [folder / name for folder in (root / "SUN397", root, root / "Partitions")]


def sun397(root: Path, split: str) -> LabelledImages:
    """``SUN397/``; the splits "test" and "train" are the first of the ten official ones, "all" is every image."""
    data = _torchvision(datasets.SUN397, root)
    if split == "all":
        files = sorted(map(Path, data._image_files))
    else:
        lists = sun397_lists(root, split)
        found = next((path for path in lists if path.is_file()), None)
        if found is None:
            raise FileNotFoundError(f"{lists[0]}, the official list of this split, is missing (--split all needs none)")
        files = [root / "SUN397" / line.strip().lstrip("/") for line in found.read_text().splitlines() if line.strip()]
    names = ["/".join(path.relative_to(root / "SUN397").parts[1:-1]) for path in files]  # a/abbey, a/airplane_cabin
    unknown = set(names) - set(data.classes)
    if unknown:
        raise ValueError(f"{root / 'SUN397'}: {sorted(unknown)[0]!r} is no class of ClassName.txt")
    return LabelledImages(data.classes, [data.class_to_idx[name] for name in names], files)


def cub(root: Path, split: str) -> LabelledImages:
    """``CUB_200_2011/`` with its lists of images, labels, classes and the split, each line "NUMBER VALUE"."""
    folder = root / "CUB_200_2011"
    images, labels, in_train = (
        _numbered(folder / f"{name}.txt") for name in ("images", "image_class_labels", "train_test_split")
    )
    classes = _numbered(folder / "classes.txt")
    place = {number: i for i, number in enumerate(classes)}
    wanted = [number for number in images if in_train.get(number) == ("1" if split == "train" else "0")]
    unknown = next((number for number in wanted if labels.get(number) not in place), None)
    if unknown is not None:
        raise ValueError(f"{folder}: image {unknown} has the label {labels.get(unknown)}, which classes.txt lacks")
    files = [folder / "images" / images[number] for number in wanted]
    return LabelledImages(list(classes.values()), [place[labels[number]] for number in wanted], files)


def _numbered(path: Path) -> dict[str, str]:
    """Lines "NUMBER VALUE". Raises FileNotFoundError, ValueError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    rows = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    broken = next((row for row in rows if len(row) != 2), None)
    if broken is not None:
        raise ValueError(f"{path} has the line {' '.join(broken)!r}, which is not NUMBER VALUE")
    return {number: value.strip() for number, value in rows}
