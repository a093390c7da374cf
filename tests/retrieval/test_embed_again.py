"""``hyvlm embed`` again: kept, gone on with after a kill, shared by several processes, one run at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path

import pytest

from hyvlm.cli.main import main
from hyvlm.models import save_model
from hyvlm.retrieval import Collection, chunks
from hyvlm.retrieval.processes import Processes

tiny = run_path(str(Path(__file__).with_name("collections_of_points.py")))["tiny"]
_runs = run_path(str(Path(__file__).with_name("embedding_runs.py")))
photos, run, files_of = (_runs[name] for name in ("photos", "run", "files_of"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tiny("lorentz"), tmp_path_factory.mktemp("home") / "model")


def test_a_finished_collection_is_kept_and_another_group_joins_it(model, tmp_path, capsys):
    folder = photos(tmp_path / "in", 4)
    (tmp_path / "t.txt").write_text("a dog\n")
    run(model, tmp_path / "out", images=folder)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    run(model, tmp_path / "out", images=folder)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    both = run(model, tmp_path / "out", images=folder, texts=tmp_path / "t.txt")
    assert (len(both.images), len(both.texts)) == (4, 1)
    assert (tmp_path / "out" / "images.npy").stat().st_mtime_ns == before[tmp_path / "out" / "images.npy"]
    assert sorted(files_of(tmp_path / "out")) == [
        "collection.json",
        "images.npy",
        "images.parquet",
        "texts.npy",
        "texts.parquet",
    ]


@pytest.mark.parametrize("finished", [True, False])
def test_another_model_type_or_source_is_refused(model, tmp_path, finished, capsys):
    folder, out = photos(tmp_path / "in", 40), tmp_path / "out"
    run(model, out, images=folder, batch_size=1)
    if not finished:  # as a run leaves it that was killed
        leave_unfinished(out)
    other = save_model(tiny("euclidean"), tmp_path / "other")
    photos(tmp_path / "elsewhere", 3)
    given = {"model": str(model), "--images": str(folder), "--out": str(out), "--dtype": "float32"}
    for change, message in (
        ({"model": str(other)}, f"holds points of another model, {model}: name a new folder"),
        ({"--dtype": "float16"}, "holds points in float32, not float16"),
        ({"--images": str(tmp_path / "elsewhere")}, f"holds other images (those of {folder}): name a new folder"),
        ({"--resize": "crop"}, "holds otherwise resized images"),
    ):
        first, *options = {**given, **change}.items()
        assert main(["embed", first[1], *(word for option in options for word in option)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    photos(folder, 41)
    assert main(["embed", str(model), "--images", str(folder), "--out", str(out)]) == 2
    assert f"holds other images ({folder} has changed since)" in capsys.readouterr().err


def leave_unfinished(out: Path) -> None:
    """Make of a collection what it was before its end: a plan, and no chunk."""
    manifest = json.loads((out / "collection.json").read_text())
    plan = {"model": manifest["model"], "dtype": manifest["dtype"], "rows": 16}
    plan["source"] = manifest["groups"]["images"]["source"]
    for path in out.iterdir():
        path.unlink()
    (out / ".partial" / "images").mkdir(parents=True)
    (out / ".partial" / "images" / "plan.json").write_text(json.dumps(plan))


def start(model: Path, folder: Path, out: Path, *, processes: int = 1) -> subprocess.Popen[str]:
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    )
    command = [sys.executable, *launch, "-m", "hyvlm", "embed", str(model), "--images", str(folder)]
    command += ["--out", str(out), "--batch-size", "1", "--num-workers", "0"]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_chunks(out: Path, count: int) -> None:
    end = time.monotonic() + 120
    while len(list((out / ".partial" / "images").glob("[0-9]*.npz"))) < count:
        assert time.monotonic() < end, "no chunk appeared"
        assert not (out / "collection.json").exists(), "it was done before it could be killed"
        time.sleep(0.002)


def finished(running: subprocess.Popen[str]) -> str:
    """What a run says on stderr. It computes in a process of its own, which no other test has prepared."""
    _, errors = running.communicate(timeout=180)
    assert running.returncode == 0, errors
    return errors


def test_a_run_that_is_killed_is_gone_on_with(model, tmp_path):
    folder = photos(tmp_path / "in", 800)
    running = start(model, folder, tmp_path / "out")
    wait_for_chunks(tmp_path / "out", 3)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    kept = {path.name for path in (tmp_path / "out" / ".partial" / "images").glob("[0-9]*.npz")}
    with pytest.raises(ValueError, match="is no collection yet"):
        Collection.open(tmp_path / "out")
    cut = tmp_path / "out" / ".partial" / "images" / sorted(kept)[0]
    cut.write_bytes(cut.read_bytes()[:100])  # as a crash of the machine may leave it

    assert f"{len(kept) - 1} of 50 chunks are done already" in finished(start(model, folder, tmp_path / "out"))
    assert not (tmp_path / "out" / ".partial").exists()
    finished(start(model, folder, tmp_path / "whole"))
    assert len(Collection.open(tmp_path / "out").images) == 800
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_two_processes_one_of_which_dies_then_write_what_one_does(model, tmp_path):
    """The other does not hang; two more take up what is done, and every byte is as one process writes it."""
    folder, out = photos(tmp_path / "in", 800), tmp_path / "out"
    (folder / "00003.png").write_bytes(b"")
    running = start(model, folder, out, processes=2)
    wait_for_chunks(out, 2)
    children = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True, check=True).stdout
    begin = time.monotonic()
    os.kill(int(children.split()[-1]), signal.SIGKILL)
    running.communicate(timeout=120)
    assert running.returncode != 0
    assert time.monotonic() - begin < 60
    assert not (out / "collection.json").exists()

    output, errors = (again := start(model, folder, out, processes=2)).communicate(timeout=180)
    assert again.returncode == 0, errors
    assert errors.count("of 50 chunks are done already") == 1
    assert [line for line in output.splitlines() if line] == [f"collection: {out} (799 of 800 images)"]
    finished(start(model, folder, tmp_path / "one"))
    assert files_of(out) == files_of(tmp_path / "one")


@pytest.mark.parametrize(
    ("rank", "fails", "expected"), [(0, [0, 1], ValueError), (1, [0, 1], SystemExit), (0, [1], SystemExit)]
)
def test_of_several_processes_one_says_the_error(monkeypatch, rank, fails, expected):
    def gather(all_failed, failed):
        assert failed == (rank in fails)
        all_failed[:] = [r in fails for r in range(2)]

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    among = Processes()
    among.rank, among.world = rank, 2
    with pytest.raises(expected):
        act(among, fails=rank in fails)


def act(among: Processes, *, fails: bool) -> None:
    with among.together():
        if fails:
            raise ValueError("what is wrong")


def test_memory_holds_a_chunk_not_all(model, tmp_path, monkeypatch):
    """Rows that pass through at once, while chunks are computed and while they are joined."""
    largest = 0
    joined = chunks.Chunk.joined.__func__

    def counted(cls, parts):
        nonlocal largest
        chunk = joined(cls, parts)
        largest = max(largest, len(chunk.points))
        return chunk

    monkeypatch.setattr(chunks.Chunk, "joined", classmethod(counted))
    made = run(model, tmp_path / "out", images=photos(tmp_path / "in", 100), batch_size=2)
    assert len(made.images) == 100
    assert largest == 32


HOLD = """
import sys, time
from pathlib import Path
from hyvlm.retrieval.chunks import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(300)
"""


def test_one_run_writes_at_a_time(model, tmp_path, capsys):
    """The second is refused and writes nothing; a run that is killed keeps no hold."""
    folder, out = photos(tmp_path / "in", 3), tmp_path / "out"
    command = ["embed", str(model), "--images", str(folder), "--out", str(out), "--num-workers", "0"]
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        assert main(command) == 2
        line = f"hyvlm: another run is embedding into {out} now: wait for it, or name another folder\n"
        assert capsys.readouterr().err == line
        assert [path.name for path in out.rglob("*")] == [".partial", "lock"]
    finally:
        other.kill()
        other.communicate()
    assert main(command) == 0
    assert sorted(files_of(out)) == ["collection.json", "images.npy", "images.parquet"]


@pytest.mark.parametrize("plan", ["", "{", "[]", "{}", '{"model": {}, "dtype": "float32"}'])
def test_a_damaged_plan_is_one_line(model, tmp_path, plan, capsys):
    folder, out = photos(tmp_path / "in", 2), tmp_path / "out"
    run(model, out, images=folder)
    leave_unfinished(out)
    (out / ".partial" / "images" / "plan.json").write_text(plan)
    assert main(["embed", str(model), "--images", str(folder), "--out", str(out)]) == 2
    assert f"plan.json is damaged: remove {out / '.partial'} and embed again" in capsys.readouterr().err


def test_a_failure_leaves_no_folder(model, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"")
    assert main(["embed", str(model), "--images", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 2
    assert "none of the 1 images" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_left_out_is_said_once(model, tmp_path, capsys, caplog):
    photos(tmp_path / "in", 2)
    (tmp_path / "in" / "notes.txt").write_text("none")
    made = run(model, tmp_path / "out", images=tmp_path / "in")
    made.image(0)
    assert capsys.readouterr().err.count("file is no image by its suffix") == 2  # the count, and the example
    assert not caplog.records
