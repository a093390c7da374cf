"""The pixels of a built-in scene: shaded solids over a cluttered background, drawn analytically with numpy.

Each object is drawn on the square around its bounding circle, in its own frame: x to the right, y down, z toward the
viewer, in units of the circle's radius, turned by a random angle. A shape answers with signed distances to its
silhouette (positive inside, which gives soft edges without supersampling) and unit normals; a material turns normals
into light. Pose, light and hue are nuisance: they are drawn here and belong to no caption.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hyvlm.data.sets.scenes.world import FAMILIES, Scene, SceneObject, Stream, seed_of

Floats = NDArray[np.floating]
Plane = tuple[Floats, Floats]
Normals = tuple[Floats, Floats, Floats]
Vector = tuple[float, float, float]
Surface = tuple[Floats, Floats, Floats, Floats]  # signed distance to the silhouette, normal x, y, z; each (h, w)

#: Side of a scene's image in pixels; crops of single objects are then about 30 to 65 pixels wide.
CANVAS = 128
_NOISE_SIDE = 512
#: Middle hue in degrees, its spread, and the range of saturation: red and yellow stay apart under any light drawn here.
_PAINTS = {
    "red": (0.0, 8.0, (0.78, 0.95)),
    "yellow": (50.0, 6.0, (0.75, 0.95)),
    "green": (128.0, 18.0, (0.6, 0.9)),
    "blue": (222.0, 14.0, (0.7, 0.95)),
}


class Light(NamedTuple):
    """Unit vector to the lamp, in the canvas frame, and its colour."""

    x: float
    y: float
    z: float
    tint: Floats


def render(scene: Scene, size: int = CANVAS) -> tuple[Image.Image, NDArray[np.bool_]]:
    """Draw a scene.

    Args:
        scene: What to draw; the same scene gives the same pixels, and a copy with other objects the same surroundings.
        size: Side of the image in pixels, 16 to 512.
    Returns:
        The RGB image, and masks ``(K, size, size)`` of the visible pixels of each object.
    Raises:
        ValueError: If ``size`` is out of range.
    """
    pixels, shown = paint(scene, size)
    return Image.fromarray(pixels), visible(shown)


def visible(silhouettes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Silhouettes ``(K, H, W)`` from back to front, each without the pixels that later ones cover."""
    masks = silhouettes.copy()
    covered = silhouettes[-1].copy()
    for k in range(len(masks) - 2, -1, -1):
        masks[k] &= ~covered
        covered |= silhouettes[k]
    return masks


def paint(scene: Scene, size: int = CANVAS) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Pixels ``(size, size, 3)`` and the whole silhouette of each object, hidden pixels too, ``(K, size, size)``."""
    if not 16 <= size <= _NOISE_SIDE:
        raise ValueError(f"size of a scene's image must be 16 to {_NOISE_SIDE} pixels, got {size}")
    stream = Stream(*seed_of(scene.split, scene.index, 2))
    canvas = _background(stream, size)
    light = _draw_light(stream)
    silhouettes = np.zeros((len(scene.objects), size, size), dtype=bool)
    for one, silhouette in zip(scene.objects, silhouettes, strict=True):
        _draw_object(one, light, stream, canvas, silhouette)
    canvas += _noise(stream, size)
    np.clip(canvas, 0, 255, out=canvas)
    return canvas.astype(np.uint8), silhouettes


def _draw_light(stream: Stream) -> Light:
    azimuth, height = stream.uniform(0.6, math.pi - 0.6), stream.uniform(0.45, 0.8)
    flat = math.sqrt(1 - height * height)
    warmth, power = stream.uniform(-0.08, 0.08), stream.uniform(0.75, 1.1)
    tint = np.array([power * (1 + warmth), power, power * (1 - warmth)], dtype=np.float32)
    return Light(math.cos(azimuth) * flat, -math.sin(azimuth) * flat, height, tint)


# Background ----------------------------------------------------------------------------------------------------------


@cache
def _ramp(size: int, knots: int) -> Floats:
    """Smooth interpolation weights from ``knots`` values to ``size`` pixels, ``(size, knots)``; rows sum to 1."""
    at = np.linspace(0, knots - 1, size, dtype=np.float32)
    left = np.minimum(at.astype(int), knots - 2)
    t = at - left
    t = t * t * (3 - 2 * t)
    weights = np.zeros((size, knots), dtype=np.float32)
    weights[np.arange(size), left] = 1 - t
    weights[np.arange(size), left + 1] += t
    return weights


@cache
def _grain() -> Floats:
    """A tile of roughly normal noise (a sum of four uniform bytes), standard deviation 1."""
    words = np.random.PCG64(np.random.SeedSequence(7)).random_raw(_NOISE_SIDE * _NOISE_SIDE * 3 // 2)
    total = words.astype("<u8").view(np.uint8).reshape(4, _NOISE_SIDE, _NOISE_SIDE, 3).sum(axis=0, dtype=np.float32)
    return ((total - 510) / 147.8).astype(np.float32)


def _noise(stream: Stream, size: int) -> Floats:
    grain = _grain()
    top, left = stream.below(_NOISE_SIDE - size + 1), stream.below(_NOISE_SIDE - size + 1)
    return grain[top : top + size, left : left + size] * stream.uniform(2.0, 7.0)


def _muted(stream: Stream) -> tuple[float, float, float]:
    """A colour of low saturation, 0 to 255."""
    r, g, b = colorsys.hsv_to_rgb(stream.uniform(), stream.uniform(0.0, 0.3), stream.uniform(0.2, 0.9))
    return 255 * r, 255 * g, 255 * b


def _background(stream: Stream, size: int) -> Floats:
    """A smooth field of muted colours with flat bars, discs and strokes on it, ``(size, size, 3)``, 0 to 255."""
    knots = 3 + stream.below(3)
    base, spread = _muted(stream), stream.uniform(0.2, 0.7)
    field = np.array([_muted(stream) for _ in range(knots * knots)], dtype=np.float32).reshape(knots, knots * 3)
    ramp = _ramp(size, knots)
    rows = (ramp @ field).reshape(size, knots, 3).transpose(0, 2, 1)
    smooth = (rows @ ramp.T).transpose(0, 2, 1) * spread + np.array(base, dtype=np.float32) * (1 - spread)

    image = Image.fromarray(smooth.astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(3 + stream.below(5)):
        x, y = stream.uniform(-0.1, 1.0) * size, stream.uniform(-0.1, 1.0) * size
        w, h = stream.uniform(0.04, 0.4) * size, stream.uniform(0.04, 0.4) * size
        red, green, blue = _muted(stream)
        fill, kind = (int(red), int(green), int(blue)), stream.below(3)
        if kind == 0:
            pen.rectangle((x, y, x + w, y + h), fill=fill)
        elif kind == 1:
            pen.ellipse((x, y, x + w, y + h), fill=fill)
        else:
            pen.line((x, y, x + 3 * w - size / 2, y + 3 * h - size / 2), fill=fill, width=1 + size // 60)
    return np.asarray(image).astype(np.float32)


# Objects -------------------------------------------------------------------------------------------------------------


def _draw_object(one: SceneObject, light: Light, stream: Stream, canvas: Floats, silhouette: NDArray[np.bool_]) -> None:
    """Draw one object over ``canvas`` and mark its ``silhouette``, both in place."""
    size = len(canvas)
    cx, cy, radius = one.center[0] * size, one.center[1] * size, one.radius * size
    left, top = max(0, int(cx - radius) - 1), max(0, int(cy - radius) - 1)
    right, bottom = min(size, int(cx + radius) + 2), min(size, int(cy + radius) + 2)
    u = ((np.arange(left, right) + (0.5 - cx)) / radius).astype(np.float32)[None, :]
    v = ((np.arange(top, bottom) + (0.5 - cy)) / radius).astype(np.float32)[:, None]
    turn = stream.uniform(-1, 1) * _TURNS[one.shape]
    c, s = math.cos(turn), math.sin(turn)
    x, y = c * u + s * v, c * v - s * u
    distance, nx, ny, nz = _SHAPES[one.shape](x, y, stream)
    # A flat face mirrors one single direction; bending its normal with the place on it gives the reflection a gradient.
    mirror = (nx + 0.5 * x, ny + 0.5 * y) if FAMILIES[one.shape] == "polyhedron" else (nx, ny)
    lamp = (c * light.x + s * light.y, c * light.y - s * light.x, light.z)
    grey, gloss = _MATERIALS[one.material]((nx, ny, nz), mirror, lamp, (-s, -c, 0), stream)

    hue, spread, saturations = _PAINTS[one.colour]
    paint_of = colorsys.hsv_to_rgb(
        (hue + stream.uniform(-spread, spread)) / 360 % 1, stream.uniform(*saturations), stream.uniform(0.75, 1.0)
    )
    colour = grey[..., None] * (np.array(paint_of, dtype=np.float32) * light.tint * 255)
    if gloss is not None:
        colour += gloss[..., None] * (255 - colour)
    cover = np.clip(distance * radius + 0.5, 0, 1)
    window = canvas[top:bottom, left:right]
    window += cover[..., None] * (colour - window)
    silhouette[top:bottom, left:right] = cover >= 0.5


def _ball(x: Floats, y: Floats, stream: Stream) -> Surface:
    scale = 1 / 0.92
    x, y = x * scale, y * scale
    r2 = x * x + y * y
    return (1 - np.sqrt(r2)) / scale, x, y, np.sqrt(np.maximum(1 - r2, 0))


def _ring(x: Floats, y: Floats, stream: Stream) -> Surface:
    """A torus seen from a little aside: its foreshortening is applied to the plane, the tube keeps its roundness."""
    squeeze, middle, tube = stream.uniform(0.65, 1.0), 0.7, 0.29
    y = y / squeeze
    rho = np.sqrt(x * x + y * y) + 1e-6
    across = (rho - middle) / tube
    slope = np.sqrt(x * x + (y / squeeze) ** 2) / rho  # of rho, per unit of canvas
    nz = np.sqrt(np.maximum(1 - across * across, 0))
    return (1 - np.abs(across)) * tube / (slope + 1e-6), across * x / rho, across * y / rho, nz


def _star(x: Floats, y: Floats, stream: Stream) -> Surface:
    """A five-pointed star of ten facets that rise to its middle."""
    squeeze = stream.uniform(0.82, 1.0)
    x = x / squeeze
    normals, reach = _star_facets()
    facet = ((np.arctan2(y, x) + math.pi) * (5 / math.pi)).astype(np.intp) % 10
    edge_x, edge_y = normals[0][facet], normals[1][facet]
    return (reach - edge_x * x - edge_y * y) * squeeze, edge_x * 0.75, edge_y * 0.75, np.full_like(x, 0.6614)


@cache
def _star_facets() -> tuple[tuple[Floats, Floats], float]:
    """Outward edge normals of the ten facets, by angle from -pi, and the edges' common distance from the middle."""
    tip, notch = 1.0, 0.48
    angles = np.arange(11) * (math.pi / 5) - math.pi
    radii = np.where(np.arange(11) % 2 == 0, tip, notch)
    corners = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    along = np.diff(corners, axis=0)
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    outward = np.stack([along[:, 1], -along[:, 0]], axis=1)
    reach = float((outward[0] * corners[0]).sum())
    return (outward[:, 0].astype(np.float32), outward[:, 1].astype(np.float32)), reach


def _cube(x: Floats, y: Floats, stream: Stream) -> Surface:
    faces = np.concatenate([np.eye(3), -np.eye(3)])
    return _convex(x, y, faces @ _pose(stream.uniform(0.35, 1.2), stream.uniform(0.4, 0.7)), np.full(6, 0.578))


def _pyramid(x: Floats, y: Floats, stream: Stream) -> Surface:
    """A square pyramid, its apex up."""
    half, base, apex = 0.66, 0.42, 0.95
    slope = math.hypot(half, base + apex)
    side, up = (base + apex) / slope, -half / slope  # y is down, so a side face leans to negative y
    faces = np.array([[side, up, 0], [-side, up, 0], [0, up, side], [0, up, -side], [0, 1, 0]])
    offsets = np.array([-up * apex] * 4 + [base])
    return _convex(x, y, faces @ _pose(stream.uniform(0.3, 1.27), stream.uniform(0.2, 0.45)), offsets)


def _pose(yaw: float, tilt: float) -> NDArray[np.float64]:
    """Rotation of row vectors by ``yaw`` about the upright axis, then by ``tilt``, which brings the top into view."""
    c, s = math.cos(yaw), math.sin(yaw)
    d, t = math.cos(tilt), math.sin(tilt)
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]) @ np.array([[1, 0, 0], [0, d, -t], [0, t, d]])


def _convex(x: Floats, y: Floats, faces: NDArray[np.float64], offsets: NDArray[np.float64]) -> Surface:
    """The solid where ``faces @ point <= offsets``, seen along z.

    The nearest front plane is the surface; a ray hits the solid where that plane lies before the farthest back plane,
    and the depth between the two planes, over its slope, is the distance to the silhouette's edge between them.
    """
    steep = np.where(np.abs(faces[:, 2]) < 1e-3, 1e-3, faces[:, 2])
    slopes = (-faces[:, :2] / steep[:, None]).astype(np.float32)
    depth = (
        slopes[:, 0, None, None] * x
        + slopes[:, 1, None, None] * y
        + (offsets / steep).astype(np.float32)[:, None, None]
    )
    front, back = np.flatnonzero(steep > 0), np.flatnonzero(steep < 0)
    near, far = depth[front], depth[back]
    hit, exit_ = near.argmin(0), far.argmax(0)
    gap = near.min(0) - far.max(0)
    rate = np.hypot(*(slopes[front][:, None] - slopes[back][None]).transpose(2, 0, 1))
    normal = faces[front].astype(np.float32)[hit]
    rate[rate == 0] = 1  # parallel faces: the silhouette has no edge between them
    return gap / rate[hit, exit_], normal[..., 0], normal[..., 1], normal[..., 2]


# Materials -----------------------------------------------------------------------------------------------------------


def _rubber(normal: Normals, mirror: Plane, lamp: Vector, up: Vector, stream: Stream) -> tuple[Floats, Floats | None]:
    """Matte: light falls off with the angle to the lamp, nothing shines."""
    lit = np.maximum(normal[0] * lamp[0] + normal[1] * lamp[1] + normal[2] * lamp[2], 0)
    return 0.36 + 0.62 * lit, None


def _metal(normal: Normals, mirror: Plane, lamp: Vector, up: Vector, stream: Stream) -> tuple[Floats, Floats | None]:
    """Polished: it mirrors a striped room, and the lamp as a white spot; ``mirror`` is the normal the room sees."""
    lit = normal[0] * lamp[0] + normal[1] * lamp[1] + normal[2] * lamp[2]
    lean, phase, pitch = stream.uniform(-1.0, 1.0), stream.uniform(-0.8, 0.8), stream.uniform(3.0, 4.4)
    wave = np.sin(pitch * (mirror[0] * (up[0] + lean * up[1]) + mirror[1] * (up[1] - lean * up[0])) + phase)
    spot = np.maximum(2 * normal[2] * lit - lamp[2], 0)  # cosine between the mirrored view and the lamp
    for _ in range(4):
        spot *= spot
    glint = np.maximum(wave - 0.55, 0) * 1.4
    return (0.6 + 0.36 * wave) * (0.74 + 0.36 * np.maximum(lit, 0)), np.minimum(glint + 0.8 * spot, 0.85)


_SHAPES: dict[str, Callable[[Floats, Floats, Stream], Surface]] = {
    "cube": _cube,
    "pyramid": _pyramid,
    "star": _star,
    "ball": _ball,
    "ring": _ring,
}
#: Greatest turn in the image plane, in radians.
_TURNS = {"cube": math.pi, "pyramid": 0.7, "star": math.pi, "ball": 0.0, "ring": math.pi}
_MATERIALS = {"rubber": _rubber, "metal": _metal}
