"""Contestants take turns, and the slowest rank counts."""

import time

from paceline.comm import run_world
from paceline.tools.bench.ranks.timing import best_of, time_together


def test_contestants_take_turns_and_every_second_round_goes_backwards():
    order = []

    def contestant(name):
        def work():
            order.append(name)
            return float(len(order))

        return work

    best = best_of(3, {name: contestant(name) for name in "abc"})
    assert "".join(order) == "abccbaabc"
    assert best == {"a": 1.0, "b": 2.0, "c": 3.0}


def test_the_least_of_all_rounds_counts():
    assert best_of(3, {"a": iter([3.0, 1.0, 2.0]).__next__}) == {"a": 1.0}


def test_the_time_is_that_of_the_slowest_rank():
    def program(world):
        return time_together(world, lambda: time.sleep(0.05 * world.rank))

    times = run_world(3, program)
    assert len(set(times)) == 1
    assert times[0] >= 0.1


def test_the_clock_starts_when_the_last_rank_has_come():
    def program(world):
        time.sleep(0.2 if world.rank == 0 else 0.0)
        came = time.perf_counter()
        return time_together(world, world.barrier), time.perf_counter() - came

    found = run_world(3, program)
    _, last_rank_s = found[0]
    assert max(seconds for seconds, _ in found) <= last_rank_s
