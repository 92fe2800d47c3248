"""What the ranks of `bench server` do: workers exchange with a centre, in three ways.

The first ranks are workers, the last is a server. Nothing is computed between exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.comm import World, wait_until
from paceline.errors import WorldError
from paceline.rules import EASGD
from paceline.tools.bench.harness import say
from paceline.tools.bench.ranks.naive_server import Arrays, NaiveWorker, serve
from paceline.tools.bench.ranks.peers import raw_mpi
from paceline.tools.bench.ranks.timing import best_of, time_together
from paceline.tools.bench.server import WORKERS, ServerSettings
from paceline.training.own_loop.keep_pace import keep_pace

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LAYERS = 10
WARM_UP = 3
"""Exchanges before those that count: memory is touched for the first time."""
FORCE = 0.9 / WORKERS
_TAG = 77


def measure(world: World, settings: ServerSettings) -> dict[str, float]:
    """Exchanges per second of all workers together, for each place of the centre."""
    workers = world.split(int(world.rank < WORKERS))
    comm = raw_mpi()
    sizes, exchanges = array_sizes(settings["parameters"]), settings["exchanges"]
    contestants: dict[str, Callable[[], float]] = {
        "node memory": lambda: _in_node_memory(world, workers, sizes, exchanges),
        "server rank": lambda: _at_a_server_rank(world, workers, sizes, exchanges),
        "naive": lambda: _naively(world, workers, comm, sizes, exchanges),
    }
    seconds = best_of(settings["rounds"], contestants)
    comm.Free()
    rates = {name: WORKERS * exchanges / taken for name, taken in seconds.items()}
    say(world, "  " + ", ".join(f"{name} {rate:.1f}/s" for name, rate in rates.items()))
    return rates


def array_sizes(parameters: int) -> list[int]:
    """A model of that many parameters: a matrix and a short vector for each layer.

    >>> sizes = array_sizes(1_000_000)
    >>> len(sizes), sum(sizes), sizes[:4]
    (20, 1000000, [18163, 100, 36327, 100])
    """
    vectors = [100] * LAYERS
    rest = parameters - sum(vectors)
    shares = LAYERS * (LAYERS + 1) // 2
    matrices = [rest * layer // shares for layer in range(1, LAYERS)]
    matrices.append(rest - sum(matrices))
    return [size for pair in zip(matrices, vectors, strict=True) for size in pair]


def _in_node_memory(world: World, workers: World, sizes: list[int], exchanges: int) -> float:
    if world.rank >= WORKERS:
        return _rest(world)
    seconds = _keep_exchanging(workers, workers, sizes, exchanges, servers=0)
    return _wake_up(world, seconds)


def _at_a_server_rank(world: World, workers: World, sizes: list[int], exchanges: int) -> float:
    return world.bcast_value(_keep_exchanging(world, workers, sizes, exchanges, servers=1))


def _keep_exchanging(
    world: World, workers: World, sizes: list[int], exchanges: int, servers: int
) -> float:
    """Ours, as a user's own loop calls it, with an optimizer that finds nothing to do."""
    model = torch.nn.ParameterList(torch.zeros(size) for size in sizes)
    optimizer = torch.optim.SGD(model.parameters())
    seconds, before = 0.0, []
    rule, exchange = EASGD(every=1, force=FORCE), {"servers": servers}
    with keep_pace(model, optimizer, rule, exchange=exchange, world=world) as pace:
        if world.rank in pace.workers:
            _begin(world, _views(model))
            seconds = _time(workers, optimizer.step, exchanges)
            before = _sample(_views(model))
    check_exchanges(world, before, _sample(_views(model)))
    return seconds


def _naively(
    world: World, workers: World, comm: Intracomm, sizes: list[int], exchanges: int
) -> float:
    arrays = [np.zeros(size, np.float32) for size in sizes]
    seconds, before, centre = 0.0, [], []
    if world.rank < WORKERS:
        _begin(world, arrays)
        worker = NaiveWorker(comm, WORKERS, arrays, FORCE)
        seconds = _time(workers, worker.exchange, exchanges)
        worker.leave()
        before = _sample(arrays)
    else:
        serve(comm, arrays, FORCE, WORKERS)
        centre = _sample(arrays)
    check_exchanges(world, before, world.bcast_value(centre, root=WORKERS))
    return world.bcast_value(seconds)


def _views(model: torch.nn.ParameterList) -> Arrays:
    return [parameter.detach().numpy() for parameter in model]


def _begin(world: World, arrays: Arrays) -> None:
    """Replicas that differ from each other and from the centre, which is zero."""
    for array in arrays:
        array[:] = world.rank + 1.0


def _time(workers: World, exchange: Callable[[], object], exchanges: int) -> float:
    for _ in range(WARM_UP):
        exchange()
    return time_together(workers, lambda: _repeat(exchange, exchanges))


def _repeat(exchange: Callable[[], object], times: int) -> None:
    for _ in range(times):
        exchange()


def _sample(arrays: Arrays) -> list[float]:
    """The first and the last number of each array."""
    return [float(array[at]) for array in arrays for at in (0, -1)]


def check_exchanges(world: World, replica: list[float], centre: list[float]) -> None:
    """Wrong exchanges can be fast, too: the sum of replicas and centre must not change."""
    replicas = [np.array(values) for values in world.allgather_values(replica) if values]
    total = np.sum([*replicas, np.array(centre)], axis=0)
    expected = sum(range(1, WORKERS + 1))
    if np.abs(total - expected).max() > 1e-3 * expected or min(centre) < 0.1:
        raise WorldError(
            f"exchanges went wrong: replicas and centre add up to {total.min()} .. {total.max()}, "
            f"expected {expected}, and the centre has moved from 0 to {min(centre)}"
        )


def _rest(world: World) -> float:
    """Sleep until the others are done: a rank that waits in MPI would take a core from them."""
    seconds = np.empty(1)
    wait_until(world.irecv(seconds, 0, _TAG).done)
    return float(seconds[0])


def _wake_up(world: World, seconds: float) -> float:
    if world.rank == 0:
        wait_until(world.isend(np.array([seconds]), to=WORKERS, tag=_TAG).done)
    return seconds
