"""What rounding on the way to a centre must not do: add up."""

import numpy as np
import pytest

from paceline.comm import run_world
from paceline.frameworks.numpy import NumpyReplica
from paceline.observe import Stopwatch
from paceline.rules import EASGD, Downpour
from paceline.sync.interface import Contribution
from paceline.sync.make import make_exchange
from paceline.sync.settings import ExchangeContext, ExchangeSettings

SIZE, STEPS = 3000, 12


def drive(rule, servers, wire):
    """A worker that moves at random, and a server: the worker's weights, the centre, all moves."""
    context = ExchangeContext(settings=ExchangeSettings(servers=servers, wire=wire))
    chance = np.random.default_rng(0)
    start = chance.normal(size=SIZE)
    moves = chance.normal(size=(STEPS, SIZE)) * 0.1

    def program(world):
        replica = NumpyReplica({"w": start.astype(np.float32)}, lambda arrays, batch: (0.0, arrays))
        exchange = make_exchange(world, replica, rule, context)
        for move in moves if exchange.trains else []:
            replica.parameters()[:SIZE] += move
            exchange.after_step(Contribution(1, 1.0, more=True), Stopwatch())
        exchange.leave(Stopwatch())
        return replica.parameters()[:SIZE].copy(), exchange.common_weights()[:SIZE]

    weights, centre = run_world(1 + servers, program)[0]
    return start, weights, centre, moves


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16", "int8"])
def test_easgd_conserves_replica_plus_centre_in_every_wire(wire, servers):
    start, weights, centre, moves = drive(EASGD(every=1, force=0.3), servers, wire)
    assert weights + centre == pytest.approx(2 * start + moves.sum(axis=0), abs=2e-5)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("wire", "off"), [("bfloat16", 4e-3), ("float16", 5e-4), ("int8", 6e-3)])
def test_downpours_rounding_errors_do_not_add_up(wire, off, servers):
    """One worker's centre is where the worker is, but for the rounding of a single push."""
    start, _, centre, moves = drive(Downpour(), servers, wire)
    error = np.abs(centre - (start + moves.sum(axis=0))).max()
    assert 0 < error < off
