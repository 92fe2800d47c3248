"""What a user's callback wants back from a checkpoint; nothing that it returns costs the run."""

import numpy as np
import pytest
from support.line_problem import BATCH, build, data

from paceline import Callback, Trainer
from paceline.checkpoint.saver import Saver
from paceline.checkpoint.store import Store
from paceline.comm import SoloWorld, run_world
from paceline.errors import Interrupted, OutputError
from paceline.frameworks.numpy import NumpyReplica


class Keeps(Callback):
    """Has a state, and is given back one."""

    def __init__(self, value):
        self.value, self.given = value, None

    def state(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def accept_state(self, state):
        self.given = state


def make(folder, *callbacks, world=None, model=build, **settings):
    given = {"loss": "mse", "progress": "off", "data": {"batch_size": BATCH}, "epochs": 2}
    given |= {"run_dir": str(folder)} | settings
    return Trainer(model, data(), callbacks=callbacks, world=world or SoloWorld(), **given)


def interrupted(folder, *callbacks, **settings):
    """A run that has saved and ended, before its first step was asked to."""
    trainer = make(folder, *callbacks, **settings)
    trainer.interrupt()
    with pytest.raises(Interrupted):
        trainer.fit()


@pytest.mark.parametrize(
    ("state", "given"),
    [
        ({"best": np.float32(0.5), "seen": np.int64(3)}, {"best": 0.5, "seen": 3}),
        ({"places": (1, (2.0, "x"))}, {"places": [1, [2.0, "x"]]}),
        (np.bool_(True), True),
    ],
)
def test_scalars_of_numpy_and_tuples_come_back_as_plain_values(tmp_path, state, given):
    interrupted(tmp_path / "run", Keeps(state))
    callback = Keeps(None)
    make(tmp_path / "run", callback, resume="auto").fit()
    assert callback.given == given


@pytest.mark.parametrize(
    "state", [{1: 2}, object(), {"a": {1, 2}}, np.zeros(2, complex), OSError("no")]
)
def test_a_state_that_no_file_can_hold_is_left_out_with_a_warning(tmp_path, capfd, state):
    def program(world):
        trainer = make(tmp_path / "run", Keeps(state), world=world, checkpoint_every="epoch")
        return trainer.fit().summary["epochs"]

    assert run_world(2, program) == [2, 2]
    assert "the state of the callback Keeps is not saved" in capfd.readouterr().err
    store = Store(tmp_path / "run" / "checkpoints")
    assert len(store.names()) == 2
    for name in store.names():
        store.check(name)


def test_any_failure_of_the_saver_is_reported_at_once(tmp_path, monkeypatch):
    store, said = Store(tmp_path), []
    saver = Saver(store, 1, said.append)
    monkeypatch.setattr("paceline.checkpoint.store.split", lambda tree: 1 / 0)
    assert saver.open(1) == 1
    saver.add(1, "common", {})
    assert isinstance(saver.finish(), OutputError)  # the thread has been there
    monkeypatch.undo()
    saver.commit(1, ["common"], {})
    problem = saver.finish()
    assert isinstance(problem, OutputError)
    assert len(said) == 1
    assert "ZeroDivisionError" in said[0]
    saver.close()


def test_an_optimizer_without_state_is_taken_up(tmp_path):
    class Plain(NumpyReplica):
        def optimizer_state(self):
            return {}

        def accept_optimizer_state(self, state):
            assert state == {}

    def model():
        def loss(arrays, batch):
            error = batch.inputs @ arrays["w"] - batch.targets
            return (error**2).mean(), {"w": 2 * batch.inputs.T @ error / len(error)}

        return Plain({"w": np.zeros((3, 1), np.float32)}, loss, 0.02)

    own = {"model": model, "loss": "cross_entropy"}
    interrupted(tmp_path / "run", **own)
    result = make(tmp_path / "run", resume="auto", **own).fit()
    assert result.summary["epochs"] == 2


def test_an_interruption_is_for_one_run_alone(tmp_path):
    trainer = make(tmp_path / "run", resume="auto")
    trainer.interrupt()
    with pytest.raises(Interrupted):
        trainer.fit()
    assert trainer.fit().summary["epochs"] == 2
