"""The command line: exit codes, one line for what the user can mend, and what each command prints."""

import io
import json
import tarfile

import pytest
import torch
from PIL import Image

import hyvlm
from hyvlm.cli.main import main
from hyvlm.models.dual_encoder import build_model
from hyvlm.models.pretrained import save_model


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory):
    torch.manual_seed(0)
    model = build_model({"model": {"preset": "tiny"}, "manifold": {"name": "lorentz"}})
    return str(save_model(model, tmp_path_factory.mktemp("model")))


@pytest.fixture
def files(tmp_path, saved_model):
    """Inputs that are wrong in one way each."""
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "columns.csv").write_text("picture,words\na.jpg,b\n")
    (tmp_path / "prompts.txt").write_text("no placeholder\n")
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8)).save(buffer, "JPEG")
        for i in range(3):
            info = tarfile.TarInfo(f"{i}.jpg")
            info.size = len(buffer.getvalue())
            tar.addfile(info, io.BytesIO(buffer.getvalue()))
    other = tmp_path / "other"
    save_model(build_model({"model": {"preset": "tiny", "dim": 64}, "manifold": {"name": "lorentz"}}), other)
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(config.replace('"dim": 64', '"dim": 32'))
    return tmp_path, saved_model


CASES = {
    "unknown recipe": (["train", "unchaa-tiny"], "uncha-tiny"),
    "recipe file missing": (["train", "no.yaml"], "no.yaml"),
    "unknown key": (["train", "uncha-tiny", "train.stepz=3"], "train.steps"),
    "unknown setting of a method": (["train", "uncha-tiny", "objective.alhpa=1"], "alpha"),
    "unknown method": (["train", "uncha-tiny", "objective.name=unca"], "uncha"),
    "unknown manifold": (["train", "uncha-tiny", "manifold.name=lorenz"], "lorentz"),
    "unknown preset": (["train", "uncha-tiny", "model.preset=tinny"], "tiny"),
    "unknown augmentation": (["train", "uncha-tiny", "data.augment.name=cropp"], "crop"),
    "a start that is not there": (["train", "hyfl-tiny", "model.init=nowhere"], "nowhere"),
    "picture of an unknown kind": (["plot", "tokenz", "{model}", "--data", "scenes"], "tokens"),
    "picture of no model": (["plot", "tokens", "{files}/nowhere", "--data", "scenes"], "nowhere"),
    "parts of an unknown set": (["data", "stats", "scenez"], "scenes"),
    "value of the wrong type": (["train", "uncha-tiny", "train.steps=many"], "train.steps"),
    "wrong value of a method": (["train", "uncha-tiny", "objective.eta_inter=-1"], "eta"),
    "cones without a manifold that has them": (["train", "meru-tiny", "manifold.name=sphere"], "cones"),
    "test split to train on": (["train", "uncha-tiny", "data.split=null"], "data.split=train"),
    "unknown split": (["train", "uncha-tiny", "data.split=trian"], "train"),
    "data missing": (["train", "uncha-tiny", "data.train=coco:{files}/nowhere", "data.split=null"], "nowhere"),
    "no kind of data": (["train", "uncha-tiny", "data.train=cocoo:{files}", "data.split=null"], "coco"),
    "empty table": (["train", "uncha-tiny", "data.train={files}/empty.csv", "data.split=null"], "empty.csv"),
    "columns missing": (["train", "uncha-tiny", "data.train={files}/columns.csv", "data.split=null"], "picture"),
    "empty shard": (["train", "uncha-tiny", "data.train={files}/empty.tar", "data.split=null"], "empty.tar"),
    "shard without captions": (["train", "uncha-tiny", "data.train={files}/images.tar", "data.split=null"], "0 of 3"),
    "no shard of a pattern": (
        ["train", "uncha-tiny", "data.train={files}/x{{0..3}}.tar", "data.split=null"],
        "x{{0..3}}",
    ),
    "nothing to resume": (["train", "uncha-tiny", "--resume", "{files}/nowhere"], "nowhere"),
    "float16 on a CPU": (["train", "uncha-tiny", "train.precision=fp16"], "GPU"),
    "model missing": (["eval", "{files}/nowhere", "--task", "retrieval", "--data", "scenes"], "nowhere"),
    "weights of another shape": (["eval", "{files}/other", "--task", "retrieval", "--data", "scenes"], "shape"),
    "unknown task": (["eval", "{model}", "--task", "retreival", "--data", "scenes"], "retrieval"),
    "unknown prompts": (
        ["eval", "{model}", "--task", "classification", "--data", "scenes", "--templates", "plane"],
        "plain",
    ),
    "prompts without a place for the class": (
        ["eval", "{model}", "--task", "classification", "--data", "scenes", "--templates", "{files}/prompts.txt"],
        "{{}}",
    ),
    "setting that no task has": (
        ["eval", "{model}", "--task", "retrieval", "--data", "scenes", "--part-size", "8"],
        "part",
    ),
    "hierarchy file missing": (
        ["eval", "{model}", "--task", "hierarchy", "--data", "scenes", "--hierarchy", "{files}/no.txt"],
        "no.txt",
    ),
    "no such device": (
        ["eval", "{model}", "--task", "retrieval", "--data", "scenes", "--device", "cuda:77"],
        "no device 'cuda:77'",
    ),
    "unknown kind to list": (["list", "recipe"], "recipes"),
    "raw data missing": (["data", "prepare", "grit", "{files}/no.tar", "{files}/out"], "no.tar"),
    "shards into a file": (["data", "prepare", "cc3m-gligen", "{files}", "{files}/empty.tar"], "the folder for shards"),
    "unknown layout": (["data", "prepare", "gritt", "{files}/empty.tar", "{files}/out"], "grit"),
    "a data set needs one folder": (["data", "prepare", "dtd", "{files}", "{files}"], "hyvlm data prepare dtd OUT"),
    "a layout needs two": (["data", "prepare", "grit", "{files}"], "hyvlm data prepare grit SOURCE OUT"),
    "sweep without values": (["sweep", "uncha-tiny", "train.steps"], "key=a,b,c"),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="float16 is no error with a GPU")
@pytest.mark.parametrize("case", CASES)
def test_what_the_user_can_mend_is_one_line_and_exit_code_2(case, files, capsys, tmp_path):
    arguments, expected = CASES[case]
    folder, model = files
    given = [a.format(files=folder, model=model) for a in arguments]
    if given[0] in ("train", "sweep"):
        given += ["--out", str(tmp_path / "run")]
    assert main(given) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("hyvlm: ")
    assert expected.format() in said[-1]
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("arguments", [["trian"], ["train"], ["eval", "x"], ["train", "uncha-tiny", "--seed"]])
def test_wrong_usage_is_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    assert "Usage" in capsys.readouterr().err


def test_our_own_slips_keep_their_traceback(monkeypatch):
    monkeypatch.setattr("hyvlm.cli.catalog.environment", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["env"])


def test_an_interrupt_is_said(monkeypatch, capsys):
    def interrupted(kind: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hyvlm.cli.catalog.list_entries", interrupted)
    assert main(["list", "tasks"]) == 130
    assert "hyvlm: interrupted" in capsys.readouterr().err


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("HYVLM_DEBUG", "")
    with pytest.raises(ValueError, match="uncha-tiny"):
        main(["--debug", "train", "unchaa-tiny"])
    monkeypatch.setenv("HYVLM_DEBUG", "")


@pytest.mark.parametrize("kind", ["methods", "recipes", "tasks", "models", "datasets", "prompts"])
def test_list(kind, capsys):
    assert main(["list", kind, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert entries
    assert all(entries.values())


def test_version_and_environment(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"hyvlm {hyvlm.__version__}"
    assert main(["env"]) == 0
    assert json.loads(capsys.readouterr().out)["packages"]["torch"] == torch.__version__.partition("+")[0]


def test_train_then_evaluate(tmp_path, capsys):
    run, results = tmp_path / "run", tmp_path / "results"
    small = ["data.train=scenes:8", "data.workers=0", "train.steps=1", "train.batch_size=4", "eval=[]"]
    assert main(["train", "uncha-tiny", *small, "--out", str(run)]) == 0
    tasks = ["--task", "retrieval", "--task", "order", "--data", "scenes", "--split", "val", "--captions", "last"]
    command = [
        "eval",
        str(run),
        *tasks,
        "--num-workers",
        "0",
        "--out",
        str(results),
        "--cache",
        str(tmp_path / "cache"),
    ]
    assert main(command) == 0
    first = json.loads((results / "results.json").read_text(encoding="utf-8"))["results"]
    assert [(r["task"], r["n"], r["total"]) for r in first] == [("retrieval", 500, 500), ("order", 500, 500)]
    assert (results / "results.csv").is_file()
    assert "t2i_recall@1" in capsys.readouterr().out
    assert main(command) == 0  # from the cache
    again = json.loads((results / "results.json").read_text(encoding="utf-8"))["results"]
    assert [r["scores"] for r in again] == [r["scores"] for r in first]


def test_plot_draws_a_picture(saved_model, tmp_path, capsys):
    arguments = ["plot", "ranks", saved_model, "--data", "scenes-long", "--captions", "last", "--limit", "6"]
    assert main([*arguments, "--out", str(tmp_path / "pictures")]) == 0
    (picture,) = (tmp_path / "pictures").iterdir()
    assert picture.name == "ranks-0.png"
    assert str(picture) in capsys.readouterr().out


def test_data_stats_counts_parts(tmp_path, capsys):
    assert main(["data", "stats", "scenes", "--split", "val", "--out", str(tmp_path / "stats")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["samples"] == 500
    assert printed["caps"]["5"]["parts_retained"] == 1.0
    assert {p.name for p in (tmp_path / "stats").iterdir()} == {"part-counts.json", "part-counts.png"}


def test_data_prepare_says_what_to_do_by_hand(tmp_path, capsys):
    assert main(["data", "prepare", "imagenet", str(tmp_path)]) == 0
    assert f"ILSVRC2012_img_val.tar (ILSVRC2012) into {tmp_path}." in capsys.readouterr().out


def test_a_dry_run_prints_the_cost(tmp_path, capsys):
    overrides = ["data.train=scenes:16", "data.workers=0", "train.batch_size=4", "train.steps=2"]
    assert main(["train", "clip-tiny", *overrides, "--dry-run", "--out", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["flops_total"] > 0
    assert not (tmp_path / "run").exists()
