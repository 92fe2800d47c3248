"""Runs on files that are read in blocks are interrupted and go on, in the same windows."""

from collections import Counter

import h5py
import numpy as np
import pytest

from paceline.comm import run_world
from paceline.data import open_data
from paceline.errors import CheckpointError, ConfigError, Interrupted
from paceline.frameworks.numpy import NumpyReplica
from paceline.rules import BSP, EASGD
from paceline.training.callbacks import Callback
from paceline.training.trainer import Trainer

SAMPLES, EPOCHS = 90, 2


class Numbers:
    """A model that trains nothing and remembers which samples it has seen."""

    def __init__(self):
        self.seen = []

    def build(self):
        return NumpyReplica({"w": np.zeros(40)}, self._loss)

    def _loss(self, arrays, batch):
        self.seen += batch.inputs[:, 0].astype(int).tolist()
        return 1.0, {"w": np.ones(40)}


class StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_batch_end(self, trainer, step, logs):
        if step == self.step:
            trainer.interrupt()


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.data.formats.hdf5.BLOCK_BYTES", 1)
    numbers = np.arange(SAMPLES, dtype=np.float64)[:, None]
    for number, part in enumerate((numbers[:7], numbers[7:60], numbers[60:])):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=part, chunks=(5, 1))
    (tmp_path / "train.list").write_text("*.h5\n")
    return tmp_path


def go_on(folder, ranks, rule, stop=None, **data):
    """What all ranks saw."""
    settings = {"batch_size": 4, "keys": ["x", None], "shuffle_buffer": 12} | data

    def program(world):
        model = Numbers()
        trainer = Trainer(
            model.build, str(folder / "train.list"), world=world, rule=rule, epochs=EPOCHS,
            progress="off", run_dir=str(folder / "run"), resume="auto", data=settings,
            callbacks=[StopAt(stop)] if stop else [],
        )  # fmt: skip
        try:
            trainer.fit()
        except Interrupted:
            assert stop
        return model.seen

    return [sample for seen in run_world(ranks, program) for sample in seen]


@pytest.mark.parametrize("rule", [BSP(), EASGD(every=2)], ids=["bsp", "easgd"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_sample_comes_once_whoever_goes_on(files, rule, ranks):
    seen = go_on(files, 2, rule, stop=4)
    assert 0 < len(seen) < SAMPLES * EPOCHS
    with pytest.raises(
        CheckpointError, match=r"order_of_data was windows of 12 .* is windows of 20"
    ):
        go_on(files, 2, rule, shuffle_buffer=20)
    with pytest.raises(CheckpointError, match=r"order_of_data was windows of 12 .* is None"):
        go_on(files, 2, rule, shuffle_buffer=SAMPLES)
    seen += go_on(files, ranks, rule)
    assert Counter(seen) == dict.fromkeys(range(SAMPLES), EPOCHS)


def test_a_buffer_that_nothing_reads_is_refused(files):
    with pytest.raises(ConfigError, match=r"data\.shuffle_buffer is 12, and data\.shuffle is off"):
        go_on(files, 2, BSP(), shuffle=False)
    np.save(files / "x.npy", np.zeros((8, 1)))
    (files / "train.list").write_text("x.npy\n")
    with pytest.raises(ConfigError, match=r"train\.list is not read in blocks: all of it is"):
        go_on(files, 2, BSP(), keys=None)


def test_a_buffer_for_data_that_is_open_already_is_refused(files):
    opened = open_data(str(files / "train.list"), part="train", keys=["x", None])
    settings = {"shuffle_buffer": 12, "batch_size": 4}
    with pytest.raises(ConfigError, match="is read for data that is named by text only"):
        Trainer(Numbers().build, opened, data=settings, run_dir=str(files / "run")).fit()
