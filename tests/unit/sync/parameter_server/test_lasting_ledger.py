"""A ledger that knows what each worker holds, whoever is lost."""

from contextlib import suppress

import numpy as np
import pytest

from paceline.comm import SoloWorld, run_world
from paceline.errors import TrainingError
from paceline.rules import make_rule
from paceline.sync.parameter_server.full_ledger import for_workers
from paceline.sync.parameter_server.holdings import Held, Holdings
from paceline.sync.parameter_server.lasting_ledger import LastingLedger
from paceline.sync.parameter_server.ledger import WorkerReport
from paceline.sync.parameter_server.make import most_held
from paceline.sync.parameter_server.spec import CentreSpec
from paceline.sync.saved import SavedCentre


def make_ledger(world, rule="downpour", **more):
    rule = None if rule is None else make_rule(rule)
    spec = CentreSpec(rule, "float32", 0, batches=100, saved=None, most_held=20, **more)
    ledger = LastingLedger(world, spec)
    return ledger, lambda worker, **report: ledger.enter(worker, WorkerReport(**report))


def carry(ledger, lost, left, arrived=True):
    """`left`: how many batches each has trained on and not reported."""
    lost = dict.fromkeys(lost, arrived)
    return ledger.now.carry_over(np.zeros(1), {}, lost, list(left.items()))


def test_batches_of_a_lost_worker_are_granted_again_until_it_has_pushed_them():
    def program(world):
        ledger, report = make_ledger(world)
        if world.rank:
            return None
        report(0, wanted=3)
        report(1, wanted=3)
        report(1, samples=20.0, loss=2.0, batches=2)
        report(1, samples=10.0, loss=1.0, batches=1, push=True, wanted=2)
        report(1, samples=10.0, loss=9.0, batches=1)
        return carry(ledger, lost=[1], left={0: 1}), ledger.now.holdings.pushes(1)

    saved, pushes = run_world(2, program)[0]
    assert saved.again == (1, 2, 6, 7)
    assert saved.ledger["samples"] == 30.0
    assert saved.ledger["loss"] == 3.0
    assert saved.held == (Held(numbers=(0,)),)
    assert pushes == (1, 1.0)


def test_without_a_centre_what_is_reported_is_given():
    ledger, report = make_ledger(SoloWorld(), rule=None)
    report(0, wanted=4)
    report(0, samples=20.0, batches=2)
    assert carry(ledger, [0], {}).again == (2, 3)
    assert carry(ledger, [0], {}).ledger["samples"] == 20.0


def test_a_worker_goes_on_with_what_it_holds():
    ledger, report = make_ledger(SoloWorld())
    report(0, wanted=3)
    report(0, samples=10.0, loss=1.0, batches=1)
    saved = carry(ledger, [], {0: 1})
    assert saved.held == (Held(10.0, 1.0, 0.0, 1, (0, 1)),)
    rows = np.zeros((1, Holdings.width(20)))
    holdings = Holdings(rows)
    holdings.fill(saved.held)
    assert holdings.of(0) == saved.held[0]
    holdings.enter(0, WorkerReport(batches=1, push=True), 1.0, gives=True)
    assert holdings.of(0) == Held()


def test_a_report_that_was_not_finished_does_not_count(monkeypatch):
    ledger, report = make_ledger(SoloWorld())
    report(0, wanted=2)
    before = carry(ledger, [0], {})

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Holdings, "grant", die)
    with suppress(KeyboardInterrupt):
        report(0, samples=10.0, batches=1, push=True, wanted=5)
    assert carry(ledger, [0], {}).again == before.again
    assert carry(ledger, [0], {}).ledger == before.ledger


def test_there_is_room_for_all_batches_until_a_push():
    """A worker that pulls often and pushes rarely, granted single batches."""
    rule = make_rule({"name": "downpour", "push_every": 150, "pull_every": 1})
    holdings = Holdings(np.zeros((1, Holdings.width(most_held(rule, in_hand=18)))))
    for number in range(150 + 18):
        holdings.grant(0, 2 * number, 2 * number + 1)
        holdings.enter(0, WorkerReport(batches=number < 150), 1.0, gives=False)
    assert len(holdings.of(0).numbers) == 168
    holdings.enter(0, WorkerReport(push=True), 1.0, gives=True)
    assert len(holdings.of(0).numbers) == 18


def test_more_than_there_is_room_for_is_an_error():
    holdings = Holdings(np.zeros((1, Holdings.width(1))))
    holdings.grant(0, 0, 1)
    with pytest.raises(TrainingError, match="omit --elastic"):
        holdings.grant(0, 5, 6)


def test_a_worker_that_serves_now_has_its_rest_done_by_others():
    held = (Held(10.0, 1.0, 0.0, 1, (4, 5)), Held(20.0, 2.0, 0.0, 2, (6, 7)), Held())
    counts = {"samples": 50.0, "loss": 5.0, "without_loss": 0.0, "updates": 3.0, "granted": 9.0}
    found = for_workers(SavedCentre(np.zeros(1), {}, counts, (8,), held), workers=(0, 2, 3))
    assert found.again == (6, 7, 8)
    assert (found.ledger["samples"], found.ledger["loss"]) == (30.0, 3.0)
    assert found.held == (held[0], Held(), Held())  # the last is a newcomer
    assert counts["samples"] == 50.0


def test_batches_of_a_push_that_did_not_arrive_are_granted_again():
    ledger, report = make_ledger(SoloWorld())
    report(0, wanted=3)
    report(0, samples=10.0, loss=1.0, batches=1)
    report(0, samples=10.0, loss=1.0, batches=1, push=True)
    assert carry(ledger, [0], {}).again == (2,)
    lost = carry(ledger, [0], {}, arrived=False)
    assert (lost.again, lost.ledger["samples"]) == ((0, 1, 2), 0.0)
    report(0)  # who reports again has pushed
    assert carry(ledger, [0], {}, arrived=False).again == (2,)
