"""A loss or a gradient that is not finite stays with the worker that made it."""

import re
import threading

import numpy as np
import pytest
import torch
from support.async_runs import RULES as FREE
from support.line_problem import BATCH, SAMPLES, build, data, weights
from torch import nn

import paceline
from paceline.comm import SoloWorld, run_world
from paceline.errors import ConfigError, ReplicaError, TrainingError
from paceline.rules import BSP, EASGD, Average, DiLoCo
from paceline.training.callbacks import Callback
from paceline.training.trainer import Trainer

RULES = {
    "bsp": (BSP(), {}, 3),
    "bsp alone": (BSP(), {}, 1),
    "powersgd": (BSP(), {"wire": "powersgd", "powersgd_rank": 1}, 3),
    "average": (Average(every=2), {}, 3),
    "diloco": (DiLoCo(every=2), {}, 3),
} | FREE
every_rule = pytest.mark.parametrize(("rule", "exchange", "ranks"), RULES.values(), ids=RULES)


class SteepAtZero(nn.Module):
    """A line whose gradient is infinite where the input is zero, and its output is not."""

    def __init__(self):
        super().__init__()
        self.line = build()

    def forward(self, x):
        scale = (self.line.weight * x.abs().sum(1, keepdim=True).min()).square().sum()
        return self.line(x) + 1e-9 * torch.sqrt(scale)


def fit(folder, ranks, rule, train, model=build, **settings):
    def program(world):
        trainer = Trainer(
            model, train, world=world, rule=rule, epochs=2, loss="mse", progress="off",
            optimizer={"lr": 0.02, "momentum": 0.0}, data={"batch_size": BATCH},
            run_dir=str(folder), **settings,
        )  # fmt: skip
        return trainer.fit(), trainer._training_run.worker.stepper.rejected

    return run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]


def poisoned(value=np.nan, rows=(50,)):
    inputs, targets = data()
    inputs = inputs.copy()
    inputs[list(rows)] = value
    return inputs, targets


@every_rule
def test_a_loss_that_is_not_finite_is_rejected(tmp_path, rule, exchange, ranks):
    found = fit(tmp_path / "run", ranks, rule, poisoned(), exchange=exchange)
    assert sum(rejected for _, rejected in found) == 2  # once an epoch
    for result, _ in found:
        assert np.isfinite(weights(result.model)).all()
        assert weights(result.model).tobytes() == weights(found[0][0].model).tobytes()


@every_rule
def test_a_gradient_that_is_not_finite_is_rejected(tmp_path, rule, exchange, ranks):
    found = fit(tmp_path / "run", ranks, rule, poisoned(0.0), SteepAtZero, exchange=exchange)
    assert sum(rejected for _, rejected in found) == 2
    for result, _ in found:
        assert np.isfinite(weights(result.model)).all()


@pytest.mark.parametrize(
    ("value", "model", "what"),
    [(np.nan, build, "the loss is nan"), (0.0, SteepAtZero, "a gradient is not finite")],
    ids=["loss", "gradient"],
)
def test_a_warning_names_step_rank_and_samples(tmp_path, capsys, value, model, what):
    """Of one rank alone: ranks that are threads set the logging of their process up at once."""
    fit(tmp_path / "run", 1, BSP(), poisoned(value), model)
    said = re.findall(
        rf"{what} at step \d+ on rank 0, for samples [\d, ]+", capsys.readouterr().err
    )
    assert len(said) == 2


def test_the_mean_loss_is_over_what_was_not_rejected(tmp_path):
    result, rejected = fit(tmp_path / "run", 1, BSP(), poisoned(), max_rejected=99)[0]
    clean = fit(tmp_path / "clean", 1, BSP(), data())[0][0]
    assert rejected == 2
    assert result.history[0].train_loss == pytest.approx(clean.history[0].train_loss, rel=0.2)


@every_rule
def test_an_epoch_in_which_all_was_rejected_ends_the_run(tmp_path, rule, exchange, ranks):
    train = poisoned(rows=range(SAMPLES))
    with pytest.raises(TrainingError, match=r"no batch of epoch 1 gave a finite loss, and all"):
        fit(tmp_path / "run", ranks, rule, train, max_rejected=99, exchange=exchange)


@every_rule
@pytest.mark.parametrize("most", [0, 3])
def test_too_many_end_the_run(tmp_path, rule, exchange, ranks, most):
    train = poisoned(rows=range(SAMPLES))
    with pytest.raises(TrainingError, match=r"loss is nan at step \d+ on rank \d, for samples \d+"):
        fit(tmp_path / "run", ranks, rule, train, max_rejected=most, exchange=exchange)


def test_the_others_go_on_as_if_the_batch_had_not_been(tmp_path):
    """With bsp, the mean is over those that have something to give."""
    clean = fit(tmp_path / "clean", 1, BSP(), tuple(a[:BATCH] for a in data()))

    def program(world):
        train = [a[:BATCH].copy() for a in data()]
        train = [np.concatenate([a, a]) for a in train]
        train[0][BATCH:] = np.nan  # the samples of the second rank
        trainer = Trainer(
            build, tuple(train), world=world, rule=BSP(), epochs=2, loss="mse", progress="off",
            optimizer={"lr": 0.02, "momentum": 0.0}, run_dir=str(tmp_path / "run"),
            data={"batch_size": BATCH, "shuffle": False},
        )  # fmt: skip
        return weights(trainer.fit().model)

    for found in run_world(2, program):
        np.testing.assert_allclose(found, weights(clean[0][0].model), rtol=1e-6)


@pytest.mark.parametrize("rule", [BSP(), Average(every=2), EASGD(every=2)], ids=lambda r: r.name)
@pytest.mark.parametrize("most", [5, 1])
def test_loops_of_ones_own_are_protected(rule, most):
    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        batches = paceline.shard(data(), BATCH, to=torch.from_numpy)
        with paceline.keep_pace(model, optimizer, rule=rule, max_rejected=most) as pace:
            for number, (x, y) in enumerate(batches):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                if world.rank == 1 and number in (1, 3):
                    loss = loss * torch.nan
                loss.backward()
                optimizer.step()
        return weights(model), pace.rejected

    if most == 1:
        with pytest.raises(TrainingError, match="2 rejected, max_rejected is 1"):
            run_world(2, program)
        return
    found = run_world(2, program)
    assert [rejected for _, rejected in found] == [0, 2]
    assert np.isfinite(found[0][0]).all()


@pytest.mark.parametrize("rule", [Average(every=4), EASGD(every=4)], ids=str)
def test_weights_that_are_not_finite_are_not_shared(tmp_path, rule):
    """Rank 0 waits after a step: by an asynchronous rule it might take all batches otherwise."""

    class Break(Callback):
        broken = threading.Event()

        def on_batch_end(self, trainer, step, logs):
            if trainer.world.rank == 0:
                assert self.broken.wait(60)
            elif step == 3:
                trainer.replica.parameters()[:] = np.inf
                self.broken.set()

    with pytest.raises(TrainingError, match="the weights of rank 1 are not finite"):
        fit(tmp_path, 2, rule, data(), callbacks=[Break()])


class Drift(Callback):
    """Changes a parameter on one rank behind everybody's back."""

    def on_batch_end(self, trainer, step, logs):
        if trainer.world.rank == 1 and step == 3:
            with torch.no_grad():
                trainer.replica.module.bias += 1e-6


def test_replicas_that_drift_apart_are_named(tmp_path):
    settings = {"exchange": {"share": False}, "check_replicas": 2}
    fit(tmp_path / "unchecked", 2, BSP(), data(), callbacks=[], **settings)
    with pytest.raises(ReplicaError, match="rank 1 differ from rank 0's in bias; nothing but"):
        fit(tmp_path / "run", 2, BSP(), data(), callbacks=[Drift()], **settings)


def test_only_equal_replicas_are_compared(tmp_path):
    with pytest.raises(ConfigError, match="check_replicas compares replicas that are equal"):
        fit(tmp_path / "run", 2, Average(), data(), check_replicas=2)
