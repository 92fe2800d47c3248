"""Config files of Theano-MPI, in today's words."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config.reading import read_config
from paceline.config.run import RunConfig
from paceline.config.theano_mpi import is_old, read_run_file, translate
from paceline.config.theano_mpi_keys import KEYS
from paceline.errors import ConfigError

EXAMPLE = Path(__file__).parents[3] / "examples" / "bsp_2016.yaml"
BSP, EASGD = {"sync_rule": "BSP"}, {"sync_rule": "EASGD"}
SCALED = (
    "(Theano-MPI multiplied it by the number of workers, Paceline does not; for the same training "
    "give --lr with the product)"
)


def test_bsp_as_in_the_example():
    settings, lines = read_run_file(EXAMPLE, {})
    assert settings == {
        "rule": {"name": "average", "every": 2},
        "exchange": {"wire": "float32"},
        "epochs": 2,
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0005},
        "schedule": {"name": "step", "at": [1], "gamma": 0.1},
        "data": {"batch_size": 64, "train": "digits"},
        "seed": 23455,
    }
    assert lines == (
        f"{EXAMPLE} has the settings of Theano-MPI; in Paceline they are:",
        "sync_rule: BSP -> rule.name: average",
        "avg_freq: 2 -> rule.every: 2",
        "worker_type: avg -> rule.name: average (with SGD and 1 step, the same as gradients)",
        "exch_strategy: asa32 -> exchange.wire: float32 (between nodes)",
        "n_epochs: 2 -> epochs: 2",
        f"learning_rate: 0.05 -> optimizer.lr: 0.05 {SCALED}",
        "lr_policy: step -> schedule.name: step",
        "lr_step: [1] -> schedule.name: step, schedule.at: [1], schedule.gamma: 0.1",
        "momentum: 0.9 -> optimizer.momentum: 0.9",
        "weight_decay: 0.0005 -> optimizer.weight_decay: 0.0005 (for all parameters; in "
        "Theano-MPI not for biases)",
        "batch_size: 64 -> data.batch_size: 64 (per rank, as in Theano-MPI)",
        "weight_init_seed: 23455 -> seed: 23455",
        "sync_start: True (all ranks start together)",
        "para_load: True (as always: batches are prepared in the background (data.prefetch))",
        "sock_data: 5020 (not needed: no port is opened)",
    )
    config = read_config(settings)
    assert read_config(config.describe()).describe() == config.describe()  # config.yaml runs again
    assert (config.rule.name, config.rule.every, config.epochs) == ("average", 2, 2)


def test_easgd_as_in_the_ancestors_readme():
    settings, lines = translate({"sync_rule": "EASGD", "sync_start": False, "avg_freq": 2})
    assert settings == {"rule": {"name": "easgd", "every": 2}, "elastic": True}
    assert lines == (
        "sync_rule: EASGD -> rule.name: easgd",
        "sync_start: False -> elastic: True (more workers join with paceline join RUN -n N)",
        "avg_freq: 2 -> rule.every: 2",
    )
    assert read_config(settings).rule.every == 2


RULES = [
    (BSP | {"avg_freq": 1}, {"name": "bsp"}),
    (BSP | {"avg_freq": 4}, {"name": "average", "every": 4}),
    (BSP | {"avg_freq": 1, "train_mode": "cdd"}, {"name": "bsp"}),
    (BSP | {"sync_freq": 1, "worker_type": "avg"}, {"name": "average", "every": 1}),
    (BSP | {"worker_type": "avg"}, {"name": "average", "every": 1}),
    (BSP | {"alpha": 0.5}, {"name": "bsp"}),
    (EASGD | {"alpha": 0.5, "worker_type": "cdd"}, {"name": "easgd", "force": 0.5}),
    (EASGD | {"server_alpha": 0.9, "worker_alpha": 0.5}, {"name": "easgd", "force": 0.5}),
    (EASGD | {"server_alpha": 0.9}, {"name": "easgd", "force": 0.9}),
    (EASGD | {"exch_strategy": "asa16"}, {"name": "easgd"}),
    ({"worker_type": "EASGD", "sync_freq": 8}, {"name": "easgd", "every": 8}),
    ({"n_epochs": 3, "avg_freq": 2}, {"name": "average", "every": 2}),
    ({"sync_rule": "easgd"}, {"name": "easgd"}),
]


@pytest.mark.parametrize(("old", "rule"), RULES)
def test_rules(old, rule):
    settings, _ = translate(old)
    assert settings["rule"] == rule
    described = read_config(settings).describe()["rule"]
    assert described.items() >= rule.items()


SGD = {"name": "sgd"}
OTHERS = [
    ({"exch_strategy": "ar"}, {"exchange": {"wire": "float32"}}),
    ({"exch_strategy": "nccl16"}, {"exchange": {"wire": "float16"}}),
    ({"fp": 16, "cuda_aware": True}, {"exchange": {"wire": "float16"}}),
    ({"name": "vggnet"}, {"model": "vgg"}),
    ({"name": "googlenet", "n_softmax_out": 1000}, {"model": "googlenet"}),
    ({"n_epochs": 70}, {"epochs": 70}),
    ({"batch_size": 128}, {"data": {"batch_size": 128}}),
    ({"learning_rate": 0.01}, {"optimizer": SGD | {"lr": 0.01}}),
    ({"momentum": 0.99}, {"optimizer": SGD | {"momentum": 0.99}}),
    ({"momentum": 0.9, "use_momentum": False}, {"optimizer": SGD | {"momentum": 0.0}}),
    ({"use_nesterov_momentum": True}, {"optimizer": SGD | {"nesterov": True}}),
    ({"use_nesterov_momentum": False}, {}),
    ({"weight_decay": 2e-4}, {"optimizer": SGD | {"weight_decay": 2e-4}}),
    ({"lr_step": 20}, {"schedule": {"name": "step", "every": 20, "gamma": 0.1}}),
    (
        {"n_epochs": 60, "lr_policy": "step", "lr_step": [20, 40]},
        {"epochs": 60, "schedule": {"name": "step", "at": [20, 40], "gamma": 0.1}},
    ),
    ({"val_freq": 2}, {"validate_every": 2}),
    ({"snapshot_freq": 5}, {"checkpoint_every": "epoch"}),
    ({"resume_train": True, "load_path": "runs/a"}, {"resume": "runs/a"}),
    ({"resume_train": True}, {"resume": "auto"}),
    ({"resume_train": False, "load_path": "runs/a", "load_epoch": 20}, {}),
    ({"shuffle": False}, {"data": {"shuffle": False}}),
    ({"random": False}, {"data": {"shuffle": False}}),
    ({"weight_init_seed": 7, "dropout_init_seed": 3}, {"seed": 7}),
    ({"para_load": False}, {"data": {"prefetch": 0}}),
    ({"load_path": None}, {}),
]


@pytest.mark.parametrize(("old", "today"), OTHERS)
def test_other_settings(old, today):
    settings, lines = translate(BSP | old)
    assert settings == {"rule": {"name": "bsp"}} | today
    assert len(lines) == 1 + sum(value is not None for value in old.values())
    read_config(settings)


def test_settings_of_today_may_stand_beside_old_ones():
    file = EASGD | {"learning_rate": 0.1, "name": "customized", "train_folder": "/train_hkl/"}
    today = {"model": "net.py:build", "data": {"train": "x.npz"}, "optimizer": "adam", "seed": 4}
    settings, lines = translate(file | today)
    assert settings == {
        "rule": {"name": "easgd"},
        "optimizer": {"name": "adam", "lr": 0.1},
        "model": "net.py:build",
        "data": {"train": "x.npz"},
        "seed": 4,
    }
    assert "name: customized (not used: a model is given)" in lines


def test_the_command_line_wins_and_fills_gaps():
    given = {"model": "alexnet", "data": {"train": "x.npz"}, "optimizer": {"lr": 0.4}}
    file = BSP | {"name": "cnncifar10", "n_softmax_out": 10, "train_folder": "/t/"}
    settings, lines = translate(
        file | {"learning_rate": 0.1, "lr_policy": "auto"}, given | {"schedule": "cosine"}
    )
    assert settings == {"rule": {"name": "bsp"}, "optimizer": {"name": "sgd", "lr": 0.1}}
    assert any(line.endswith("product; the command line overrides it)") for line in lines)
    other = read_config(settings, {"optimizer": {"name": "adam"}})
    assert other.optimizer.lr is None  # another optimizer forgets what was the first one's


WRONG = [
    (BSP | {"avg_freq": 2, "train_mode": "cdd"}, "avg_freq is 2 and the workers' type cdd"),
    (BSP | {"worker_type": "sum"}, "worker_type is 'sum', expected avg or cdd"),
    ({"sync_rule": "ASGD"}, "sync_rule is 'ASGD', expected BSP or EASGD; .* downpour"),
    (BSP | {"avg_freq": 2, "sync_freq": 3, "worker_type": "avg"}, "two values for rule.every"),
    (
        BSP | {"fp": 32, "exch_strategy": "asa16"},
        "fp and exch_strategy give two values for exchange.wire",
    ),
    (BSP | {"exch_strategy": "zip"}, "exch_strategy is 'zip', expected one of: ar, asa32"),
    (BSP | {"fp": 8}, "fp is 8, expected 16 or 32"),
    (BSP | {"rule": "bsp"}, "sync_rule and rule.name set the same thing"),
    (BSP | {"n_epochs": 3, "epochs": 4}, "n_epochs and epochs set the same thing"),
    (BSP | {"random": False, "shuffle": True}, "random and shuffle give two values"),
    (BSP | {"name": "customized"}, "name is 'customized', which Paceline does not have .* file.py"),
    (BSP | {"name": "alexnet", "n_softmax_out": 10}, "n_softmax_out is 10, and the model has 1000"),
    (BSP | {"train_folder": "/t/"}, "hickle files of Theano-MPI are not supported"),
    (BSP | {"lr_policy": "auto"}, "lr_policy is 'auto', and only step is supported"),
    (BSP | {"lr_policy": "step"}, "lr_step is missing"),
    (BSP | {"lr_step": [0.5]}, r"lr_step is \[0.5\], expected epochs as in"),
    (BSP | {"debug": True}, "debug is True: it trained on a few files"),
    (BSP | {"pretrain": True}, "pretrain is True"),
    (BSP | {"sync_start": "maybe"}, "sync_start is 'maybe', expected True or False"),
    (BSP | {"avg_frq": 2}, "'avg_frq' is not a setting of Theano-MPI or Paceline; .* avg_freq"),
    (BSP | {"momentun": 2, "fp": 8}, "momentun.* did you mean momentum.*; fp is 8"),
    (BSP | {7: 2}, "7 is not a setting"),
]


@pytest.mark.parametrize(("old", "words"), WRONG)
def test_what_is_refused(old, words):
    with pytest.raises(ConfigError, match=words):
        translate(old)


def test_values_are_checked_as_always():
    with pytest.raises(ConfigError, match=r"rule.every is 0"):
        read_config(translate(EASGD | {"avg_freq": 0}).settings)


def test_the_models_own_file_is_read_as_well(tmp_path):
    (tmp_path / "config.yaml").write_text("sync_rule: BSP\nname: alexnet\nbatch_size: 32\n")
    (tmp_path / "alexnet.yaml").write_text("n_epochs: 70\nbatch_size: 128\nname: alexnet\n")
    settings, lines = read_run_file(tmp_path / "config.yaml", {})
    assert (settings["epochs"], settings["data"]) == (70, {"batch_size": 128})
    assert "config.yaml and alexnet.yaml have the settings of Theano-MPI" in lines[0]
    (tmp_path / "alexnet.yaml").write_text("epochs: 3\n")  # Paceline's: not part of that config
    settings, lines = read_run_file(tmp_path / "config.yaml", {})
    assert "epochs" not in settings


def test_a_name_does_not_lead_out_of_the_folder(tmp_path):
    (tmp_path / "secret.yaml").write_text("n_epochs: 70\n")
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "config.yaml"
    path.write_text("sync_rule: BSP\nname: ../secret\nmodel: alexnet\n")
    settings, _ = read_run_file(path, {})
    assert "epochs" not in settings


def test_run_files_of_today_are_left_alone(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("rule: bsp\nmomentum: 0.9\n")
    assert read_run_file(path, {}) == ({"rule": "bsp", "momentum": 0.9}, ())
    with pytest.raises(ConfigError, match=r"momentum is not a setting; did you mean optimizer"):
        read_config(read_run_file(path, {}).settings)
    assert not is_old({})


def test_no_key_has_two_meanings():
    assert not KEYS.keys() & RunConfig.model_fields.keys()


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from(["BSP", "EASGD", "avg", "cdd", "asa16", "step", "alexnet", 10**5000]),
    st.lists(st.integers(0, 3), max_size=3), st.dictionaries(st.text(max_size=3), st.integers()),
)  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(KEYS)), values, max_size=8))
def test_whatever_the_values_the_answer_is_settings_or_a_fault(old):
    try:
        settings, lines = translate(old)
    except ConfigError:
        return
    assert len(lines) == sum(value is not None for value in old.values())
    assert all(line.isprintable() for line in lines)
    with contextlib.suppress(ConfigError):
        read_config(settings)
