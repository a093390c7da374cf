"""Zero-shot classification of the insides of boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyvlm.evaluation.task import TASKS
from hyvlm.evaluation.tasks.classification import Classification


@TASKS.register("boxes")
@dataclass(frozen=True, kw_only=True)
class Boxes(Classification):
    """Top-1 and top-5 accuracy on crops of boxes (UNCHA, Sec. S.2.4.4 and Table S.10, after FG-CLIP).

    Every crop is what its box holds, without a margin, squashed to a square: an image of a box has no centre to keep.
    Classes are named in CLIP's 80 prompts, as FG-CLIP does; UNCHA does not say its prompts.
    """

    version: ClassVar[int] = 1

    resize: str = "squash"
    templates: str = "openai"
