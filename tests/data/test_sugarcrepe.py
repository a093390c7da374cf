import json

import pytest

from hyvlm.data import open_data


def entry(image: object = "a.jpg", caption: object = "a red dog", negative: object = "a blue dog") -> dict[str, object]:
    return {"filename": image, "caption": caption, "negative_caption": negative}


@pytest.fixture
def crepe(tmp_path, encoded):
    folder = tmp_path / "sugarcrepe"
    folder.mkdir()
    for where in ("images", "sugarcrepe/val2017"):
        (tmp_path / where).mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(encoded())
    (tmp_path / "sugarcrepe" / "val2017" / "b.jpg").write_bytes(encoded(size=(20, 10)))
    swap = {"0": entry(), "7": entry("b.jpg"), "8": entry("gone.jpg"), "9": entry(negative=""), "10": 3, "11": entry(4)}
    (folder / "swap_obj.json").write_text(json.dumps(swap))
    (folder / "add_att.json").write_text(json.dumps([entry(caption=" a dog "), entry(caption=5)]))
    return folder


def test_a_folder_of_files(crepe):
    data = open_data(f"sugarcrepe:{crepe}", content="negatives")
    samples = [data[i] for i in range(len(data))]
    assert data.classes == ("add_att", "swap_obj")
    assert [(s.key, s.texts, s.negatives, s.labels) for s in samples] == [
        ("add_att/0", ["a dog"], ["a blue dog"], [0]),
        ("swap_obj/0", ["a red dog"], ["a blue dog"], [1]),
        ("swap_obj/7", ["a red dog"], ["a blue dog"], [1]),
    ]
    assert [s.image.size for s in samples] == [(40, 30), (40, 30), (20, 10)]
    assert data.dropped == {
        "image file is missing": 1,
        "empty caption": 1,
        "caption is not text": 1,
        "annotation cannot be read": 2,
    }


def test_one_file(crepe, monkeypatch):
    data = open_data(f"sugarcrepe:{crepe / 'swap_obj.json'}", content="negatives")
    assert (len(data), data.classes) == (2, ("swap_obj",))
    monkeypatch.chdir(crepe)
    assert open_data("sugarcrepe:swap_obj.json", content="negatives").fingerprint == data.fingerprint


def test_files_that_cannot_be_used(crepe, tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(FileNotFoundError, match=r"sugarcrepe: .*x has no \.json file"):
        open_data(f"sugarcrepe:{tmp_path / 'x'}", content="negatives")
    for content, message in (("3", "is not SugarCrepe's JSON"), ("{", "is not JSON"), ("{}", "no entry with filename")):
        (tmp_path / "x" / "a.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            open_data(f"sugarcrepe:{tmp_path / 'x'}", content="negatives")
    (tmp_path / "x" / "a.json").write_text(json.dumps({"0": entry("gone.jpg")}))
    with pytest.raises(FileNotFoundError, match="none of the images that are listed exists"):
        open_data(f"sugarcrepe:{tmp_path / 'x' / 'a.json'}", content="negatives")
    with pytest.raises(ValueError, match="sugarcrepe needs a file"):
        open_data("sugarcrepe:", content="negatives")
