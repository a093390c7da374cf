"""Both towers of a model as ONNX graphs, for programs without torch.

A graph goes all the way from uint8 pixels, or token ids, to points: normalisation, tower, projection, scale and lift.
Beside the graphs stands a ``config.json`` with what is needed to feed them and to score what they give.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hyvlm
from hyvlm.errors import MissingExtra
from hyvlm.evaluation.embed import evaluation_mode, progress
from hyvlm.files import check_folder
from hyvlm.geometry import Lorentz, Product
from hyvlm.integrations.numpy_score import describe_score, score_lines
from hyvlm.models import DualEncoder, Tokenizer, fingerprint

#: Version of the layout of ``config.json``.
FORMAT = 1
#: What torch's exporter speaks without translation.
OPSET = 18
#: How far a point may lie from torch's, in units of the larger of 1 and the point's norm.
TOLERANCE = 1e-4
#: Above this size (protobuf ends at 2 GiB) weights lie beside the graph, in ``NAME.onnx.data``.
WEIGHTS_INSIDE = 1_500_000_000


@dataclass(frozen=True)
class Agreement:
    """How a graph's points compare with torch's.

    Attributes:
        count: Points compared.
        absolute: Largest distance of a point from torch's, in its coordinates.
        relative: The same in units of the point's norm.
        bounded: The same in units of the larger of 1 and the norm: what :data:`TOLERANCE` bounds.
    """

    count: int
    absolute: float
    relative: float
    bounded: float


def export_onnx(
    model: DualEncoder, out: str | Path, *, opset: int = OPSET, check: bool = True, source: str = ""
) -> dict[str, Agreement]:
    """Write ``image.onnx``, ``text.onnx`` and ``config.json`` into a new folder.

    ``image.onnx`` takes ``pixels`` uint8 ``(B, 3, S, S)``, ``text.onnx`` ``tokens`` int64 ``(B, L)``, 0-padded, L up to
    the context length; both give ``points`` float32 ``(B, D)``. B and L are free, S is the model's image size. A text's
    cost is that of L: cut a batch to its longest text. Ids are not checked beyond what the runtime does.

    Args:
        out: A folder that is new or empty; it appears whole or not at all.
        opset: Of the graphs.
        check: Run both graphs in onnxruntime, on the CPU, and compare (:func:`compare`).
        source: What the model was loaded from, for ``config.json``.
    Returns:
        Agreement by graph, "image" and "text"; empty without ``check``.
    Raises:
        MissingExtra: onnx, onnxscript or onnxruntime is missing.
        ValueError: ``out`` is taken, or there is no such opset.
        FloatingPointError: A graph does not agree with torch; nothing is written.
    """
    _check_packages(opset)
    out = Path(out)
    check_folder(out, "the folder for the graphs,")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"'{out}' is not empty, and nothing in it is overwritten; name a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.{os.getpid()}.partial")
    draft.mkdir()
    try:
        found = {}
        with evaluation_mode(model):
            plain = _exportable(model)
            for name, graph, sample, free in progress(_graphs(plain), "export", "graph"):
                file = draft / f"{name}.onnx"
                _write(graph, sample, free, file, opset)
                if check:
                    found[name] = compare(model, file, name)
        text = json.dumps(_describe(model, opset, source, found), indent=2)
        (draft / "config.json").write_text(text + "\n", encoding="utf-8")
        if out.exists():
            out.rmdir()
        os.replace(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return found


def compare(model: DualEncoder, file: Path, name: str) -> Agreement:
    """What onnxruntime makes of a graph, against torch: batches of 1 and 5; texts of all lengths, cut and padded.

    Args:
        model: What the graph was made from, on any device.
        name: "image" or "text".
    Raises:
        FloatingPointError: They differ by more than :data:`TOLERANCE`.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    encode: Callable[[Tensor], Tensor] = model.encode_image if name == "image" else model.encode_text
    key = session.get_inputs()[0].name
    gaps, norms = [], []
    for batch in _sample_pixels(model) if name == "image" else _sample_tokens(model):
        with evaluation_mode(model):
            expected = encode(batch.to(model.pixel_mean.device)).cpu().double().numpy()
        found = session.run(None, {key: batch.numpy()})[0].astype(np.float64)
        gaps.append(np.linalg.norm(found - expected, axis=-1))
        norms.append(np.linalg.norm(expected, axis=-1))
    gap, norm = np.concatenate(gaps), np.concatenate(norms)
    result = Agreement(
        count=len(gap),
        absolute=float(gap.max()),
        relative=float((gap / np.where(norm == 0, 1.0, norm)).max()),
        bounded=float((gap / np.maximum(norm, 1.0)).max()),
    )
    if not result.bounded <= TOLERANCE:  # also if it is not a number
        raise FloatingPointError(
            f"the graph of the {name} tower does not agree with torch: points differ by {result.bounded:.2g} "
            f"of the larger of 1 and their norm, allowed is {TOLERANCE:g}; nothing was written"
        )
    return result


class _ImageGraph(nn.Module):
    def __init__(self, model: DualEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model.encode_image(pixels)


class _TextGraph(nn.Module):
    """:meth:`DualEncoder.encode_text` without what depends on the tokens' values: their check, and the cut to lengths.

    Attention is causal, so that columns behind a text's end change nothing.
    """

    def __init__(self, model: DualEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        pooled = self.model.text_tower.pooled(tokens, tokens.argmax(-1))
        return self.model.lift_text(self.model.text_projection(pooled))


class _Uncounted(Lorentz):
    """A graph has no place for the count of bounded vectors, which :meth:`Lorentz.lift` keeps in an attribute."""

    bounded = property(lambda self: None, lambda self, value: None)


def _exportable(model: DualEncoder) -> DualEncoder:
    """A copy on the CPU, in float32, whose forward passes change nothing."""
    plain = copy.deepcopy(model).float().cpu()
    space = plain.manifold.factor if isinstance(plain.manifold, Product) else plain.manifold
    if isinstance(space, Lorentz):
        del space.__dict__["bounded"]
        space.__class__ = _Uncounted
    return plain


def _graphs(model: DualEncoder) -> list[tuple[str, nn.Module, Tensor, dict[int, str]]]:
    """Name, graph, an input to trace it with (no axis of length 1), and the axes that stay free."""
    size, context = model.image_tower.image_size, model.text_tower.context_length
    pixels = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    tokens = torch.ones(2, max(2, context - 1), dtype=torch.long)
    return [
        ("image", _ImageGraph(model), pixels, {0: "batch"}),
        ("text", _TextGraph(model), tokens, {0: "batch", 1: "length"}),
    ]


def _write(graph: nn.Module, sample: Tensor, free: dict[int, str], file: Path, opset: int) -> None:
    import onnx

    logging.getLogger("onnxscript.version_converter").setLevel(logging.CRITICAL)  # the version is checked below
    bounds: dict[str, dict[str, Any]] = {"length": {"min": 1, "max": sample.shape[-1] + 1}}
    axes = {axis: torch.export.Dim(name, **bounds.get(name, {})) for axis, name in free.items()}
    weights = sum(p.numel() * p.element_size() for p in graph.parameters())
    torch.onnx.export(
        graph.eval(),
        (sample,),
        file,
        input_names=["pixels" if file.stem == "image" else "tokens"],
        output_names=["points"],
        dynamic_shapes=(axes,),
        opset_version=opset,
        dynamo=True,
        external_data=weights > WEIGHTS_INSIDE,
        verbose=False,
    )
    written = onnx.load(file, load_external_data=False)
    got = max(entry.version for entry in written.opset_import if entry.domain in ("", "ai.onnx"))
    if got != opset:
        raise ValueError(f"the {file.stem} tower cannot be written in opset {opset}; the exporter stays at {got}")


def _check_packages(opset: int) -> None:
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise MissingExtra("export to ONNX", "onnx, onnxscript and onnxruntime", "onnx") from error
    del onnxruntime, onnxscript
    newest = onnx.defs.onnx_opset_version()
    if not OPSET <= opset <= newest:
        raise ValueError(f"opset must be {OPSET} to {newest} (that of the installed onnx), got {opset}")


def _sample_pixels(model: DualEncoder) -> Iterable[Tensor]:
    """One image of noise; then black, white, noise, a ramp and a half-black one."""
    size = model.image_tower.image_size
    noise = torch.Generator().manual_seed(0)
    yield torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8, generator=noise)
    batch = torch.randint(0, 256, (5, 3, size, size), dtype=torch.uint8, generator=noise)
    batch[0], batch[1], batch[4, :, : size // 2] = 0, 255, 0
    batch[3] = torch.linspace(0, 255, size).to(torch.uint8)
    yield batch


def _sample_tokens(model: DualEncoder) -> Iterable[Tensor]:
    """A full context; five texts from empty to full, padded to the context; short ones, cut; an empty one alone."""
    context, end = model.text_tower.context_length, model.text_tower.vocab_size - 1
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, end, (6, context), generator=generator)
    for row, length in zip(tokens, (context, 2, 3, context // 2, context - 1, context), strict=True):
        length = min(max(length, 2), context)
        row[0], row[length - 1], row[length:] = max(end - 1, 0), end, 0
    yield tokens[:1]
    yield tokens[1:]
    yield tokens[1:3, : min(3, context)]
    yield tokens[1:2, :2]


def _describe(model: DualEncoder, opset: int, source: str, found: dict[str, Agreement]) -> dict[str, Any]:
    """What ``config.json`` says."""
    size, tokenizer = model.image_tower.image_size, Tokenizer(model.text_tower.context_length)
    return {
        "format": FORMAT,
        "hyvlm_version": hyvlm.__version__,
        "model": {"source": source, "fingerprint": fingerprint(model), "dim": model.dim},
        "opset": opset,
        "image": {
            "file": "image.onnx",
            "input": {"name": "pixels", "dtype": "uint8", "shape": ["batch", 3, size, size]},
            "output": {"name": "points", "dtype": "float32", "shape": ["batch", model.dim]},
            "image_size": size,
            "preprocessing": {
                "colours": "RGB, 0 to 255, not normalised: the graph does that",
                "resize": model.resize or "squash",
                "interpolation": "bicubic, antialiased (PIL)",
                "resize_means": {"squash": "both sides to image_size", "crop": "short side to it, centre cut"},
            },
            "normalised_inside_by": {
                "mean": model.pixel_mean.flatten().tolist(),
                "std": model.pixel_std.flatten().tolist(),
            },
        },
        "text": {
            "file": "text.onnx",
            "input": {"name": "tokens", "dtype": "int64", "shape": ["batch", "length"]},
            "output": {"name": "points", "dtype": "float32", "shape": ["batch", model.dim]},
            "context_length": tokenizer.context_length,
            "vocab_size": model.text_tower.vocab_size,
            "tokenizer": {
                "name": "CLIP's byte-pair encoding, lower case: hyvlm.models.Tokenizer, open_clip's SimpleTokenizer",
                "start_id": tokenizer.start_id,
                "end_id": tokenizer.end_id,
                "padding_id": 0,
                "padding_side": "right",
                "too_long": "cut, the end token in the last place",
            },
        },
        "manifold": {**model.config["manifold"], **model.manifold.describe()},
        "score": {
            "meaning": f"{describe_score(model)}; higher is closer",
            "numpy": "x: points of images (N, D), y: of texts (M, D); the lines set score (N, M)",
            "by_image": score_lines(model, by="image"),
            "by_text": score_lines(model, by="text"),
        },
        "checked": {name: vars(agreement) for name, agreement in found.items()},
    }
