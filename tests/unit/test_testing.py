"""Faults that tests and users inject: that they strike where and when they should."""

import errno
import os
import resource
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from paceline import Callback, Trainer
from paceline.comm import run_world, wait_until
from paceline.errors import ConfigError, WorldError
from paceline.frameworks.numpy import NumpyReplica
from paceline.testing import Fault, Inject, inject

pytestmark = pytest.mark.timeout(60)
STEPS = 6


def half_square(arrays, batch):
    offset = arrays["w"] - batch.inputs.mean(axis=0)
    return 0.5 * float(offset @ offset), {"w": offset}


class Seen(Callback):
    """What a rank meets in each of its steps."""

    def __init__(self):
        self.begun, self.losses, self.seconds = [], {}, {}

    def on_batch_begin(self, trainer, step):
        self.begun.append(step)
        self.began_s = time.monotonic()

    def on_batch_end(self, trainer, step, logs):
        self.losses[step] = logs["loss"]
        self.seconds[step] = time.monotonic() - self.began_s


class Act(Callback):
    """Does something in each step, when its fault has come."""

    def __init__(self, act):
        self.act = act

    def on_batch_begin(self, trainer, step):
        self.act(trainer.world, step)


def train(folder, *faults, ranks=2, act=lambda world, step: None, seen=None, timeout_s=30.0):
    """What each rank has seen of a run of STEPS steps per rank."""
    seen = seen if seen is not None else [Seen() for _ in range(ranks)]
    data = np.random.default_rng(0).normal(size=(4 * ranks * STEPS, 3)).astype(np.float32)

    def program(world):
        Trainer(
            lambda: NumpyReplica({"w": np.ones(3, np.float32)}, half_square, lr=0.1),
            data,
            callbacks=[seen[world.rank], Inject(*faults), Act(act)],
            world=world,
            data={"batch_size": 4},
            epochs=1,
            progress="off",
            run_dir=str(folder / "run"),
        ).fit()

    run_world(ranks, program, timeout_s)
    return seen


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sigkill:rank=1,step=5", Fault("sigkill", 1, 5)),
        ("delay:rank=0,step=2,seconds=0.5", Fault("delay", 0, 2, seconds=0.5)),
        ("exit: step=7, rank=2, code=3", Fault("exit", 2, 7, code=3)),
    ],
)
def test_faults_are_read_and_written_alike(text, fault):
    assert Fault.parse(text) == fault
    assert Fault.parse(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("boom:rank=1,step=5", ["kind is 'boom', expected one of exception, sigkill", "drop"]),
        ("nan", ["rank is missing; step is missing", "KIND:rank=R,step=S"]),
        ("", ["kind is ''", "rank is missing"]),
        (
            "nan:rank=1,stop=5",
            ["'stop' is not a key (valid: rank, step, seconds, code, steps, at)"],
        ),
        ("bum:rank=x,step=5", ["kind is 'bum'", "rank is 'x', expected a number"]),
        ("nan:rank=1,rank=2,step=1", ["rank is given twice"]),
        ("nan:rank=-1,step=0", ["rank is -1, expected 0 or more; step is 0, expected 1 or more"]),
        ("delay:rank=1,step=1,seconds=nan", ["seconds is nan, expected 0 or more"]),
        ("exit:rank=1,step=1,code=256", ["code is 256, expected 0 to 255"]),
    ],
)
def test_a_fault_that_cannot_be_read_tells_all_that_is_wrong(text, parts):
    with pytest.raises(ConfigError) as caught:
        Fault.parse(text)
    for part in parts:
        assert part in str(caught.value)


def test_a_fault_checks_what_python_gives_it():
    with pytest.raises(ConfigError, match=r"kind is 'bang', expected one of exception, .*drop"):
        Fault("bang", 0, 1)


def test_without_faults_all_steps_are_taken(tmp_path):
    for seen in train(tmp_path):
        assert list(seen.losses) == list(range(1, STEPS + 1))
        assert None not in seen.losses.values()


def test_an_exception_comes_after_its_step_on_its_rank(tmp_path):
    seen = [Seen(), Seen()]
    with pytest.raises(RuntimeError, match="injected on rank 1 after step 3"):
        train(tmp_path, Fault("exception", 1, 3), seen=seen)
    assert list(seen[1].losses) == [1, 2, 3]


def test_a_rank_exits_with_its_code(tmp_path):
    seen = [Seen()]
    with pytest.raises(SystemExit) as caught:
        train(tmp_path, Fault("exit", 0, 3, code=7), ranks=1, seen=seen)
    assert caught.value.code == 7
    assert list(seen[0].losses) == [1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "number"), [("sigkill", signal.SIGKILL), ("sigstop", signal.SIGSTOP)]
)
def test_a_signal_goes_to_the_process_of_the_rank(tmp_path, monkeypatch, kind, number):
    sent, seen = [], [Seen(), Seen()]
    monkeypatch.setattr(inject.os, "kill", lambda *what: sent.append((*what, *seen[1].losses)))
    train(tmp_path, Fault(kind, 1, 3), seen=seen)
    assert sent == [(os.getpid(), number, 1, 2, 3)]


def test_the_loss_of_one_step_on_one_rank_is_nan(tmp_path):
    seen = train(tmp_path, Fault("nan", 1, 3))
    assert [step for step, loss in seen[1].losses.items() if loss is None] == [3]
    assert None not in seen[0].losses.values()


def test_a_delay_is_in_its_step_on_its_rank(tmp_path, monkeypatch):
    delays, seen, sleep = [], [Seen(), Seen()], time.sleep

    def noted(seconds):
        if seconds == 0.1:
            delays.append((threading.current_thread().name, list(seen[1].losses)))
        sleep(seconds)

    monkeypatch.setattr(inject.time, "sleep", noted)
    train(tmp_path, Fault("delay", 1, 3, seconds=0.1), seen=seen)
    assert delays == [("rank-1", [1, 2])]
    assert seen[1].seconds[3] >= 0.1


def test_a_dropped_message_never_leaves_and_all_others_do(tmp_path):
    room = np.zeros(1)
    got = []

    def act(world, step):
        if world.rank == 1:
            assert world.isend(np.array([float(step)]), to=0, tag=5).done()
        elif step == STEPS:
            for _ in range(STEPS - 2):
                wait_until(world.irecv(room, source=1, tag=5).done)
                got.append(room[0])

    seen = train(tmp_path, Fault("drop", 1, 3), act=act)
    assert got == [1, 2, 4, 5]
    assert len(seen[1].losses) == STEPS


def test_a_rank_that_sends_nothing_falls_silent_instead(tmp_path, monkeypatch):
    """And the other one waits for it, until the world is ended in the middle of the silence."""
    seen, worlds, sleep = [Seen(), Seen()], {}, time.sleep
    rounds = iter(range(3))

    def silence(seconds):
        waits = threading.current_thread().name == "rank-1" and len(seen[0].begun) > 3
        if waits and next(rounds, None) is None:
            worlds[1].abort(3)
        sleep(seconds)

    monkeypatch.setattr(inject.time, "sleep", silence)
    with pytest.raises(WorldError, match="rank 1 aborted the world with code 3"):
        train(
            tmp_path,
            Fault("drop", 1, 3),
            seen=seen,
            act=lambda world, step: worlds.setdefault(world.rank, world),
        )
    assert next(rounds, None) is None
    assert seen[1].begun == [1, 2, 3]
    assert seen[0].begun == [1, 2, 3, 4]


def test_no_file_can_be_written_any_more(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    rank = SimpleNamespace(world=SimpleNamespace(rank=0))
    faults = Inject(Fault("disk-full", 0, 3))
    faults.on_batch_end(rank, 2, {})
    (tmp_path / "before").write_text("x")
    try:
        faults.on_batch_end(rank, 3, {})
        with pytest.raises(OSError, match="File too large") as caught:
            (tmp_path / "after").write_text("x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
