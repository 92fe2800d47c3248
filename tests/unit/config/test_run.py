import numpy as np
import pytest
import yaml

from paceline.config.reading import combine, read_assignment, read_config, read_yaml
from paceline.config.run import RunConfig
from paceline.config.schedules import Constant, Cosine
from paceline.errors import ConfigError
from paceline.rules import BSP

EXPLODING = "a0: &a0 [1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
"""Aliases that stand for a hundred billion values."""


def test_defaults_are_a_whole_run():
    config = read_config()
    assert config == RunConfig()
    assert config.rule == BSP()
    assert config.optimizer.settings() == {"name": "sgd", "lr": 0.05, "momentum": 0.9}


def test_yaml_assignments_and_python_reach_the_same_keys(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("optimizer: {name: adam, lr: 1e-3}\ndata: {batch_size: 8}\nschedule: cosine\n")
    by_yaml = read_config(read_yaml(file))
    texts = ["optimizer.name=adam", "optimizer.lr=1e-3", "data.batch_size=8", "schedule=cosine"]
    by_set = read_config(*map(read_assignment, texts))
    by_python = read_config(
        {"optimizer": {"name": "adam", "lr": 0.001}, "data": {"batch_size": 8}},
        {"schedule": "cosine"},
    )
    assert by_yaml == by_set == by_python
    assert by_yaml.schedule == Cosine()


@pytest.mark.parametrize(
    ("given", "enabled", "least"),
    [
        ({}, False, 1),
        ({"elastic": True}, True, 1),
        ({"elastic": False}, False, 1),
        ({"elastic": {"min": 2}}, True, 2),
        ({"elastic": {"enabled": False, "min": 2}}, False, 2),
    ],
)
def test_naming_the_elastic_section_turns_it_on(given, enabled, least):
    found = read_config(given).elastic
    assert (found.enabled, found.min) == (enabled, least)


def test_later_layers_win_key_by_key():
    config = read_config(
        {"optimizer": {"name": "sgd", "lr": 1.0, "momentum": 0.5}, "epochs": 2},
        {"optimizer": {"lr": 0.1}},
    )
    assert config.optimizer.settings() == {"name": "sgd", "lr": 0.1, "momentum": 0.5}
    assert config.epochs == 2


def test_a_wrong_rate_is_one_fault():
    with pytest.raises(ConfigError, match=r"^optimizer.lr is -1.0, expected: greater than 0$"):
        read_config({"optimizer": {"lr": -1.0}})


def test_another_name_forgets_the_settings_of_the_old_one():
    config = read_config({"optimizer": {"name": "sgd", "momentum": 0.5}}, {"optimizer": "adam"})
    assert config.optimizer.settings() == {"name": "adam"}


def test_nothing_given_on_the_same_level_is_forgotten():
    given = combine({"optimizer": {"lr": 0.7}}, {"optimizer": {"name": "adam"}})
    config = read_config({"optimizer": {"name": "sgd", "momentum": 0.5}}, given)
    assert config.optimizer.settings() == {"name": "adam", "lr": 0.7}


def test_a_name_given_later_keeps_settings_given_without_one():
    config = read_config({"schedule": {"warmup": 2}}, {"schedule": "cosine"})
    assert config.schedule == Cosine(warmup=2)
    assert read_config({"schedule": {"warmup": 2}}).schedule == Constant(warmup=2)


def test_all_faults_are_reported_at_once_with_the_valid_names():
    with pytest.raises(ConfigError) as caught:
        read_config(
            {
                "epoch": 3,
                "data": {"batchsize": 4, "batch_size": 0},
                "stop": {"target": "accuracy>1"},
                "schedule": {"name": "cosine", "gamma": 0.5},
                "rule": "bps",
                "seed": "x",
            }
        )
    message = str(caught.value)
    for part in (
        "epoch is not a setting; did you mean epochs?",
        "data.batchsize is not a setting; did you mean data.batch_size?",
        "data.batch_size is 0, expected: greater than or equal to 1",
        "stop.target is 'accuracy>1', expected METRIC>=NUMBER",
        "schedule.gamma is not a setting; (valid here: name, warmup, floor)",
        "rule is 'bps', expected one of: bsp",
        "seed is 'x', expected: a valid integer",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "linear"}, "schedule.name is 'linear', expected constant, step or cosine"),
        ({"optimizer": {"lr": -1}}, "optimizer.lr is -1, expected: greater than 0"),
        ({"data": 3}, "data is 3"),
        ({"lr": 0.1}, "lr is not a setting; did you mean optimizer.lr?"),
        ({"batch_size": 3}, "batch_size is not a setting; did you mean data.batch_size?"),
        ({"share": False}, "share is not a setting; did you mean exchange.share?"),
        ({"exchange": {"wirre": "int8"}}, "exchange has no setting wirre; it takes: share"),
        ({"optimizer": 3}, "optimizer is a int, expected a name, settings"),
        ({"rule": {"name": "bsp", "force": 4}}, "rule bsp has no setting force"),
        ({"seed": 2**65}, "expected: less than"),
        ({"progress": "loud"}, "progress is 'loud', expected: 'auto', 'bar', 'plain' or 'off'"),
    ],
)
def test_wrong_values_say_what_was_expected(settings, message):
    with pytest.raises(ConfigError) as caught:
        read_config(settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs", "not of the form section.key=value"),
        ("=3", "not of the form"),
        ("a..b=3", "not of the form"),
        ("epochs=[1", "not valid YAML"),
        ("epochs=&a [*a]", "not valid YAML"),
    ],
)
def test_wrong_assignments_are_explained(text, message):
    with pytest.raises(ConfigError, match=message):
        read_assignment(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [1", "not valid YAML"),
        ("- 1\n", "holds a list"),
        ("model: !!python/object:os.system x", "not valid YAML"),
        (EXPLODING, "more than 10000 values"),
        ("a: &a [*a]", "nested too deeply"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
)
def test_wrong_run_files_are_explained(tmp_path, content, message):
    file = tmp_path / "run.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_yaml(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_run_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml does not exist"):
        read_yaml(tmp_path / "nowhere.yaml")


def test_the_description_is_plain_yaml_and_reads_back():
    config = read_config(
        {"optimizer": {"name": "adam", "lr": 0.1}, "schedule": "step", "loss": "mse", "epochs": 7}
    )
    again = read_config(yaml.safe_load(yaml.safe_dump(config.describe())))
    assert again == config


def test_numbers_of_any_kind_and_lists_are_described():
    optimizer = {"name": "adam", "betas": (0.8, 0.9), "weight_decay": np.float64(1e-3)}
    described = yaml.safe_load(yaml.safe_dump(read_config({"optimizer": optimizer}).describe()))
    assert described["optimizer"] == {"name": "adam", "betas": [0.8, 0.9], "weight_decay": 1e-3}


def test_objects_are_described_by_their_kind():
    config = read_config({"model": lambda: None, "data": {"train": ([1], [2])}, "loss": max})
    text = yaml.safe_dump(config.describe())
    assert "<tuple>" in text
    assert "<max>" in text
    assert " at 0x" not in text


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("mnits", "^no model 'mnits'; did you mean mnist[?]$"),
        ("xyz", "^no model 'xyz'; name your own as file.py:function, .* or one of Paceline's: mn"),
        ("mine.py", "^no model 'mine.py'; name the function in it, as in mine.py:build$"),
    ],
)
def test_a_model_that_there_cannot_be_is_told_before_data_is_looked_at(model, said):
    with pytest.raises(ConfigError, match=said):
        read_config({"model": model, "data": {"train": "nowhere.npz"}})


@pytest.mark.parametrize("model", ["mine.py:build", "a.b:c", "arch.json", "m.pt2", "<Sequential>"])
def test_models_of_users_pass(model):
    assert read_config({"model": model}).model == model
