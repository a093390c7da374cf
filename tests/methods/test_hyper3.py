"""Hyper3-CLIP against reference values of its formulas and of the released pooling, and against loops over queries.

The values come from the plain formulas in float64 (``tests/golden/README.md``).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hyvlm.geometry import MANIFOLDS, Manifold
from hyvlm.losses import LeakyConeHinge, uncertainty
from hyvlm.methods import OBJECTIVES, AlignedViews, Objective
from hyvlm.methods.hyper3 import QueryPooling, shuffle_parents
from hyvlm.types import LossOutput, Views

GOLDEN = Path(__file__).parents[1] / "golden"
VIEW_OF_INPUT = {
    "image": "image",
    "text": "text",
    "box_image": "part_image",
    "box_text": "part_text",
    "query_image": "query_image",
    "query_text": "query_text",
}
VISUAL, TEXT = "query_image ⊒ image", "query_text ⊒ parent query_text"
VARIANTS: dict[str, dict[str, Any]] = {
    "no_query": {"image_text_weight": 0.0, "visual_weight": 0.0, "text_weight": 0.0},
    "image_text_only": {"visual_weight": 0.0, "text_weight": 0.0},
    "visual_only": {"image_text_weight": 0.0, "text_weight": 0.0},
    "text_only": {"image_text_weight": 0.0, "visual_weight": 0.0},
    "reversed_visual": {"visual_order": "reversed"},
    "shuffled_parents": {"text_parents": "rolled"},
    "grad_through_calibration": {"calibration_gradient": True},
    "query_sum": {"query_reduction": "sum"},
}
TERMS = {
    "ent_image_text": "text ⊒ image",
    "ent_box_image_box_text": "part_text ⊒ part_image",
    "ent_image_box_image": "part_image ⊒ image",
    "ent_text_box_text": "part_text ⊒ text",
    "ent_query_image_text": "query_text ⊒ query_image",
    "ent_query_visual": VISUAL,
    "ent_query_text": TEXT,
}
CALIBRATIONS = {
    "cal_image_box_image": "part_image ⊒ image",
    "cal_text_box_text": "part_text ⊒ text",
    "cal_query_visual": VISUAL,
    "cal_query_text": TEXT,
}


def load(name: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files if file[key].dtype.kind != "U"}


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load("hyper3_objective")


class Case:
    """The batch of the file as leaves, its manifold, and an objective with its scales."""

    def __init__(self, golden: dict[str, Tensor], dtype: torch.dtype = torch.float64, **options: Any) -> None:
        self.leaves = {name: golden[f"in_{name}"].to(dtype, copy=True).requires_grad_() for name in VIEW_OF_INPUT}
        self.manifold: Manifold = MANIFOLDS["lorentz"]().to(dtype)
        self.objective: Objective = OBJECTIVES["hyper3"](**options).to(dtype)
        with torch.no_grad():
            self.manifold.log_c.copy_(golden["in_kappa"].log())
            for name, parameter in self.objective.log_scale.items():
                parameter.copy_(golden[f"in_log_scale_{name}"])
        self.views = Views.single(
            **{VIEW_OF_INPUT[name]: self.manifold.lift(x) for name, x in self.leaves.items()},
            owner=golden["in_box_owner"],
            query_owner=golden["in_query_owner"],
            query_parent=golden["in_query_parent"],
            query_weight=golden["in_query_weight"],
        )

    def output(self) -> LossOutput:
        return self.objective(self.manifold, self.views)

    def gradients(self, total: Tensor) -> dict[str, Tensor]:
        total.backward()
        grads = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in self.leaves.items()}
        grads |= {f"log_scale_{name}": parameter.grad for name, parameter in self.objective.log_scale.items()}
        return grads | {"kappa": self.manifold.log_c.grad / self.manifold.log_c.exp()}


def assert_near(actual: Tensor, expected: Tensor, what: str, relative: float = 1e-9) -> None:
    """Within ``relative`` of the largest expected entry."""
    assert actual.shape == expected.shape, what
    error = (actual.detach().double() - expected).abs().max().item()
    assert error <= relative * expected.abs().max().item(), f"{what}: off by {error:.3g}"


def assert_gradients(case: Case, total: Tensor, golden: dict[str, Tensor], prefix: str, relative: float = 1e-9) -> None:
    expected = {key.removeprefix(prefix): g for key, g in golden.items() if key.startswith(prefix)}
    actual = case.gradients(total)
    assert set(expected) <= set(actual)
    assert {*VIEW_OF_INPUT, "kappa"} <= set(expected)
    for name, gradient in expected.items():
        assert_near(actual[name], gradient, f"gradient of {name}", relative)


def test_total_terms_and_gradients(golden: dict[str, Tensor]) -> None:
    case = Case(golden)
    output = case.output()
    assert_near(output.total, golden["out_total"], "total")
    for key, term in TERMS.items():
        assert_near(output.terms[term], golden[f"out_{key}"], key)
    for key, relation in CALIBRATIONS.items():  # here without the factor 10 * 0.5
        assert_near(5 * output.terms[f"calibration {relation}"], golden[f"out_{key}"], key)
    halves = {
        "global": ("image -> text", "text -> image"),
        "local": ("part_image -> part_text", "part_text -> part_image"),
        "global_local": ("part_image -> text", "part_text -> image"),
    }
    for name, directions in halves.items():
        assert_near(sum(output.terms[d] for d in directions) / 2, golden[f"out_contrastive_{name}"], name)
    assert_gradients(case, output.total, golden, "grad_")


def test_rows(golden: dict[str, Tensor]) -> None:
    """Angles, apertures, violations and uncertainties of every pair, queries that count among them."""
    case = Case(golden)
    batch = AlignedViews(case.manifold, case.views, {}, "global")
    counts = batch.weights("query") > 0
    assert counts.sum() == golden["out_query_count"]
    rows = {
        "image_text": ("text ⊒ image", 0.7),
        "box_image_box_text": ("part_text ⊒ part_image", 0.7),
        "image_box_image": ("part_image ⊒ image", 1.2),
        "text_box_text": ("part_text ⊒ text", 1.2),
        "query_image_query_text": ("query_text ⊒ query_image", 0.7),
        "image_query_image": (VISUAL, 1.2),
        "parent_text_query_text": (TEXT, 1.2),
    }
    for name, (relation, eta) in rows.items():
        general, specific, group = batch.pairs(*relation.split(" ⊒ "))
        if group == "query":
            general, specific = general[counts], specific[counts]
        violation = LeakyConeHinge(eta=eta, alpha=0.0)(case.manifold, general, specific)
        assert_near(case.manifold.exterior_angle(general, specific), golden[f"row_phi_{name}"], f"phi {name}")
        assert_near(case.manifold.half_aperture(general), golden[f"row_theta_{name}"], f"theta {name}")
        assert_near(violation, golden[f"row_E_{name}"], f"E {name}")
    for key, view in (("box_image", "part_image"), ("box_text", "part_text")):
        u = uncertainty(case.views.points[view], case.manifold)
        assert_near(u, golden[f"row_u_{key}"], key)
        assert_near(torch.exp(-u / 2), golden[f"row_temp_{key}"], key)
    for key, view in (("visual", "query_image"), ("text", "query_text")):
        u = uncertainty(case.views.points[view][counts], case.manifold)
        assert_near(u, golden[f"row_u_query_{key}"], key)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_table_5(variant: str, golden: dict[str, Tensor]) -> None:
    case = Case(golden, **VARIANTS[variant])
    output = case.output()
    prefix = f"variant_{variant}_"
    assert_near(output.total, golden[prefix + "total"], "total")
    reverse = variant == "reversed_visual"
    names = {"ent_query_image_text": "query_text ⊒ query_image", "ent_query_text": TEXT}
    names["ent_query_visual"] = visual = "image ⊒ query_image" if reverse else VISUAL
    names |= {"cal_query_visual": f"calibration {visual}", "cal_query_text": f"calibration {TEXT}"}
    count = golden["out_query_count"] if variant == "query_sum" else 1.0  # the file's terms are means there, too
    for key, term in names.items():
        expected = golden[prefix + key] * count / (5 if key.startswith("cal") else 1)
        assert (term in output.terms) == bool(expected), "a weight of 0 leaves the term out"
        if term in output.terms:
            assert_near(output.terms[term], expected, key)
    assert_gradients(case, output.total, golden, f"{prefix}grad_")


def test_what_is_left_out_is_not_asked_for(golden: dict[str, Tensor]) -> None:
    asked = {name: set(OBJECTIVES["hyper3"](**VARIANTS[name]).views) for name in VARIANTS}
    assert {v for v in asked["no_query"] if "query" in v} == set()
    assert {v for v in asked["text_only"] if "query" in v} == {"query_text"}
    assert {v for v in asked["visual_only"] if "query" in v} == {"query_image"}
    assert {"query_image", "query_text"} <= asked["image_text_only"]


@pytest.mark.parametrize("reduction", ["global", "per_rank"])
def test_the_papers_base_is_uncha_as_printed(golden: dict[str, Tensor], reduction: str) -> None:
    case = Case(golden, formulation="paper", reduction=reduction, **VARIANTS["no_query"])
    output = case.output()
    uncha = OBJECTIVES["uncha"](formulation="paper", reduction=reduction).double()
    uncha.load_state_dict(case.objective.state_dict())
    expected = uncha(case.manifold, case.views)
    assert output.terms == expected.terms
    assert torch.equal(output.total, expected.total)
    assert [p.item() for p in OBJECTIVES["hyper3"](formulation="paper").log_scale.values()] == [
        p.item() for p in OBJECTIVES["uncha"](formulation="paper").log_scale.values()
    ]


def test_float32(golden: dict[str, Tensor]) -> None:
    case = Case(golden, torch.float32)
    output = case.output()
    assert output.total.dtype == torch.float32
    assert_near(output.total, golden["out_total"], "total", 1e-4)
    assert_gradients(case, output.total, golden, "grad_", 1e-3)


def test_per_rank_reduction_gives_the_released_two_rank_values(golden: dict[str, Tensor]) -> None:
    case = Case(golden, reduction="per_rank")
    first = {group: int((owner < 2).sum()) for group, owner in case.views.owner.items()}
    for rank in (0, 1):
        local = {group: slice(n, len(case.views.owner[group])) if rank else slice(0, n) for group, n in first.items()}
        seen = Views(
            case.views.points,
            case.views.owner,
            local,
            world_size=2,
            query_parent=case.views.query_parent,
            query_weight=case.views.query_weight,
        )
        output = case.objective(case.manifold, seen)
        values = {name: 2 * value for name, value in output.terms.items()}  # a share is half of a process's own loss
        assert_near(2 * output.total, golden["two_ranks_total"][rank], "total")
        halves = {
            "global": values["image -> text"] + values["text -> image"],
            "local": values["part_image -> part_text"] + values["part_text -> part_image"],
            "global_local": values["part_image -> text"] + values["part_text -> image"],
        }
        for name, value in halves.items():
            assert_near(value / 2, golden[f"two_ranks_contrastive_{name}"][rank], name)
        query = sum(v * (5 if "calibration" in k else 1) for k, v in values.items() if "query" in k)
        assert_near(query, golden["two_ranks_entailment_query"][rank], "queries")


def owners(*queries: int) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(queries)), torch.tensor(queries))


def hierarchy(owner: Tensor) -> Tensor:
    """A root per image, and every other query below the one before the last of its image or below the root."""
    parent = torch.full_like(owner, -1)
    for row in range(1, len(owner)):
        if owner[row] == owner[row - 1]:
            parent[row] = row - 1 if row % 2 else int((owner == owner[row]).nonzero()[0])
    return parent


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_shuffled_parents_come_from_other_images(queries: list[int]) -> None:
    owner = owners(*queries)
    parent = hierarchy(owner)
    before = parent.clone()
    shuffled = shuffle_parents(parent, owner)
    assert torch.equal(parent, before)
    child = parent >= 0
    assert torch.equal(shuffled[~child], parent[~child])
    assert torch.equal(shuffled[child].sort().values, parent[child].sort().values)  # the same parents, dealt anew
    links = torch.bincount(owner[child], minlength=1)
    unavoidable = max(0, 2 * int(links.max()) - int(links.sum()))
    assert (owner[shuffled[child]] == owner[child]).sum() == unavoidable


def test_shuffling_does_not_touch_the_global_generator_and_changes_the_loss(golden: dict[str, Tensor]) -> None:
    state = torch.get_rng_state()
    shuffled = Case(golden, text_parents="shuffled")
    values = [shuffled.output().terms[TEXT].item() for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert values[0] == values[1]
    others = [Case(golden, text_parents=how).output().terms[TEXT].item() for how in ("built", "rolled")]
    assert values[0] not in others
    assert torch.equal(shuffled.views.query_parent, golden["in_query_parent"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"visual_order": "reverse"}, "unknown visual_order 'reverse'. Did you mean 'reversed'"),
        ({"text_parents": "shufled"}, "unknown text_parents 'shufled'. Did you mean 'shuffled'"),
        ({"pooling": "average"}, "unknown pooling 'average'. Known: attention, mean"),
        ({"query_reduction": "man"}, "unknown query_reduction 'man'. Did you mean 'mean'"),
        ({"formulation": "code"}, "unknown formulation 'code'"),
        ({"uncertainty": "angle"}, "unknown uncertainty measure 'angle'"),
        ({"visual_weight": -1.0}, f"the weight of '{VISUAL}' must be finite and not negative, got -0.2"),
        ({"text_weight": math.nan}, f"the weight of '{TEXT}' must be finite and not negative, got nan"),
        ({"alpha": -0.1}, "alpha weighs the exterior angle"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        OBJECTIVES["hyper3"](**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# query pooling

PARAMETERS = {  # name in the file -> name here
    "text_query_proj": "query",
    "cross_attention": "attention",
    "mlp_norm": "mlp.0",
    "pool_mlp.0": "mlp.1",
    "pool_mlp.2": "mlp.3",
}


def golden_pooling() -> tuple[dict[str, Tensor], QueryPooling, dict[str, torch.nn.Parameter]]:
    golden = load("query_pooling")
    pooling = QueryPooling(int(golden["visual_dim"]), int(golden["text_dim"]), heads=int(golden["num_heads"])).double()
    named = {}
    for key in golden:
        if key.startswith("param_"):
            theirs = key.removeprefix("param_")
            prefix = next(p for p in PARAMETERS if theirs.startswith(p))
            named[theirs] = pooling.get_parameter(theirs.replace(prefix, PARAMETERS[prefix]))
            named[theirs].data.copy_(golden[key])
    assert len(named) == len(list(pooling.parameters()))
    return golden, pooling, named


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [4, 1, 5, 2, 0, 3]], ids=["packed", "mixed"])
def test_pooling(order: list[int]) -> None:
    golden, pooling, named = golden_pooling()
    tokens, h = golden["in_tokens"].requires_grad_(), golden["in_query_feats"].requires_grad_()
    pooled = pooling(h[order], tokens[:, 1:], golden["in_owner"][order])
    assert_near(pooled, golden["out_pooled"][order], "pooled")
    (pooled * golden["cotangent"][order]).sum().backward()
    assert_near(tokens.grad, golden["grad_tokens"], "gradient of the tokens")
    assert_near(h.grad, golden["grad_query_feats"], "gradient of the queries")
    for key, parameter in named.items():
        of = golden["grad_param_cross_attention.in_proj_bias"] if "bias" in key else golden[f"grad_param_{key}"]
        error = (parameter.grad - golden[f"grad_param_{key}"]).abs().max()
        assert error <= 1e-9 * of.abs().max(), f"gradient of {key}"


def test_attention_weights() -> None:
    golden, pooling, _ = golden_pooling()
    patches = golden["in_tokens"][:, 1:][golden["in_owner"]]
    x = pooling.query(golden["in_query_feats"]).unsqueeze(1)
    attended, weights = pooling.attention(x, patches, patches, average_attn_weights=False)
    assert_near(attended.squeeze(1), golden["out_attended"], "attended")
    assert_near(weights.squeeze(2), golden["out_attention"], "weights")


def test_mean_pooling_is_the_mean_of_the_patches_and_has_no_parameters() -> None:
    golden = load("query_pooling")
    pooling = QueryPooling(16, 12, mode="mean")
    assert list(pooling.parameters()) == []
    tokens = golden["in_tokens"].requires_grad_()
    pooled = pooling(golden["in_query_feats"], tokens[:, 1:], golden["in_owner"])
    assert_near(pooled, golden["out_mean_mode"], "pooled")
    pooled.sum().backward()
    assert tokens.grad[:, 1:].abs().min() > 0


@pytest.mark.parametrize("images", [3, 0])
def test_no_queries_keep_every_parameter_connected(images: int) -> None:
    pooling = QueryPooling(16, 12)
    patches = torch.randn(images, 9, 16, requires_grad=True)
    pooled = pooling(torch.empty(0, 12, requires_grad=True), patches, torch.empty(0, dtype=torch.long))
    assert pooled.shape == (0, 16)
    pooled.sum().backward()
    for name, parameter in pooling.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name
    assert not patches.grad.any()


def test_pooling_runs_in_float32_whatever_the_autocast() -> None:
    pooling = QueryPooling(16, 12)
    h, patches, owner = torch.randn(5, 12), torch.randn(3, 9, 16), torch.tensor([0, 0, 2, 2, 2])
    expected = pooling(h, patches, owner)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pooling(h, patches, owner), expected)
        assert pooling(h.bfloat16(), patches.half(), owner).dtype == torch.float32


def test_a_width_that_the_heads_do_not_divide() -> None:
    with pytest.raises(ValueError, match="8 heads of query pooling do not divide the image tower's width 20"):
        QueryPooling(20, 12)
    with pytest.raises(ValueError, match="unknown pooling 'max'"):
        QueryPooling(16, 12, mode="max")


def test_prepare_builds_the_pooling_that_the_relations_need() -> None:
    def prepared(**options: Any) -> torch.nn.Module | None:
        objective = OBJECTIVES["hyper3"](**options)
        assert objective.query_pooling is None
        objective.prepare(768, 512)
        return objective.query_pooling

    full = prepared()
    assert sum(p.numel() for p in full.parameters()) == 7_480_320  # ViT-B/16
    assert list(prepared(pooling="mean").parameters()) == []
    assert prepared(**VARIANTS["visual_only"]) is not None
    assert prepared(**VARIANTS["text_only"]) is None
    assert prepared(**VARIANTS["no_query"]) is None
    objective = OBJECTIVES["uncha"]()
    objective.prepare(768, 512)
    assert objective.query_pooling is None
