"""Collections of embedded images and texts: written once, then searched, walked through and looked at."""

from hyvlm.retrieval.collection import Collection, Group

__all__ = ["Collection", "Group"]
