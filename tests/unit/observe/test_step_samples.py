"""Samples of a rank's steps."""

import itertools
from types import SimpleNamespace

import pytest

from paceline.observe import Stopwatch, TimeSplit
from paceline.observe.step_samples import MOST, StepSamples


class FakeWatch:
    """A watch that is told what a step took."""

    def __init__(self):
        self.now, self.queued, self.queue = TimeSplit(), 0.0, None

    def total(self):
        return self.now

    def look_at(self, queue):
        self.queue = queue


def take(steps, asynchronous=False):
    watch = FakeWatch()
    times = StepSamples(watch, asynchronous)
    times.begin()
    for step in range(1, steps + 1):
        watch.now += TimeSplit(compute=float(step), data=1.0)
        times.note()
    return times


def test_all_of_the_first_steps_are_kept():
    assert [row[0] for row in take(100).rows()] == list(range(1, 101))


def test_a_long_run_keeps_few_of_the_same_steps_on_each_rank():
    rows = take(100_000).rows(most=2 * MOST)
    assert MOST // 2 <= len(rows) <= 2 * MOST
    chosen = [row[0] for row in rows]
    assert chosen == [row[0] for row in take(100_000).rows(most=2 * MOST)]
    for period in (2, 3, 4, 8, 16):  # work that rotates is seen on all ranks
        counts = [sum(step % period == turn for step in chosen) for turn in range(period)]
        assert min(counts) > 0.7 * len(chosen) / period


def test_an_asynchronous_rank_keeps_means_of_all_steps():
    rows = take(10_000, asynchronous=True).rows(most=2 * MOST)
    assert MOST // 2 <= len(rows) <= 2 * MOST
    assert all(row[3] == 1.0 for row in rows)
    gaps = {later[0] - sooner[0] for sooner, later in itertools.pairwise(rows)}
    assert len(gaps) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_time_between_steps_and_for_saving_is_left_out(asynchronous):
    watch = FakeWatch()
    times = StepSamples(watch, asynchronous)
    times.begin()
    watch.now += TimeSplit(compute=1.0, communication=5.0)
    times.leave_out(5.0, saving=True)
    times.note()
    watch.now += TimeSplit(compute=100.0)
    times.begin()
    watch.now += TimeSplit(compute=2.0)
    times.note()
    assert [row[:4] for row in times.rows()] == [[1.0, 0, 0, 0], [2.0, 0, 0, 0]]
    assert times.saved_s == 5.0


def test_only_compute_counts_as_without_a_core():
    clock = SimpleNamespace(now=0.0)
    clock.read = lambda: clock.now
    watch = Stopwatch()
    watch.look_at(clock)
    for bucket, seconds in (("compute", 1.0), ("wait", 10.0), ("data", 100.0), ("compute", 2.0)):
        clock.now += seconds
        watch.lap(bucket)
    assert watch.queued == 3.0


def test_the_total_grows_whoever_takes_the_buckets():
    watch = Stopwatch()
    watch.start()
    watch.lap("compute")
    before = watch.total()
    assert watch.take() == before == watch.total()
    watch.lap("wait")
    assert watch.total().compute == before.compute
    assert watch.total().wait > 0
