"""Data sets by name, training views of their samples, and the batches of a run."""

from hyvlm.data import sets
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
    "eval_transform",
    "load_image",
    "open_data",
    "sets",
    "train_loader",
    "train_transform",
]
