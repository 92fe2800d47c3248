"""The setting `data.loaders`, in training and validation, by every kind of rule."""

import threading
import time
from contextvars import copy_context

import numpy as np
import pytest

from paceline import Trainer, shard
from paceline.comm.threads import run_world
from paceline.frameworks.numpy import NumpyReplica


class Counted:
    """Samples, and how many threads have read some at once: the first wait for so many."""

    def __init__(self, samples, loaders):
        self.samples, self.loaders = samples, loaders
        self.most, self._now, self._changed = 0, 0, threading.Condition()

    def __len__(self):
        return self.samples

    def __getitem__(self, number):
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self.loaders, 30)
        time.sleep(0.001)  # were there more of them, they would come now
        with self._changed:
            self._now -= 1
        return np.zeros(2, np.float32), np.float32(0)


def replica():
    gradients = {"weights": np.zeros(2, np.float32)}
    return NumpyReplica({"weights": np.ones(2, np.float32)}, lambda arrays, batch: (1.0, gradients))


@pytest.mark.parametrize("rule", ["bsp", {"name": "easgd", "every": 1}])
@pytest.mark.parametrize("loaders", [1, 3])
def test_so_many_loaders_are_at_work(tmp_path, rule, loaders):
    def program(world):
        train, validation = Counted(60, loaders), Counted(24, loaders)
        summary = Trainer(
            replica, train, validation, epochs=1, progress="off", world=world, rule=rule,
            data={"batch_size": 1, "validation_batch_size": 1, "loaders": loaders},
            run_dir=str(tmp_path / "run"),
        ).fit().summary  # fmt: skip
        return summary["samples"], train.most, validation.most

    assert run_world(2, program) == [(60, loaders, loaders)] * 2


@pytest.mark.parametrize("loaders", [1, 3])
def test_shards_have_loaders_too(loaders):
    data = Counted(24, loaders)

    def count():
        return sum(len(targets) for _, targets in shard(data, 1, loaders=loaders))

    assert copy_context().run(count) == 24  # what was served is remembered
    assert data.most == loaders
