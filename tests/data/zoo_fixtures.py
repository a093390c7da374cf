"""Small folders in the layouts of the published data sets: all classes, an image or two, noise for pixels."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from hyvlm.data.class_names import imagenet_synsets


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (200, 30, 30)).save(path, "JPEG")


def text(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def folders(root: Path, names: list[str]) -> None:
    for name in names:
        image(root / name / "0001.jpg")


def cifar(folder: Path, names: list[str], files: dict[str, int], key: str, meta: str, names_key: str) -> None:
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(256, size=(2, 3072), dtype=np.uint8)
    for name, label in files.items():
        (folder / name).write_bytes(pickle.dumps({"data": pixels, key: [label, label + 1]}))
    (folder / meta).write_bytes(pickle.dumps({names_key: names}))


def cifar10(root: Path) -> None:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    files = {"test_batch": 3, **{f"data_batch_{i}": 0 for i in range(1, 6)}}
    cifar(root / "cifar-10-batches-py", names, files, "labels", "batches.meta", "label_names")


def cifar100(root: Path) -> None:
    from hyvlm.data.class_names import CIFAR100_SUPERCLASSES
    from hyvlm.evaluation.taxonomy import Taxonomy

    children = [c for c, p in Taxonomy.read(CIFAR100_SUPERCLASSES).edges if p != "all classes"]
    names = sorted(name.replace(" ", "_") for name in children)
    files = {"test": 0, "train": 0}
    cifar(root / "cifar-100-python", names, files, "fine_labels", "meta", "fine_label_names")


def stl10(root: Path) -> None:
    folder = root / "stl10_binary"
    text(
        folder / "class_names.txt",
        ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"],
    )
    for name in ("train_X", "test_X", "unlabeled_X"):
        np.full((2, 3, 96, 96), 7, np.uint8).tofile(folder / f"{name}.bin")
    for name in ("train_y", "test_y"):
        np.array([1, 10], np.uint8).tofile(folder / f"{name}.bin")  # labels start at 1


def food101(root: Path) -> None:
    names = [f"dish_{i:03d}" for i in range(101)]
    meta = root / "food-101" / "meta"
    meta.mkdir(parents=True)
    for split in ("test", "train"):
        (meta / f"{split}.json").write_text(json.dumps({n: [f"{n}/{split}"] for n in reversed(names)}))
    for name in names[:2]:
        image(root / "food-101" / "images" / name / "test.jpg")


def dtd(root: Path) -> None:
    names = [f"texture{i:02d}" for i in range(47)]
    for split in ("test1", "train1", "val1"):
        text(root / "dtd/dtd/labels" / f"{split}.txt", [f"{name}/{name}_0001.jpg" for name in names])
    image(root / "dtd/dtd/images/texture46/texture46_0001.jpg")


def flowers102(root: Path) -> None:
    folder = root / "flowers-102"
    for i in (1, 2):
        image(folder / "jpg" / f"image_{i:05d}.jpg")
    savemat(folder / "imagelabels.mat", {"labels": np.array([77, 1])})
    savemat(folder / "setid.mat", {key: np.array([1, 2]) for key in ("trnid", "valid", "tstid")})


def aircraft(root: Path) -> None:
    names = [f"F/A-{i}" if i == 18 else f"Boeing {i}" for i in range(100)]
    data = root / "fgvc-aircraft-2013b" / "data"
    text(data / "variants.txt", names)
    for split in ("test", "trainval"):
        text(data / f"images_variant_{split}.txt", [f"0034309 {names[18]}", f"0034310 {names[99]}"])
    for name in ("0034309", "0034310"):
        image(data / "images" / f"{name}.jpg")


def pets(root: Path) -> None:
    folder = root / "oxford-iiit-pet"
    lines = [f"some_breed{i:02d}_1 {i + 1} 1 1" for i in range(37)]
    for split in ("test", "trainval"):
        text(folder / "annotations" / f"{split}.txt", lines)
    image(folder / "images" / "some_breed04_1.jpg")


def cars(root: Path) -> None:
    folder = root / "stanford_cars"
    names = np.array([f"Make Model {i}" for i in range(196)], dtype=object)
    (folder / "devkit").mkdir(parents=True)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    rows = np.array([("00001.jpg", 181), ("00002.jpg", 1)], dtype=[("fname", object), ("class", object)])
    savemat(folder / "cars_test_annos_withlabels.mat", {"annotations": rows})
    for name in ("00001.jpg", "00002.jpg"):
        image(folder / "cars_test" / name)


def sun397(root: Path) -> None:
    names = ["/a/abbey", "/a/apartment_building/outdoor", *(f"/s/scene{i:03d}" for i in range(395))]
    text(root / "SUN397" / "ClassName.txt", names)
    text(root / "Testing_01.txt", ["/a/apartment_building/outdoor/sun_b.jpg", "/a/abbey/sun_a.jpg"])
    for name in ("a/abbey/sun_a.jpg", "a/apartment_building/outdoor/sun_b.jpg", "a/abbey/sun_c.jpg"):
        image(root / "SUN397" / name)


def cub(root: Path) -> None:
    folder = root / "CUB_200_2011"
    text(folder / "classes.txt", [f"{i} {i:03d}.Some_Bird{i}" for i in range(1, 201)])
    text(folder / "images.txt", ["1 002.Some_Bird2/a.jpg", "2 001.Some_Bird1/b.jpg", "3 200.Some_Bird200/c.jpg"])
    text(folder / "image_class_labels.txt", ["1 2", "2 1", "3 200"])
    text(folder / "train_test_split.txt", ["1 0", "2 1", "3 0"])
    for name in ("002.Some_Bird2/a.jpg", "001.Some_Bird1/b.jpg", "200.Some_Bird200/c.jpg"):
        image(folder / "images" / name)


def caltech101(root: Path) -> None:
    first = ["BACKGROUND_Google", "Faces", "Faces_easy", "Leopards", "Motorbikes"]
    folders(root / "caltech101/101_ObjectCategories", [*first, *(f"thing{i:02d}" for i in range(97))])


def imagenet(root: Path) -> None:
    folders(root / "val", list(imagenet_synsets()))


def country211(root: Path) -> None:
    folders(root / "country211/test", [f"C{i:03d}" for i in range(211)])
    folders(root / "country211/train", ["C000"])


#: A writer of each set's layout, and the labels of its first and last image.
LAYOUTS: dict[str, tuple[Callable[[Path], None], tuple[int, int]]] = {
    "imagenet": (imagenet, (0, 999)),
    "cifar10": (cifar10, (3, 4)),
    "cifar100": (cifar100, (0, 1)),
    "sun397": (sun397, (1, 0)),
    "caltech101": (caltech101, (0, 101)),
    "stl10": (stl10, (0, 9)),
    "food101": (food101, (1, 0)),
    "cub": (cub, (1, 199)),
    "cars": (cars, (180, 0)),
    "aircraft": (aircraft, (18, 99)),
    "pets": (pets, (4, 4)),
    "flowers102": (flowers102, (76, 0)),
    "dtd": (dtd, (46, 46)),
    "eurosat": (lambda root: folders(root / "eurosat/2750", [f"Land{i}" for i in range(10)]), (0, 9)),
    "resisc45": (lambda root: folders(root / "NWPU-RESISC45", [f"land_use{i:02d}" for i in range(45)]), (0, 44)),
    "country211": (country211, (0, 210)),
}
