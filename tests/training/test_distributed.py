"""Two real gloo processes against one process on the same global batch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hyvlm.methods import OBJECTIVES
from hyvlm.training.distributed import gather_views, rank, sum_over_ranks, world_size
from hyvlm.types import Views

WORKER = Path(__file__).with_name("gloo_worker.py")
GOLDEN = Path(__file__).parents[1] / "golden"
DIM = 6
POOLED_DIM = 8  # the heads of query pooling divide it
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-6}

# samples on each of two processes, and how many parts and how many queries each sample has
SPLITS = {
    "5+3": ((5, 3), (0, 3, 1, 2, 0, 1, 0, 2), (3, 1, 0, 2, 4, 2, 0, 5)),
    "no parts on one": ((4, 4), (2, 0, 3, 1, 0, 0, 0, 0), (3, 2, 0, 4, 0, 0, 0, 0)),
    "no samples on one": ((6, 0), (1, 2, 0, 0, 4, 1), (2, 0, 3, 1, 2, 2)),
    "no parts at all": ((2, 3), (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
}
VARIANTS = {
    **{name: (name, "sphere" if name == "clip" else "lorentz", {}) for name in OBJECTIVES},
    "uncha as in the paper": ("uncha", "lorentz", {"formulation": "paper", "uncertainty": "radius"}),
    "hycoclip, flat": ("hycoclip", "euclidean", {}),
    "uncha, flat": ("uncha", "euclidean", {}),
    "argent, flat": ("argent", "euclidean", {}),
    "phyclip, product": ("phyclip", "product", {}),
    "phyclip, flat product": ("phyclip", "flat_product", {}),
    "hyper3 as in the paper": ("hyper3", "lorentz", {"formulation": "paper", "visual_order": "reversed"}),
    **{f"{name}, panels": (name, "sphere" if name == "clip" else "lorentz", {}) for name in ("clip", "atmg", "uncha")},
    "phyclip, product, panels": ("phyclip", "product", {}),
    "hycoclip, flat, panels": ("hycoclip", "euclidean", {}),
    "hyper3, shuffled, mean": ("hyper3", "lorentz", {"text_parents": "shuffled", "pooling": "mean"}),
}


def batch_job(variant: str, split: str, dtype: torch.dtype) -> dict[str, Any]:
    objective, manifold, options = VARIANTS[variant]
    wholes, parts, queries = SPLITS[split]
    dim = POOLED_DIM if objective == "hyper3" else DIM
    generator = torch.Generator().manual_seed(len(variant) + 10 * len(split))
    rows = dict.fromkeys(("image", "text", "short_text"), sum(wholes))
    rows |= {"part_image": sum(parts), "part_text": sum(parts), "query_text": sum(queries)}
    query = torch.arange(sum(queries))
    root = torch.cat([torch.arange(n) == 0 for n in queries])
    return {
        "objective": objective,
        "manifold": manifold,
        "options": options,
        "dtype": dtype,
        **({"panels_from": 1} if "panels" in variant else {}),
        "wholes": wholes,
        "owner": torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts)),
        "query_owner": torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(queries)),
        "query_parent": torch.where(root, -1, query - 1),
        "query_weight": 1 - 0.25 * (query % 3),
        "inputs": {k: torch.randn(n, dim, generator=generator, dtype=torch.float64) for k, n in rows.items()},
        "encoders": [torch.randn(dim, dim, generator=generator, dtype=torch.float64) / 10 for _ in range(2)],
        "parameters": {},
    }


def golden_job(method: str) -> dict[str, Any]:
    """A released code's reference batch on two processes; the lift's scale is an encoder ``exp(alpha) I``."""
    with np.load(GOLDEN / f"losses_{method}.npz") as file:
        golden = {key: torch.from_numpy(file[key]) for key in file.files}
    valid = golden.get("valid", torch.ones(6, dtype=torch.bool))
    inputs = {"image": golden["in_image"], "text": golden["in_text"]}
    if method != "meru":
        inputs |= {"part_image": golden["in_box_image"][valid], "part_text": golden["in_box_text"][valid]}
    names = {"log_scale_global": "global", "log_scale_local": "local", "log_scale_global_local": "global_local"}
    scales = names if method == "uncha" else {"log_scale": "global"}
    return {
        "objective": method,
        "manifold": "lorentz",
        "options": {"reduction": "per_rank"},
        "dtype": torch.float64,
        "wholes": (3, 3),
        "owner": valid.nonzero()[:, 0],
        "inputs": inputs,
        "encoders": [
            golden[f"param_log_alpha_{m}"].exp() * torch.eye(16, dtype=torch.float64) for m in ("image", "text")
        ],
        "parameters": {
            **{f"objective.log_scale.{name}": golden[f"param_{key}"] for key, name in scales.items()},
            "manifold.log_c": golden["param_log_curv"],
        },
        "golden": golden,
        "scales": scales,
        "valid": valid,
    }


JOBS = {
    **{
        (variant, split, dtype): batch_job(variant, split, dtype)
        for variant in VARIANTS
        for split in SPLITS
        for dtype in TOLERANCE
    },
    **{("golden", method): golden_job(method) for method in ("meru", "hycoclip", "uncha")},
}


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gloo_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, list[dict[str, Any]]]:
    """Every job's results on both processes, from one launch."""
    folder = tmp_path_factory.mktemp("gloo")
    torch.save(list(JOBS.values()), folder / "jobs.pt")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(number), "2", str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=180)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    results = [torch.load(folder / f"rank{number}.pt", weights_only=False) for number in (0, 1)]
    return {key: list(pair) for key, pair in zip(JOBS, zip(*results, strict=True), strict=True)}


def assert_near(actual: Tensor, expected: Tensor, relative: float, what: str, of: float | None = None) -> None:
    """Within ``relative`` of the largest expected entry, or of ``of``."""
    assert actual.shape == expected.shape, what
    if expected.numel() == 0:
        return
    error = (actual.double() - expected.double()).abs().max().item()
    allowed = relative * (expected.abs().max().item() if of is None else of)
    assert error <= allowed, f"{what}: off by {error:.3g}, allowed {allowed:.3g}"


def largest_entry(gradients: dict[str, Tensor]) -> float:
    return max(gradient.abs().max().item() for gradient in gradients.values() if gradient.numel())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_processes_equal_one(
    variant: str, split: str, dtype: torch.dtype, worker: ModuleType, two_processes: dict[Any, list[dict[str, Any]]]
) -> None:
    job, pair, tolerance = JOBS[variant, split, dtype], two_processes[variant, split, dtype], TOLERANCE[dtype]
    alone = worker.run(job, [0, 1], distributed=False)
    # The gradient of log_c is a sum of terms that cancel, so float32 is judged by the largest entry of all parameters.
    of = largest_entry(alone["parameters"]) if dtype == torch.float32 else None
    for result in pair:
        for name, expected in alone["scalars"].items():
            assert_near(result["scalars"][name], expected, tolerance, name)
        for name, expected in alone["stats"].items():
            assert_near(result["stats"][name], expected, tolerance, name)
        assert set(result["stats"]) == set(alone["stats"])
        for name, expected in alone["parameters"].items():
            assert_near(result["parameters"][name], expected, tolerance, f"gradient of {name}", of)
    for name, expected in alone["inputs"].items():
        together = torch.cat([result["inputs"][name] for result in pair])
        assert_near(together, expected, tolerance, f"gradient of {name}")


@pytest.mark.parametrize("split", SPLITS)
def test_gathered_views_are_those_of_the_global_batch(
    split: str, worker: ModuleType, two_processes: dict[Any, list[dict[str, Any]]]
) -> None:
    key = ("hyper3", split, torch.float64)
    alone = worker.run(JOBS[key], [0, 1], distributed=False)
    wholes, parts, queries = SPLITS[split]
    first = {"whole": wholes[0], "part": sum(parts[: wholes[0]]), "query": sum(queries[: wholes[0]])}
    for number, result in enumerate(two_processes[key]):
        for view, points in alone["points"].items():
            assert_near(result["points"][view], points, 1e-12, view)
        for what in ("query_parent", "query_weight"):
            assert torch.equal(result[what], alone[what])
            assert torch.equal(result[what], JOBS[key][what])
        for group, owner in alone["owner"].items():
            assert torch.equal(result["owner"][group], owner)
            cut = first[group]
            assert result["local"][group] == (slice(cut, len(owner)) if number else slice(0, cut))


@pytest.mark.parametrize("method", ["meru", "hycoclip", "uncha"])
def test_per_rank_reduction_gives_the_released_two_rank_values(
    method: str, two_processes: dict[Any, list[dict[str, Any]]]
) -> None:
    job, pair = JOBS["golden", method], two_processes["golden", method]
    golden = job["golden"]
    for number, result in enumerate(pair):  # a process's total is its own loss over the number of processes
        assert abs(2 * result["own_total"] - golden[f"world2_total_rank{number}"]) <= 1e-7
        gradients = result["parameters"]
        for modality, weight in zip(("image", "text"), job["encoders"], strict=True):
            by_alpha = (gradients[f"{modality}_encoder"] * weight).sum()
            assert_near(by_alpha, golden[f"world2_grad_log_alpha_{modality}"], 1e-6, modality)
        assert_near(gradients["manifold.log_c"], golden["world2_grad_log_curv"], 1e-6, "curvature")
        for key, name in job["scales"].items():
            assert_near(gradients[f"objective.log_scale.{name}"], golden[f"world2_grad_{key}"], 1e-6, key)
    for name in job["inputs"]:
        expected = golden[f"world2_grad_{name.replace('part', 'box')}"]
        if name.startswith("part"):
            expected = expected[job["valid"]]
        assert_near(torch.cat([result["inputs"][name] for result in pair]), expected, 1e-6, name)


def test_without_a_process_group_the_gather_is_the_identity() -> None:
    views = Views.single(
        torch.randn(3, 4), torch.randn(3, 4), torch.randn(2, 4), torch.randn(2, 4), torch.tensor([0, 2])
    )
    assert gather_views(views) is views
    assert (rank(), world_size()) == (0, 1)


def test_sum_over_ranks_of_one_process_detaches() -> None:
    total = torch.tensor(2.0, requires_grad=True)
    summed = sum_over_ranks({"total": total * 3, "samples": 5})
    assert summed["total"].item() == 6
    assert not summed["total"].requires_grad
    assert summed["samples"].item() == 5
