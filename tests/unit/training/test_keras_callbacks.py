"""Callbacks of Keras among ours, and how a learning rate gets to asynchronous workers."""

import numpy as np
import pytest

from paceline import Callback
from paceline.comm import run_world
from paceline.errors import ConfigError
from paceline.frameworks.numpy import NumpyReplica
from paceline.training.keras_callbacks import KerasAdapter, RateBroadcast, adapt_callbacks
from paceline.training.trainer import Trainer

OfKeras = type("Callback", (), {"__module__": "keras.src.callbacks.callback"})
"""Keras' own class by its name; nothing else of it is looked at here."""


class Derived(OfKeras):
    pass


def test_callbacks_of_keras_come_together_at_the_place_of_the_first():
    ours, others = [Callback(), Callback()], [Derived(), Derived()]
    adapted = adapt_callbacks([ours[0], others[0], ours[1], others[1]])
    assert [adapted[0], adapted[2]] == ours
    assert isinstance(adapted[1], KerasAdapter)
    assert adapted[1]._callbacks == others


def test_our_own_callbacks_are_left_as_they_are():
    ours = [Callback(), object()]
    assert adapt_callbacks(ours) == ours


def test_callbacks_of_keras_need_a_model_of_keras(tmp_path):
    def gradients(arrays, batch):
        return 0.0, {"w": np.zeros(1, np.float32)}

    replica = NumpyReplica({"w": np.zeros(1, np.float32)}, gradients)
    data = np.zeros((8, 1), np.float32)
    trainer = Trainer(
        replica, (data, data), epochs=1, callbacks=[Derived()], progress="off",
        run_dir=str(tmp_path),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"Derived is a callback of Keras.*paceline\.Callback"):
        trainer.fit()


def test_others_hear_the_latest_rate_and_no_message_is_left():
    def program(world):
        rates, heard = RateBroadcast(world), []
        for rate in (0.1, 0.1, 0.05, None):
            if world.rank == 0:
                rates.send(rate)
            world.barrier()
            heard.append(rates.latest())
            world.barrier()
        if world.rank == 0:
            rates.send(0.025)
        return heard, rates.close(), rates._received, len(rates._sent)

    told, *others = run_world(3, program)
    assert told == ([None] * 4, None, 0, 6)  # 0.1 is not sent twice
    assert others == [([0.1, None, 0.05, None], 0.025, 3, 0)] * 2


def test_a_rank_alone_has_nobody_to_tell():
    def program(world):
        rates = RateBroadcast(world)
        rates.send(0.1)
        return rates.close()

    assert run_world(1, program) == [None]
