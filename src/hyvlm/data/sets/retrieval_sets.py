"""The retrieval sets of the papers by name, each with the images and captions that were published.

A name says which split of which files is meant, so that two people who measure on "coco-val2017" measure on the same.
"""

from __future__ import annotations

from pathlib import Path

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import check_offer, need_folder
from hyvlm.data.sets.coco import CocoFiles, open_coco
from hyvlm.data.sets.short_captions import open_flickr30k, open_karpathy, open_nocaps

#: Published images and captions of each set.
RETRIEVAL_SIZES = {
    "coco-val2017": (5000, 25_014),
    "coco-karpathy-test": (5000, 25_010),
    "flickr30k-test": (1000, 5000),
    "flickr30k-full": (31_783, 158_915),
    "nocaps-val": (4500, 45_000),
}


def _named(name: str, location: str, samples: SampleSet) -> SampleSet:
    """``samples`` under a name of this module, with the published sizes."""
    samples.name = f"{name}:{location}"
    samples.expected, samples.expected_captions = RETRIEVAL_SIZES[name]
    return samples


def _file(name: str, location: str, usual: str) -> str:
    """The JSON file at ``location``, or the file ``usual`` in the folder there. Raises FileNotFoundError."""
    if location.lower().endswith(".json"):
        return location
    folder = need_folder(Path(location), name)
    if not (folder / usual).is_file():
        raise FileNotFoundError(f"{name}: {folder} has no file {usual}")
    return str(folder / usual)


def _only(name: str, split: str | None, own: str) -> None:
    check_offer(name, "split", split or own, [own])


@DATASETS.register("coco-val2017")
def open_coco_val2017(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """COCO val2017, 5,000 images with 25,014 captions: a folder as ``coco`` reads it. Content: pairs, texts.

    A flat folder whose images name no split counts as part of the set as a whole.
    """
    name = "coco-val2017"
    check_offer(name, "content", content, ["pairs", "texts"])
    _only(name, split, "val2017")
    files = CocoFiles(need_folder(Path(location), name))
    inner = "all" if files.flat and "val2017" not in files.splits else "val2017"
    return _named(name, location, open_coco(location, split=inner, content=content))


@DATASETS.register("coco-karpathy-test")
def open_coco_karpathy(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """Karpathy's test split of COCO 2014, 5,000 images with 25,010 captions. Content: pairs, texts.

    ``dataset_coco.json``, or a folder that holds it, with the images in ``val2014/`` beside it.
    """
    name = "coco-karpathy-test"
    _only(name, split, "test")
    path = _file(name, location, "dataset_coco.json")
    return _named(name, location, open_karpathy(path, split="test", content=content))


@DATASETS.register("flickr30k-test")
def open_flickr30k_test(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """Karpathy's test split of Flickr30K, 1,000 images with 5,000 captions. Content: pairs, texts.

    ``dataset_flickr30k.json``, or a folder that holds it, with the images in ``flickr30k-images/`` or ``images/``.
    """
    name = "flickr30k-test"
    _only(name, split, "test")
    path = _file(name, location, "dataset_flickr30k.json")
    return _named(name, location, open_karpathy(path, split="test", content=content))


@DATASETS.register("flickr30k-full")
def open_flickr30k_full(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """All of Flickr30K, 31,783 images with 158,915 captions, as ``flickr30k`` reads them. Content: pairs, texts."""
    _only("flickr30k-full", split, "all")
    return _named("flickr30k-full", location, open_flickr30k(location, content=content))


@DATASETS.register("nocaps-val")
def open_nocaps_val(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """nocaps val, 4,500 images with 45,000 captions. Content: pairs, texts.

    ``nocaps_val_4500_captions.json``, or a folder that holds it, with the images as ``nocaps`` looks for them.
    """
    name = "nocaps-val"
    _only(name, split, "val")
    path = _file(name, location, "nocaps_val_4500_captions.json")
    return _named(name, location, open_nocaps(path, content=content))
