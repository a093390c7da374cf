"""``hyvlm export``: a model as ONNX graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model: folder, run, file, name on the hub")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for image.onnx, text.onnx, config.json; new")],
    opset: Annotated[int, typer.Option("--opset", help="Version of ONNX's operators, 18 or later")] = 18,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare the graphs with torch")] = True,
) -> None:
    """Write both towers, from pixels and tokens to points, as ONNX graphs."""
    from hyvlm.integrations.onnx import export_onnx
    from hyvlm.models import load

    found = export_onnx(load(model)[0], out, opset=opset, check=check, source=model)
    for name, agreement in found.items():
        print(
            f"{name}.onnx agrees with torch on {agreement.count} {name}s: largest difference "
            f"{agreement.absolute:.2g}, {agreement.relative:.2g} of a point's norm"
        )
    print(f"ONNX: {out}")
