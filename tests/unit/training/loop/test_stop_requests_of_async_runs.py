"""Wishes to save and to end are heeded by asynchronous workers, whatever rank 0 does."""

import threading
from itertools import pairwise

import numpy as np
import pytest
from support.async_runs import Numbers, count_through, every_rule
from support.line_problem import SAMPLES

from paceline import Callback
from paceline.checkpoint.store import Store
from paceline.comm import run_world
from paceline.errors import Interrupted
from paceline.observe import History
from paceline.rules import EASGD
from paceline.sync.parameter_server.ledger import LedgerReply
from paceline.training.loop.async_run import EpochCount
from paceline.training.trainer import Trainer


@every_rule
def test_a_checkpoint_of_each_epoch_has_the_last_one_too(tmp_path, rule, exchange, ranks):
    count_through(tmp_path, rule, ranks, checkpoint_every="epoch", exchange=exchange)
    store = Store(tmp_path / "run" / "checkpoints")
    name = store.names()[-1]
    assert store.read(name, f"server-{store.facts(name)['servers'][0]}")["ledger"]["samples"] == (
        3 * SAMPLES
    )
    seen, again = count_through(tmp_path, rule, ranks, resume="auto", exchange=exchange)
    assert [part for part in seen if part] == [], "nothing is left to train on"
    assert [record.epoch for record in again.history] == [1, 2, 3]


class Wait(Callback):
    """Holds rank 0 in the record of the first epoch until the other worker is far ahead."""

    def __init__(self, epochs):
        self.epochs, self.far_ahead = epochs, threading.Event()
        self.told = []

    def on_epoch_end(self, trainer, epoch, logs):
        if trainer.world.rank == 0:
            self.told.append(epoch)
            assert self.far_ahead.wait(60)

    def on_batch_end(self, trainer, step, logs):
        if trainer.world.rank == 1 and trainer.clock.epoch >= self.epochs:
            self.far_ahead.set()


def test_rank_0_steps_between_the_records_of_many_short_epochs(tmp_path):
    """The other worker makes a thousand epochs meanwhile; rank 0 then hears of the wish to end."""
    epochs, hold, told = 100_000, Wait(1000), []

    class Interrupt(Callback):
        """When rank 0 has told of some of them: how many it had told of at each of its steps."""

        def on_batch_end(self, trainer, step, logs):
            if trainer.world.rank == 0:
                told.append(len(hold.told))
                if told[-1] >= 100:
                    trainer.interrupt()

    def program(world):
        trainer = Trainer(
            Numbers().build, np.arange(4.0)[:, None], world=world, rule=EASGD(every=2),
            epochs=epochs, progress="off", callbacks=[hold, Interrupt()], events_every=0,
            data={"batch_size": 2, "prefetch": 0}, run_dir=str(tmp_path / "run"),
        )  # fmt: skip
        with pytest.raises(Interrupted):
            trainer.fit()

    run_world(2, program)
    at_once = max(after - before for before, after in pairwise(told))
    assert at_once <= 32, "it told of all those epochs before its next step"
    assert len(Store(tmp_path / "run" / "checkpoints").names()) == 1
    assert [
        record.epoch for record in History.load(tmp_path / "run" / "history.jsonl")
    ] == hold.told


def test_rejected_samples_have_no_part_in_the_mean():
    count = EpochCount(epochs=4, samples=100)
    news = LedgerReply(samples=200, loss=300.0, without_loss=50)
    assert [part[:2] for part in count.take(news, [1])] == [(100, 2.0)]
    assert [part[:2] for part in count.take(news, [2])] == [(100, pytest.approx(2.0))]
    assert count.take(LedgerReply(samples=300, loss=300.0, without_loss=150), [3])[0][1] is None
