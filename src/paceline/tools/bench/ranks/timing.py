"""Measuring contestants fairly: in turn, in one run, the best of several rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from paceline.comm import World


def best_of(rounds: int, contestants: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Run the contestants in turn, `rounds` times around, each giving a time; the least of each.

    Whatever else the machine does then hits all alike. Every second round goes backwards, so that
    nobody always comes after the same neighbour and what it left running. Ranks that measure
    together all go through the same sequence.

    >>> best_of(2, {"ours": iter([3.0, 2.0]).__next__, "gloo": iter([5.0, 6.0]).__next__})
    {'ours': 2.0, 'gloo': 5.0}
    """
    assert rounds >= 1
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        order = list(contestants)[:: 1 if turn % 2 == 0 else -1]
        for name in order:
            times[name].append(contestants[name]())
    return {name: min(taken) for name, taken in times.items()}


def time_together(world: World, work: Callable[[], None]) -> float:
    """Seconds that the work takes on the slowest rank, when all begin it together."""
    world.barrier()
    began = perf_counter()
    work()
    return max(world.allgather_values(perf_counter() - began))
