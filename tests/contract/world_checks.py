"""What every World must do: one table of checks, run in threads, alone and under mpirun."""

from __future__ import annotations

import time

import numpy as np
import pytest

from paceline.comm import ANY_RANK, World


def broadcast_gives_the_roots_values(world: World) -> None:
    root = world.size - 1
    for dtype in (np.float32, np.float64, np.int64, np.uint8):
        buffer = np.full((3, 5), world.rank, dtype)
        world.broadcast(buffer, root=root)
        assert buffer.tolist() == np.full((3, 5), root).tolist()


def all_reduce_sums_in_place(world: World) -> None:
    for size in (1, 7, 100_000):
        buffer = np.arange(size, dtype=np.float32) + world.rank
        world.all_reduce(buffer)
        expected = np.arange(size) * world.size + sum(range(world.size))
        assert np.allclose(buffer, expected)


def all_reduce_repeats_bit_for_bit(world: World) -> None:
    values = np.random.default_rng(world.rank).normal(size=10_001).astype(np.float32)
    first, second = values.copy(), values.copy()
    world.all_reduce(first)
    world.all_reduce(second)
    assert first.tobytes() == second.tobytes()
    assert len(set(world.share(first.tobytes()))) == 1, "ranks got different sums"


def neighbours_pass_messages_on_a_ring(world: World) -> None:
    if world.size == 1:
        return
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    outgoing, incoming = np.full(4, float(world.rank)), np.empty(4)
    if world.rank % 2 == 0:
        world.send(outgoing, after, tag=3)
        received = world.receive(incoming, before, tag=3)
    else:
        received = world.receive(incoming, before, tag=3)
        world.send(outgoing, after, tag=3)
    assert received == (before, 3)
    assert incoming.tolist() == [float(before)] * 4


def messages_are_told_apart_by_tag(world: World) -> None:
    if world.size == 1:
        return
    if world.rank == 1:
        world.send(np.array([1.0]), 0, tag=1)
        world.send(np.array([2.0]), 0, tag=2)
    if world.rank == 0:
        got = np.empty(1)
        world.receive(got, 1, tag=2)
        assert got[0] == 2.0
        world.receive(got, 1, tag=1)
        assert got[0] == 1.0


def receive_takes_any_rank(world: World) -> None:
    if world.rank:
        world.send(np.array([float(world.rank)]), 0, tag=5)
        return
    got, seen = np.empty(1), set()
    for _ in range(world.size - 1):
        source, _ = world.receive(got, ANY_RANK, tag=5)
        assert got[0] == source
        seen.add(source)
    assert seen == set(range(1, world.size))


def small_values_are_told_and_shared(world: World) -> None:
    assert world.tell({"from": world.rank}, root=world.size - 1) == {"from": world.size - 1}
    assert world.share(world.rank**2) == [rank**2 for rank in range(world.size)]


def split_makes_worlds_of_one_colour(world: World) -> None:
    part = world.split(world.rank % 2)
    members = [rank for rank in range(world.size) if rank % 2 == world.rank % 2]
    assert (part.rank, part.size) == (members.index(world.rank), len(members))
    assert part.share(world.rank) == members
    total = np.array([float(world.rank)])
    part.all_reduce(total)
    assert total[0] == sum(members)


def ranks_of_a_node_know_each_other(world: World) -> None:
    assert world.rank in world.node_ranks
    assert world.node_ranks == tuple(range(world.size))  # all tests run on one machine
    assert len(set(world.share(world.node))) == 1


def barrier_lets_nobody_through_early(world: World) -> None:
    late = 0.2
    began = time.monotonic()
    if world.rank == world.size - 1:
        time.sleep(late)  # the others must wait for this one
    world.barrier()
    assert time.monotonic() - began >= late * 0.9


def a_buffer_must_be_one_piece(world: World) -> None:
    with pytest.raises(TypeError, match="contiguous"):
        world.all_reduce(np.zeros((4, 4))[:, 0])


CHECKS = [
    broadcast_gives_the_roots_values,
    all_reduce_sums_in_place,
    all_reduce_repeats_bit_for_bit,
    neighbours_pass_messages_on_a_ring,
    messages_are_told_apart_by_tag,
    receive_takes_any_rank,
    small_values_are_told_and_shared,
    split_makes_worlds_of_one_colour,
    ranks_of_a_node_know_each_other,
    barrier_lets_nobody_through_early,
    a_buffer_must_be_one_piece,
]
