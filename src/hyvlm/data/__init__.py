"""Data sets by name, training views of their samples, and the batches of a run."""

from hyvlm.data import (
    coco,
    coco_panoptic,
    folder,
    hierarcaps,
    long_captions,
    lvis,
    multi_object,
    open_images,
    retrieval_sets,
    scene_objects,
    scene_parts,
    scenes,
    sdci,
    shards,
    sharegpt4v,
    short_captions,
    sugarcrepe,
    table,
    texts,
    voc,
    zoo,
)
from hyvlm.data.catalog import CONTENTS, DATASETS, SampleSet, open_data
from hyvlm.data.collate import Collate
from hyvlm.data.images import load_image
from hyvlm.data.sampler import GlobalBatches, train_loader
from hyvlm.data.transforms import AUGMENTATIONS, eval_transform, train_transform
from hyvlm.data.views import Item, TrainViews

__all__ = [
    "AUGMENTATIONS",
    "CONTENTS",
    "DATASETS",
    "Collate",
    "GlobalBatches",
    "Item",
    "SampleSet",
    "TrainViews",
    "coco",
    "coco_panoptic",
    "eval_transform",
    "folder",
    "hierarcaps",
    "load_image",
    "long_captions",
    "lvis",
    "multi_object",
    "open_data",
    "open_images",
    "retrieval_sets",
    "scene_objects",
    "scene_parts",
    "scenes",
    "sdci",
    "shards",
    "sharegpt4v",
    "short_captions",
    "sugarcrepe",
    "table",
    "texts",
    "train_loader",
    "train_transform",
    "voc",
    "zoo",
]
