"""What ranks waited for, at the end of a run."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support.tiny_problem import initial_weights, loss_and_gradients, make_data

from paceline import Callback, Trainer
from paceline.cli.train import _report
from paceline.comm import SoloWorld, run_world
from paceline.config.reading import read_config
from paceline.data import as_source
from paceline.errors import Interrupted
from paceline.frameworks.numpy import NumpyReplica
from paceline.observe.waiting import RunFacts
from paceline.training.loop import waiting
from paceline.training.loop.waiting import describe_run
from paceline.training.trainer import Result

PAUSE_S = 0.02


def train(folder, world, is_late=lambda rank, step: False, callbacks=(), **settings):
    """Train on two ranks; one that is late in a step sleeps in it."""
    steps = iter(range(10**6))

    def compute(arrays, batch):
        if is_late(world.rank, next(steps)):
            time.sleep(PAUSE_S)
        return loss_and_gradients(arrays, batch)

    given = {"rule": "bsp", "epochs": 2} | settings
    return Trainer(
        NumpyReplica(initial_weights(), compute, 0.05, 0.0), make_data()[0], world=world,
        progress="off", run_dir=str(folder), data={"batch_size": 10}, callbacks=callbacks, **given,
    ).fit()  # fmt: skip


def waiting_of(folder, is_late=lambda rank, step: False, ranks=2, **settings):
    """As the summary has it."""
    run_world(ranks, lambda world: train(folder, world, is_late, **settings))
    return json.loads((folder / "summary.json").read_text())["waiting"]


def test_a_rank_that_sleeps_in_every_step_is_slow(tmp_path):
    found = waiting_of(tmp_path / "run", lambda rank, step: rank == 1)
    assert found["slow"] > 3 * found["uneven"]
    assert found["slow"] > 0.2  # half of it on an idle machine: rank 0 waits nearly always
    assert found["slowest_rank"] == 1


def test_ranks_that_sleep_in_turn_are_uneven(tmp_path):
    found = waiting_of(tmp_path / "run", lambda rank, step: (rank + step) % 2 == 0)
    assert found["uneven"] > 3 * found["slow"]
    assert found["uneven"] > 0.2
    assert found["slowest_rank"] is None


def test_the_first_epoch_does_not_count_if_there_are_others(tmp_path):
    first = 13  # steps of 2 x 10 samples

    def is_late(rank, step):
        return rank == 1 if step < first else (rank + step) % 2 == 0

    found = waiting_of(tmp_path / "run", is_late, epochs=3)
    assert found["uneven"] > 4 * found["slow"]  # twice as much if it counted
    one = waiting_of(tmp_path / "one", is_late, epochs=1)
    assert one["slow"] > 3 * one["uneven"]


def test_one_rank_waits_for_nobody(tmp_path):
    summary = train(tmp_path / "run", SoloWorld()).summary
    assert summary["waiting"] == {"uneven": 0.0, "slow": 0.0, "slowest_rank": None}
    assert summary["advice"] is None


@pytest.mark.parametrize("exchange", [{}, {"servers": 1}])
def test_asynchronous_ranks_do_not_wait_for_each_other(tmp_path, exchange):
    settings = {"rule": {"name": "easgd", "every": 2}, "exchange": exchange, "ranks": 3}
    assert waiting_of(tmp_path / "run", **settings) is None


class Interrupt(Callback):
    def on_batch_end(self, trainer, step, logs):
        if step == 5:
            trainer.interrupt()


def test_a_resumed_run_tells_of_itself(tmp_path):
    folder, slow = tmp_path / "run", lambda rank, step: rank == 1
    with pytest.raises(Interrupted):
        run_world(2, lambda world: train(folder, world, slow, [Interrupt()]))
    assert waiting_of(folder, slow, resume=str(folder))["slow"] > 0.2


def test_all_ranks_have_the_same(tmp_path):
    results = run_world(2, lambda world: train(tmp_path / "run", world))
    assert results[0].summary["waiting"] == results[1].summary["waiting"]


def facts_of(source, asynchronous=False, **settings):
    config = read_config({"model": "mnist", **settings})
    data, exchange = SimpleNamespace(train=source), SimpleNamespace(asynchronous=asynchronous)
    return describe_run(
        SimpleNamespace(config=config, data=data, exchange=exchange, world=SoloWorld())
    )


def test_the_facts_of_a_run_say_what_may_be_advised():
    dense = as_source(np.zeros((8, 3), np.float32))
    ragged = as_source([[3, 1, 4], [1, 5]])
    assert facts_of(dense) == RunFacts(same_shape=True)
    assert facts_of(ragged) == RunFacts()
    assert facts_of(ragged, data={"cost": "length"}) == RunFacts(can_cost=False)
    assert facts_of(ragged, data={"tokens_per_batch": 9}) == RunFacts(can_cost=False)
    assert facts_of(ragged, data={"speeds": "measured"}) == RunFacts(can_measure_speeds=False)
    assert facts_of(ragged, rule="average") == RunFacts(can_measure_speeds=False)
    assert facts_of(ragged, asynchronous=True).asynchronous
    nothing = RunFacts(can_cost=False, can_deal=False, can_measure_speeds=False)
    assert facts_of(ragged, data={"deal": "dynamic"}) == nothing
    assert facts_of(as_source(iter([]))) == nothing


@pytest.mark.parametrize(("load", "busy"), [(0.3, False), (4.0, False), (6.5, False), (7.5, True)])
def test_a_machine_is_busy_beyond_its_ranks_and_cpus(monkeypatch, load, busy):
    monkeypatch.setattr(waiting.os, "getloadavg", lambda: (load, 99.0, 99.0))
    monkeypatch.setattr(waiting.os, "cpu_count", lambda: 4)
    assert waiting._is_busy(ranks=2) is busy
    assert not waiting._is_busy(ranks=8)


def test_a_run_with_enough_steps_gets_advice_that_fits_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.observe.waiting._ENOUGH_S", 0.0)
    monkeypatch.setattr(waiting, "cores_of_node", lambda world: 1)
    monkeypatch.setattr(waiting.os, "getloadavg", lambda: (999.0, 0.0, 0.0))
    settings = {"is_late": lambda rank, step: (rank + step) % 2 == 0, "epochs": 3}
    results = run_world(2, lambda world: train(tmp_path / "run", world, **settings))
    advice = {result.summary["advice"] for result in results}
    assert len(advice) == 1
    assert "There are more ranks than cores" in advice.pop()


@pytest.mark.parametrize("verdict", [None, "rank 1 arrives last in every step"])
@pytest.mark.parametrize("advice", [None, "ranks waited 31 % of the time."])
def test_train_prints_verdict_and_advice_below_the_table(tmp_path, capsys, advice, verdict):
    result = train(tmp_path / "run", SoloWorld())
    found = {"advice": advice, "verdict": verdict and {"sentence": verdict}}
    told = Result(None, result.history, {**result.summary, **found}, result.run_dir)
    _report(told, str(tmp_path / "told.json"), ranks=2)
    lines = capsys.readouterr().out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("shares of time"))
    said = [f"verdict: {verdict}"] * (verdict is not None) + [advice] * (advice is not None)
    assert lines[at + 1 : -2] == said
    assert lines[-2].startswith("report: ")
    assert json.loads((tmp_path / "told.json").read_text())["advice"] == advice
