"""A host that is asked to save before it knows where to is not hasty: it waits."""

import time

import numpy as np

from paceline.comm import run_world
from paceline.frameworks.numpy import NumpyReplica
from paceline.observe import Stopwatch
from paceline.rules import EASGD
from paceline.sync.make import make_exchange
from paceline.sync.settings import ExchangeContext, ExchangeSettings


def test_a_wish_to_save_waits_for_its_place():
    kept = []

    def program(world):
        replica = NumpyReplica({"w": np.zeros(4)}, lambda arrays, batch: (0.0, arrays))
        exchange = make_exchange(
            world, replica, EASGD(), ExchangeContext(1, ExchangeSettings(servers=1))
        )
        if world.rank == 0:
            exchange._centre.save(7)
        else:
            (asked,) = exchange._centre.server._expected
            end = time.monotonic() + 60
            while not asked.done():
                assert time.monotonic() < end
                time.sleep(0.001)
            exchange.on_save(lambda number, tree: kept.append(number))
        exchange.leave(Stopwatch())
        exchange.close()

    run_world(2, program)
    assert kept == [7]
