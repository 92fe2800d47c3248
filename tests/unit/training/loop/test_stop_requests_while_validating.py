"""A wish to end is heeded while ranks validate, and a resumed run validates then."""

import numpy as np
import pytest
from support.line_problem import BATCH, build, data, weights

from paceline import Callback
from paceline.checkpoint.store import Store
from paceline.comm import run_world
from paceline.errors import Interrupted
from paceline.frameworks.numpy import NumpyReplica
from paceline.rules import BSP, EASGD, Average, DiLoCo
from paceline.training.trainer import Trainer

RULES = [BSP(), Average(every=3), DiLoCo(every=3)]
MANY = 10**6


class Endless(NumpyReplica):
    """Its validation goes on until somebody is interrupted."""

    def __init__(self, interrupt):
        super().__init__({"w": np.zeros(3)}, lambda arrays, batch: (1.0, {"w": np.ones(3)}))
        self.interrupt, self.batches = interrupt, 0

    def evaluate(self, batch):
        self.batches += 1
        if self.batches == 2:
            self.interrupt()
        return {"loss": 1.0, "samples": 1, "correct": 0, "counted": 0}


@pytest.mark.parametrize("rule", [*RULES, EASGD(every=2)], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("who", [0, 1])
def test_all_give_up_when_one_is_to_end(tmp_path, rule, who):
    """Under easgd rank 0 validates alone, and the other worker waits for it, to save together."""
    trainers, replicas = {}, {}

    def program(world):
        replicas[world.rank] = Endless(lambda: trainers[who].interrupt())
        trainers[world.rank] = Trainer(
            lambda: replicas[world.rank], np.arange(40.0)[:, None], np.arange(MANY)[:, None],
            world=world, rule=rule, epochs=MANY, progress="off", events_every=0,
            data={"batch_size": 2, "prefetch": 0, "validation_batch_size": 1},
            run_dir=str(tmp_path / "run"),
        )  # fmt: skip
        world.barrier()
        with pytest.raises(Interrupted):
            trainers[world.rank].fit()

    run_world(2, program)
    assert sum(replica.batches for replica in replicas.values()) < MANY
    assert len(Store(tmp_path / "run" / "checkpoints").names()) == 1


class InterruptValidation(Callback):
    """Asks one rank to end while all validate an epoch, once: between two of its batches."""

    def __init__(self, epoch, stop=False):
        self.epoch, self.stop = epoch, stop

    def on_batch_end(self, trainer, step, logs):
        if self.stop and trainer.clock.epoch + 1 == self.epoch:
            trainer.stop()

    def on_train_begin(self, trainer):
        evaluate, replica = trainer.replica.evaluate, trainer.replica

        def interrupted(batch):
            if trainer.clock.epoch == self.epoch and trainer.world.rank == 1:
                trainer.interrupt()
            return evaluate(batch)

        replica.evaluate = interrupted


def fit(folder, rule, callbacks=(), **settings):
    def program(world):
        trainer = Trainer(
            build, data(), data(), world=world, rule=rule, epochs=3, loss="mse", progress="off",
            optimizer={"lr": 0.02, "momentum": 0.9}, callbacks=[*callbacks],
            data={"batch_size": BATCH, "validation_batch_size": 7},
            run_dir=str(folder), validate_every=2, **settings,
        )  # fmt: skip
        try:
            result = trainer.fit()
        except Interrupted:
            return None
        figures = [(r.epoch, r.samples, r.train_loss, r.val_loss) for r in result.history]
        return weights(result.model).tobytes(), figures

    return run_world(2, program)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("epoch", [2, 3], ids=["between", "last"])
def test_a_resumed_run_ends_as_one_that_was_never_interrupted(tmp_path, rule, epoch):
    whole = fit(tmp_path / "whole", rule)
    assert fit(tmp_path / "run", rule, [InterruptValidation(epoch)]) == [None, None]
    assert fit(tmp_path / "run", rule, resume="auto") == whole
    assert [val_loss is not None for *_, val_loss in whole[0][1]] == [False, True, True]


def test_a_wish_to_stop_is_kept_over_the_interruption(tmp_path):
    interrupt = InterruptValidation(1, stop=True)
    assert fit(tmp_path / "run", BSP(), [interrupt]) == [None, None]
    _, figures = fit(tmp_path / "run", BSP(), resume="auto")[0]
    assert [epoch for epoch, *_ in figures] == [1]
