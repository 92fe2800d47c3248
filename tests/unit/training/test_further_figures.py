"""Figures of a validation beyond loss and accuracy: a replica may have some of its own."""

import numpy as np
import pytest

from paceline import Trainer
from paceline.comm.threads import run_world
from paceline.errors import ConfigError
from paceline.frameworks.numpy import NumpyReplica


class Measured(NumpyReplica):
    """Tells the mean of what it was validated on."""

    def evaluate(self, batch):
        return super().evaluate(batch) | {"seen": np.array([batch.inputs.sum(), batch.samples])}

    def figures(self, sums):
        total, samples = sums["seen"]
        return {"mean": float(total / samples)}


def replica():
    arrays = {"weights": np.ones(2, np.float32)}
    return Measured(arrays, lambda arrays, batch: (1.0, {"weights": np.zeros(2, np.float32)}))


def fit(tmp_path, target, world=None):
    data = np.arange(8.0).reshape(8, 1)
    stop = {"target": target}
    settings = {"epochs": 3, "stop": stop, "progress": "off", "run_dir": str(tmp_path / "run")}
    return Trainer(replica, data, data, world=world, **settings).fit()


def test_a_target_may_be_one_of_them(tmp_path):
    results = run_world(2, lambda world: fit(tmp_path, "val_mean>=3.5", world))
    for result in results:
        assert [record.metrics for record in result.history] == [{"val_mean": 3.5}]
        assert "val_mean is 3.5000" in result.summary["stopped"]


def test_a_target_that_there_is_not_is_refused_at_the_first_validation(tmp_path):
    with pytest.raises(ConfigError, match="have no val_auc; use one of: val_loss, val_mean"):
        fit(tmp_path, "val_auc>=0.9")
