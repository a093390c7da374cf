"""The command line. Each command parses, calls one public function of the library and prints what it returns.

Exit codes: 0 done, 1 failed while running, 2 wrong usage, config or input (one line says what would be right), 130
interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hyvlm.cli.data import data_app
from hyvlm.cli.options import (
    BatchSize,
    Cache,
    Device,
    Out,
    Overrides,
    PartSize,
    Readout,
    Recipe,
    Resize,
    Split,
    Workers,
)
from hyvlm.errors import MissingExtra

# OpenMP threads that spin between two operations starve the loader processes on the same cores. Read when torch loads.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

INTERRUPTED = 130

app = typer.Typer(
    name="hyvlm",
    help="Train, evaluate and understand hyperbolic vision-language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
#: That of whichever click typer uses, the installed one or its own copy.
UsageError: Any = typer.BadParameter.__mro__[1]
app.add_typer(data_app, name="data")


def version(show: bool) -> None:
    if show:
        import hyvlm

        print(f"hyvlm {hyvlm.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error")] = False,
    show_version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True)] = False,
) -> None:
    """Train, evaluate and understand hyperbolic vision-language models."""
    if debug:
        os.environ["HYVLM_DEBUG"] = "1"


@app.command()
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


@app.command()
def sweep(
    recipe: Recipe,
    overrides: Annotated[list[str], typer.Argument(metavar="KEY=A,B,C...", help="Settings; commas make a grid")],
    out: Out = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each point of the grid")] = 1,
) -> None:
    """Train and evaluate every point of a grid with several seeds; print mean and interval. Rerun to resume."""
    from hyvlm.training.sweep import sweep as run

    Console().print(run(recipe, overrides, out or Path("runs") / f"{Path(recipe).stem}-sweep", seeds=seeds))


@app.command("eval")
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
    from hyvlm.cli.evaluate import run_suite, run_tasks

    if suite:
        return run_suite(models, context.params)
    run_tasks(models, context.params)
    return 0


@app.command("convert")
def convert_model(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="A file of released weights, its name (hyvlm list models), or any model")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for model.safetensors and config.json; new")],
    layout: Annotated[
        str | None, typer.Option("--layout", help="Whose file it is, if its keys do not tell: atmg, meru, ...")
    ] = None,
    image_heads: Annotated[int | None, typer.Option("--image-heads", min=1, help="Of an unusual image tower")] = None,
    text_heads: Annotated[int | None, typer.Option("--text-heads", min=1, help="Of an unusual text tower")] = None,
) -> None:
    """Turn a released checkpoint into a model folder. Nothing that the file holds is run."""
    from hyvlm.models import convert

    folder, report = convert(source, out, layout=layout, image_heads=image_heads, text_heads=text_heads)
    if report:
        print(f"hyvlm: {report}", file=sys.stderr)
    print(f"model: {folder}")


@app.command()
def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="tokens, map, ranks, retrieval, segmentation, similarity, crops, uncertainty, radii, distances, parts",
        ),
    ],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="One model, or several side by side")],
    data: Annotated[str, typer.Option("--data", "--dataset", help="NAME or NAME:LOCATION, with captions (or masks)")],
    split: Split = None,
    sample: Annotated[int, typer.Option("--sample", min=0, help="Place of the image that the picture is about")] = 0,
    captions: Annotated[str, typer.Option("--captions", help="The text of an image: first, last or joined")] = "joined",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Images that take part, at the most")] = 500,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the weights of tokens")] = 0.07,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of perturbations and of the layout")] = 0,
    resize: Resize = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help="similarity: what to look for; repeatable; default: the caption")
    ] = None,
    templates: Annotated[str, typer.Option("--templates", help="segmentation: prompt set, or a file")] = "photo",
    background: Annotated[
        str, typer.Option("--background", help="segmentation: scenery, name, or a file of one name a line")
    ] = "scenery",
    extrapolation: Annotated[
        float, typer.Option("--extrapolation", help="Factor of the texts' radius (segmentation, similarity)")
    ] = 1.0,
    device: Device = None,
    batch_size: BatchSize = 64,
    out: Out = None,
) -> None:
    """Draw what models make of a data set: weights of words, a map, ranks, retrieval, or what is where in an image."""
    from hyvlm.plotting.pictures import draw

    for path in draw(
        kind,
        models,
        data,
        out or Path("pictures"),
        split=split,
        sample=sample,
        captions=captions,
        limit=limit,
        temperature=temperature,
        seed=seed,
        resize=resize,
        texts=text or (),
        templates=templates,
        background=background,
        extrapolation=extrapolation,
        device=device,
        batch_size=batch_size,
    ):
        print(f"picture: {path}")


@app.command()
def diagnose(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a checkpoint or a saved model")],
    data: Annotated[str, typer.Option("--data", "--dataset", help="NAME or NAME:LOCATION, with captions")],
    split: Split = None,
    control: Annotated[
        str | None, typer.Option("--control", help="Model to hold it against, such as MODEL's twin")
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", help="Whose relations to measure; default: that of the run")
    ] = None,
    captions: Annotated[str | None, typer.Option("--captions", help="Text of an image: first, last or joined")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=2, help="Samples of a set, at the most")] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", help="TASK or TASK=DATA, read with and without the map; repeatable; default: a suite"),
    ] = None,
    readout: Readout = None,
    tolerance: Annotated[float, typer.Option("--tolerance", help="How far from 1 a weak ratio may be")] = 0.05,
    max_change: Annotated[
        float, typer.Option("--max-change", help="Points that a score may move without the map")
    ] = 1.0,
    resize: Resize = None,
    part_size: PartSize = None,
    device: Device = None,
    cache: Cache = None,
    out: Out = None,
    batch_size: BatchSize = 64,
    num_workers: Workers = 2,
) -> None:
    """Say how hyperbolic a model is: what its curvature changes in distances, angles and scores. Writes a report."""
    from hyvlm.cli.diagnose import summary, write
    from hyvlm.diagnostics.diagnose import diagnose as run
    from hyvlm.diagnostics.verdict import Thresholds
    from hyvlm.files import check_folder

    folder = out or Path("diagnosis")
    check_folder(folder, "the folder for the diagnosis", ["diagnosis.json", "diagnosis.html"])
    found = run(
        model,
        data,
        split=split,
        control=control,
        objective=objective,
        captions=captions,
        limit=limit,
        tasks=task or None,
        readout=readout,
        thresholds=Thresholds(tolerance=tolerance, max_change=max_change),
        resize=resize,
        part_size=part_size,
        device=device,
        cache=cache,
        batch_size=batch_size,
        workers=num_workers,
    )
    Console().print(summary(found))
    write(found, folder)


@app.command()
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


@app.command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="methods, recipes, tasks, suites, models, datasets or prompts")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """List what the library knows of a kind."""
    from hyvlm.cli.catalog import list_entries

    entries = list_entries(kind)
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    width = max((len(name) for name in entries), default=0)
    for name, text in entries.items():
        print(f"{name:<{width}}  {text}")


@app.command()
def env() -> None:
    """Print what a bug report needs: versions, machine, devices."""
    from hyvlm.cli.catalog import environment

    print(json.dumps(environment(), indent=2))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        result = app(arguments, standalone_mode=False)
    except UsageError as error:
        error.show()
        return 2
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except Exception as error:
        yours = isinstance(error, ValueError | FileNotFoundError | MissingExtra)
        if os.environ.get("HYVLM_DEBUG") or not (yours or isinstance(error, OSError | FloatingPointError)):
            raise
        print(f"hyvlm: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if yours else 1
    if result == INTERRUPTED:  # some versions of typer return it
        print("hyvlm: interrupted", file=sys.stderr)
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
