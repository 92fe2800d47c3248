"""The ledger: what it counts, whom it grants batches, who still works."""

import numpy as np
import pytest

from paceline.sync.parameter_server.ledger import Ledger, WorkerReport


def make(workers=3, batches=0):
    return Ledger(np.zeros(Ledger.size(workers)), workers, batches)


def full(staleness):
    return 1.0


def test_samples_and_losses_of_all_workers_add_up():
    ledger = make()
    ledger.enter(0, WorkerReport(samples=5, loss=10.0), full)
    news = ledger.enter(2, WorkerReport(samples=3, loss=1.5), full)
    assert (news.samples, news.loss, news.stop, news.working) == (8, 11.5, False, 3)


def test_a_stop_reaches_whoever_reports_next():
    ledger = make(batches=100)
    assert ledger.enter(1, WorkerReport(stop=True, wanted=4), full).stop
    news = ledger.enter(0, WorkerReport(wanted=4), full)
    assert news.stop
    assert news.first == news.last  # nothing more is granted


def test_workers_leave_one_by_one():
    ledger = make()
    assert [ledger.enter(w, WorkerReport(left=True), full).working for w in (1, 0, 2)] == [2, 1, 0]
    assert ledger.enter(1, WorkerReport(left=True), full).working == 0


@pytest.mark.parametrize("batches", [1, 7, 100])
def test_every_batch_is_granted_once(batches):
    ledger, chance, dealt = make(workers=4, batches=batches), np.random.default_rng(0), []
    for _ in range(10 * batches):
        news = ledger.enter(
            int(chance.integers(4)), WorkerReport(wanted=int(chance.integers(9))), full
        )
        dealt += range(news.first, news.last)
    assert dealt == list(range(batches))


def test_towards_the_end_less_is_granted_at_a_time():
    ledger = make(workers=2, batches=16)
    sizes = []
    while sum(sizes) < 16:
        news = ledger.enter(0, WorkerReport(wanted=10), full)
        sizes.append(news.last - news.first)
    assert sizes == [4, 3, 2, 1, 1, 1, 1, 1, 1, 1]


def test_staleness_counts_what_others_pushed_since_the_last_pull():
    ledger = make()
    both = WorkerReport(push=True, pull=True)
    assert ledger.enter(0, both, full).staleness == 0
    assert ledger.enter(1, both, full).staleness == 1  # 0 pushed since 1 began
    assert ledger.enter(0, both, full).staleness == 1
    assert ledger.enter(2, WorkerReport(push=True), full).staleness == 3
    assert (
        ledger.enter(2, WorkerReport(push=True), full).staleness == 3
    )  # its own push does not count
    assert ledger.enter(2, WorkerReport(pull=True), full).staleness == 3
    assert ledger.enter(2, both, full).staleness == 0


def test_a_refused_push_is_no_update_and_brings_a_pull():
    ledger = make()

    def at_most_one(staleness):
        return 1.0 if staleness <= 1 else 0.0

    for _ in range(2):
        ledger.enter(0, WorkerReport(push=True, pull=True), at_most_one)
    news = ledger.enter(1, WorkerReport(push=True), at_most_one)
    assert (news.staleness, news.scale) == (2, 0.0)
    assert ledger.enter(1, WorkerReport(push=True), at_most_one).staleness == 0
    assert ledger.enter(0, WorkerReport(push=True), at_most_one).staleness == 1
