"""Asynchronous runs over numbered samples: what tests of them share."""

import threading
import time
from itertools import chain

import numpy as np
import pytest

from paceline import Callback
from paceline.comm import run_world
from paceline.frameworks.numpy import NumpyReplica
from paceline.rules import EASGD, Downpour, Gossip
from paceline.training.trainer import Trainer
from support.line_problem import BATCH, SAMPLES

RULES = {
    "easgd": (EASGD(every=2), {}, 3),
    "easgd with a server": (EASGD(every=2), {"servers": 1}, 4),
    "easgd with two servers": (EASGD(every=2), {"servers": 2}, 5),
    "easgd overlapped": (EASGD(every=2), {"overlap": True}, 3),
    "easgd overlapped, with a server": (EASGD(every=2), {"overlap": True, "servers": 1}, 4),
    "downpour": (Downpour(push_every=2, pull_every=3, staleness="dynsgd"), {}, 3),
    "downpour with a server": (Downpour(staleness="agn"), {"servers": 1}, 4),
    "gossip": (Gossip(probability=0.5), {}, 3),
}
"""Rule, settings of the exchange, and how many ranks."""


every_rule = pytest.mark.parametrize(("rule", "exchange", "ranks"), RULES.values(), ids=RULES)


class Numbers:
    """A model that trains nothing and remembers which samples it has seen."""

    def __init__(self, delay_s=0.0):
        self.seen, self._delay_s = [], delay_s

    def build(self):
        return NumpyReplica({"w": np.zeros(40)}, self._loss)

    def _loss(self, arrays, batch):
        self.seen += batch.inputs[:, 0].astype(int).tolist()
        time.sleep(self._delay_s)
        return 1.0, {"w": np.ones(40)}


class Together(Callback):
    """Lets all workers begin their first batch together: on a busy machine one of them might come
    when the others have done all of it."""

    def __init__(self, workers):
        self.barrier, self.begun = threading.Barrier(workers), threading.local()

    def on_batch_begin(self, trainer, step):
        if not hasattr(self.begun, "yes"):
            self.begun.yes = True
            self.barrier.wait(60)


class TakingTurns(Together):
    """Lets all workers begin together, and others run before each batch: a thread that keeps the
    interpreter would take most batches, and leave a worker with the weights it began with."""

    def on_batch_begin(self, trainer, step):
        super().on_batch_begin(trainer, step)
        time.sleep(0.0005)


def count_through(
    tmp_path, rule, ranks, epochs=3, delays=None, callbacks=None, prefetch=0, held_out=None,
    exchange=None, **settings,
):  # fmt: skip
    """A run over numbered samples: what each rank saw, and the result."""
    numbers = np.arange(SAMPLES, dtype=np.float64)[:, None]
    delays, callbacks = delays or [0.0] * ranks, callbacks or [()] * ranks
    together = Together(ranks - (exchange or {}).get("servers", 0))

    def program(world):
        model = Numbers(delays[world.rank])
        result = Trainer(
            model.build, numbers, held_out, world=world, rule=rule, epochs=epochs, progress="off",
            callbacks=[together, *callbacks[world.rank]], run_dir=str(tmp_path / "run"),
            data={"batch_size": BATCH, "prefetch": prefetch}, exchange=exchange or {}, **settings,
        ).fit()  # fmt: skip
        return model.seen, result, world._hub.mailboxes

    found = run_world(ranks, program)
    ours = [t.name for t in threading.enumerate() if t.name.startswith("paceline-")]
    assert ours == [], "a thread was left behind"
    for box in found[0][2]:
        assert box._unreceived == [], "a message was left unreceived"
        assert box._posted == [], "a receive was left waiting"
    return [seen for seen, _, _ in found], found[0][1]


def all_of(seen):
    return list(chain.from_iterable(seen))
