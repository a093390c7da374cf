"""Suites as files: what the shipped ones name exists, and what is wrong with one of one's own is one line."""

from pathlib import Path

import pytest

from hyvlm.data import DATASETS
from hyvlm.data.sentences import PERTURBATIONS
from hyvlm.evaluation.runner import setting_names
from hyvlm.evaluation.task import TASKS
from hyvlm.evaluation.tasks.part_matching import _tests
from hyvlm.suites import read_suite, suite_names
from hyvlm.suites.catalog import DataFolder, read_suites


@pytest.mark.parametrize("name", suite_names())
def test_every_name_of_a_shipped_suite_is_one_of_the_library(name: str) -> None:
    suite = read_suite(name)
    assert suite.title
    for evaluation in suite.evaluations:
        assert evaluation.task in TASKS
        assert suite.data[evaluation.data].open in DATASETS
        assert set(dict(evaluation.settings)) <= setting_names(TASKS[evaluation.task])
    assert all(table.columns and table.title for table in suite.tables)
    assert len({table.name for table in suite.tables}) == len(suite.tables)


def test_all_stands_for_every_suite() -> None:
    assert [suite.name for suite in read_suites("all")] == suite_names() == ["hyfl", "hyper3", "hyperbolicity", "uncha"]


#: A built-in set on which each task of the suites gives its metrics; what its split and settings are.
SCENES = {
    "retrieval": ("scenes:8", "train", {}),
    "classification": ("scenes:8", "train", {"templates": "plain"}),
    "hierarchy": ("scenes:8", "train", {"templates": "plain"}),
    "multilabel": ("scenes:8", "train", {}),
    "entailment": ("scenes:8", "train", {}),
    "text-retrieval": ("scenes:8", "train", {}),
    "hard-negatives": ("scenes:8", "train", {"negatives": "generate"}),
    "perturbed-retrieval": ("scenes:8", "train", {"seeds": 1}),
    "perturbed-ranks": ("scenes:8", "train", {"seeds": 1}),
}


def test_every_metric_of_the_suites_is_one_that_its_task_gives(model_folders, tmp_path: Path) -> None:
    import hyvlm
    from hyvlm.evaluation import EvalSpec, evaluate

    model, _, tokenizer = hyvlm.load(model_folders("lorentz"))
    specs = [EvalSpec(task, data, split, **settings) for task, (data, split, settings) in SCENES.items()]
    given = {r.task: set(r.outcome.scores) for r in evaluate(model, tokenizer, specs, show_progress=False)}
    given["boxes"] = {"acc1", "acc5"}
    given["part-matching"] = set(_tests([], hardest_given=False))
    given["multi-object"] = {f"mean_average_precision_{n}_objects" for n in (2, 3, 4, 5)}
    given["segmentation"] = {"mean_iou", "pixel_accuracy"}
    given["blip-vqa"] = {f"retrieved_{how}" for how in PERTURBATIONS}
    wanted = {
        (m.evaluation.task, m.metric)
        for s in read_suites("all")
        for t in s.tables
        for c in t.columns
        for m in c.measures
    }
    assert {task for task, _ in wanted} == set(given)
    assert [(task, metric) for task, metric in sorted(wanted) if metric not in given[task]] == []


def test_the_sixteen_sets_are_in_the_order_of_the_tables() -> None:
    table = read_suite("uncha").tables[0]
    heads = [column.head for column in table.columns]
    assert len(heads) == 16
    assert heads[::5] == ["ImageNet", "STL-10", "Pets", "Country211"]
    assert [dict(c.measures[0].evaluation.settings)["templates"] for c in table.columns][6:8] == ["official"] * 2


def test_a_mean_is_over_all_columns_before_it_and_parts_override_their_column() -> None:
    table3 = next(t for t in read_suite("hyper3").tables if t.name == "Table 3")
    assert [m for c in table3.columns[:-1] for m in c.measures] == list(table3.columns[-1].measures)
    fine = next(c for t in read_suite("uncha").tables if t.name == "Table 4" for c in t.columns if c.head == "Fine")
    assert {(m.evaluation.data, dict(m.evaluation.settings)["templates"]) for m in fine.measures} == {
        ("food101", "official"), ("cub", "official"), ("flowers102", "official"),
        ("cars", "openai"), ("aircraft", "openai"), ("pets", "openai"),
    }  # fmt: skip


def test_where_a_data_set_is(tmp_path: Path) -> None:
    assert DataFolder("scenes", None, "scenes:6").locate(tmp_path) == "scenes:6"
    by_file = DataFolder("set", "folder", "karpathy", files=("best.json", "*.json"))
    with pytest.raises(FileNotFoundError, match="no folder of that name"):
        by_file.locate(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match=r"no file best.json or \*.json in the folder folder"):
        by_file.locate(tmp_path)
    (folder / "a.json").touch()
    assert by_file.locate(tmp_path) == f"karpathy:{folder}/a.json"
    (folder / "best.json").touch()
    assert by_file.locate(tmp_path) == f"karpathy:{folder}/best.json"
    assert DataFolder("coco", "folder", "coco").locate(tmp_path) == f"coco:{folder}"


COLUMN = "{head: a, task: retrieval, data: coco, metric: x}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list", "must be a mapping"),
        ("title: [", "is not valid YAML"),
        ("tabels: []", "unknown key 'tabels'. Did you mean 'tables'"),
        ("title: none", "has no table with a column"),
        (f"tables: [{{name: T, kind: valeus, columns: [{COLUMN}]}}]", "table T: unknown kind 'valeus'"),
        ("tables: [{name: T, columns: [sixten]}]", "table T: unknown list of columns 'sixten'"),
        ("tables: [{name: T, columns: [{head: a, task: retrieval, data: coco}]}]", "column 'a': it says no metric"),
        ("tables: [{name: T, columns: [{hed: a}]}]", "unknown key 'hed'. Did you mean 'head'"),
        (f"tables: [{{name: T, columns: [{COLUMN.replace('coco', 'cocoo')}]}}]", "unknown data set 'cocoo'"),
        (f"data: {{x: {{opens: y}}}}\ntables: [{{name: T, columns: [{COLUMN}]}}]", "data set x: unknown key 'opens'"),
    ],
)
def test_what_is_wrong_with_a_suite_file_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_suite(str(path))


def test_an_unknown_suite_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown suite 'hyper4'. Did you mean 'hyper3'"):
        read_suite("hyper4")
    with pytest.raises(FileNotFoundError, match=r"no suite file .*none\.yaml"):
        read_suite(str(tmp_path / "none.yaml"))
