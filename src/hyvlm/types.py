"""The values that cross module borders: a sample on disk, a batch of tensors, views on the manifold, a loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor

#: The group of a view names the index space its rows live in: wholes are one row a sample, parts and queries 0 to any.
#: ``text`` is the (long) caption, ``short_text`` a sentence or another caption of the same image. A query is a piece of
#: what is written about an image (``query_text``) and what the image shows of it (``query_image``).
GROUP_OF_VIEW = {
    "image": "whole",
    "text": "whole",
    "short_text": "whole",
    "part_image": "part",
    "part_text": "part",
    "query_image": "query",
    "query_text": "query",
}


def encodable(text: str) -> str:
    """``text`` with what UTF-8 cannot encode (half of a surrogate pair, from JSON or a file name) written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def reasons(counts: Mapping[str, int]) -> str:
    """Counts by reason as a part of a sentence: "3 image is broken, 1 empty caption"; "" if there are none."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)


class BadSample(Exception):
    """One sample cannot be used. ``reason`` is a short fixed phrase that counts are kept under, ``where`` the place."""

    def __init__(self, reason: str, where: str) -> None:
        super().__init__(reason, where)  # both, so that it survives pickling on its way out of a loader's process
        self.reason, self.where = reason, encodable(where)

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass
class Part:
    """A grounded part of an image: a crop (RGB) and the phrase that names it."""

    image: Image.Image
    text: str


@dataclass
class Sample:
    """One image (RGB, upright) and what is known of it. Fields that a data set lacks stay empty.

    Attributes:
        image: None only in sets opened for their texts alone (content "texts").
        labels: Classes that are there, as indices into the set's ``classes``.
        ignored: Classes that are neither there nor absent (all their objects are marked difficult): not to be scored.
        dropped: Parts that could not be used, with the reason of each.
        negatives: Captions that are false of the image: hard negatives of ``texts[0]``.
        mask: Classes of the pixels, as indices into the set's ``classes`` (PIL mode "L"); 255 is not scored.
    """

    key: str
    image: Image.Image | None
    texts: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    ignored: list[int] = field(default_factory=list)
    dropped: list[BadSample] = field(default_factory=list)
    negatives: list[str] = field(default_factory=list)
    mask: Image.Image | None = None

    @property
    def picture(self) -> Image.Image:
        """The image. Raises :class:`BadSample` if there is none."""
        if self.image is None:
            raise BadSample("no image", f"sample {self.key!r}")
        return self.image


@dataclass(frozen=True)
class Tokens:
    """What a tower says of the single tokens of its input: patches of an image, words of a text.

    Attributes:
        values: ``(N, T, D)``, features or points.
        mask: ``(N, T)`` bool, False where a token does not count: start, end and padding of a text.
    """

    values: Tensor
    mask: Tensor


@dataclass
class Batch:
    """Tensors of one process's share of a batch. Parts and queries are ragged: flat rows with owners, never padded.

    Attributes:
        image: ``(B, 3, H, W)`` uint8.
        text: ``(B, L)`` int64 token ids, 0-padded.
        part_image: ``(M, 3, h, w)`` uint8; M is 0 if no relation asks for parts.
        part_text: ``(M, l)`` int64.
        owner: ``(M,)`` int64, the row of ``image`` that each part belongs to, ascending.
        keys: Names of the B samples.
        short_text: ``(B, L)`` int64, or ``(0, 1)`` if no relation asks for short texts.
        query_text: ``(Q, L)`` int64, or ``(0, 1)`` if no relation asks for queries.
        query_owner: ``(Q,)`` int64, the row of ``image`` that each query belongs to, ascending.
        query_parent: ``(Q,)`` int64, the query of the same image that stands above each query, -1 above a root.
        query_weight: ``(Q,)`` float32.
        skipped: How many samples were left out, by reason; parts are counted under "part: REASON".
        skipped_examples: Where the first few of them are.
        truncated: How many texts were longer than the tokenizer's context and lost their end.
    """

    image: Tensor
    text: Tensor
    part_image: Tensor
    part_text: Tensor
    owner: Tensor
    keys: list[str]
    short_text: Tensor = field(default_factory=lambda: torch.empty(0, 1, dtype=torch.long))
    query_text: Tensor = field(default_factory=lambda: torch.empty(0, 1, dtype=torch.long))
    query_owner: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    query_parent: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    query_weight: Tensor = field(default_factory=lambda: torch.empty(0))
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_examples: list[str] = field(default_factory=list)
    truncated: int = 0

    def pin_memory(self) -> Batch:
        """A copy in page-locked memory (called by the DataLoader), from where copies to a GPU are asynchronous."""
        pinned = {k: v.pin_memory() for k, v in vars(self).items() if isinstance(v, Tensor)}
        return Batch(**{**vars(self), **pinned})

    def to(self, device: torch.device | str) -> Batch:
        """A copy with every tensor on ``device``."""
        moved = {k: v.to(device, non_blocking=True) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return Batch(**{**vars(self), **moved})

    def split(self, size: int) -> list[Batch]:
        """The batch in pieces of ``size`` samples with their parts and queries; an empty batch is one empty piece.

        The last piece may be smaller. Tensors share their memory with this batch. What was left out stays counted here,
        not in the pieces.

        Raises:
            ValueError: ``size`` is below 1, or parts or queries do not lie in the order of their samples.
        """
        if size < 1:
            raise ValueError(f"a piece of a batch has at least 1 sample, got {size}")
        for what, owner in (("parts", self.owner), ("queries", self.query_owner)):
            if (owner.diff() < 0).any():
                raise ValueError(f"{what} must lie in the order of their samples to be split with them")
        wholes = [*range(0, max(len(self.image), 1), size), len(self.image)]
        edges = torch.tensor(wholes)
        parts, queries = (torch.searchsorted(o.cpu(), edges).tolist() for o in (self.owner, self.query_owner))
        return [
            self._piece(*(slice(rows[i], rows[i + 1]) for rows in (wholes, parts, queries)))
            for i in range(len(wholes) - 1)
        ]

    def _piece(self, whole: slice, part: slice, query: slice) -> Batch:
        """The samples of these rows, with owners and parents that count from the first of them."""
        parent = self.query_parent[query]
        return Batch(
            image=self.image[whole],
            text=self.text[whole],
            part_image=self.part_image[part],
            part_text=self.part_text[part],
            owner=self.owner[part] - whole.start,
            keys=self.keys[whole],
            short_text=self.short_text[whole],
            query_text=self.query_text[query],
            query_owner=self.query_owner[query] - whole.start,
            query_parent=torch.where(parent < 0, -1, parent - query.start),
            query_weight=self.query_weight[query],
        )


@dataclass
class Views:
    """Points of every view over the whole (global) batch, and which rows this process owns.

    In one process ``local`` covers everything. Over several, points are gathered once between model and objective: rows
    of the loss come from ``local``, the candidates they are compared with from all points.

    Attributes:
        points: View name to points ``(N_view, D)`` on the manifold.
        owner: Group name ("whole", "part", "query") to ``(N_group,)`` int64: the whole that each row belongs to.
        local: Group name to the slice of rows that this process owns.
        world_size: Number of processes that share the batch.
        tokens: View name to the points of single tokens of this process's rows; they are not gathered.
        midpoints: Name of a relation to the point that it makes of the tokens of each row of this process, ``(n, D)``;
            it needs no tokens then (:meth:`hyvlm.methods.Objective.condense`).
        teacher: View name to features of a frozen Euclidean teacher, ``(N_view, E)``, of the global batch.
        query_parent: ``(Q,)`` int64, the query of the global batch that stands above each query, -1 above a root.
        query_weight: ``(Q,)``, how much each query counts.
    """

    points: dict[str, Tensor]
    owner: dict[str, Tensor]
    local: dict[str, slice]
    world_size: int = 1
    tokens: dict[str, Tokens] = field(default_factory=dict)
    midpoints: dict[str, Tensor] = field(default_factory=dict)
    teacher: dict[str, Tensor] = field(default_factory=dict)
    query_parent: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    query_weight: Tensor = field(default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        for what, rows_of in (("points", self.points), ("teacher features", self.teacher)):
            for view, points in rows_of.items():
                rows = len(self.owner[GROUP_OF_VIEW[view]])
                if len(points) != rows:
                    raise ValueError(
                        f"view {view!r} has {len(points)} {what}, its group {GROUP_OF_VIEW[view]!r} {rows} rows"
                    )
        rows = len(self.owner.get("query", ()))
        for what, values in (("parents", self.query_parent), ("weights", self.query_weight)):
            if values.shape != (rows,):
                raise ValueError(f"the group 'query' has {rows} rows, its {what} have shape {tuple(values.shape)}")

    @classmethod
    def single(
        cls,
        image: Tensor,
        text: Tensor,
        part_image: Tensor | None = None,
        part_text: Tensor | None = None,
        owner: Tensor | None = None,
        *,
        short_text: Tensor | None = None,
        query_image: Tensor | None = None,
        query_text: Tensor | None = None,
        query_owner: Tensor | None = None,
        query_parent: Tensor | None = None,
        query_weight: Tensor | None = None,
        tokens: dict[str, Tokens] | None = None,
        midpoints: dict[str, Tensor] | None = None,
        teacher: dict[str, Tensor] | None = None,
    ) -> Views:
        """The views of a batch that lives in one process. Without parents all queries are roots, of weight 1."""
        given = {
            "image": image,
            "text": text,
            "short_text": short_text,
            "part_image": part_image,
            "part_text": part_text,
            "query_image": query_image,
            "query_text": query_text,
        }
        nothing = torch.empty(0, dtype=torch.long, device=image.device)
        owners = {
            "whole": torch.arange(len(image), device=image.device),
            "part": nothing if owner is None else owner,
            "query": nothing if query_owner is None else query_owner,
        }
        return cls(
            points={k: v for k, v in given.items() if v is not None},
            owner=owners,
            local={k: slice(0, len(v)) for k, v in owners.items()},
            tokens=tokens or {},
            midpoints=midpoints or {},
            teacher=teacher or {},
            query_parent=torch.full_like(owners["query"], -1) if query_parent is None else query_parent,
            query_weight=torch.ones(len(owners["query"]), device=image.device)
            if query_weight is None
            else query_weight,
        )

    def rows(self, view: str) -> Tensor:
        """This process's rows of ``view``."""
        points, local = self.points[view], self.local[GROUP_OF_VIEW[view]]
        return points if local == slice(0, len(points)) else points[local]


@dataclass
class LossOutput:
    """What an objective returns.

    Attributes:
        total: Scalar to differentiate: this process's share; the sum over processes is the loss of the global batch.
        terms: Unweighted value of every named term, detached; shares, like ``total``.
        stats: Detached scalars for the log (mean radius by view, saturated share, scales, ...), already global or
            identical on every process.
        stat_shares: Further scalars for the log that, like ``terms``, are shares of the global batch's value.
        lift_bounded: How many vectors of this process the lift pulled onto its bound; the training step fills it in.
    """

    total: Tensor
    terms: dict[str, Tensor]
    stats: dict[str, Tensor] = field(default_factory=dict)
    stat_shares: dict[str, Tensor] = field(default_factory=dict)
    lift_bounded: Tensor | None = None
