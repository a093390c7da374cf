"""Recipes, overrides, and the one sentence that each mistake gets."""

from inspect import signature

import pytest

from hyvlm.config import build, load_config, read_recipe, recipe_names, to_dict, to_yaml
from hyvlm.methods import OBJECTIVES
from hyvlm.models.dual_encoder import build_manifold
from hyvlm.models.presets import resolve_model


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_complete_once_it_is_told_its_data(name):
    config = load_config(name, ["data.train=somewhere"])
    objective = build(OBJECTIVES, config.objective, "objective")
    assert {"image", "text"} <= set(objective.views)
    build_manifold(config.manifold)
    if "init" in config.model:
        assert set(config.model["text"]) <= {"context_length", "keep_positions"}
    else:
        resolve_model(config.model)


def test_published_settings():
    """Appendix S.1 of UNCHA, appendix A of the comparison of hyperbolic models, released augmentations."""
    uncha = load_config("uncha-vit-b-16", ["data.train=x"])
    assert (uncha.train.steps, uncha.train.batch_size, uncha.train.lr) == (500_000, 768, 5e-4)
    assert (uncha.train.warmup_steps, uncha.train.weight_decay, uncha.train.betas) == (4000, 0.2, (0.9, 0.98))
    assert uncha.data.augment == {"name": "crop_jitter_gray", "scale": [0.8, 1.0]}
    assert (uncha.data.parts.max, uncha.data.parts.choice) == (5, "first")
    hycoclip = load_config("hycoclip-vit-s-16", ["data.train=x"])
    assert hycoclip.data.augment == {"name": "crop", "scale": [0.5, 1.0]}
    assert (hycoclip.data.parts.max, hycoclip.data.parts.choice) == (1, "random")


def test_the_settings_of_hyfl_clip():
    """Appendix S2.2 and S2.3 of HyFL-CLIP."""
    hyfl = load_config("hyfl-vit-b-16", ["data.train=x"])
    assert (hyfl.train.batch_size, hyfl.train.lr, hyfl.train.weight_decay) == (1024, 1e-5, 2.5e-2)
    assert (hyfl.train.betas, hyfl.train.warmup_steps) == ((0.9, 0.999), 200)
    assert hyfl.model["text"] == {"context_length": 248, "keep_positions": 20}
    assert (hyfl.manifold["c"], hyfl.manifold["learn"], hyfl.manifold["aperture_constant"]) == (1.0, True, 1.0)
    objective = build(OBJECTIVES, hyfl.objective, "objective")
    weights = {term.name: term.weight for term in objective.terms}
    assert weights == pytest.approx(
        {
            "image -> text": 0.5,
            "text -> image": 0.5,
            "image -> short_text": 0.05,
            "short_text -> image": 0.05,
            "distillation short_text -> image": 0.05,
            "tokens of text ⊒ text": 0.1,
            "tokens of image ⊒ image": 0.1,
            "minus radius entropy text": 0.1,
        }
    )
    large = load_config("hyfl-vit-l-14", ["data.train=x"])
    assert large.model == {**hyfl.model, "init": "open_clip:ViT-L-14/laion2b_s32b_b82k"}
    hyperbolic = load_config("hyfl-hyperbolic", ["data.train=x"])
    assert build(OBJECTIVES, hyperbolic.objective, "objective").teacher_views == ()


def test_a_model_that_begins_as_another_replaces_one_that_is_new_and_the_other_way_round():
    tiny = load_config("hyfl-tiny", ["model.init=elsewhere"])
    assert tiny.model == {"init": "elsewhere", "text": {"context_length": 248, "keep_positions": 20}}
    assert load_config("hyfl-tiny", ["model={preset: tiny}"]).model == {"preset": "tiny"}


def test_a_base_recipe_lies_below_and_overrides_lie_above():
    config = load_config("uncha-vit-b-16", ["data.train=x", "train.steps=7", "objective.alpha=0.2", "train.lr=1e-3"])
    assert config.model["preset"] == "vit-b-16"
    assert config.data.augment["name"] == "crop_jitter_gray"
    assert config.train.steps == 7
    assert config.train.lr == 1e-3
    assert config.objective == {"name": "uncha", "alpha": 0.2}


def test_naming_another_entry_drops_the_settings_of_the_old_one():
    config = load_config("uncha-tiny", ["manifold.name=euclidean"])
    assert config.manifold == {"name": "euclidean"}
    assert load_config("uncha-tiny", ["manifold.c=0.5"]).manifold["bounds"] == [0.1, 10.0]


def test_the_resolved_config_reads_back_as_it_was(tmp_path):
    config = load_config("uncha-tiny", ["train.max_grad_norm=1.5", "data.train='/data/{0..3}.tar'"])
    assert load_config(to_dict(config)) == config
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(str(path)) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.stepz=1"], "train.steps"),
        (["trainer.steps=1"], "unknown config key 'trainer'"),
        (["data.parts.maximum=2"], "data.parts.max"),
        (["train.steps=many"], "train.steps"),
        (["train.steps=-1"], "train.steps must be positive, got -1"),
        (["train.steps"], "key=value"),
        (["=3"], "key=value"),
        (["train.lr=nan"], "train.lr must be positive"),
        (["data.train=table:"], "the value of data.train does not fit"),
        (["data.augment=crop"], "data.augment is a section; say data.augment.KEY=VALUE, got 'crop'"),
        (["objective=clip"], "objective is a section; say objective.KEY=VALUE, got 'clip'"),
        (["data.queries=paper"], "data.queries is a section (rules, cap); say data.queries.KEY=VALUE, got 'paper'"),
        (["data.parts=null"], "data.parts is a section (max, choice); say data.parts.KEY=VALUE, got None"),
        (["eval=5"], "eval is a list of sections, such as [{KEY: VALUE}], got 5"),
        (["eval=[5]"], "eval is a list of sections, such as [{KEY: VALUE}], got [5]"),
        (["eval=[{tsk: order}]"], "unknown config key 'eval[0].tsk'. Did you mean 'eval[0].task'"),
        (["eval=[{task:order}]"], "unknown config key 'eval[0].task:order'. Did you mean 'eval[0].task'"),
        (["train=5"], "train is a section (steps, "),
        (["train.precision=fp8"], "fp16"),
        (["data.parts.choice=last"], "data.parts.choice"),
        (["data.parts={max: [}"], "not valid YAML"),
    ],
)
def test_bad_overrides(overrides, message):
    with pytest.raises(ValueError) as error:
        load_config("uncha-tiny", overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_values_are_named():
    with pytest.raises(ValueError, match=r"data\.train is not set; say data\.train=VALUE"):
        load_config("uncha-vit-s-16")


def test_a_base_lies_beside_the_recipe_and_may_not_go_in_circles(tmp_path):
    (tmp_path / "low.yaml").write_text("base: uncha-tiny\ntrain: {steps: 3}\n")
    (tmp_path / "high.yaml").write_text("base: low.yaml\ntrain: {seed: 4}\n")
    config = load_config(str(tmp_path / "high.yaml"))
    assert (config.train.steps, config.train.seed, config.train.batch_size) == (3, 4, 32)
    (tmp_path / "low.yaml").write_text("base: high.yaml\n")
    with pytest.raises(ValueError, match="in a circle"):
        load_config(str(tmp_path / "high.yaml"))


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(ValueError, match="uncha-tiny"):
        read_recipe("unca-tiny")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        read_recipe("nowhere.yaml")


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n"])
def test_files_that_are_no_recipe(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="recipe"):
        load_config(str(path))


def test_settings_are_checked_against_what_the_entry_takes():
    with pytest.raises(ValueError, match="'alpha'"):
        build(OBJECTIVES, {"name": "uncha", "alhpa": 1}, "objective")
    with pytest.raises(ValueError, match="uncha"):
        build(OBJECTIVES, {"name": "unchaa"}, "objective")
    with pytest.raises(ValueError, match="needs a name"):
        build(OBJECTIVES, {"alpha": 1}, "objective")


@pytest.mark.parametrize(("name", "setting"), [(n, s) for n in OBJECTIVES for s in signature(OBJECTIVES[n]).parameters])
@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_every_setting_of_an_objective_has_a_type(name, setting, value):
    with pytest.raises(ValueError, match=rf"^objective\.{setting} must be .*, got "):
        build(OBJECTIVES, {"name": name, setting: value}, "objective")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"distill_weight": "abc"}, "a number"),
        ({"distill_weight": None}, "a number"),
        ({"short_weight": "nan"}, "a number"),
        ({"eta": True}, "a number"),
        ({"learn_temperature": "maybe"}, "true or false"),
        ({"learn_temperature": 1}, "true or false"),
        ({"formulation": 3}, "a text"),
    ],
)
def test_a_setting_of_another_type_is_named(setting, words):
    ((name, value),) = setting.items()
    with pytest.raises(ValueError) as error:
        build(OBJECTIVES, {"name": "hyfl", **setting}, "objective")
    assert str(error.value) == f"objective.{name} must be {words}, got {value!r}"


def test_a_whole_number_is_a_number_and_null_is_what_may_be_left_out():
    hyfl = build(OBJECTIVES, {"name": "hyfl", "distill_weight": 1}, "objective")
    assert hyfl.teacher_views == ("image", "short_text")
    uncha = build(OBJECTIVES, {"name": "uncha", "local_temperature": None}, "objective")
    assert uncha.log_scale["local"].exp().item() == pytest.approx(1 / 0.05)
