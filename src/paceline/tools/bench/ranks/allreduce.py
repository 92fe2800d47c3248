"""What the ranks of `bench allreduce` do: sum one vector in several ways, in turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from paceline.comm import Buffer, World
from paceline.errors import WorldError
from paceline.tools.bench.allreduce import SumSettings, SumTimes, render_size
from paceline.tools.bench.harness import say
from paceline.tools.bench.ranks.peers import gloo_group, raw_mpi, raw_sum
from paceline.tools.bench.ranks.timing import best_of, time_together

LEAST_CALLS, MOST_CALLS = 3, 100_000


@dataclass(frozen=True)
class SumContestant:
    """A call, the vector that it reads, and the one that it writes: the same, unless it copies."""

    call: Callable[[], object]
    vector: Buffer
    target: Buffer | None = None


Maker = Callable[[int], SumContestant]
"""Makes a contestant for so many float32."""


def measure(world: World, settings: SumSettings) -> list[SumTimes]:
    """Seconds per call of ours and of each peer, for each size in bytes."""
    rounds, span_s = settings["rounds"], settings["span_s"]
    found: list[SumTimes] = []
    with ExitStack() as stack:
        makers: dict[str, Maker] = {"ours": lambda elements: _ours(world, elements)}
        # Once for all sizes: a new group starts new threads.
        makers |= {peer: _PEERS[peer](world, stack) for peer in settings["peers"]}
        for nbytes in settings["sizes"]:
            seconds = _measure_size(world, nbytes, makers, rounds, span_s)
            found.append({"bytes": nbytes, "seconds": seconds})
            figures = ", ".join(f"{name} {1e6 * value:.1f} us" for name, value in seconds.items())
            say(world, f"  {render_size(nbytes)}: {figures}")
    return found


def _measure_size(
    world: World, nbytes: int, makers: dict[str, Maker], rounds: int, span_s: float
) -> dict[str, float]:
    contestants = {name: make(nbytes // 4) for name, make in makers.items()}
    for name, contestant in contestants.items():
        check_result(world, name, contestant)
        contestant.vector[:] = 0  # a sum of sums of sums would soon be infinite
    best = best_of(
        rounds, {name: timed(world, each.call, span_s) for name, each in contestants.items()}
    )
    world.drop_buffer(contestants["ours"].vector)
    return best


def check_result(world: World, name: str, contestant: SumContestant) -> None:
    """Wrong sums can be fast, too. The values differ from place to place, and are exact."""
    vector, target = contestant.vector, contestant.target
    pattern = (np.arange(vector.size) % 251).astype(vector.dtype)
    vector[:] = pattern + world.rank
    contestant.call()
    if target is None:
        right = vector == world.size * pattern + sum(range(world.size))
    else:
        right = target == pattern + world.rank
    wrong = sum(world.allgather_values(int(np.count_nonzero(~right))))
    if wrong:
        raise WorldError(
            f"{name} gave wrong values in {wrong} places, for {vector.size} elements on each of "
            f"{world.size} ranks"
        )


def timed(world: World, call: Callable[[], object], span_s: float) -> Callable[[], float]:
    """Seconds per call; as many calls as take about `span_s`, the same number on all ranks."""
    calls = LEAST_CALLS
    for _ in range(2):  # the first calls are slow, and too few to measure
        per_call = time_together(world, partial(_repeat, call, calls)) / calls
        calls = min(max(int(span_s / max(per_call, 1e-9)), LEAST_CALLS), MOST_CALLS)
    return lambda: time_together(world, partial(_repeat, call, calls)) / calls


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def _ours(world: World, elements: int) -> SumContestant:
    vector = world.make_buffer(elements, np.float32)  # as a message of the product lies
    return SumContestant(partial(world.all_reduce, vector), vector)


def _mpi(world: World, stack: ExitStack) -> Maker:
    communicator = raw_mpi()
    stack.callback(communicator.Free)

    def make(elements: int) -> SumContestant:
        vector = np.empty(elements, np.float32)
        return SumContestant(raw_sum(communicator, vector), vector)

    return make


def _gloo(world: World, stack: ExitStack) -> Maker:
    import torch

    stack.enter_context(gloo_group(world))

    def make(elements: int) -> SumContestant:
        tensor = torch.empty(elements)
        return SumContestant(partial(torch.distributed.all_reduce, tensor), tensor.numpy())

    return make


def _memcpy(world: World, stack: ExitStack) -> Maker:
    def make(elements: int) -> SumContestant:
        vector, target = np.empty(elements, np.float32), np.zeros(elements, np.float32)
        return SumContestant(partial(np.copyto, target, vector), vector, target)

    return make


_PEERS: dict[str, Callable[[World, ExitStack], Maker]] = {
    "mpi": _mpi,
    "gloo": _gloo,
    "memcpy": _memcpy,
}
