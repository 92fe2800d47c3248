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
    """Samples that take some time, and how many threads have read some at once."""

    def __init__(self, samples):
        self.samples, self.most, self._now, self._lock = samples, 0, 0, threading.Lock()

    def __len__(self):
        return self.samples

    def __getitem__(self, number):
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.01)
        with self._lock:
            self._now -= 1
        return np.zeros(2, np.float32), np.float32(0)


def replica():
    gradients = {"weights": np.zeros(2, np.float32)}
    return NumpyReplica({"weights": np.ones(2, np.float32)}, lambda arrays, batch: (1.0, gradients))


@pytest.mark.parametrize("rule", ["bsp", {"name": "easgd", "every": 1}])
@pytest.mark.parametrize("loaders", [1, 3])
def test_so_many_loaders_are_at_work(tmp_path, rule, loaders):
    def program(world):
        train, validation = Counted(60), Counted(24)
        summary = Trainer(
            replica, train, validation, epochs=1, progress="off", world=world, rule=rule,
            data={"batch_size": 1, "validation_batch_size": 1, "loaders": loaders},
            run_dir=str(tmp_path / "run"),
        ).fit().summary  # fmt: skip
        return summary["samples"], train.most, validation.most

    assert run_world(2, program) == [(60, loaders, loaders)] * 2


@pytest.mark.parametrize("loaders", [1, 3])
def test_shards_have_loaders_too(loaders):
    data = Counted(24)

    def count():
        return sum(len(targets) for _, targets in shard(data, 1, loaders=loaders))

    assert copy_context().run(count) == 24  # what was served is remembered
    assert data.most == loaders
