"""``hyvlm eval``: several tasks on one data set, or suites on a folder of data sets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hyvlm.cli.options import BatchSize, Cache, Device, Out, PartSize, Readout, Resize, Split, UsageError, Workers


def evaluate(
    context: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Run folders, checkpoints or saved models, side by side")
    ],
    task: Annotated[
        list[str] | None, typer.Option("--task", help="classification, retrieval, hierarchy, ...; repeatable")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", "--dataset", help="NAME or NAME:LOCATION, e.g. coco:/data/coco")
    ] = None,
    suite: Annotated[
        str | None, typer.Option("--suite", help="uncha, hyper3, hyfl, hyperbolicity, all, or a suite's .yaml file")
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="Folder with one folder a data set (hyvlm list suites)")
    ] = None,
    split: Split = None,
    templates: Annotated[
        str | None,
        typer.Option(
            "--templates", help="Prompt set, or a file of one a line; prompt-audit takes several, with commas"
        ),
    ] = None,
    hierarchy: Annotated[Path | None, typer.Option("--hierarchy", help="File of 'child parent' lines")] = None,
    captions: Annotated[str | None, typer.Option("--captions", help="Retrieve by: all, first, last or joined")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How often captions are perturbed")] = None,
    negatives: Annotated[
        str | None,
        typer.Option("--negatives", help="hard-negatives: given or generate; entailment: sampled, first_100 or given"),
    ] = None,
    negatives_per_image: Annotated[
        int | None, typer.Option("--negatives-per-image", min=1, help="False captions of an image (entailment)")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of the sampled negatives, or of the split")] = None,
    normalize: Annotated[
        str | None, typer.Option("--normalize", help="Scores of multilabel: none, softmax, min_max, z_score, ...")
    ] = None,
    features: Annotated[str | None, typer.Option("--features", help="Of multi-object: tangent or tower")] = None,
    crops: Annotated[
        int | None, typer.Option("--crops", min=1, help="uncertainty: random crops of an image, in place of its parts")
    ] = None,
    measure: Annotated[str | None, typer.Option("--measure", help="Uncertainty by norm or by radius")] = None,
    cone: Annotated[str | None, typer.Option("--cone", help="Entailment by the angle or by the cone's margin")] = None,
    vqa: Annotated[str | None, typer.Option("--vqa", help="BLIP VQA model: a folder or a hub name")] = None,
    background: Annotated[
        str | None, typer.Option("--background", help="segmentation: scenery, name, or a file of one name a line")
    ] = None,
    extrapolation: Annotated[
        str | None, typer.Option("--extrapolation", help="segmentation: auto, or a factor of the texts' radius")
    ] = None,
    readout: Readout = None,
    resize: Resize = None,
    image_size: Annotated[int | None, typer.Option("--image-size", min=1, help="Side of images in pixels")] = None,
    part_size: PartSize = None,
    device: Device = None,
    cache: Cache = None,
    out: Out = None,
    batch_size: BatchSize = 64,
    num_workers: Workers = 2,
) -> int:
    """Evaluate models on a data set (--task, --data), or on all that a suite finds data for (--suite, --data-root)."""
    if suite and (task or data or split):
        raise ValueError("--suite says what is measured on which data: leave --task, --data and --split out")
    if data_root and not suite:
        raise ValueError("--data-root goes with --suite; one data set is --data NAME:LOCATION")
    if suite and not data_root:
        raise UsageError("--suite needs --data-root, the folder with one folder for each data set", context)
    if not suite and not (task and data):
        raise UsageError("say --task and --data, or --suite and --data-root", context)
    if suite:
        return run_suite(models, context.params)
    run_tasks(models, context.params)
    return 0


def settings_in(options: Mapping[str, Any]) -> dict[str, str | int | None]:
    """Those of the command's options that are settings of tasks."""
    from hyvlm.config import EvalConfig

    known = {field.name for field in fields(EvalConfig)} - {"task", "data", "split"}
    return {key: str(value) if isinstance(value, Path) else value for key, value in options.items() if key in known}


def run_tasks(models: Sequence[str], options: Mapping[str, Any]) -> None:
    """Evaluate every model on ``options["data"]`` and print what came out."""
    import hyvlm
    from hyvlm.evaluation.cache import EmbeddingCache
    from hyvlm.evaluation.report import results_table
    from hyvlm.evaluation.runner import choose_device, evaluate, specs_for
    from hyvlm.suites.runner import model_names

    out = options["out"]
    specs = specs_for(options["task"], options["data"], split=options["split"], **settings_in(options))
    device, names = choose_device(options["device"]), model_names(models)
    for model, name in zip(models, names, strict=True):
        loaded, _, tokenizer = hyvlm.load(model, device=device, readout=options["readout"])
        results = evaluate(
            loaded,
            tokenizer,
            specs,
            out=out,
            cache=EmbeddingCache(options["cache"]),
            batch_size=options["batch_size"],
            workers=options["num_workers"],
        )
        if len(models) > 1:
            print(f"\n{name}, model {results[0].model}\n")
        Console().print(results_table(results))
    if out:
        print(f"results: {Path(out) / 'results.json'}")


def run_suite(models: Sequence[str], options: Mapping[str, Any]) -> int:
    """Run a suite for all models, print and write its tables; returns the exit code.

    Whatever was measured before an interruption is in the results file, and in the tables.
    """
    from hyvlm.suites.catalog import read_suites
    from hyvlm.suites.formats import screen, write_tables
    from hyvlm.suites.runner import SuiteRun, run_suites

    out, run = Path(options["out"] or "results"), SuiteRun(read_suites(options["suite"]))
    try:
        run_suites(
            models,
            run,
            options["data_root"],
            out=out,
            settings=settings_in(options),
            readout=options["readout"],
            device=options["device"],
            cache=options["cache"],
            batch_size=options["batch_size"],
            workers=options["num_workers"],
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
    finally:
        written = write_tables(run, out) if run.entries else []
    Console().print(screen(run))
    if run.entries:
        print(f"results: {out / 'results.json'}")
    for path in written:
        print(f"tables: {path}")
    if not run.entries:
        print("hyvlm: nothing could be measured", file=sys.stderr)
    return 1 if run.failed or not run.entries else 0
