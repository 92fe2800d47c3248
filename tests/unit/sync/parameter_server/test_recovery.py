"""A centre on servers, put together by the ranks that are left: as if some of a world of threads
were lost, at a moment of an exchange that the test chooses."""

from contextlib import suppress

import numpy as np
import pytest

from paceline.comm import run_world
from paceline.errors import RanksLost, TrainingError
from paceline.rules import Downpour, make_rule
from paceline.sync.parameter_server.ledger import WorkerReport
from paceline.sync.parameter_server.make import open_centre
from paceline.sync.parameter_server.worker_port import InPlacePort
from paceline.sync.settings import ExchangeContext, ExchangeSettings

SIZE = 6
PUSH = WorkerReport(samples=5.0, loss=1.0, batches=1, push=True, pull=True, wanted=1)


class Stage:
    """The ranks of a world whose losses are played: `play` is a list of turns, each of which is
    what one rank does; then the ranks in `lost` are gone and the others recover."""

    def __init__(self, ranks, servers, rule, turns, lost, wire="float32"):
        self.ranks, self.servers, self.rule, self.wire = ranks, servers, rule, wire
        self.turns, self.lost = turns, lost

    def run(self):
        found = run_world(self.ranks, self._program)
        return [saved for saved in found if saved is not None]

    def _program(self, world):
        world.elastic = True
        settings = ExchangeSettings(servers=self.servers, wire=self.wire)
        context = ExchangeContext(settings=settings, batches=100, most_in_hand=5)
        weights = np.zeros(SIZE, np.float32)
        centre, _ = open_centre(world, self.rule, weights, context)
        state = self.rule.init_worker(weights)
        port = InPlacePort(self.rule, weights, state)
        world.barrier()
        for rank, turn in self.turns:
            if world.rank == rank:
                turn(centre, weights, port)
            world.barrier()
        if centre.server is not None:
            centre.server.abandon()
        world.barrier()
        left = world.split(int(world.rank in self.lost))
        if world.rank in self.lost:
            return None
        first = centre.carry_over(left, 0)
        again = centre.carry_over(left, 0)  # a rank may be lost while they recover
        assert first.centre.tobytes() == again.centre.tobytes()
        assert (first.ledger, first.again, first.held) == (again.ledger, again.again, again.held)
        return first


def exchange(move, report=PUSH):
    """A step of so much, and its exchange."""

    def turn(centre, weights, port):
        weights += move
        terms = port._rule.terms(1, 1, 2)
        centre.push_pull(report, terms, port)

    return turn


def report(**fields):
    return lambda centre, weights, port: centre.report(WorkerReport(**fields))


def interrupted(move, sends):
    """The same, of which only so many messages leave; then the rank hears of a loss."""

    def turn(centre, weights, port):
        plain, left = centre.world.isend, [sends]

        def isend(*arguments):
            if not left[0]:
                raise RanksLost("a rank was lost")
            left[0] -= 1
            return plain(*arguments)

        centre.world.isend = isend
        with suppress(RanksLost):
            exchange(move)(centre, weights, port)
        centre.world.isend = plain

    return turn


def agreed(found):
    """All ranks know the same."""
    for other in found[1:]:
        assert other.centre.tobytes() == found[0].centre.tobytes()
        assert (other.ledger, other.again, other.held) == tuple(
            getattr(found[0], name) for name in ("ledger", "again", "held")
        )
    return found[0]


GRANT = [(0, report(wanted=2)), (1, report(wanted=2))]


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("rule", ["downpour", {"name": "easgd", "every": 1, "force": 0.25}])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_lost_server_is_restored_from_the_last_that_a_worker_got(servers, rule, wire):
    turns = [*GRANT, (0, exchange(-1.0)), (1, exchange(-2.0)), (0, exchange(-4.0))]
    rule = make_rule(rule)
    whole = agreed(Stage(4, servers, rule, turns, lost=[], wire=wire).run())
    lost = [3] if servers == 1 else [2]
    found = agreed(Stage(4, servers, rule, turns, lost=lost, wire=wire).run())
    assert found.centre == pytest.approx(whole.centre, rel=1e-2 if wire != "float32" else 1e-6)
    assert "rank 0's copy, 0 updates since then are lost" in found.note
    assert found.ledger == whole.ledger
    assert found.again == whole.again


def test_updates_since_the_copy_are_counted():
    """The worker with the newest copy is lost together with a server."""
    turns = [*GRANT, (0, exchange(-1.0)), (1, exchange(-2.0)), (1, exchange(-2.0))]
    found = agreed(Stage(4, 2, Downpour(), turns, lost=[1, 3]).run())
    assert "piece 2 of 2 of the centre is restored from rank 0's copy, 2 updates" in found.note
    assert found.centre.tolist() == [-5.0] * 3 + [-1.0] * 3
    assert found.ledger["samples"] == 15.0  # both pushes reached the server that is left


@pytest.mark.parametrize(("servers", "sends"), [(1, 1), (2, 0), (2, 1), (2, 2), (2, 3)])
def test_an_exchange_of_a_worker_that_is_left_is_finished(servers, sends):
    turns = [*GRANT, (0, exchange(-1.0)), (1, interrupted(-2.0, sends))]
    found = agreed(Stage(4, servers, Downpour(), turns, lost=[]).run())
    assert found.centre.tolist() == [-3.0] * SIZE
    assert found.ledger["samples"] == 10.0
    assert found.ledger["updates"] == 2
    assert all(held.samples == 0 for held in found.held)


@pytest.mark.parametrize(("sends", "counts"), [(1, False), (2, True), (3, True)])
def test_a_push_of_a_lost_worker_counts_if_a_server_has_seen_it(sends, counts):
    """Else its batches are granted again."""
    turns = [*GRANT, (0, exchange(-1.0)), (1, interrupted(-2.0, sends))]
    found = agreed(Stage(4, 2, Downpour(), turns, lost=[1]).run())
    assert found.ledger["samples"] == (10.0 if counts else 5.0)
    assert found.again == ((1, 3, 4, 5) if counts else (1, 2, 3, 4, 5))
    assert found.centre[0] == (-3.0 if counts else -1.0)
    assert ("reached 1 of 2 servers" in found.note) == (sends == 2)


def test_the_ledger_outlives_its_keeper_and_a_worker_that_was_ahead():
    """What is known of the lost worker came with its push to the server that is left."""
    turns = [*GRANT, *[(1, exchange(-1.0))] * 3, (0, report(samples=5.0, batches=1))]
    turns.append((1, exchange(-1.0)))
    found = agreed(Stage(4, 2, Downpour(), turns, lost=[1, 2]).run())
    assert found.ledger["samples"] == 25.0
    assert found.ledger["updates"] == 4
    assert found.held[0].samples == 5.0


def test_all_workers_are_lost_and_a_server():
    with pytest.raises(TrainingError, match="go on from a checkpoint"):
        Stage(4, 2, Downpour(), [*GRANT, (0, exchange(-1.0))], lost=[0, 1, 2]).run()
