"""Collections of embedded images and texts: written once, then searched, walked through and looked at."""

from hyvlm.retrieval.collection import Collection, Group
from hyvlm.retrieval.embed import embed

__all__ = ["Collection", "Group", "embed"]
