"""The 16 data sets of zero-shot classification, in small folders of their published layouts."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import torch
from scipy.io import savemat

from hyvlm.data import class_names, download, open_data
from hyvlm.data.class_names import CIFAR100_SUPERCLASSES, IMAGENET_HIERARCHY, imagenet_names, imagenet_synsets
from hyvlm.data.download import SOURCES
from hyvlm.data.sets.zoo import ZOO
from hyvlm.errors import MissingExtra
from hyvlm.types import BadSample

fixtures = SimpleNamespace(**run_path(str(Path(__file__).with_name("zoo_fixtures.py"))))
LAYOUTS = fixtures.LAYOUTS
#: Made-up names of what clip_benchmark names, so that the tests need not have it.
NAMES = {"caltech101": 102, "flowers": 102, "eurosat": 10, "country211": 211}


@pytest.fixture(autouse=True)
def only_existence(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision knows the published files by their MD5, which no small folder has."""
    for module in ("cifar", "stl10", "flowers102", "imagenet"):
        monkeypatch.setattr(
            f"torchvision.datasets.{module}.check_integrity", lambda path, md5=None: Path(path).is_file()
        )


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = {key: [f"{key} {i}" for i in range(count)] for key, count in NAMES.items()}
    monkeypatch.setattr(class_names, "_benchmark_file", lambda name: made_up)


@pytest.mark.parametrize("name", ZOO)
def test_a_set_is_read_from_its_published_layout(name: str, tmp_path: Path) -> None:
    write, (first, last) = LAYOUTS[name]
    write(tmp_path)
    samples = open_data(f"{name}:{tmp_path}", content="classes")
    assert (samples.name, samples.split) == (f"{name}:{tmp_path}", next(iter(ZOO[name].images)))
    assert samples.expected == next(iter(ZOO[name].images.values()))
    assert len(samples.classes) == ZOO[name].classes
    assert not any("_" in c for c in samples.classes)
    assert samples[0].labels == [first]
    assert samples[len(samples) - 1].labels == [last]
    assert {samples[i].image.mode for i in range(2 if len(samples) > 1 else 1)} == {"RGB"}
    keys = [samples[i].key for i in range(len(samples))]
    assert len(set(keys)) == len(keys)
    again = open_data(f"{name}:{tmp_path}", content="classes")
    assert again.fingerprint == samples.fingerprint


@pytest.mark.parametrize("name", [n for n, kind in ZOO.items() if kind.read is not None])
def test_the_folder_of_the_archive_itself_will_do(name: str, tmp_path: Path) -> None:
    LAYOUTS[name][0](tmp_path)
    inner = open_data(f"{name}:{tmp_path / ZOO[name].base}", content="classes")
    outer = open_data(f"{name}:{tmp_path}", content="classes")
    assert [s.key for s in map(inner.__getitem__, range(len(inner)))] == [outer[i].key for i in range(len(outer))]


@pytest.mark.parametrize(
    ("name", "place", "expected"),
    [
        ("sun397", 1, "apartment building outdoor"),
        ("cub", 1, "Some Bird2"),
        ("aircraft", 18, "F/A-18"),
        ("pets", 4, "Some Breed04"),
        ("food101", 100, "dish 100"),
        ("caltech101", 0, "caltech101 0"),
        ("imagenet", 0, "tench"),
    ],
)
def test_class_names_are_words(name: str, place: int, expected: str, tmp_path: Path) -> None:
    LAYOUTS[name][0](tmp_path)
    assert open_data(f"{name}:{tmp_path}", content="classes").classes[place] == expected


def test_pixels_are_those_of_the_batch(tmp_path: Path) -> None:
    fixtures.cifar10(tmp_path)
    batch = pickle.loads((tmp_path / "cifar-10-batches-py/test_batch").read_bytes())
    samples = open_data(f"cifar10:{tmp_path}", content="classes")
    expected = batch["data"][1].reshape(3, 32, 32).transpose(1, 2, 0)
    assert (np.asarray(samples[1].image) == expected).all()
    assert len(open_data(f"cifar10:{tmp_path}", split="train", content="classes")) == 10


def test_sun397_has_the_official_split_and_all_of_it(tmp_path: Path) -> None:
    fixtures.sun397(tmp_path)
    everything = open_data(f"sun397:{tmp_path}", split="all", content="classes")
    assert [everything[i].key for i in range(3)] == [
        "a/abbey/sun_a.jpg",
        "a/abbey/sun_c.jpg",
        "a/apartment_building/outdoor/sun_b.jpg",
    ]
    with pytest.raises(FileNotFoundError, match=r"Training_01\.txt, the official list of this split, is missing"):
        open_data(f"sun397:{tmp_path}", split="train", content="classes")


def test_listed_images_that_are_missing_are_counted(tmp_path: Path) -> None:
    fixtures.food101(tmp_path)
    samples = open_data(f"food101:{tmp_path}", content="classes")
    assert (len(samples), samples.dropped) == (2, {"image file is missing": 99})
    with pytest.raises(FileNotFoundError, match="none of the listed images exists"):
        open_data(f"food101:{tmp_path}", split="train", content="classes")


def test_a_broken_image_is_one_bad_sample(tmp_path: Path) -> None:
    fixtures.cub(tmp_path)
    (tmp_path / "CUB_200_2011/images/002.Some_Bird2/a.jpg").write_bytes(b"no image")
    with pytest.raises(BadSample, match="image is of no known format"):
        open_data(f"cub:{tmp_path}", content="classes")[0]


def test_what_is_wrong_with_a_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="how to get it: hyvlm data prepare cifar10"):
        open_data(f"cifar10:{tmp_path}", content="classes")
    with pytest.raises(ValueError, match="offers the splits test, train, not 'val'"):
        open_data(f"cifar10:{tmp_path}", split="val", content="classes")
    with pytest.raises(ValueError, match="offers the contents classes, not 'pairs'"):
        open_data(f"cifar10:{tmp_path}")
    fixtures.cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py/data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match=r"cifar10: Dataset not found or corrupted\. \(in "):
        open_data(f"cifar10:{tmp_path}", content="classes")


def test_another_number_of_classes_and_labels_outside_are_errors(tmp_path: Path) -> None:
    fixtures.folders(tmp_path / "NWPU-RESISC45", ["airplane", "beach"])
    with pytest.raises(ValueError, match="has 2 folders, but RESISC45 has 45 classes"):
        open_data(f"resisc45:{tmp_path}", content="classes")
    fixtures.stl10(tmp_path)
    (tmp_path / "stl10_binary/test_y.bin").write_bytes(bytes([11, 1]))
    with pytest.raises(ValueError, match="has the label 10, but its 10 classes are 0 to 9"):
        open_data(f"stl10:{tmp_path}", content="classes")
    fixtures.text(tmp_path / "stl10_binary/class_names.txt", ["cat", "dog"])
    with pytest.raises(ValueError, match="has 2 class names, but STL-10 has 10 classes"):
        open_data(f"stl10:{tmp_path}", content="classes")
    fixtures.cub(tmp_path)
    fixtures.text(tmp_path / "CUB_200_2011/image_class_labels.txt", ["1 2", "2 1", "3 201"])
    with pytest.raises(ValueError, match=r"image 3 has the label 201, which classes\.txt lacks"):
        open_data(f"cub:{tmp_path}", content="classes")
    fixtures.text(tmp_path / "CUB_200_2011/image_class_labels.txt", ["1"])
    with pytest.raises(ValueError, match="has the line '1', which is not NUMBER VALUE"):
        open_data(f"cub:{tmp_path}", content="classes")


def test_one_folder_a_class_will_do_where_folders_have_the_names(tmp_path: Path) -> None:
    names = [f"thing_{i}" for i in range(10)]
    fixtures.folders(tmp_path / "test", names)
    samples = open_data(f"cifar10:{tmp_path}", content="classes")
    assert samples.classes == tuple(name.replace("_", " ") for name in names)
    assert (len(samples), samples.expected) == (10, 10_000)
    fixtures.folders(tmp_path / "test", ["eleven"])
    with pytest.raises(FileNotFoundError, match="has no cifar-10-batches-py"):
        open_data(f"cifar10:{tmp_path}", content="classes")


def test_some_of_imagenets_classes_are_told_apart_among_themselves(tmp_path: Path) -> None:
    fixtures.folders(tmp_path, ["n01443537", "n02123045"])
    samples = open_data(f"imagenet:{tmp_path}", content="classes")
    assert (samples.classes, samples.class_ids) == (("goldfish", "tabby cat"), ("n01443537", "n02123045"))
    assert samples.hierarchy == IMAGENET_HIERARCHY
    assert list(samples.remarks) == ["2 of ImageNet's 1,000 classes are there: told apart are only these"]
    fixtures.folders(tmp_path, ["mouse"])
    with pytest.raises(ValueError, match="'mouse' is no synset of ImageNet's 1,000 classes"):
        open_data(f"imagenet:{tmp_path}", content="classes")


def test_names_and_prompts_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if find_spec("clip_benchmark") is None:
        pytest.skip("needs clip_benchmark")
    for key, count in NAMES.items():
        assert len(class_names.benchmark_names(key)) == count
    for kind in ZOO.values():
        if kind.prompts:
            assert all(prompt.count("{}") == 1 for prompt in class_names.benchmark_prompts(kind.prompts))
    assert class_names.benchmark_names("country211")[0] == "Andorra"
    assert class_names.benchmark_prompts("food101") == ("a photo of {}, a type of food.",)


def test_without_the_library_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    class_names._benchmark_file.cache_clear()
    monkeypatch.setattr("importlib.metadata.distribution", _no_distribution)
    with pytest.raises(MissingExtra, match=r"pip install 'hyvlm\[benchmarks\]'"):
        class_names.benchmark_names("eurosat")


def _no_distribution(name: str) -> None:
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError(name)


def test_hierarchies_that_ship() -> None:
    from hyvlm.evaluation.taxonomy import Taxonomy

    imagenet = Taxonomy.read(IMAGENET_HIERARCHY)
    imagenet.check_classes(imagenet_synsets())
    assert (len(imagenet.nodes), len(imagenet.edges), imagenet.nodes[0]) == (1860, 1937, "n00001740")
    assert len(imagenet_synsets()) == len(imagenet_names()) == 1000
    leaves = set(imagenet.nodes) - {parent for _, parent in imagenet.edges}
    assert leaves <= set(imagenet_synsets())
    cifar = Taxonomy.read(CIFAR100_SUPERCLASSES)
    parents = [parent for child, parent in cifar.edges if parent != "all classes"]
    assert (len(parents), len(set(parents))) == (100, 20)
    assert {parents.count(parent) for parent in parents} == {5}


# Downloads: the function that fetches an archive is replaced by one that writes what the archive holds.


@pytest.mark.parametrize(
    ("name", "module"), [("cifar10", "cifar"), ("cifar100", "cifar"), ("dtd", "dtd"), ("food101", "food101"),
                         ("aircraft", "fgvc_aircraft"), ("country211", "country211"), ("stl10", "stl10"),
                         ("eurosat", "eurosat"), ("pets", "oxford_iiit_pet")]
)  # fmt: skip
def test_prepare_downloads_through_torchvision(name: str, module: str, tmp_path: Path, monkeypatch) -> None:
    urls = []

    def fetch(url: str, *where: object, **how: object) -> None:
        urls.append(url)
        LAYOUTS[name][0](tmp_path)

    monkeypatch.setattr(f"torchvision.datasets.{module}.download_and_extract_archive", fetch)
    said = download.download(name, tmp_path)
    assert said.endswith(f"--data {name}:{tmp_path}")
    assert said.startswith(ZOO[name].title)
    assert len(set(urls)) == len(urls) > 0
    fetched = len(urls)
    assert download.download(name, tmp_path) == said
    assert len(urls) == fetched, "what is there is not fetched again"


def test_prepare_gets_the_lists_of_sun397_and_the_birds(tmp_path: Path, monkeypatch) -> None:
    def fetch(url: str, *where: object, **how: object) -> None:
        urls.append(url)
        if url == download.CUB_ARCHIVE[0]:
            fixtures.cub(tmp_path)
        if url == download.SUN_PARTITIONS:
            lists.rename(tmp_path / "Testing_01.txt")

    fixtures.sun397(tmp_path)
    lists = (tmp_path / "Testing_01.txt").rename(tmp_path / "in the archive")
    urls: list[str] = []
    monkeypatch.setattr(download, "download_and_extract_archive", fetch)
    assert "2 images, 397 classes (split test)" in download.download("sun397", tmp_path)
    assert "2 images, 200 classes (split test)" in download.download("cub", tmp_path)
    assert urls == [download.SUN_PARTITIONS, download.CUB_ARCHIVE[0]]


def test_prepare_gets_resisc45_from_the_hub(tmp_path: Path, monkeypatch) -> None:
    def fetch(repo: str, file: str, *, repo_type: str, local_dir: Path) -> str:
        assert (repo, repo_type) == ("torchgeo/resisc45", "dataset")
        inside = tmp_path / "inside"
        LAYOUTS["resisc45"][0](inside)
        with zipfile.ZipFile(local_dir / file, "w") as archive:
            for path in sorted(inside.rglob("*.jpg")):
                archive.write(path, path.relative_to(inside))
        return str(local_dir / file)

    monkeypatch.setattr(download, "hf_hub_download", fetch)
    assert "45 images, 45 classes" in download.download("resisc45", tmp_path / "out")


def test_prepare_unpacks_imagenets_archives(tmp_path: Path, monkeypatch) -> None:
    assert "Register at https://image-net.org" in download.download("imagenet", tmp_path)
    kind = [(field, object) for field in ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children")]
    synsets = np.array([(1, "n01440764", "tench", "", 0), (2, "n01443537", "goldfish, Carassius", "", 0)], dtype=kind)
    data = tmp_path / "ILSVRC2012_devkit_t12/data"
    data.mkdir(parents=True)
    savemat(data / "meta.mat", {"synsets": synsets})
    fixtures.text(data / "ILSVRC2012_validation_ground_truth.txt", ["2", "1"])
    with tarfile.open(tmp_path / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as archive:
        archive.add(data.parent, "ILSVRC2012_devkit_t12")
    fixtures.image(tmp_path / "image.jpg")
    jpeg = (tmp_path / "image.jpg").read_bytes()
    with tarfile.open(tmp_path / "ILSVRC2012_img_val.tar", "w") as archive:
        for number in (1, 2):
            entry = tarfile.TarInfo(f"ILSVRC2012_val_{number:08d}.JPEG")
            entry.size = len(jpeg)
            archive.addfile(entry, io.BytesIO(jpeg))
    assert "2 images, 2 classes (split val)" in download.download("imagenet", tmp_path)
    samples = open_data(f"imagenet:{tmp_path}", content="classes")
    assert [samples[i].key for i in range(2)] == [
        "n01440764/ILSVRC2012_val_00000002.JPEG",
        "n01443537/ILSVRC2012_val_00000001.JPEG",
    ]
    assert (tmp_path / "meta.bin").is_file()
    assert torch.load(tmp_path / "meta.bin", weights_only=True)[1] == ["n01443537", "n01440764"]


def test_prepare_says_what_to_do_by_hand_and_what_failed(tmp_path: Path, monkeypatch) -> None:
    said = download.download("cars", tmp_path)
    assert f"{tmp_path}/stanford_cars/cars_test_annos_withlabels.mat" in said
    fixtures.cars(tmp_path)
    assert "2 images, 196 classes" in download.download("cars", tmp_path)
    with pytest.raises(ValueError, match="unknown data set 'cifar'"):
        download.download("cifar", tmp_path)

    for error, message in ((RuntimeError("not the published file"), "dtd: not the"), (URLError("no way"), "no way")):

        def fail(*where: object, error: Exception = error, **how: object) -> None:
            raise error

        monkeypatch.setattr("torchvision.datasets.dtd.download_and_extract_archive", fail)
        with pytest.raises(OSError, match=message):
            download.download("dtd", tmp_path)
    assert set(SOURCES) == set(ZOO)
