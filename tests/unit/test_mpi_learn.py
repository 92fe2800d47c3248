"""mpi_learn's classes, carried out by Paceline: what they mean, and that old bugs stay out."""

import json
import logging
import threading
from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
import pytest
import yaml

from paceline.cli import main
from paceline.comm import SoloWorld, run_world
from paceline.data import ArraySource
from paceline.data.formats.hdf5 import Hdf5File
from paceline.errors import ConfigError, DataError, ReplicaError
from paceline.frameworks import Replica
from paceline.mpi_learn import Algo, Data, H5Data, ModelBuilder, MPIManager, MPIModel
from paceline.mpi_learn.builders import build
from paceline.mpi_learn.model_files import mnist_architecture
from paceline.mpi_learn.own_model import OwnModelReplica
from paceline.mpi_learn.sources import DataSource, open_files
from paceline.mpi_learn.stops import read_stops
from paceline.rules import make_rule


class Line:
    """y = w x + b by gradient descent with a rate of its own."""

    def __init__(self, rate=0.1):
        self.weights = [np.zeros((1, 1), np.float32), np.zeros(1, np.float32)]
        self.rate = rate
        self.batches = 0

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = [array.copy() for array in weights]

    def _off(self, x, y):
        return x @ self.weights[0] + self.weights[1] - y

    def train_on_batch(self, x, y):
        self.batches += 1
        off = self._off(x, y)
        for array, gradient in zip(self.weights, (x.T @ off, off.sum(0)), strict=True):
            array -= 2 * self.rate * gradient / len(x)
        return float((off**2).mean())

    def test_on_batch(self, x, y):
        return float((self._off(x, y) ** 2).mean())


class CompiledLine(Line):
    def compile(self, loss, optimizer, metrics):
        self.rate, self.momentum = optimizer["lr"], optimizer["momentum"]


class Builder(ModelBuilder):
    def __init__(self, model):
        super().__init__(None)
        self.model = model

    def build_model(self):
        return self.model


class Points(Data):
    """File n holds so many samples as the table says; those of `val` lie on another line."""

    lengths: ClassVar = {"a": 7, "b": 0, "c": 12, "val": 9}

    def load_data(self, in_file):
        x = np.linspace(-1, 1, self.lengths[in_file], dtype=np.float32)[:, np.newaxis]
        return x, (5 * x + 3 if in_file == "val" else 2 * x + 1)


class Generated(Points):
    """The same in the user's own batches, as mpi_learn wants them."""

    def generate_data(self):
        for name in self.file_names:
            x, y = self.load_data(name)
            for first in range(0, len(x), self.batch_size):
                yield [x[first : first + self.batch_size]], [y[first : first + self.batch_size]]


def manage(tmp_path, model=None, data=None, algo=None, **more):
    settings = {"run_dir": str(tmp_path / "run"), "progress": "off", **more}
    return MPIManager(
        None,
        data or Points(4),
        algo or Algo("sgd", learning_rate=1.0),
        Builder(model or Line()),
        settings.pop("num_epochs", 3),
        settings.pop("train_list", ["a", "c"]),
        settings.pop("val_list", ["val"]),
        **settings,
    )


def test_the_master_s_optimizer_keeps_its_defaults():
    rule = make_rule(Algo("adam", sync_every=2).rule())
    assert (rule.name, rule.push_every, rule.pull_every) == ("downpour", 2, 2)
    assert (rule.optimizer.name, rule.optimizer.lr, rule.optimizer.beta2) == ("adam", 0.001, 0.999)
    assert make_rule(Algo("sgd").rule()).optimizer.lr == 0.01
    adadelta = make_rule(Algo("adadelta", rho=0.5).rule()).optimizer
    assert (adadelta.rho, adadelta.eps) == (0.5, 1e-8)
    assert make_rule(Algo("rmsprop", rho=0.7).rule()).optimizer.alpha == 0.7


def test_a_push_is_a_gradient_and_elastic_settings_are_the_workers():
    assert Algo("adam").optimizer() == {"name": "sgd", "lr": 1.0, "momentum": 0.0}
    assert Algo("adam", sync_every=4).optimizer()["lr"] == 0.05
    elastic = Algo(None, mode="easgd", elastic_lr=0.3, elastic_momentum=0.9, elastic_force=0.2)
    wanted = {"name": "sgd", "lr": 0.3, "momentum": 0.9, "nesterov": True}
    assert elastic.optimizer() == wanted
    rule = make_rule(elastic.rule())
    assert (rule.name, rule.force) == ("easgd", 0.2)
    own = Algo("adam", worker_optimizer="adam", worker_optimizer_params={"learning_rate": 0.02})
    assert own.optimizer() == {"name": "adam", "lr": 0.02}


@pytest.mark.parametrize("algo", [Algo("adam"), Algo(None, mode="easgd")], ids=lambda a: a.mode)
@pytest.mark.parametrize(
    ("masters", "synchronous", "servers"),
    [(1, False, 1), (2, False, 2), (0, False, 0), (1, True, None)],
)
def test_masters_are_servers_and_synchronous_workers_need_none(
    tmp_path, algo, masters, synchronous, servers
):
    def program(world):
        manager = manage(
            tmp_path, algo=algo, num_epochs=1, num_masters=masters, synchronous=synchronous
        )
        manager.train()
        return manager.num_workers

    assert run_world(4, program) == [4 - (servers or 0)] * 4
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["exchange"]["servers"] == servers
    assert config["rule"]["synchronous"] == synchronous


def test_masters_and_other_settings_of_the_exchange_go_together(tmp_path):
    def program(world):
        manager = manage(
            tmp_path, algo=Algo(None, mode="easgd"), num_epochs=1, exchange={"overlap": True}
        )
        manager.train()

    run_world(3, program)
    exchange = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["exchange"]
    assert (exchange["servers"], exchange["overlap"]) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("adam",), {"sync_evry": 2}, r"no option sync_evry; .* Did you mean 'sync_every'\?"),
        (("sgd",), {"beta_1": 0.9}, "optimizer sgd has no option beta_1"),
        ((None,), {"mode": "easgd", "learning_rate": 1}, "easgd has no master's optimizer"),
        (("adam",), {"mode": "gem"}, "mode is 'gem', expected one of: sgd, downpour, easgd"),
        (("lion",), {}, "optimizer is 'lion', expected one of: sgd, adadelta, rmsprop, adam"),
    ],
)
def test_what_algo_does_not_know_is_an_error(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        Algo(*arguments, **options)


def test_stops():
    assert read_stops(None, None) == {}
    assert read_stops(4, None) == read_stops("val_loss,<,4", None) == {"patience": 4}
    assert read_stops(None, "val_acc,>,0.97") == {"target": "val_accuracy>0.97"}
    for wrong in ("val_acc,~>,3", "0", "soon", "val_loss,<"):
        with pytest.raises(ConfigError, match="early_stopping"):
            read_stops(wrong, None)
    with pytest.raises(ConfigError, match="target_metric"):
        read_stops(None, "model:val_loss,<,1")


def test_batches_run_over_files_and_the_last_is_kept():
    data = Points(5)
    data.set_file_names(["a", "b", "c"])
    sizes = [len(x) for x, _ in data.generate_data()]
    assert sizes == [5, 5, 5, 4]
    assert data.count_data() == 19


@pytest.mark.parametrize("kind", [Points, Generated])
def test_every_sample_of_every_file_can_be_had(kind):
    source = DataSource(kind(5), ["a", "b", "c"], "training")
    assert len(source) == 19
    whole = source.take(np.arange(19))
    expected = np.concatenate([Points(1).load_data(name)[0] for name in "ac"])
    assert np.array_equal(whole.inputs, expected)
    assert np.array_equal(source.take(np.array([18, 0, 7])).inputs, expected[[18, 0, 7]])
    assert sorted(source.order(1, 0).tolist()) == list(range(19))


@pytest.mark.parametrize("kind", [Points, H5Data])
def test_rank_0_looks_into_the_files_for_all(kind, tmp_path, monkeypatch):
    names = ["a", "b", "c"]
    if kind is H5Data:
        names = [str(tmp_path / f"{number}.h5") for number in range(3)]
        for name in names:
            with h5py.File(name, "w") as file:
                file["features"], file["labels"] = np.ones((4, 1), np.float32), np.arange(4)
    ranks, loaded = threading.local(), []
    load, read = Points.load_data, Hdf5File.__init__
    monkeypatch.setattr(Points, "load_data", lambda *a: loaded.append(ranks.rank) or load(*a))
    monkeypatch.setattr(Hdf5File, "__init__", lambda *a: loaded.append(ranks.rank) or read(*a))

    def program(world):
        ranks.rank = world.rank
        return len(open_files(world, kind(5), names, "training"))

    samples = run_world(3, program)
    assert samples == [19 if kind is Points else 12] * 3
    assert loaded == [0] * 3


def test_files_larger_than_the_window_are_asked_for_one_by_one(monkeypatch):
    monkeypatch.setattr("paceline.data.files.blocks.WINDOW_BYTES", 8 * 5)
    source = DataSource(Points(5), ["a", "c"], "training")
    assert source.order_facts is not None
    order = source.order(1, 0)
    assert sorted(order.tolist()) == list(range(19))
    assert np.ptp(np.flatnonzero(order < 7)) == 6  # all of a file, then all of the other


def test_several_inputs_and_lists_of_one(monkeypatch):
    monkeypatch.setattr(
        Points, "load_data", lambda self, name: ([np.zeros(3), np.ones(3)], [np.ones(3)])
    )
    batch = DataSource(Points(2), ["a"], "training").take(np.array([1]))
    assert [array.tolist() for array in batch.inputs] == [[0.0], [1.0]]
    assert batch.targets.tolist() == [1.0]


def test_files_that_do_not_fit_are_named(monkeypatch):
    shapes = {"a": (3, 2), "c": (3, 4)}
    monkeypatch.setattr(
        Points, "load_data", lambda self, name: (np.zeros(shapes[name]), np.ones(3))
    )
    with pytest.raises(
        DataError, match=r"c gave samples of float64 \(4,\).*and a of float64 \(2,\)"
    ):
        DataSource(Points(2), ["a", "c"], "training")
    monkeypatch.setattr(Points, "load_data", lambda self, name: (np.zeros(2), np.ones(3)))
    with pytest.raises(DataError, match="a gave arrays of 2 and 3 samples"):
        DataSource(Points(2), ["a"], "training")
    monkeypatch.undo()
    with pytest.raises(DataError, match="nowhere cannot be loaded: KeyError"):
        DataSource(Points(2), ["nowhere"], "training")
    with pytest.raises(DataError, match="holds no samples"):
        DataSource(Points(2), ["b"], "training")


def test_a_file_that_is_longer_the_next_time_is_an_error(monkeypatch):
    source = DataSource(Points(2), ["a"], "training")
    monkeypatch.setattr(Points, "lengths", {"a": 8})
    with pytest.raises(DataError, match="a gave 8 samples, and 7 when it was first read"):
        source.take(np.array([0]))


def test_hdf5_files_are_read_without_loading_them(tmp_path):
    h5py = pytest.importorskip("h5py")
    for number, samples in enumerate((3, 5)):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["X"] = np.full((samples, 2), number, np.float32)
            file["Y"] = np.zeros(samples, np.float32)
    names = sorted(map(str, tmp_path.glob("*.h5")))
    data = H5Data(4, features_name="X", labels_name="Y")
    data.set_file_names(names)
    assert data.count_data() == 8
    assert data.load_data(names[1])[0].shape == (5, 2)
    assert open_files(SoloWorld(), data, names, "training").take(np.array([7, 0])).inputs[
        :, 0
    ].tolist() == [
        1,
        0,
    ]
    assert open_files(SoloWorld(), data, "train.list", "training") == "train.list"
    assert [len(x) for x, _ in data.generate_data()] == [4, 4]
    data.set_caching_directory(str(tmp_path / "cache"))
    listed = Path(open_files(SoloWorld(), data, names, "training"))
    assert listed.read_text().splitlines() == names


def test_a_model_of_one_s_own_trains_as_it_does_alone():
    x = np.linspace(-1, 1, 8, dtype=np.float32)[:, np.newaxis]
    batch = ArraySource(x, 2 * x + 1).take(np.arange(8))
    replica, alone = OwnModelReplica(Line()), Line()
    assert isinstance(replica, Replica)
    for _ in range(5):
        loss = replica.gradients(batch)
        replica.apply()
        assert loss == alone.train_on_batch(batch.inputs, batch.targets)
    replica.release()
    for mine, wanted in zip(replica.module.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-6)


def test_parts_of_a_batch_add_up_and_foreign_weights_count():
    x = np.linspace(-1, 1, 8, dtype=np.float32)[:, np.newaxis]
    batch = ArraySource(x, 2 * x + 1).take(np.arange(8))
    whole, parts = OwnModelReplica(Line()), OwnModelReplica(Line())
    whole.gradients(batch)
    for index, part in enumerate(batch.split(2)):
        parts.gradients(part, weight=0.5, add=index > 0)
    np.testing.assert_allclose(
        parts.collect_gradients()[0], whole.collect_gradients()[0], rtol=1e-5
    )
    whole.parameters()[:] = 0.0
    whole.layout.views(whole.parameters())[1][:] = 9.0
    assert whole.evaluate(batch)["loss"] == pytest.approx(8 * ((9 - (2 * x + 1)) ** 2).mean(), 1e-5)


def test_what_is_no_model_is_refused():
    assert build(Builder(MPIModel(model=Line())), seed=1).rate == 0.1
    with pytest.raises(
        ReplicaError, match="returned a int, expected a Keras model, a torch module"
    ):
        build(Builder(3), seed=1)
    with pytest.raises(ConfigError, match="several models"):
        MPIModel(models=[Line(), Line()])


@pytest.mark.parametrize("kind", [Points, Generated])
def test_a_single_process_validates_on_the_validation_data(tmp_path, kind):
    manager = manage(tmp_path, data=kind(4), num_epochs=30)
    histories = manager.process.train()
    own = histories["0"]
    assert len(own["loss"]) == len(own["val_loss"]) == 30
    assert own["loss"][-1] < 0.01
    assert own["val_loss"][-1] > 1  # another line
    assert manager.process.model.get_weights()[1] == pytest.approx(1.0, abs=0.05)
    assert manager.is_master
    assert manager.figure_of_merit() == own["val_loss"][-1]
    assert manager.process.train() is histories  # once


def test_early_stopping_and_targets(tmp_path):
    away = manage(tmp_path / "1", num_epochs=50, early_stopping="val_loss,~<,2")
    assert len(away.train()["0"]["val_loss"]) < 50
    near = manage(tmp_path / "2", num_epochs=50, target_metric=("val_loss", "<", 1e9))
    assert len(near.train()["0"]["val_loss"]) == 1


@pytest.mark.parametrize(("every", "validations"), [(0, 0), (10, 2), (5, 4), (3, 4)])
def test_validation_is_counted_in_updates(tmp_path, every, validations, caplog, monkeypatch):
    algo = Algo("sgd", learning_rate=1.0, validate_every=every)
    monkeypatch.setattr(logging.getLogger("paceline"), "propagate", True)
    manager = manage(tmp_path, algo=algo, num_epochs=4, train_list=["c", "a"])
    with caplog.at_level(logging.WARNING, "paceline.mpi_learn"):
        own = manager.train()["0"]
    assert len(own.get("val_loss", ())) == validations
    assert ("updates, that is 0.63 epochs" in caplog.text) == (every == 3)


def test_the_rate_of_the_workers_takes_effect(tmp_path):
    losses = []
    for rate in (1e-6, 0.05):
        algo = Algo(None, mode="easgd", elastic_lr=rate, elastic_momentum=0.5)
        model = CompiledLine()
        losses.append(manage(tmp_path / str(rate), model, algo=algo).train()["0"]["loss"][-1])
        assert (model.rate, model.momentum) == (rate, 0.5)
    assert losses[0] > 2 > 1 > losses[1]


def test_details_and_going_on(tmp_path):
    where = {"run_dir": str(tmp_path / "saved"), "checkpoint": str(tmp_path / "saved")}
    first, second = Line(), Line()
    manage(tmp_path, first, **where).train()
    manager = manage(tmp_path, second, num_epochs=5, resume="auto", **where)
    manager.train()
    assert (first.batches, second.batches) == (3 * 5, 2 * 5)  # the second after three of five
    name = tmp_path / "history.json"
    manager.process.record_details(str(name), meta={"args": {"batch": 4}})
    told = json.loads(name.read_text())
    assert told["args"] == {"batch": 4}
    assert len(told["history"]["0"]["loss"]) == 5
    assert told["run_directory"] == str(tmp_path / "saved")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_processes": 2}, "start more ranks"),
        ({"worker_callbacks": [object()]}, "run once, on the leading rank"),
        ({"num_masters": -1}, "num_masters is -1"),
        ({"batch": 3}, "batch is not a setting"),
        ({"data": Points(4, cache="/dev/shm")}, "Points loads its own"),
        ({"train_list": "train.list"}, "expected a list of names"),
    ],
)
def test_what_the_manager_refuses(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        manage(tmp_path, **settings).train()


def test_a_communicator_of_another_size_is_refused(tmp_path):
    class Comm:
        def Get_size(self):
            return 2

        def Get_rank(self):
            return 1

    with pytest.raises(ConfigError, match=r"comm has 2 ranks.*pass MPI.COMM_WORLD"):
        MPIManager(Comm(), Points(4), Algo("sgd"), Builder(Line()), 1, ["a"], ["val"])


def test_the_command_names_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["mpi-learn", "build", "mnist"]) == 0
    assert json.loads((tmp_path / "mnist_arch.json").read_text()) == mnist_architecture()
    words = ["mpi-learn", "mnist_arch.json", "train.list", "test.list"]
    for more, message in [
        (["--gem-lr", "0.1"], "--gem-lr: mode gem does not exist here"),
        (["--processes", "2"], "--processes: a worker is one rank"),
        (["--mode", "gem"], "mode is 'gem'"),
        (["--easgd", "--mode", "sgd"], "--easgd and --mode sgd: give one"),
        (["--elastic-force", "0.5"], "--elastic-force is for --mode easgd"),
        (["--torch"], "mnist_arch.json is not a file of this kind; expected .torch"),
        (["--worker-optimizer-params", "lr=3"], "expected {'lr': 0.1, ...}"),
        (["--restarts", "1"], "--restarts needs --checkpoint DIR"),
        ([], "there is no list train.list"),
    ]:
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err, more
    assert main(["mpi-learn", "build", "alexnet"]) == 2
    assert (
        "there is no model 'alexnet' to build; known: mnist, mnist_pytorch"
        in capsys.readouterr().err
    )
