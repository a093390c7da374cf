"""Search among embedded images or texts, by the score that the model ranks with.

``Searcher(collection, model)`` searches a collection on disk, :meth:`Searcher.over` plain arrays. A search is exact, or
takes its candidates from an approximate index; the model's own score, in float64, ranks and is returned either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from hyvlm.geometry import Lorentz, Modality, Product, ProductLorentz
from hyvlm.models import DualEncoder
from hyvlm.retrieval.blocks import BLOCK_ROWS, as_tensor
from hyvlm.retrieval.collection import Collection, Group
from hyvlm.retrieval.exact import Allowed, ByForm, ByScore, ExactRows, FirstPass, Prepared, Score, check_finite, prepare
from hyvlm.retrieval.filters import check_origin, within_cone, within_radii
from hyvlm.retrieval.forms import form_of, index_form
from hyvlm.retrieval.index import open_prepared

if TYPE_CHECKING:
    from hyvlm.retrieval.approximate import ApproximateIndex

#: What the groups of a collection are of.
KIND: dict[str, Modality] = {"images": "image", "texts": "text"}
#: Queries that share a pass over the candidates.
QUERIES_AT_ONCE = 512
#: An approximate index is not asked where fewer than this share of the points pass a filter: it would find too few.
SELECTIVE = 0.1


@dataclass(frozen=True)
class Hits:
    """What was found for Q queries.

    Attributes:
        rows: ``(Q, k)`` int64, best first, the lower row first among equal scores; -1 where fewer were found.
        scores: ``(Q, k)`` float64, higher is closer; -inf where fewer were found.
        score_name: What the scores are.
    """

    rows: Tensor
    scores: Tensor
    score_name: str


def scorer(model: DualEncoder, kind: Modality, by: Modality) -> Score:
    """The score of candidates of ``kind`` for queries of ``by``, ``(Q, D), (N, D) -> (Q, N)``.

    Across modalities the model's; within one, which have no direction, the manifold's.
    """
    if kind == by:
        return model.manifold.score
    if by == "image":
        return lambda queries, points: model.score(queries, points, by="image")
    return lambda queries, points: model.score(points, queries, by="text").mT


def score_name(model: DualEncoder, kind: Modality, by: Modality) -> str:
    """What the numbers of :func:`scorer` are, in words."""
    if kind != by and model.by_angle:
        at_image = (by == "image") == model.as_trained
        return "exterior angle at the image" if at_image else "minus the exterior angle at the text"
    published = kind != by and not model.as_trained and isinstance(model.manifold, ProductLorentz)
    if isinstance(model.manifold, Lorentz) or published:
        return "Lorentz inner product" + ", summed over the factors" * published
    return "minus the distance" if hasattr(model.manifold, "radius") else "cosine"


class Searcher:
    """Finds the points of a group that a query scores highest.

    Args:
        collection: What is searched. An index of it (``hyvlm index``) is used where there is one.
        model: The model that it was embedded with.
        group: "images" or "texts".
        exact: False takes candidates from the collection's approximate index.
    Raises:
        ValueError: The collection or its index is of another model, or the index is older than the collection.
        FileNotFoundError: There is no approximate index, and ``exact`` is False.
    """

    def __init__(
        self, collection: Collection, model: DualEncoder, *, group: str = "images", exact: bool = True
    ) -> None:
        collection.check_model(model)
        found = collection.group(group)
        approximate = None
        if not exact:
            from hyvlm.retrieval.approximate import ApproximateIndex

            approximate = ApproximateIndex.open(collection, group)
        self._set(model, found.points, KIND[group], open_prepared(collection, group) if exact else None, approximate)
        self._group: Group | None = found

    @classmethod
    def over(
        cls,
        model: DualEncoder,
        points: Tensor | NDArray[np.floating],
        *,
        kind: Modality = "image",
        approximate: ApproximateIndex | None = None,
    ) -> Searcher:
        """Search points ``(N, D)`` of one modality that are in no collection."""
        searcher = cls.__new__(cls)
        array = points.detach().cpu().numpy() if isinstance(points, Tensor) else points
        if array.ndim != 2 or not len(array):
            raise ValueError(f"points to search must be (N, D), N at least 1, got {array.shape}")
        searcher._set(model, array, kind, None, approximate)
        searcher._group = None
        return searcher

    def _set(
        self,
        model: DualEncoder,
        points: NDArray[np.floating],
        kind: Modality,
        prepared: Prepared | None,
        approximate: ApproximateIndex | None,
    ) -> None:
        self.model, self.points, self.kind, self.approximate = model, points, kind, approximate
        self._prepared: dict[str, Prepared] = {}
        form = index_form(model, kind)
        if form is not None and prepared is not None:
            self._prepared[form.name] = prepared
        self._radii: NDArray[np.float32] | None = None

    @torch.no_grad()
    def search(
        self,
        queries: Tensor,
        *,
        by: Modality,
        k: int = 10,
        radius_min: float | None = None,
        radius_max: float | None = None,
        within: Tensor | None = None,
        nprobe: int | None = None,
        ef_search: int | None = None,
    ) -> Hits:
        """The ``k`` points of highest score for every query.

        Args:
            queries: Points ``(Q, D)``.
            by: What the queries are, "image" or "text".
            k: How many, at the most.
            radius_min, radius_max: Only points at such a distance from the origin, bounds included.
            within: Only points inside the entailment cone of this point ``(D,)``.
            nprobe, ef_search: Of an approximate index; higher finds more and takes longer. None is its default.
        Raises:
            ValueError: Queries are of another dimension or not finite; ``k`` is not positive; or a radius or a cone is
                asked of a sphere.
        """
        device, dim = self.model.pixel_mean.device, self.points.shape[1]
        if queries.ndim != 2 or queries.shape[1] != dim:
            raise ValueError(f"queries must be (Q, {dim}) like the points searched, got {tuple(queries.shape)}")
        if k < 1:
            raise ValueError(f"k is how many to find and must be at least 1, got {k}")
        queries = queries.detach().to(device, torch.float64)
        check_finite(queries, "query")
        allowed = self.allowed(radius_min=radius_min, radius_max=radius_max, within=within)
        name = score_name(self.model, self.kind, by)
        most = min(k, len(self.points))
        rows = torch.full((len(queries), most), -1, dtype=torch.long)
        scores = torch.full((len(queries), most), -torch.inf, dtype=torch.float64)
        best = ExactRows(scorer(self.model, self.kind, by), self.points)
        index = self.approximate
        if index is not None and allowed is not None and allowed.mean() < SELECTIVE:
            index = None
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            if index is None:
                rows[part], scores[part] = best.best(self._first_pass(queries[part], by), most, allowed)
            else:
                found = index.candidates(
                    self.model.manifold, queries[part], most, allowed=allowed, nprobe=nprobe, ef_search=ef_search
                )
                rows[part], scores[part] = best.rank(queries[part], found, most)
        return Hits(pad(rows, (0, k - most), value=-1), pad(scores, (0, k - most), value=-torch.inf), name)

    def _first_pass(self, queries: Tensor, by: Modality) -> FirstPass:
        form = form_of(self.model, self.kind, by)
        if form is None:
            manifold = self.model.manifold
            factors = manifold.factors if isinstance(manifold, Product) else 1
            return ByScore(scorer(self.model, self.kind, by), self.points, queries, factors)
        if form.name not in self._prepared:
            self._prepared[form.name] = prepare(form, self.points)
        return ByForm(form, self._prepared[form.name], queries)

    def allowed(
        self, *, radius_min: float | None = None, radius_max: float | None = None, within: Tensor | None = None
    ) -> Allowed:
        """Which points pass the filters of :meth:`search`, bool ``(N,)``; None if there is no filter."""
        mask: Allowed = None
        if radius_min is not None or radius_max is not None:
            mask = within_radii(self.radii(), lowest=radius_min, highest=radius_max)
        if within is not None:
            inside = within_cone(self.model.manifold, within.detach().to(self.model.pixel_mean.device), self.points)
            mask = inside if mask is None else mask & inside
        return mask

    @torch.no_grad()
    def radii(self) -> NDArray[np.float32]:
        """Distances of the points from the origin, ``(N,)``. Raises ValueError on a sphere, which has none."""
        check_origin(self.model.manifold, "a radius")
        if self._radii is None and self._group is not None:
            self._radii = self._group.radii
        if self._radii is None:
            starts = range(0, len(self.points), BLOCK_ROWS)
            blocks = (as_tensor(self.points[at : at + BLOCK_ROWS], "cpu", torch.float64) for at in starts)
            manifold = self.model.manifold
            device = self.model.pixel_mean.device
            found = [manifold.radius(block.to(device)).cpu().numpy() for block in blocks]  # type: ignore[operator]
            self._radii = np.concatenate(found).astype(np.float32)
        return self._radii
