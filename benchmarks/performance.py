"""Every benchmark of speed, and ``docs/performance.md`` from them: ``python benchmarks/performance.py [NAME ...]``.

Runs the scripts named (default: all, in turn, each in a process of its own), which write ``results/NAME.json``, then
writes the page from all results there are. ``python benchmarks/performance.py --page`` only writes the page.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from _runner import RESULTS

from hyvlm.files import write_text

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
#: Script to the heading of its table.
SCRIPTS = {
    "losses": "Losses: forward and backward on ready features",
    "training_step": "Training step",
    "large_batch": "Large batches on one machine",
    "input_pipeline": "Input pipeline",
    "retrieval_ranking": "Retrieval and zero-shot classification",
    "hierarchical_metrics": "Hierarchical metrics",
    "search": "Search",
    "horopca": "HoroPCA",
}
START, END = "<!-- tables: python benchmarks/performance.py -->", "<!-- end of tables -->"


def number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:.3g}{unit}"


def table(name: str, report: dict[str, Any]) -> str:
    """One result file as Markdown."""
    machine, versions = report["machine"], report["versions"]
    lines = [
        f"### {SCRIPTS[name]}",
        "",
        f"`python benchmarks/{name}.py`; {machine['processor']}, {report['threads']} threads, "
        f"torch {versions['torch']}.",
        "",
        "| what | size | ours, s | plain, s | plain / ours | limit, s | ours / limit | peak, MB | plain's peak, MB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in report["rows"]:
        cells = [number(r[key]) for key in ("ours", "plain", "ratio", "limit", "to_limit")]
        # below 1 MB the peak is that of loading the libraries, and says nothing
        memory = [f"{r[key]:,.0f}" if (r[key] or 0) >= 1 else "–" for key in ("peak_mb", "plain_peak_mb")]
        lines.append("| " + " | ".join([r["what"], r["size"], *cells, *memory]) + " |")
    return "\n".join(lines) + "\n"


def scaling(report: dict[str, Any]) -> str:
    """``results/scaling.json`` as Markdown."""
    base, model = report["base"], report["memory_model"]
    lines = [
        "### Growth",
        "",
        f"`python benchmarks/scaling.py`; {report['machine']['processor']}, {report['threads']} threads. UNCHA's loss, "
        f"forward and backward, at batch {base['batch']}, width {base['dim']}, {base['parts']} parts an image, with "
        "one of the three changed:",
        "",
        "| changed | s | peak over the inputs, MB |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {r['seconds']:.3g} | {r['peak_mb']:,.0f} |" for name, r in report["found"].items()),
        "",
        "| processes that share the batch, a thread each | s | CPU s of one |",
        "| --- | ---: | ---: |",
        *(f"| {n} | {r['wall']:.3g} | {r['cpu']:.3g} |" for n, r in report["processes"].items()),
        "",
        f"Memory: `{model['formula']}`, copies = {model['copies']:.1f}, fixed = {model['fixed_mb']:.0f} MB, from "
        f"the batches below {model['at']:,}; there it predicts {model['predicted_mb']:,.0f} MB, and "
        f"{model['measured_mb']:,.0f} MB were measured.",
        "",
        "By arithmetic alone (nothing of this was run; assumed: "
        f"{report['assumed']['gpu_flop_per_s'] / 1e12:.0f} TFLOP/s in float32 a GPU, "
        f"{report['assumed']['link_bytes_per_s'] / 1e9:.0f} GB/s a link; the script's `projected` has the formulas):",
        "",
        "| GPUs | batch | TFLOP a GPU | products, s | all points, GB | loss's memory a GPU, GB | communication, s |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {r['gpus']} | {r['batch']:,} | {r['tflop']:.3g} | {r['products_s']:.2g} | {r['points_gb']:.2g} "
            f"| {r['memory_gb']:.2g} | {r['communication_s']:.2g} |"
            for r in report["projected"]
        ),
    ]
    return "\n".join(lines) + "\n"


def write_page() -> None:
    """Put the tables of all results between the page's two marks; what is written around them stays."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    reports = {name: RESULTS / f"{name}.json" for name in SCRIPTS}
    tables = [table(n, json.loads(p.read_text(encoding="utf-8"))) for n, p in reports.items() if p.exists()]
    if (RESULTS / "scaling.json").exists():
        tables.append(scaling(json.loads((RESULTS / "scaling.json").read_text(encoding="utf-8"))))
    write_text(PAGE, f"{before}{START}\n\n" + "\n".join(tables) + f"\n{END}{after}")


def main(names: list[str]) -> None:
    for name in names:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
    write_page()
    print(f"page: {PAGE}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main([] if given == ["--page"] else given or [*SCRIPTS, "scaling"])
