"""How a model ranks images against texts, as lines of numpy: for programs that have points, but not this library."""

from __future__ import annotations

from typing import TypeAlias

from hyvlm.geometry import Euclidean, Lorentz, Modality, Product, ProductLorentz, Sphere
from hyvlm.models import DualEncoder

Lines: TypeAlias = list[str]


def score_lines(model: DualEncoder, *, by: Modality = "image") -> Lines:
    """Python that sets ``score`` ``(N, M)``, higher is closer, to what :meth:`DualEncoder.score` gives, to rounding.

    It needs ``np`` (numpy) and points ``x`` ``(N, D)`` of images and ``y`` ``(M, D)`` of texts; it works in float64,
    where the textbook forms are good enough to rank.

    Args:
        by: As in :meth:`DualEncoder.score`; only a score by angle has a direction.
    """
    manifold = model.manifold
    if isinstance(manifold, Sphere):
        return ["score = x @ y.T"]
    factors = manifold.factors if isinstance(manifold, Product) else 1
    lines = [f"X, Y = (p.astype(np.float64).reshape(len(p), {factors}, -1) for p in (x, y))"]
    curved = isinstance(manifold, Lorentz | ProductLorentz)
    if isinstance(manifold, Lorentz | ProductLorentz):
        lines.append(f"c = np.array({manifold.c.detach().double().reshape(-1).tolist()})")
        lines.append("S, T = (np.sqrt(1 / c + (P * P).sum(-1)) for P in (X, Y))")
        lines.append("inner = np.einsum('nfd,mfd->nmf', X, Y) - S[:, None] * T")
    if model.by_angle:
        at_image = (by == "image") == model.as_trained
        return lines + (_curved_angle(at_image) if curved else _flat_angle(at_image))
    if isinstance(manifold, Lorentz) or (isinstance(manifold, ProductLorentz) and not model.as_trained):
        return [*lines, "score = inner.sum(-1)"]
    if curved:
        lines.append("lengths = np.arccosh(np.maximum(-c * inner, 1)) / np.sqrt(c)")
    else:
        lines.append("lengths = np.linalg.norm(X[:, None] - Y, axis=-1)")
    root = isinstance(manifold, Product) and manifold.metric == "l2"
    return [*lines, "score = -np.sqrt((lengths**2).mean(-1))" if root else "score = -lengths.mean(-1)"]


def _curved_angle(at_image: bool) -> Lines:
    """Angle of MERU's cones (Desai et al. 2023, exterior angle), signed as :func:`hyvlm.geometry.angle_similarity`."""
    opposite = "T + c * inner * S[:, None]" if at_image else "S[:, None] + c * inner * T"
    length = "np.linalg.norm(X, axis=-1)[:, None]" if at_image else "np.linalg.norm(Y, axis=-1)"
    adjacent = f"{length} * np.sqrt(np.maximum((c * inner) ** 2 - 1, 1e-300))"
    return [f"cosine = ({opposite}) / ({adjacent})", _from_cosine(at_image)]


def _flat_angle(at_image: bool) -> Lines:
    toward, ray = ("Y - X[:, None]", "X[:, None]") if at_image else ("X[:, None] - Y", "Y")
    return [
        f"toward, ray = {toward}, {ray}",
        "lengths = np.linalg.norm(toward, axis=-1) * np.linalg.norm(ray, axis=-1)",
        "cosine = (toward * ray).sum(-1) / np.maximum(lengths, 1e-300)",
        _from_cosine(at_image),
    ]


def _from_cosine(at_image: bool) -> str:
    return f"score = {'' if at_image else '-'}np.arccos(np.clip(cosine, -1, 1)).mean(-1)"


def describe_score(model: DualEncoder) -> str:
    """The same in words."""
    manifold = model.manifold
    if model.by_angle:
        at = "image toward the text" if model.as_trained else "text toward the image, negative"
        return f"exterior angle at the {at}; ranking images for a text takes the angle at the other side"
    if isinstance(manifold, Sphere):
        return "cosine"
    if isinstance(manifold, Lorentz):
        return "Lorentz inner product, which ranks like minus the geodesic distance"
    if isinstance(manifold, Product):
        if isinstance(manifold, ProductLorentz) and not model.as_trained:
            return "sum of the factors' Lorentz inner products"
        return f"minus the {'root mean square' if manifold.metric == 'l2' else 'mean'} of the factors' distances"
    assert isinstance(manifold, Euclidean)
    return "minus the distance"
