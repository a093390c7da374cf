"""HoroPCA: hyperbolic points on the plane that keeps most of the variance of their distances (Chami et al. 2021).

Points are space components ``(N, D)`` of curvature ``-c``. Isometries change no distance, so the points are first moved
until their mean is the origin (a Lorentz boost) and turned into as many dimensions as they span (a rotation, from the
eigen-decomposition of a Gram matrix). Directions are unit vectors ``p``; each stands for the ideal point at the end of
the ray from the origin along it.

With ``e = time - x.p`` (``c = 1``), the Busemann function of the ideal point is ``log e``. The horospherical projection
onto the plane spanned by K orthonormal directions is the point of that plane with the same K Busemann values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hyvlm.geometry import Lorentz
from hyvlm.geometry.numerics import dot

#: Steps of the fixed-point iteration for the mean and of the search for directions, at the most.
MEAN_STEPS, SEARCH_STEPS = 100, 100
#: Starts of the search, at the most: all there are for a plane.
STARTS = 4
#: From the origin where c = 1; further out, the squares of coordinates leave no digit for distances.
FARTHEST = 18


@dataclass(frozen=True)
class HoroPCA:
    """What was fitted, ready to place these and other points.

    Attributes:
        c: Curvature magnitude.
        mean: ``(D,)`` float64, the Frechet mean of the points; it becomes the origin of the plane.
        directions: ``(D, K)`` float64, orthonormal columns.
        explained: Share of the variance of pairwise distances that is left after projection, 0 to 1.
        explained_start: The same of the tangent PCA's directions, in those signs that keep most.
        measured_on: Points that directions and shares were found on: all, or a seeded draw.
    """

    c: float
    mean: Tensor
    directions: Tensor
    explained: float
    explained_start: float
    measured_on: int

    def project(self, points: Tensor) -> Tensor:
        """Points ``(N, D)`` of the same space to space components ``(N, K)`` of the fitted plane."""
        root = math.sqrt(self.c)
        centred = translate(points.detach().to(self.mean) * root, -self.mean * root)
        return horospherical_projection(centred, self.directions) / root

    def disk(self, points: Tensor) -> Tensor:
        """Points ``(N, D)`` to ``(N, K)`` in the unit Poincare disk."""
        return _unit_lorentz().to_poincare(self.project(points) * math.sqrt(self.c))


def horopca(points: Tensor, c: float, *, components: int = 2, sample: int = 2000, seed: int = 0) -> HoroPCA:
    """Fit :class:`HoroPCA`.

    The cost is that of some passes over the points for their mean, and of the pairwise distances of ``sample`` points
    at each step of the searches: beyond ``sample`` points, a seeded draw of so many stands for all.

    Args:
        points: ``(N, D)``, at least two different ones.
        c: Curvature magnitude.
        components: K, 1 <= K <= D.
        sample: Points that the variance is measured on, at the most.
        seed: Of the draw; the search itself is deterministic.
    Raises:
        ValueError: If there are no K dimensions, a point is not finite or too far out, or all points coincide.
    Source: Chami et al., "HoroPCA: Hyperbolic Dimensionality Reduction via Horospherical Projections", ICML 2021.
        All K directions are searched together, from the tangent PCA in several signs.
    """
    _check(points, c, components, sample)
    unit_points = points.detach().double() * math.sqrt(c)
    mean = frechet_mean(unit_points)
    drawn = unit_points
    if len(points) > sample:
        generator = torch.Generator().manual_seed(seed)
        drawn = unit_points[torch.randperm(len(points), generator=generator)[:sample].to(points.device)]
    coordinates, basis = gram_coordinates(translate(drawn, -mean))
    total = float(distance_variance(coordinates))
    if coordinates.shape[1] < components:  # the points span less than the plane: any further direction will do
        coordinates, basis = _padded(coordinates, basis, components)
    starts = _starts(coordinates, components)
    frames = [starts[0], *(_search(coordinates, start) for start in starts)]  # the first, if all line searches fail
    shares = [_kept(coordinates, frame) / total for frame in frames]
    best = max(range(len(frames)), key=shares.__getitem__)
    return HoroPCA(c, mean / math.sqrt(c), basis @ frames[best], shares[best], shares[0], len(drawn))


def _check(points: Tensor, c: float, components: int, sample: int) -> None:
    if points.ndim != 2 or len(points) < 2 or not 1 <= components <= points.shape[1]:
        raise ValueError(
            f"HoroPCA takes points (N, D), N >= 2 and D >= components = {components} >= 1, got {tuple(points.shape)}"
        )
    if not c > 0:
        raise ValueError(f"c is the magnitude of the curvature and must be positive, got {c}")
    if sample < 2:
        raise ValueError(f"the variance of distances needs a sample of at least 2 points, got {sample}")
    finite = points.isfinite().all(1)
    if not finite.all():
        raise ValueError(f"{int((~finite).sum())} of {len(points)} points are not finite")
    farthest = float(torch.asinh(points.detach().double().norm(dim=1).max() * math.sqrt(c)))
    if farthest > FARTHEST:
        raise ValueError(
            f"points lie too far out for HoroPCA in float64: {farthest:.3g} from the origin in units of 1/sqrt(c), "
            f"c = {c:.3g}; it takes {FARTHEST}"
        )
    if (points == points[0]).all():
        raise ValueError(f"all {len(points)} points coincide: there is no variance to keep")


def translate(x: Tensor, to: Tensor) -> Tensor:
    """The boost that takes the origin to ``to`` ``(D,)``, applied to ``x`` ``(..., D)``; ``c = 1``.

    Its inverse is the boost by ``-to``.
    """
    time_to, time_x = (1 + dot(to, to)).sqrt(), (1 + dot(x, x)).sqrt()
    return x + (time_x + x @ to / (1 + time_to)).unsqueeze(-1) * to


def frechet_mean(x: Tensor, *, tolerance: float = 1e-8) -> Tensor:
    """The point with the least sum of squared distances to ``x`` ``(N, D)``, ``(D,)``; ``c = 1``.

    Karcher's iteration from the Einstein midpoint; it ends when a step is shorter than ``tolerance``.
    """
    lorentz = _unit_lorentz()
    mean = lorentz.midpoint(x)
    for _ in range(MEAN_STEPS):
        step = lorentz.logmap0(translate(x, -mean)).mean(0)
        mean = translate(lorentz.expmap0(step), mean)
        if torch.linalg.vector_norm(step) < tolerance:
            break
    return mean


def gram_coordinates(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` ``(N, D)`` in the r <= min(N, D) dimensions that it spans: ``(N, r)``, and their axes ``(D, r)``.

    From the eigen-decomposition of the smaller of the two Gram matrices. A rotation fixes the origin of the
    hyperboloid, so this changes no distance. Directions below the rounding of the largest are dropped.
    """
    wide = x.shape[0] < x.shape[1]
    gram = x @ x.T if wide else x.T @ x
    values, vectors = torch.linalg.eigh(gram)
    kept = (values > values[-1] * torch.finfo(x.dtype).eps * len(values)).nonzero().squeeze(1).flip(0)
    axes = vectors[:, kept]
    if wide:
        axes = torch.linalg.qr(x.T @ axes / values[kept].sqrt()).Q  # again orthonormal where eigenvalues are small
    return x @ axes, axes


def _padded(coordinates: Tensor, basis: Tensor, width: int) -> tuple[Tensor, Tensor]:
    missing = width - basis.shape[1]
    complete = torch.linalg.svd(basis, full_matrices=True).U  # its last columns are orthogonal to the basis
    return (
        torch.cat([coordinates, coordinates.new_zeros(len(coordinates), missing)], 1),
        torch.cat([basis, complete[:, -missing:]], 1),
    )


def busemann(x: Tensor, directions: Tensor) -> Tensor:
    """Busemann functions ``(N, K)`` of ``x`` ``(N, D)`` for ideal points in unit ``directions`` ``(D, K)``; ``c = 1``.

    ``lim d(x, y) - d(0, y)`` for y moving along the ray of the direction.
    """
    return _horospheres(x, directions).log()


def _horospheres(x: Tensor, directions: Tensor) -> Tensor:
    """``e = time - x.p``; where the difference cancels, from ``(1 + |x|^2 - (x.p)^2) / (time + x.p)``."""
    along = x @ directions
    squared = dot(x, x).unsqueeze(-1)
    time = (1 + squared).sqrt()
    beside = (squared - along.square()).clamp_min(0)
    return torch.where(along > 0, (1 + beside) / (time + along.clamp_min(0)), time - along)


def horospherical_projection(x: Tensor, directions: Tensor) -> Tensor:
    """Points ``(N, D)`` to coordinates ``(N, K)`` in the plane of orthonormal ``directions`` ``(D, K)``; ``c = 1``.

    A point ``(t, a)`` of the plane has the Busemann values of ``x`` if ``t - a_i = e_i``, which leaves the quadratic
    ``(K - 1) t^2 - 2 (e_1 + ... + e_K) t + (e_1^2 + ... + e_K^2) + 1 = 0``. Of its two roots the smaller one is taken,
    the point nearer to the origin, as Chami et al. define the projection. Points of the plane itself stay where they
    are if they lie on the origin's side of the geodesic between the ideal points; beyond, they are mirrored.
    """
    e = _horospheres(x, directions)
    total, squares = e.sum(-1, keepdim=True), e.square().sum(-1, keepdim=True)
    # The horospheres meet in x, so this is not negative; it is zero on the geodesic between the ideal points.
    room = (total.square() - (e.shape[-1] - 1) * (squares + 1)).clamp_min(torch.finfo(e.dtype).tiny)
    return (squares + 1) / (total + room.sqrt()) - e


def distance_variance(x: Tensor) -> Tensor:
    """Mean over all pairs of ``x`` ``(N, D)`` of the squared distance; ``c = 1``. What HoroPCA calls the variance.

    The plain product form: a pair's square is off by at most some roundings of the cosh of the distance, which no mean
    feels, and this is the whole cost of the search.
    """
    time = (1 + dot(x, x)).sqrt()
    cosh = torch.outer(time, time) - x @ x.T
    return torch.acosh(cosh.clamp_min(1 + torch.finfo(x.dtype).eps)).square().mean()


def _kept(x: Tensor, directions: Tensor) -> float:
    return float(distance_variance(horospherical_projection(x, directions)))


def _starts(x: Tensor, components: int) -> list[Tensor]:
    """The tangent PCA's directions in their signs, those that keep most first: an axis has two ideal points, and they
    differ. The search from another one often ends higher."""
    tangent = _unit_lorentz().logmap0(x)
    axes = torch.linalg.eigh(tangent.T @ tangent).eigenvectors.flip(1)[:, :components]
    largest = axes.abs().argmax(0, keepdim=True)
    axes = axes * axes.take_along_dim(largest, 0).sign()  # an eigenvector's own sign depends on the machine
    signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * components).reshape(-1, components).to(axes)
    frames = sorted((axes * sign for sign in signs), key=lambda frame: _kept(x, frame), reverse=True)
    return frames[:STARTS]


def _search(x: Tensor, start: Tensor) -> Tensor:
    """Directions that locally maximise the variance after projection, by L-BFGS over the frame of a free matrix."""
    free = start.clone(memory_format=torch.contiguous_format).requires_grad_()
    optimizer = torch.optim.LBFGS([free], max_iter=SEARCH_STEPS, tolerance_change=1e-7, line_search_fn="strong_wolfe")
    scale = distance_variance(x)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -distance_variance(horospherical_projection(x, _frame(free))) / scale
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return _frame(free.detach())


def _frame(free: Tensor) -> Tensor:
    """Gram-Schmidt on the columns: orthonormal, and continuous (each keeps its side)."""
    q, r = torch.linalg.qr(free)
    return q * r.diagonal().sign()


def _unit_lorentz() -> Lorentz:
    return Lorentz(c=1.0, learn=False, bounds=None)
