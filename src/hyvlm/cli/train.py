"""``hyvlm train``, ``hyvlm sweep`` and ``hyvlm demo``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hyvlm.cli.options import Out, Overrides, Recipe


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Out = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", help="Continue: 'latest' (this run's newest checkpoint), a run folder or a checkpoint"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the run and print its parameters and FLOPs; write nothing")
    ] = False,
) -> None:
    """Train a model as a recipe says. Under torchrun every process runs this same command."""
    from hyvlm.config import load_config
    from hyvlm.training.dry_run import dry_run as measure
    from hyvlm.training.trainer import train as run

    folder = out or Path("runs") / Path(recipe).stem
    if dry_run:
        print(json.dumps(measure(load_config(recipe, overrides), folder), indent=2))
        return
    source = None if resume is None else folder if resume == "latest" else Path(resume)
    run(load_config(recipe, overrides), folder, resume=source)
    if os.environ.get("RANK", "0") == "0":
        print(f"run folder: {folder}")


def sweep(
    recipe: Recipe,
    overrides: Annotated[list[str], typer.Argument(metavar="KEY=A,B,C...", help="Settings; commas make a grid")],
    out: Out = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each point of the grid")] = 1,
) -> None:
    """Train and evaluate every point of a grid with several seeds; print mean and interval. Rerun to resume."""
    from hyvlm.training.sweep import sweep as run

    Console().print(run(recipe, overrides, out or Path("runs") / f"{Path(recipe).stem}-sweep", seeds=seeds))


def demo(
    out: Out = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights and data order")] = 0,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, changes the recipe uncha-tiny")
    ] = None,
) -> None:
    """Train tiny UNCHA on the built-in scenes, evaluate it and write a small report."""
    from hyvlm.demo import demo as run

    report = run(out or Path("runs") / "demo", seed=seed, overrides=overrides)
    print(f"report: {report}")
