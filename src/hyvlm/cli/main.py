"""The command line. Each command parses, calls one public function of the library and prints what it returns.

Exit codes: 0 done, 1 failed while running, 2 wrong usage, config or input (one line says what would be right), 130
interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from hyvlm.cli.app import app_
from hyvlm.cli.convert import convert
from hyvlm.cli.data import data_app
from hyvlm.cli.diagnose import diagnose
from hyvlm.cli.embed import embed
from hyvlm.cli.evaluate import evaluate
from hyvlm.cli.export import export
from hyvlm.cli.index import index
from hyvlm.cli.options import UsageError
from hyvlm.cli.plot import plot
from hyvlm.cli.push import push
from hyvlm.cli.report import report
from hyvlm.cli.search import search
from hyvlm.cli.train import demo, sweep, train
from hyvlm.cli.traverse import traverse
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
#: Headings that ``hyvlm --help`` sorts the commands under.
TRAIN, MEASURE, USE, ABOUT = "Train", "Measure and look", "Use", "About"
app.command(rich_help_panel=TRAIN)(train)
app.command(rich_help_panel=TRAIN)(sweep)
app.command(rich_help_panel=TRAIN)(demo)
app.add_typer(data_app, name="data", rich_help_panel=TRAIN)
app.command("eval", rich_help_panel=MEASURE)(evaluate)
app.command(rich_help_panel=MEASURE)(diagnose)
app.command(rich_help_panel=MEASURE)(plot)
app.command(rich_help_panel=MEASURE)(report)
app.command(rich_help_panel=USE)(embed)
app.command(rich_help_panel=USE)(index)
app.command(rich_help_panel=USE)(search)
app.command(rich_help_panel=USE)(traverse)
app.command("app", rich_help_panel=USE)(app_)
app.command(rich_help_panel=USE)(convert)
app.command(rich_help_panel=USE)(export)
app.command(rich_help_panel=USE)(push)


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


@app.command("list", rich_help_panel=ABOUT)
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


@app.command(rich_help_panel=ABOUT)
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
