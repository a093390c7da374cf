"""Graphs against torch, which makes the points that they must give."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from hyvlm.geometry import Lorentz, ProductLorentz
from hyvlm.integrations.numpy_score import score_lines
from hyvlm.integrations.onnx import TOLERANCE, Agreement, compare, export_onnx
from hyvlm.models import DualEncoder, build_model, fingerprint

CURVED = {"name": "product", "factors": 3, "c": [0.2, 1.0, 3.0]}
MANIFOLDS = {
    "sphere": {"name": "sphere"},
    "lorentz": {"name": "lorentz", "c": 0.7},
    "euclidean": {"name": "euclidean"},
    "product": CURVED,
    "flat product": {"name": "flat_product", "factors": 3, "metric": "l2"},
}


def small(manifold: str, context: int = 77, reach: float = 1.0, **model) -> DualEncoder:
    """A model whose tangent vectors are ``reach`` times as long as at the start."""
    torch.manual_seed(0)
    image = {"image_size": 32, "patch": 8, "width": 48, "depth": 1, "heads": 4, "stem": manifold == "product"}
    text = {"context_length": context, "vocab_size": 600, "width": 64, "depth": 1, "heads": 4}
    section = {"model": {"dim": 24, "image": image, "text": text, **model}, "manifold": MANIFOLDS[manifold]}
    built = build_model(section).eval()
    with torch.no_grad():
        built.image_projection.weight *= reach
        built.text_projection.weight *= reach
    return built


def run(folder: Path, name: str, values: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    return torch.from_numpy(session.run(["points"], {entry.name: values.numpy()})[0])


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    gap = (found.double() - expected.double()).norm(dim=-1)
    assert (gap <= 1e-4 * expected.double().norm(dim=-1).clamp(min=1.0)).all()


@dataclass
class Exported:
    model: DualEncoder
    context: int
    folder: Path
    before: str
    report: dict[str, Agreement]


@pytest.fixture(scope="module")
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Far: tangent vectors that reach the bound of the lift."""
    manifold, context, far = request.param
    model, folder = (
        small(manifold, context, 60.0 if far else 1.0, resize="crop"),
        tmp_path_factory.mktemp("new") / "out",
    )
    before = fingerprint(model)
    return Exported(model, context, folder, before, export_onnx(model, folder, source="runs/mine"))


LORENTZ = pytest.param(("lorentz", 248, True), id="lorentz")


@pytest.mark.parametrize(
    "exported",
    [
        LORENTZ,
        pytest.param(("sphere", 77, False), id="sphere"),
        pytest.param(("euclidean", 77, True), id="euclidean"),
        pytest.param(("product", 77, True), id="product"),
        pytest.param(("flat product", 77, False), id="flat product"),
    ],
    indirect=True,
)
def test_graphs_give_the_points_of_torch(exported: Exported) -> None:
    model, context, folder = exported.model, exported.context, exported.folder
    assert {name: agreement.count for name, agreement in exported.report.items()} == {"image": 6, "text": 9}
    assert max(agreement.bounded for agreement in exported.report.values()) <= TOLERANCE
    found = sorted(path.name for path in folder.parent.rglob("*"))
    assert found == ["config.json", "image.onnx", "out", "text.onnx"]

    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for count in (1, 5, 7):
            pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
            x = model.encode_image(pixels)
            assert_near(run(folder, "image", pixels), x)
        for count, length in ((1, context), (5, context), (4, 1), (5, 9)):
            tokens = torch.randint(1, 599, (count, length), generator=generator)
            for row in range(count):  # ends before, at and behind the last column
                end = (row * 3 + 2) % length
                tokens[row, end], tokens[row, end + 1 :] = 599, 0
            assert_near(run(folder, "text", tokens), model.encode_text(tokens))
        points = model.encode_image(pixels)
    if isinstance(model.manifold, Lorentz | ProductLorentz):
        far = model.manifold.c.min().sqrt() * points.norm(dim=-1).max()
        assert far > 1e6  # near the bound of the lift
        assert type(model.manifold) in (Lorentz, ProductLorentz)  # the model itself is as it was
        assert model.manifold.bounded is not None
    assert fingerprint(model) == exported.before


@pytest.mark.parametrize("exported", [LORENTZ], indirect=True)
def test_the_configuration_says_what_is_needed(exported: Exported) -> None:
    model, out = exported.model, exported.folder
    config = json.loads((out / "config.json").read_text())
    for tower in ("image", "text"):
        session = onnxruntime.InferenceSession(str(out / config[tower]["file"]))
        for kind, entries in (("input", session.get_inputs()), ("output", session.get_outputs())):
            (entry,) = entries
            said = config[tower][kind]
            assert (said["name"], said["shape"]) == (entry.name, entry.shape)
            assert (
                entry.type
                == {"uint8": "tensor(uint8)", "int64": "tensor(int64)", "float32": "tensor(float)"}[said["dtype"]]
            )
    assert config["model"] == {"source": "runs/mine", "fingerprint": fingerprint(model), "dim": 24}
    assert config["image"]["preprocessing"]["resize"] == "crop"
    assert config["manifold"]["c"] == pytest.approx(0.7)
    assert (config["text"]["context_length"], config["text"]["tokenizer"]["end_id"]) == (248, 49407)
    assert config["checked"]["text"] == vars(exported.report["text"])


@pytest.mark.parametrize("by", ["image", "text"])
@pytest.mark.parametrize(
    ("manifold", "settings"),
    [
        ("sphere", {}),
        ("lorentz", {}),
        ("euclidean", {}),
        ("product", {}),
        ("product", {"readout": "published"}),
        ("flat product", {}),
        *((name, {"score": "exterior_angle"}) for name in ("lorentz", "euclidean", "product", "flat product")),
        ("lorentz", {"score": "exterior_angle", "readout": "published"}),
    ],
)
def test_the_lines_of_numpy_are_the_score(manifold: str, settings: dict[str, str], by: str) -> None:
    model = small(manifold, **settings).double()
    torch.manual_seed(1)
    with torch.no_grad():
        x = model.manifold.lift(torch.randn(4, 24).double())
        y = model.manifold.lift(0.3 * torch.randn(5, 24).double())
        expected = model.score(x, y, by=by).numpy()
    names = {"np": np, "x": x.numpy(), "y": y.numpy()}
    exec("\n".join(score_lines(model, by=by)), names)
    np.testing.assert_allclose(names["score"], expected, rtol=1e-6, atol=1e-7)


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("sphere")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"taken' is not empty, and nothing in it is overwritten"):
        export_onnx(model, tmp_path / "taken")
    with pytest.raises(ValueError, match=r"opset must be 18 to .*, got 9"):
        export_onnx(model, tmp_path / "new", opset=9)

    def fail(graph: object, sample: object, file: Path, **_: object) -> None:
        file.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(OSError, match="no space"):
        export_onnx(model, tmp_path / "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["taken", "notes.txt"]


@pytest.mark.parametrize("exported", [LORENTZ], indirect=True)
def test_a_graph_of_other_weights_is_found_out(exported: Exported) -> None:
    out, other = exported.folder, copy.deepcopy(exported.model)
    with torch.no_grad():
        other.text_projection.weight[0] *= 1.1
    compare(other, out / "image.onnx", "image")
    with pytest.raises(FloatingPointError, match="the graph of the text tower does not agree with torch"):
        compare(other, out / "text.onnx", "text")
