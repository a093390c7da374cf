"""What every registered manifold promises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hyvlm.geometry import MANIFOLDS, Manifold

SETTINGS: dict[str, list[dict[str, object]]] = {
    "lorentz": [{}, {"c": 0.3, "learn": False}, {"c": 10.0, "bounds": None}],
    "flat_product": [{"factors": 4}, {"factors": 2, "aperture_radius": [0.1, 0.7], "metric": "l2"}],
    "product": [{"factors": 4}, {"factors": 2, "c": [0.3, 4.0], "metric": "l2"}],
}
BUILT = [(name, options) for name in MANIFOLDS for options in SETTINGS.get(name, [{}])]


@pytest.fixture(params=BUILT, ids=lambda p: f"{p[0]} {p[1]}")
def manifold(request: pytest.FixtureRequest) -> Manifold:
    name, options = request.param
    return MANIFOLDS[name](**options).double()


@pytest.fixture
def features() -> Tensor:
    return torch.randn(12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_names() -> None:
    assert list(MANIFOLDS) == ["euclidean", "flat_product", "lorentz", "product", "sphere"]
    with pytest.raises(ValueError, match=r"unknown manifold 'lorenz'\. Did you mean 'lorentz'"):
        MANIFOLDS["lorenz"]


def test_lift_keeps_shape_and_starts_at_the_origin(manifold: Manifold, features: Tensor) -> None:
    assert manifold.lift(features).shape == features.shape
    assert not manifold.lift(torch.zeros_like(features)).any()


def test_distance_is_a_metric(manifold: Manifold, features: Tensor) -> None:
    points = manifold.lift(features)
    d = manifold.distance(points.unsqueeze(-2), points.unsqueeze(-3))
    assert torch.equal(d.diagonal(), torch.zeros(12, dtype=torch.float64))
    assert torch.allclose(d, d.mT, rtol=1e-14)
    assert (d + torch.eye(12) > 0).all()
    through = d.unsqueeze(-1) + d.unsqueeze(-3)  # from i over j to k
    assert (d.unsqueeze(-2) <= through * (1 + 1e-12)).all()


def test_pairwise_distance_is_distance(manifold: Manifold, features: Tensor) -> None:
    x, y = manifold.lift(features), manifold.lift(features.flip(0)[:5])
    paired = manifold.distance(x.unsqueeze(-2), y.unsqueeze(-3))
    assert torch.allclose(manifold.pairwise_distance(x, y), paired, rtol=1e-12)


def test_score_and_similarity_rank_like_the_distance(manifold: Manifold, features: Tensor) -> None:
    points = manifold.lift(features)
    nearest_first = manifold.pairwise_distance(points, points).argsort(-1)
    assert torch.equal(manifold.similarity(points, points).argsort(-1, descending=True), nearest_first)
    assert torch.equal(manifold.score(points, points).argsort(-1, descending=True), nearest_first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(manifold: Manifold, features: Tensor, dtype: torch.dtype) -> None:
    half = features.to(dtype)
    expected = manifold.float().lift(half.float())
    points = manifold.lift(half)
    assert points.dtype == torch.float32
    assert torch.equal(points, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(manifold.lift(half), expected)
        inside = manifold.pairwise_distance(points, points)
        score = manifold.score(points, points)
    assert torch.equal(inside, manifold.pairwise_distance(points, points))
    assert torch.equal(score, manifold.score(points, points))


def test_different_dimensions_are_an_error(manifold: Manifold, features: Tensor) -> None:
    functions = ["distance", "pairwise_distance", "similarity"]
    if hasattr(manifold, "half_aperture"):
        functions += ["exterior_angle", "pairwise_exterior_angle", "inner", "pairwise_inner"]
    for name in functions:
        with pytest.raises(ValueError, match="the last axes are 8 and 4, they must agree"):
            getattr(manifold, name)(features, features[:, :4])


@pytest.mark.parametrize(("name", "options"), BUILT)
def test_curvature_is_part_of_the_state(name: str, options: dict[str, object]) -> None:
    manifold = MANIFOLDS[name](**options)
    copy = MANIFOLDS[name](**{k: v for k, v in options.items() if k != "c"})
    copy.load_state_dict(manifold.state_dict())
    assert copy.describe() == manifold.describe()


def test_cones(manifold: Manifold, features: Tensor) -> None:
    if not hasattr(manifold, "half_aperture"):
        assert not hasattr(manifold, "exterior_angle")
        return
    points = manifold.lift(features)
    assert torch.allclose(manifold.radius(points), manifold.distance(torch.zeros_like(points), points), rtol=1e-13)
    outward, inward = manifold.lift(1.5 * features), manifold.lift(0.5 * features)
    angle = manifold.exterior_angle(points, outward)
    assert angle.shape == manifold.half_aperture(points).shape == manifold.saturated(points).shape
    assert angle.abs().max() < 1e-8  # the lifted points are collinear to 1e-16, which large norms magnify
    assert (manifold.exterior_angle(points, inward) - torch.pi).abs().max() < 1e-8
    assert (manifold.half_aperture(outward) <= manifold.half_aperture(points)).all()
    assert torch.equal(manifold.saturated(points), manifold.half_aperture(points) == torch.pi / 2)
    assert torch.allclose(manifold.logmap0(manifold.expmap0(features)), features, rtol=1e-13)
    assert torch.allclose(manifold.inner(points, points), manifold.pairwise_inner(points, points).diagonal(), atol=1e-9)


def test_the_flat_twin_has_the_curved_one_s_tangent_vectors_and_nearly_its_cones(
    manifold: Manifold, features: Tensor
) -> None:
    if not hasattr(manifold, "flat"):
        assert not hasattr(manifold, "half_aperture")
        return
    flat = manifold.flat()
    assert flat.flat() is flat
    small = 1e-4 * features
    curved = manifold.lift(small)
    assert torch.equal(flat.lift(small), small)
    assert torch.allclose(flat.radius(small), manifold.radius(curved), rtol=1e-13)
    assert torch.allclose(flat.pairwise_distance(small, small), manifold.pairwise_distance(curved, curved), rtol=1e-6)
    assert torch.allclose(
        flat.pairwise_exterior_angle(small, small), manifold.pairwise_exterior_angle(curved, curved), atol=1e-6
    )
    assert flat.saturated(small).all()
    assert manifold.saturated(curved).all()
    if (curvature := manifold.describe().get("c")) is not None:
        root = torch.tensor(curvature, dtype=torch.float64).sqrt()  # R = 2K / sqrt(c), in every factor
        radius = torch.tensor((flat.factor if hasattr(flat, "factor") else flat).aperture_radius, dtype=torch.float64)
        assert torch.allclose(radius * root, torch.full_like(root, 0.2), rtol=1e-6)


def test_midpoint(manifold: Manifold, features: Tensor) -> None:
    if not hasattr(manifold, "half_aperture"):
        return
    points = manifold.lift(features).reshape(3, 4, 8)
    middle = manifold.midpoint(points[:, :2])
    to_first, to_second = (manifold.distance(middle, points[:, i]) for i in (0, 1))
    assert torch.allclose(to_first, to_second, rtol=1e-12)
    only_one = torch.tensor([0.0, 0.0, 2.5, 0.0], dtype=torch.float64)
    assert torch.allclose(manifold.midpoint(points, only_one), points[:, 2], rtol=1e-13)
    assert torch.allclose(manifold.midpoint(points.transpose(0, 1), dim=0), manifold.midpoint(points), rtol=1e-13)
    weights = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    along_first = manifold.midpoint(points.transpose(0, 1), weights.T, dim=0)
    assert torch.allclose(along_first, manifold.midpoint(points, weights), rtol=1e-13)
    assert not manifold.midpoint(points, torch.zeros(3, 4, dtype=torch.float64)).any()


def test_pairwise_functions_refuse_a_single_vector(manifold: Manifold, features: Tensor) -> None:
    points = manifold.lift(features)
    names = [name for name in dir(manifold) if name.startswith("pairwise_")]
    for name in [*names, "similarity", "score"]:
        for x, y in ((points[0], points), (points, points[0]), (points[0], points[0])):
            with pytest.raises(ValueError, match=r"pairwise functions take points \(\.\.\., N, D\)"):
                getattr(manifold, name)(x, y)


def test_a_geodesic_goes_from_one_point_to_the_other_in_equal_steps(manifold: Manifold, features: Tensor) -> None:
    x, y = manifold.lift(features), manifold.lift(features.flip(0).roll(1, 0))
    whole = manifold.distance(x, y)
    assert torch.allclose(manifold.geodesic(x, y, 0.0), x, rtol=1e-13)
    assert torch.allclose(manifold.geodesic(x, y, 1.0), y, rtol=1e-13)
    for share in (0.25, 0.5, 0.9):
        between = manifold.geodesic(x, y, share)
        assert torch.allclose(manifold.distance(x, between), share * whole, rtol=1e-12, atol=1e-11)
        assert torch.allclose(manifold.distance(between, y), (1 - share) * whole, rtol=1e-12, atol=1e-11)
        assert torch.allclose(manifold.geodesic(y, x, 1 - share), between, rtol=1e-11)


def test_a_geodesic_takes_a_share_per_pair(manifold: Manifold, features: Tensor) -> None:
    x, y = manifold.lift(features), manifold.lift(features.flip(0))
    shares = torch.linspace(0, 1, 12)  # float32; points keep their dtype
    each = [manifold.geodesic(a, b, share.item()) for a, b, share in zip(x, y, shares, strict=True)]
    assert torch.allclose(manifold.geodesic(x, y, shares), torch.stack(each), rtol=1e-14)
    assert manifold.geodesic(x[0], y[0], shares).shape == (12, 8)
    with pytest.raises(ValueError, match="different dimension"):
        manifold.geodesic(x, y[:, :4], 0.5)


def test_a_geodesic_to_the_origin_shrinks_the_tangent_vector(manifold: Manifold, features: Tensor) -> None:
    if not hasattr(manifold, "logmap0"):
        pytest.skip("a sphere has no origin")
    x = manifold.lift(features)
    expected = manifold.expmap0(0.3 * manifold.logmap0(x))
    assert torch.allclose(manifold.geodesic(x, torch.zeros_like(x), 0.7), expected, rtol=1e-13)


def test_antipodes_are_joined_by_a_great_circle() -> None:
    manifold, x = MANIFOLDS["sphere"](), torch.eye(4, dtype=torch.float64)
    half = manifold.geodesic(x, -x, 0.5)
    assert torch.allclose(half.norm(dim=-1), torch.ones(4, dtype=torch.float64))
    assert (half * x).sum(-1).abs().max() < 1e-15
