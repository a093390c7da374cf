"""What ``hyvlm eval`` does: several tasks on one data set, or suites on a folder of data sets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

import hyvlm
from hyvlm.config import EvalConfig
from hyvlm.evaluation.cache import EmbeddingCache
from hyvlm.evaluation.report import results_table
from hyvlm.evaluation.runner import choose_device, evaluate, specs_for
from hyvlm.suites.catalog import read_suites
from hyvlm.suites.formats import screen, write_tables
from hyvlm.suites.runner import SuiteRun, model_names, run_suites


def settings_in(options: Mapping[str, Any]) -> dict[str, str | int | None]:
    """Those of the command's options that are settings of tasks."""
    known = {field.name for field in fields(EvalConfig)} - {"task", "data", "split"}
    return {key: str(value) if isinstance(value, Path) else value for key, value in options.items() if key in known}


def run_tasks(models: Sequence[str], options: Mapping[str, Any]) -> None:
    """Evaluate every model on ``options["data"]`` and print what came out."""
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
