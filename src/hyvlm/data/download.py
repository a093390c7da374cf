"""Get the data sets of :data:`hyvlm.data.sets.zoo.ZOO`: download those that can be, say what to do for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from torchvision import datasets
from torchvision.datasets.utils import download_and_extract_archive, extract_archive

from hyvlm.data.sets import layouts
from hyvlm.data.sets.zoo import ZOO, open_zoo
from hyvlm.registry import unknown

SUN_PARTITIONS = "https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip"
CUB_ARCHIVE = (
    "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
    "97eceeb196236b17998738112f37df78",
)
RESISC45_ARCHIVE = ("torchgeo/resisc45", "NWPU-RESISC45.zip")
IMAGENET_ARCHIVES = ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_img_val.tar")


@dataclass(frozen=True)
class Source:
    """Where a data set comes from.

    Attributes:
        fetch: Downloads and unpacks it into a folder.
        files: What must lie in that folder first; what nobody but the user can get.
        steps: What to do by hand; ``{out}`` stands for the folder.
    """

    fetch: Callable[[Path], None] | None
    files: tuple[str, ...] = ()
    steps: str = ""


def _torchvision(kind: Callable[..., Any], out: Path) -> None:
    kind(str(out), download=True)


def _sun397(out: Path) -> None:
    _torchvision(datasets.SUN397, out)
    if not any(path.is_file() for path in layouts.sun397_lists(out, "test")):
        download_and_extract_archive(SUN_PARTITIONS, str(out))


def _cub(out: Path) -> None:
    if not (out / "CUB_200_2011").is_dir():
        url, md5 = CUB_ARCHIVE
        download_and_extract_archive(url, str(out), md5=md5)


def _resisc45(out: Path) -> None:
    if not (out / "NWPU-RESISC45").is_dir():
        extract_archive(hf_hub_download(*RESISC45_ARCHIVE, repo_type="dataset", local_dir=out), str(out))


def _imagenet(out: Path) -> None:
    datasets.ImageNet(str(out), split="val")  # unpacks the archives and sorts the images into a folder a class


SOURCES: dict[str, Source] = {
    "imagenet": Source(
        _imagenet,
        IMAGENET_ARCHIVES,
        "1. Register at https://image-net.org/download-images and accept the terms.\n"
        f"2. Put {IMAGENET_ARCHIVES[0]} and {IMAGENET_ARCHIVES[1]} (ILSVRC2012) into {{out}}.\n"
        "3. Run this command again: it unpacks them to {out}/val/n01440764/*.JPEG and so on.\n"
        "A folder val/ with one folder of images a synset will do as it is.",
    ),
    "cars": Source(
        None,
        steps="The original site is gone; copies keep its files. They must come to lie as:\n"
        "  {out}/stanford_cars/cars_test/00001.jpg ...\n"
        "  {out}/stanford_cars/cars_test_annos_withlabels.mat\n"
        "  {out}/stanford_cars/devkit/cars_meta.mat\n"
        "Images: https://www.kaggle.com/datasets/jessicali9530/stanford-cars-dataset (move cars_test/cars_test/ up to "
        "cars_test/). Devkit and labels: https://github.com/pytorch/vision/issues/7545#issuecomment-1631441616",
    ),
    "resisc45": Source(_resisc45),
    "cub": Source(_cub),
    "sun397": Source(_sun397),
    "cifar10": Source(partial(_torchvision, datasets.CIFAR10)),
    "cifar100": Source(partial(_torchvision, datasets.CIFAR100)),
    "caltech101": Source(partial(_torchvision, datasets.Caltech101)),
    "stl10": Source(partial(_torchvision, datasets.STL10)),
    "food101": Source(partial(_torchvision, datasets.Food101)),
    "aircraft": Source(partial(_torchvision, datasets.FGVCAircraft)),
    "pets": Source(partial(_torchvision, datasets.OxfordIIITPet)),
    "flowers102": Source(partial(_torchvision, datasets.Flowers102)),
    "dtd": Source(partial(_torchvision, datasets.DTD)),
    "eurosat": Source(partial(_torchvision, datasets.EuroSAT)),
    "country211": Source(partial(_torchvision, datasets.Country211)),
}


def download(name: str, out: str | Path) -> str:
    """Download a data set into ``out``, unless it is there, and open it to see that it is whole.

    Returns:
        What is there now and how to name it; or, for what cannot be downloaded, the steps to take by hand.
    Raises:
        ValueError: Unknown data set; or what was downloaded is not the published set.
        OSError: The download failed.
    """
    if name not in SOURCES:
        raise ValueError(unknown("data set", name, list(SOURCES)))
    source, folder = SOURCES[name], Path(out)
    lacking = [file for file in source.files if not (folder / file).is_file()]
    if source.fetch is None or lacking:
        try:
            return _found(name, folder)
        except (FileNotFoundError, ValueError):
            title = ZOO[name].title
            return f"{title} cannot be downloaded by a program.\n{source.steps.format(out=folder)}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        source.fetch(folder)
    except RuntimeError as error:  # torchvision's, of an archive that is not what it should be
        raise OSError(f"{name}: {error} (in {folder})") from error
    return _found(name, folder)


def _found(name: str, folder: Path) -> str:
    samples = open_zoo(name, str(folder))
    what = f"{len(samples):,} images, {len(samples.classes):,} classes"
    return f"{ZOO[name].title}: {what} (split {samples.split}); --data {name}:{folder}"
