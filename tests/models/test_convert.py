import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyvlm.models.convert import KEY_MAPS, LISTED, KeyMap, check_state_dict, listed, match

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "checkpoints"
SOURCES = ["clip", "meru", "hycoclip", "uncha", "phyclip"]


def keys_of(source: str) -> list[str]:
    manifest = json.loads((CHECKPOINTS / f"tiny_{source}_manifest.json").read_text())
    return [key for key, *_ in manifest["state_dict"]]


@pytest.mark.parametrize("source", SOURCES)
def test_every_key_of_a_table_occurs_in_the_source(source: str) -> None:
    table = KEY_MAPS[source]
    keys = table.prepare({key: torch.zeros(()) for key in keys_of(source)})
    for entry in (*table.rename, *table.drop):
        assert any(match(entry, key) for key in keys), entry
    assert all(table.drop.values())


@pytest.mark.parametrize("source", SOURCES)
def test_a_name_of_ours_leads_back_to_the_sources(source: str) -> None:
    table = KEY_MAPS[source]
    weights = table.prepare({key: torch.zeros(()) for key in keys_of(source)})
    back = {table.source_name(key) for key in table(dict.fromkeys(keys_of(source), torch.zeros(())))}
    dropped = {key for key in weights if any(match(entry, key) for entry in table.drop)}
    assert back == set(weights) - dropped
    assert table.source_name("no.name.of.ours") == "no.name.of.ours"


def test_unknown_keys_are_listed_together() -> None:
    with pytest.raises(ValueError, match=r"unknown key 'head\.weight', 'visual_alpha': these weights are not of"):
        KEY_MAPS["clip"](dict.fromkeys(["head.weight", "visual_alpha"], torch.zeros(())))


@given(st.lists(st.text("abc", min_size=1, max_size=3), unique=True))
def test_a_list_of_names_says_how_many_it_leaves_out(names: list[str]) -> None:
    text = listed(names)
    assert all(f"'{name}'" in text for name in names[:LISTED])
    assert text.count("'") == 2 * min(len(names), LISTED)
    assert text.endswith(f"and {len(names) - LISTED} more") == (len(names) > LISTED)


def test_factors_are_put_in_the_order_of_their_numbers() -> None:
    table = KEY_MAPS["phyclip"]
    weights = {f"curvs.{i}": torch.tensor(float(i)) for i in [10, 2, 0, 1, *range(3, 10), 11]}
    assert table(weights)["manifold.factor.log_c"].tolist() == list(range(12))
    del weights["curvs.5"]
    assert table.split(weights) == ({}, list(weights))  # a gap makes no vector


def test_query_key_and_value_are_joined_where_all_three_are_there() -> None:
    layer = "text_encoder.backbone.text_model.encoder.layers.3.self_attn."
    parts = {
        f"{layer}{part}_proj.bias": torch.full((2,), value) for part, value in zip("kqv", (1.0, 0.0, 2.0), strict=True)
    }
    joined = KEY_MAPS["hyper3"](parts)
    assert list(joined) == ["text_tower.transformer.resblocks.3.attn.in_proj_bias"]
    assert next(iter(joined.values())).tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    del parts[f"{layer}v_proj.bias"]
    assert KEY_MAPS["hyper3"].split(parts)[1] == [key.replace("text_model.", "") for key in parts]


def test_what_is_dropped_has_a_reason() -> None:
    table = KeyMap(rename={"a.": "b."}, drop={"logit": "of training", "other": "never there"})
    weights = {"a.x": torch.zeros(1), "logit": torch.zeros(())}
    assert list(table(weights)) == ["b.x"]
    assert table.dropped(weights) == {"logit": "of training"}


def test_the_first_difference_of_a_state_dict_is_named() -> None:
    model = torch.nn.Linear(2, 3)
    weights = model.state_dict()
    check_state_dict(model, weights, "it")
    with pytest.raises(ValueError, match="it lacks 'bias'"):
        check_state_dict(model, {"weight": weights["weight"]}, "it")
    with pytest.raises(ValueError, match=r"it has 'bias' with shape \(4,\), but the configuration needs \(3,\)"):
        check_state_dict(model, {**weights, "bias": torch.zeros(4)}, "it")
