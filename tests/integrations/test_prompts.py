from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from hyvlm.data.catalog import SampleSet
from hyvlm.integrations.prompts import read_prompts, sample_prompts
from hyvlm.types import BadSample, Sample


class Numbered(SampleSet):
    """Sample i is a grey picture with two captions; 3 is broken, 5 has no caption."""

    name, split, fingerprint = "numbered", "test", "numbered"

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Sample:
        if index == 3:
            raise BadSample("broken", "sample 3")
        texts = [] if index == 5 else [f"short {index}", f"long {index}"]
        return Sample(str(index), Image.new("RGB", (4, 4), (index,) * 3), texts=texts)


def test_a_file_of_prompts_in_drawbenchs_form(tmp_path: Path) -> None:
    file = tmp_path / "bench.csv"
    file.write_text('\ufeffPrompts,Category\nA red car.,Colors\n"One cat, one dog.",Counting\n ,Counting\n')
    prompts = read_prompts(file)
    assert prompts.name == "bench"
    assert prompts.prompts == ("A red car.", "One cat, one dog.")
    assert prompts.categories == ("Colors", "Counting")
    assert prompts.skipped == {"empty prompt": 1}
    assert list(prompts.images()) == []


def test_a_category_is_not_needed(tmp_path: Path) -> None:
    (tmp_path / "bench.csv").write_text("Prompts\nA red car.\n")
    assert read_prompts(tmp_path / "bench.csv", name="mine").categories == ()


@pytest.mark.parametrize(
    ("text", "message"), [("Text\na\n", "it has: Text"), ("", "it has: none"), ("Prompts\n", "no prompt")]
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bench.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_prompts(tmp_path / "bench.csv")


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "bench.csv").write_bytes("Prompts\na café\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"bench\.csv' is not UTF-8"):
        read_prompts(tmp_path / "bench.csv")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        read_prompts(tmp_path / "none.csv")


def test_prompts_are_drawn_once_each_with_their_images() -> None:
    prompts = sample_prompts(Numbered(), count=100, captions="last")
    assert sorted(prompts.rows) == [i for i in range(12) if i not in (3, 5)]
    assert prompts.prompts == tuple(f"long {row}" for row in prompts.rows)
    assert prompts.skipped == {"broken": 1, "no caption": 1}
    assert [image.getpixel((0, 0))[0] for image in prompts.images()] == list(prompts.rows)


def test_the_draw_depends_on_the_seed_alone() -> None:
    first, again, other = (sample_prompts(Numbered(), count=4, seed=seed) for seed in (0, 0, 1))
    assert first.rows == again.rows != other.rows
    assert len(first) == 4


def test_captions_are_joined() -> None:
    prompts = sample_prompts(Numbered(), count=1, captions="joined")
    assert prompts.prompts == (f"short {prompts.rows[0]} long {prompts.rows[0]}",)


@pytest.mark.parametrize(("settings", "message"), [({"captions": "all"}, "'all'"), ({"count": 0}, "at least 1")])
def test_settings_that_mean_nothing_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        sample_prompts(Numbered(), **settings)
