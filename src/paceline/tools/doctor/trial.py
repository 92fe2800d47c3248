"""What the ranks of doctor's trial do: form a world and measure it. Rank 0 reports.

The last line that it prints begins with MARK; the rest of it is JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np

from paceline.cluster.cores import affinity
from paceline.comm import Pending, World
from paceline.runtime.world import init
from paceline.tools.doctor.world import LARGE_BYTES, MARK, PAIR_BYTES, SMALL_BYTES, PairSeen, Seen

_ROUNDS, _SMALL_TIMES, _LARGE_TIMES = 4, 25, 1
_ALL_PAIRS = 8
"""Up to this many nodes every pair is measured; beyond that, each node and the next."""


def measure(world: World) -> Seen:
    """What doctor reports about the world. All ranks call it together."""
    ranks = world.allgather_values(
        (world.node, len(affinity()), os.environ.get("OMP_NUM_THREADS", ""))
    )
    nodes: dict[str, int] = {}
    for rank, (node, _, _) in enumerate(ranks):
        nodes.setdefault(node, rank)
    return {
        "size": world.size,
        "ranks": [{"node": node, "cpus": cpus, "threads": n} for node, cpus, n in ranks],
        "sum_is_right": _sum_is_right(world),
        "small_s": _time(world, _sum(world, SMALL_BYTES), _SMALL_TIMES),
        "large_s": _time(world, _sum(world, LARGE_BYTES), _LARGE_TIMES),
        "pairs": [_measure_pair(world, nodes, *pair) for pair in pairs(list(nodes))],
    }


def pairs(nodes: list[str]) -> list[tuple[str, str]]:
    """The pairs of nodes to measure.

    >>> pairs(["a", "b", "c"])
    [('a', 'b'), ('a', 'c'), ('b', 'c')]
    """
    if len(nodes) <= _ALL_PAIRS:
        return list(itertools.combinations(nodes, 2))
    return list(zip(nodes, nodes[1:] + nodes[:1], strict=True))


def _sum_is_right(world: World) -> bool:
    """Whether a sum over all ranks is correct."""
    values = np.full(1000, float(world.rank + 1))
    world.all_reduce(values)
    return all(world.allgather_values(bool((values == world.size * (world.size + 1) / 2).all())))


def _sum(world: World, nbytes: int) -> Callable[[], None]:
    buffer = np.zeros(nbytes // 4, np.float32)
    return lambda: world.all_reduce(buffer)


def _time(world: World, act: Callable[[], None], times: int) -> float:
    """Seconds per call, the best of several rounds, after a warm-up.

    The best, since other programs may be busy on the machine for a moment.
    """
    act()
    taken = []
    for _ in range(_ROUNDS):
        world.barrier()
        started = time.perf_counter()
        for _ in range(times):
            act()
        taken.append((time.perf_counter() - started) / times)
    return min(taken)


def _measure_pair(world: World, nodes: dict[str, int], one: str, other: str) -> PairSeen:
    """Latency and bandwidth of messages between the first ranks of two nodes, one way."""
    first, second = nodes[one], nodes[other]
    small = _exchange(world, first, second, SMALL_BYTES, _SMALL_TIMES)
    large = _exchange(world, first, second, PAIR_BYTES, _LARGE_TIMES)
    return {"nodes": [one, other], "small_s": small, "bytes_per_s": PAIR_BYTES / large}


def _exchange(world: World, first: int, second: int, nbytes: int, times: int) -> float:
    buffer = np.zeros(nbytes, np.uint8)

    def there_and_back() -> None:
        if world.rank == first:
            _wait(world.isend(buffer, second))
            _wait(world.irecv(buffer, second))
        elif world.rank == second:
            _wait(world.irecv(buffer, first))
            _wait(world.isend(buffer, first))

    taken = _time(world, there_and_back, times)
    return world.bcast_value(taken, first) / 2


def _wait(pending: Pending) -> None:
    while not pending.done():
        os.sched_yield()  # a sleep would be measured, too


def main() -> int:
    world = init()
    seen = measure(world)
    if world.rank == 0:
        sys.stdout.write(f"\n{MARK}{json.dumps(seen)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
