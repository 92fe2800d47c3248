"""What a rank of a trial writes."""

import json
import os
from contextvars import copy_context
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.comm import SoloWorld
from paceline.observe import Stopwatch, trial
from paceline.observe.trial import TRIAL, TrialLog, open_trial, read_own_memory
from paceline.observe.waiting import RunFacts


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a trial that this process is a rank of."""
    monkeypatch.setenv(TRIAL, str(tmp_path))
    monkeypatch.setattr(trial, "_taken", False)
    monkeypatch.setattr(trial, "atexit", SimpleNamespace(register=lambda function: None))
    return tmp_path


def lines(folder, rank=0):
    text = (folder / f"rank-{rank:04d}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_outside_of_a_trial_there_is_no_log():
    assert open_trial(0, 1) is None


def test_the_first_loop_that_asks_gets_the_log(folder):
    assert open_trial(3, 4) is not None
    assert open_trial(3, 4) is None


def test_a_rank_that_does_not_see_the_folder_goes_without(folder, monkeypatch):
    monkeypatch.setenv(TRIAL, str(folder / "elsewhere"))
    assert open_trial(0, 1) is None
    assert not (folder / "elsewhere").exists()


def test_the_first_step_is_written_and_then_four_times_a_second(folder, monkeypatch):
    clock = iter(1000 + 0.1 * n for n in range(100))
    monkeypatch.setattr(trial, "perf_counter", lambda: next(clock))
    log, watch = open_trial(2, 3), Stopwatch()
    for _ in range(8):
        log.note(32, watch)
    found = lines(folder, 2)
    assert [line["steps"] for line in found] == [1, 4, 7]
    assert [line["samples"] for line in found] == [32, 128, 224]
    assert found[1]["seconds"] == pytest.approx(1000.3)
    assert {line["workers"] for line in found} == {3}
    log.write()
    assert lines(folder, 2)[-1]["steps"] == 8


def test_waiting_is_added_up_also_when_the_watch_is_emptied(folder, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(trial, "perf_counter", lambda: next(clock))
    log, watch = open_trial(0, 1), Stopwatch()
    watch.wait, watch.compute = 1.0, 3.0
    log.note(1, watch)
    watch.wait, watch.compute = 2.0, 4.0
    log.note(1, watch)
    watch.take()
    watch.wait, watch.compute = 0.5, 0.5
    log.note(1, watch)
    found = lines(folder)
    assert [line["wait_s"] for line in found] == [1.0, 2.0, 2.5]
    assert [line["spent_s"] for line in found] == [4.0, 6.0, 7.0]


def test_a_folder_that_has_gone_ends_nothing(tmp_path):
    file = (tmp_path / "rank-0000.jsonl").open("w")
    file.close()
    TrialLog(file, 1).note(1, Stopwatch())


def test_memory_is_the_peak_and_what_others_may_hold_too(tmp_path):
    status = tmp_path / "status"
    status.write_text("VmHWM:\t 400 kB\nRssAnon:\t 200 kB\nRssFile:\t 50 kB\nRssShmem:\t 10 kB\n")
    assert read_own_memory(status) == (400 * 1024, 60 * 1024)
    peak, shared = read_own_memory()
    assert peak > shared
    assert read_own_memory(tmp_path / "missing")[0] > 1_000_000


def keep_pace_for(*arguments, **options):
    """In a context of its own: what `shard` has handed out is remembered in it."""
    return copy_context().run(_keep_pace_for, *arguments, **options)


def _keep_pace_for(steps, folder, feed, weigh=None):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from paceline.training.own_loop.keep_pace import keep_pace

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with keep_pace(model, optimizer, world=SoloWorld()) as pace:
        for _, batch in zip(range(steps), feed, strict=False):
            if weigh is not None:
                pace.weigh(weigh)
            model(torch.as_tensor(batch)).sum().backward()
            optimizer.step()
    pace._trial.write()
    return lines(folder)[-1]


def test_keep_pace_counts_what_its_shards_hand_out(folder):
    from paceline.training.batches import shard

    data = np.ones((100, 2), np.float32)
    last = keep_pace_for(3, folder, shard(data, 8, world=SoloWorld()))
    assert (last["samples"], last["steps"], last["unit"]) == (24, 3, "samples")
    assert RunFacts(**last["facts"]) == RunFacts(own_loop=True)


def test_keep_pace_counts_steps_where_nobody_counts_samples(folder):
    own = [np.ones((5, 2), np.float32)] * 4
    last = keep_pace_for(4, folder, own)
    assert (last["samples"], last["steps"], last["unit"]) == (4, 4, "steps")


def test_keep_pace_counts_what_it_is_told(folder):
    last = keep_pace_for(2, folder, [np.ones((5, 2), np.float32)] * 2, weigh=30)
    assert (last["samples"], last["unit"]) == (60, "weights")


def test_a_trainer_counts_its_samples(folder, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    from paceline.training.trainer import Trainer

    x = np.random.default_rng(1).normal(size=(40, 784)).astype(np.float32)
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(
        "mlp", (x, np.zeros(40, np.int64)), epochs=2, data={"batch_size": 16}, progress="off"
    )
    try:
        trainer.fit()
    finally:
        trainer._training_run.worker._trial.write()
    last = lines(folder)[-1]
    assert (last["samples"], last["unit"], last["workers"]) == (80, "samples", 1)
    assert RunFacts(**last["facts"]) == RunFacts(same_shape=True)


def test_nothing_is_written_without_the_variable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TRIAL not in os.environ
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from paceline.training.own_loop.keep_pace import keep_pace

    model = torch.nn.Linear(2, 1)
    with keep_pace(model, torch.optim.SGD(model.parameters(), lr=0.1), world=SoloWorld()) as pace:
        assert pace._trial is None
