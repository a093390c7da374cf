"""Formulas of the Lorentz model as functions of points and ``c``, arranged so that nothing cancels.

The curvature is ``-c``; points are given by their space components ``x``, shape ``(..., D)``; the time component is
``sqrt(1/c + |x|^2)``. ``c`` is a tensor that broadcasts to the leading axes ``(...)``; in the pairwise functions it
is a scalar or ``(..., 1, 1)``. Written ``<x, y>``, the Lorentz inner product is ``x.y - time(x) time(y)``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hyvlm.geometry.numerics import angle_of, dot, nonzero, norm, rounded_off, safe_sqrt, sinhc, square, unit
from hyvlm.geometry.pairs import CANCELLED, replace_pairs


def time(x: Tensor, c: Tensor) -> Tensor:
    """Time component ``sqrt(1/c + |x|^2)``."""
    return (1 / c + square(x)).sqrt()


def time_above_origin(x: Tensor, c: Tensor) -> Tensor:
    """``time(x) - 1/sqrt(c)``, how far the time component exceeds that of the origin, without the subtraction."""
    above = square(x)
    return above / ((1 / c + above).sqrt() + c.rsqrt())


def chord_sq(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """Squared Minkowski norm of ``x - y``, which is ``-2 <x, y> - 2/c``; exact to a few roundings everywhere."""
    xy = dot(x, y)
    same_side = xy >= 0
    near = torch.where(same_side.unsqueeze(-1), y, x)  # keeps the branch that is not taken finite
    return torch.where(same_side, _chord_sq_same_side(x, near, c), _chord_sq_opposite(x, y, xy, c))


def _chord_sq_same_side(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """For ``x.y >= 0``: the difference, split along and across the direction of ``x + y``.

    With ``T = time(x) + time(y)`` the difference of the times is ``along |x + y| / T``, so that
    ``chord_sq = across^2 + along^2 (1 - |x + y|^2 / T^2)``. Solving for the chord that hides in the last bracket leaves
    ``(T^2 across^2 + 4 along^2 / c) / (T^2 - along^2)``, a sum of positive terms.
    """
    y_longer = dot(x, x) < dot(y, y)
    longer = torch.where(y_longer.unsqueeze(-1), y, x)
    shorter = torch.where(y_longer.unsqueeze(-1), x, y)
    along = dot(longer - shorter, unit(x + y))
    # across |x + y| is twice the area that x and y span: the longer one times the height of the other above it.
    height, _ = off_axis(longer, shorter)
    across_sq = (2 * norm(longer) / nonzero(norm(x + y))).square() * dot(height, height)
    tx, ty = time(x, c), time(y, c)
    denominator = 2 / c + 2 * tx * ty + 2 * dot(x, y) + across_sq  # T^2 - along^2, again without subtraction
    return across_sq * ((tx + ty).square() / denominator) + along.square() * (4 / c / denominator)


def _chord_sq_opposite(x: Tensor, y: Tensor, xy: Tensor, c: Tensor) -> Tensor:
    """For ``x.y < 0``: ``2 (time(x) time(y) - 1/c) - 2 x.y``, where every term is positive."""
    above_x, above_y = time_above_origin(x, c), time_above_origin(y, c)
    return 2 * (time(x, c) * above_y + above_x * c.rsqrt() - xy)


def distance_of_chord(chord_sq: Tensor, c: Tensor) -> Tensor:
    """Geodesic distance ``2/sqrt(c) asinh(sqrt(c chord_sq)/2)``, equal to ``arcosh(-c <x, y>)/sqrt(c)``."""
    return torch.asinh(safe_sqrt(c / 4 * chord_sq)) * (2 * c.rsqrt())


def distance(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """Geodesic distance of paired points."""
    return distance_of_chord(chord_sq(x, y, c), c)


def geodesic(x: Tensor, y: Tensor, t: Tensor, c: Tensor) -> Tensor:
    """Point at share ``t`` of the way: ``(sinh((1-t) s) x + sinh(t s) y) / sinh(s)``, ``s`` the distance in radii of
    curvature. Quotients by their arguments, which stay exact where the points coincide."""
    s_sq = c * distance(x, y, c).square()
    from_x, from_y = (share * sinhc(share.square() * s_sq) / sinhc(s_sq) for share in (1 - t, t))
    return from_x.unsqueeze(-1) * x + from_y.unsqueeze(-1) * y


def inner(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """Lorentz inner product of paired points."""
    return dot(x, y) - time(x, c) * time(y, c)


def pairwise_inner(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """Lorentz inner product of every ``x`` with every ``y``."""
    tx, ty = time(x, _rows(c)), time(y, _rows(c))
    return x @ y.mT - tx.unsqueeze(-1) * ty.unsqueeze(-2)


def pairwise_distance(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """Geodesic distance of every ``x`` to every ``y``.

    A matrix product about the origin. If many pairs cancel in it, because the points have collapsed, a second one about
    the point with the most close partners; :func:`distance` recomputes the pairs that cancel in both.
    """
    chord, close = _pairwise_chord_sq(x, y, x.new_zeros(1, x.shape[-1]), c)
    partners = close.sum(-1, keepdim=True)
    if partners.sum() > 2 * (x.shape[-2] + y.shape[-2]):
        crowded = partners.argmax(-2, keepdim=True)
        base = x.detach().take_along_dim(crowded, -2)
        about_base, still_close = _pairwise_chord_sq(x, y, base, c)
        chord, close = torch.where(close, about_base, chord), close & still_close
    values = distance_of_chord(torch.where(close, 1.0, chord), c)
    return replace_pairs(values, close, distance, x, y, c)


def _pairwise_chord_sq(x: Tensor, y: Tensor, base: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`chord_sq` of every pair, by Minkowski products of the points less ``base`` ``(..., 1, D)``.

    Also returns where too little is left of the products' terms to trust the difference.
    """
    c = _rows(c)
    a, b = x - base, y - base
    time_sum_x, time_sum_y = (time(points, c) + time(base, c) for points in (x, y))
    later_x, later_y = dot(a, x + base) / time_sum_x, dot(b, y + base) / time_sum_y  # time(x) - time(base)
    to_x, to_y = chord_sq(x, base, c), chord_sq(y, base, c)
    one_x, one_y = torch.ones_like(to_x), torch.ones_like(to_y)
    left = torch.cat([a, torch.stack([later_x, to_x, one_x], -1)], -1)
    right = torch.cat([-2 * b, torch.stack([2 * later_y, one_y, to_y], -1)], -1)
    chord = left @ right.mT
    with torch.no_grad():
        sizes_x = torch.stack([norm(a), later_x.abs(), to_x, one_x], -1)
        sizes_y = torch.stack([2 * norm(b), 2 * later_y.abs(), one_y, to_y], -1)
        terms = sizes_x @ sizes_y.mT
        return chord, chord < CANCELLED[chord.dtype] * terms


def exterior_angle(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """Angle at ``x`` between the geodesic from the origin, prolonged beyond ``x``, and the geodesic to ``y``."""
    n, direction = norm(x), unit(x)
    across = off_axis_length(x, y)
    radial = _radial(n, dot(direction, y), dot(direction, y - x), across, time(x, c), time(y, c), c)
    angle = angle_of(across, c.sqrt() * radial)
    return torch.where(n == 0, torch.zeros_like(angle), angle)


def off_axis(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The part of ``y`` orthogonal to ``x``, ``(..., D)``, and a bound on its rounding error, ``(...)``.

    It is also that of ``y - x``, which is free of rounding while the two are of similar size. What the product in the
    projection rounds off is added back, or it would tilt the axis; a second projection removes what is left along it.
    """
    n, direction = norm(x), unit(x)
    height = dot(direction, y)
    similar = (height >= n / 2) & (height <= 2 * n)
    lever = torch.where(similar, dot(direction, y - x), height)
    share = (lever / nonzero(n)).unsqueeze(-1)
    projection = share * x
    rest = torch.where(similar.unsqueeze(-1), y - x, y) - projection - rounded_off(projection, share, x)
    rest = rest - dot(direction, rest).unsqueeze(-1) * direction
    return rest, 8 * torch.finfo(rest.dtype).eps ** 2 * lever.detach().abs()


def off_axis_length(x: Tensor, y: Tensor) -> Tensor:
    """Length of :func:`off_axis`; zero, with zero gradient, where it is not above the rounding.

    An exactly collinear pair would otherwise get a unit gradient in the direction of its rounding errors.
    """
    rest, rounding = off_axis(x, y)
    length = norm(rest)
    return torch.where(length <= rounding, torch.zeros_like(length), length)


def _radial(n: Tensor, height: Tensor, along: Tensor, across: Tensor, tx: Tensor, ty: Tensor, c: Tensor) -> Tensor:
    """``time(x) height - |x| time(y)``: the outward component at ``x`` of the direction to ``y``, up to a factor.

    Both terms have one sign if ``height = unit(x).y <= 0``. Otherwise the difference is expanded by the sum of the two,
    in which ``along = height - |x|`` and ``across`` (the part of ``y`` off the axis) are known without cancellation.
    """
    total = nonzero(tx * height.abs() + n * ty)
    expanded = along * ((height + n) / total) / c - n * across * (n * across / total)
    return torch.where(height > 0, expanded, tx * height - n * ty)


def pairwise_exterior_angle(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """Exterior angle at every ``x`` toward every ``y``; :func:`exterior_angle` recomputes nearly collinear pairs."""
    n, length = norm(x).unsqueeze(-1), norm(y).unsqueeze(-2)
    tx, ty = time(x, _rows(c)).unsqueeze(-1), time(y, _rows(c)).unsqueeze(-2)
    height = unit(x) @ y.mT
    across_sq = (length - height) * (length + height)
    with torch.no_grad():
        collinear = (across_sq <= CANCELLED[height.dtype] * length.square()) | (n == 0)
    across = torch.where(collinear, 1.0, across_sq).sqrt()
    radial = _radial(n, height, height - n, across, tx, ty, c)
    values = angle_of(across, c.sqrt() * radial)
    return replace_pairs(values, collinear, exterior_angle, x, y, c)


def half_aperture(ratio: Tensor) -> Tensor:
    """``asin(min(1, ratio))`` of the cone's ball radius over the norm of the apex; zero gradient from 1 upward."""
    inside = ratio < 1
    return torch.where(inside, torch.asin(torch.where(inside, ratio, 0.0)), math.pi / 2)


def midpoint(x: Tensor, weights: Tensor, c: Tensor, dim: int) -> Tensor:
    """Einstein midpoint along axis ``dim`` (not the last), equal to the normalised weighted sum of the points.

    The sum has space part ``S`` and time part ``T`` and is divided by ``sqrt(c (T^2 - |S|^2))``. ``T - |S|`` is the
    weighted sum of ``time - unit(S).x``, each of which is expanded so that far points do not cancel.
    """
    weighted = (weights.unsqueeze(-1) * x).sum(dim, keepdim=True)
    t = time(x, c)
    direction = unit(weighted)
    height = dot(direction, x)
    across_sq = (x - height.unsqueeze(-1) * direction).square().sum(-1)
    lightlike = torch.where(height > 0, (1 / c + across_sq) / (t + height.abs()), t - height)
    # The last axis is gone from the per-point numbers, so a negative axis of the points moves by one.
    axis = dim + 1 if dim < 0 else dim
    below = (weights * lightlike).sum(axis, keepdim=True)
    above = (weights * t).sum(axis, keepdim=True) + norm(weighted)
    scale = nonzero(below).rsqrt() * nonzero(above).rsqrt() * c.rsqrt()
    return (weighted * scale.unsqueeze(-1)).squeeze(dim)


def _rows(c: Tensor) -> Tensor:
    """``c`` of shape ``(..., 1, 1)`` as ``(..., 1)``, for the leading axes of one operand."""
    return c.squeeze(-1) if c.dim() else c
