"""Stopwatch: no second is lost, none is counted twice."""

from time import perf_counter

import pytest
from support.costs import cost_ratio

from paceline.observe import Stopwatch, TimeSplit


def spend(seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def test_a_lap_goes_to_its_bucket_alone():
    watch = Stopwatch()
    for bucket in ("compute", "wait", "communication", "data"):
        watch.start()
        spend(0.002)
        seconds = watch.lap(bucket)
        assert seconds >= 0.002
        assert getattr(watch, bucket) == seconds
        assert watch.take() == TimeSplit(**{bucket: seconds})


def test_laps_add_up_to_the_time_between_start_and_the_last_lap():
    watch = Stopwatch()
    before = perf_counter()
    started = watch.start()
    for _ in range(20):
        for bucket in ("data", "compute", "wait", "communication"):
            spend(1e-5)
            watch.lap(bucket)
        spend(1e-5)
    last = watch.lap("compute") + perf_counter() - started
    total = watch.take().total
    assert before <= started
    assert 81e-5 <= total <= last


def test_start_forgets_the_time_since_the_last_lap():
    watch = Stopwatch()
    spend(0.01)
    before = perf_counter()
    watch.start()
    assert watch.lap("compute") <= perf_counter() - before


def test_take_empties_the_buckets_and_the_lap_goes_on():
    watch = Stopwatch()
    watch.start()
    watch.lap("wait")
    spend(0.002)
    assert watch.take().wait > 0
    assert watch.take() == TimeSplit()
    assert watch.lap("data") >= 0.002


def test_an_unknown_bucket_is_refused():
    with pytest.raises(AttributeError, match="comm"):
        Stopwatch().lap("comm")


def test_a_lap_costs_a_few_looks_at_the_clock():
    watch = Stopwatch()
    assert cost_ratio(lambda: watch.lap("compute"), perf_counter) < 12


def test_the_steady_time_is_all_but_what_was_taken_first():
    """The first epoch includes start-up; a run of one epoch has no other."""
    watch = Stopwatch()
    watch.wait = 8.0
    assert watch.steady() == TimeSplit(wait=8.0)
    watch.take()
    assert watch.steady() == TimeSplit(wait=8.0)
    watch.wait = 2.0
    watch.take()
    assert watch.steady() == TimeSplit(wait=2.0)
    watch.wait = 1.0
    watch.take()
    watch.compute = 4.0
    assert watch.steady() == TimeSplit(compute=4.0, wait=3.0)
