"""Sets of short captions as published: Karpathy's splits of COCO and Flickr, nocaps, the whole of Flickr30K."""

from __future__ import annotations

from pathlib import Path

from hyvlm.data.catalog import DATASETS, SampleSet
from hyvlm.data.files import check_offer, need_folder, read_json
from hyvlm.data.sets.captioned import UNREADABLE, CaptionedImages, Captions, need_file
from hyvlm.data.sets.table import decode

_CONTENTS = ["pairs", "texts"]
#: Published sizes: Karpathy's splits by the "dataset" of the file, nocaps val, all of Flickr30K.
KARPATHY_SIZES = {
    "coco": {"train": 82_783, "restval": 30_504, "val": 5000, "test": 5000, "all": 123_287},
    "flickr30k": {"train": 29_000, "val": 1014, "test": 1000, "all": 31_014},
    "flickr8k": {"train": 6000, "val": 1000, "test": 1000, "all": 8000},
}
NOCAPS_SIZE = 4500
FLICKR30K_SIZE = 31_783
#: Folders that the images of Flickr sets and COCO lie in, beside the file.
_IMAGE_FOLDERS = ("", "images", "flickr30k-images", "flickr30k_images", "Flickr8k_Dataset", "Flicker8k_Dataset")


@DATASETS.register("karpathy")
def open_karpathy(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """``dataset_coco.json``, ``dataset_flickr30k.json``, ``dataset_flickr8k.json`` (Karpathy and Fei-Fei 2015).

    Splits are those of the file's images (train, restval, val, test) and "all"; the default is "test". Images are
    ``filepath/filename`` beside the file or in ``images/``, ``flickr30k-images/`` and the like. Content: pairs, texts.
    """
    check_offer("karpathy", "content", content, _CONTENTS)
    path, split, captions = need_file(location, "karpathy", ".json"), split or "test", Captions()
    document = read_json(path)
    images = document.get("images") if isinstance(document, dict) else None
    if not isinstance(images, list):
        raise ValueError(f"{path} is no file of Karpathy's: it has no list of images")
    splits = {str(image["split"]) for image in images if isinstance(image, dict) and "split" in image}
    if not splits and split != "all":
        raise ValueError(f"{path} says of no image which split it is in: the only split is 'all', not {split!r}")
    check_offer(f"karpathy:{location}", "split", split, ["all", *sorted(splits)])
    for number, image in enumerate(images):
        where = f"image {number} of {path}"
        if not isinstance(image, dict) or not isinstance(image.get("filename"), str):
            captions.drops.add(UNREADABLE, where)
        elif split in ("all", image.get("split")):
            sentences = image.get("sentences")
            texts = [s.get("raw") for s in sentences if isinstance(s, dict)] if isinstance(sentences, list) else []
            folder = image.get("filepath")
            place = f"{folder}/{image['filename']}" if isinstance(folder, str) and folder else image["filename"]
            captions.add(place, texts, where)
    expected = KARPATHY_SIZES.get(str(document.get("dataset")), {}).get(split)
    entries = captions.placed(path.parent, _IMAGE_FOLDERS)
    return CaptionedImages(
        f"karpathy:{location}", split, content, entries, path.parent, captions.drops, expected=expected
    )


@DATASETS.register("nocaps")
def open_nocaps(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """nocaps (Agrawal et al. 2019): ``nocaps_val_4500_captions.json``, in COCO's format. Content: pairs, texts.

    Images, which "texts" does not need, are beside the file, in ``images/``, ``val/`` or ``validation/``.
    """
    check_offer("nocaps", "content", content, _CONTENTS)
    check_offer("nocaps", "split", split or "val", ["val"])
    path, captions = need_file(location, "nocaps", ".json"), Captions()
    document = read_json(path)
    document = document if isinstance(document, dict) else {}
    images, annotations = document.get("images"), document.get("annotations")
    if not isinstance(images, list) or not isinstance(annotations, list):
        raise ValueError(f"{path} is not in COCO format: it lacks a list of images or of annotations")
    texts: dict[object, list[object]] = {}
    for number, annotation in enumerate(annotations):
        key = annotation.get("image_id") if isinstance(annotation, dict) else None
        if isinstance(key, int | str):
            texts.setdefault(key, []).append(annotation.get("caption"))
        else:
            captions.drops.add(UNREADABLE, f"annotation {number} of {path}")
    for number, image in enumerate(images):
        image = image if isinstance(image, dict) else {}
        key = image.get("id") if isinstance(image.get("id"), int | str) else None
        captions.add(image.get("file_name"), texts.get(key, [None]), f"image {number} of {path}")
    entries = captions.placed(path.parent, ["", "images", "val", "validation", "images/val"])
    return CaptionedImages(
        f"nocaps:{location}", "val", content, entries, path.parent, captions.drops, expected=NOCAPS_SIZE
    )


@DATASETS.register("flickr30k")
def open_flickr30k(location: str, *, split: str | None = None, content: str = "pairs") -> SampleSet:
    """The whole of Flickr30K (Young et al. 2014), 31,783 images; its splits are in :func:`open_karpathy`'s files.

    A folder with ``results_20130124.token`` (``NAME.jpg#0``, a tab, a caption) or ``results.csv`` (columns
    ``image_name``, ``comment_number``, ``comment``, parted by ``|``), and images in ``flickr30k-images/``,
    ``flickr30k_images/``, ``images/`` or beside the file. Content: pairs, texts.
    """
    check_offer("flickr30k", "content", content, _CONTENTS)
    check_offer("flickr30k", "split", split or "all", ["all"])
    folder = need_folder(Path(location), "flickr30k")
    token, table = folder / "results_20130124.token", folder / "results.csv"
    if not token.is_file() and not table.is_file():
        raise FileNotFoundError(
            f"flickr30k: {folder} has neither {token.name} nor {table.name}; dataset_flickr30k.json is opened by "
            "karpathy:FILE"
        )
    path = token if token.is_file() else table
    captions, texts = Captions(), dict[str, list[object]]()
    for number, line in enumerate(decode(path).split("\n"), start=1):
        if not line.strip() or (path == table and number == 1):  # the second is the header
            continue
        head, _, rest = line.partition("#" if path == token else "|")
        _, mark, caption = rest.partition("\t" if path == token else "|")
        if mark:
            texts.setdefault(head.strip(), []).append(caption)
        else:
            captions.drops.add(UNREADABLE, f"row {number} of {path}")
    for name, found in texts.items():
        captions.add(name, found, name)
    entries = captions.placed(folder, [*_IMAGE_FOLDERS, "flickr30k_images/flickr30k_images"])
    return CaptionedImages(
        f"flickr30k:{location}", "all", content, entries, folder, captions.drops, expected=FLICKR30K_SIZE
    )
