"""What every World must do: one table of checks, run in threads, alone and under mpirun."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from paceline.comm import ANY_RANK, Buffer, SoloWorld, World, wait_until
from paceline.comm.counter import make_counter
from paceline.comm.node_memory import PREFIX, find_place
from paceline.errors import WorldError


def send(world: World, buffer: Buffer, to: int, tag: int) -> None:
    wait_until(world.isend(buffer, to, tag).done)


def receive(world: World, buffer: Buffer, source: int, tag: int) -> int:
    """Wait for a message; who sent it."""
    pending = world.irecv(buffer, source, tag)
    wait_until(pending.done)
    return pending.source


def broadcast_gives_the_roots_values(world: World, length: int = 5) -> None:
    root = world.size - 1
    for dtype in (np.float32, np.float64, np.int64, np.uint8):
        buffer = np.full((3, length), world.rank, dtype)
        world.broadcast(buffer, root=root)
        assert buffer.tolist() == np.full((3, length), root).tolist()


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
    assert len(set(world.allgather_values(first.tobytes()))) == 1, "ranks got different sums"


def a_made_buffer_is_summed_in_place(world: World) -> None:
    for size in (3, 5_000, 100_001):
        buffer = world.make_buffer(size, np.float32)
        assert buffer.shape == (size,)
        assert not buffer.any()
        buffer[:] = world.rank
        world.all_reduce(buffer)
        part = buffer[size // 3 :]
        world.all_reduce(part)
        once = sum(range(world.size))
        assert set(buffer[: size // 3].tolist()) <= {once}
        assert set(part.tolist()) == {once * world.size}
        world.drop_buffer(buffer)
        world.all_reduce(buffer)  # as before, by another way
        assert set(buffer[size // 3 :].tolist()) == {once * world.size**2}


def long_sums_are_the_same_on_simulated_nodes(world: World) -> None:
    """A world of its own: how ranks share nodes is found out once."""
    part = world.split(0)
    part.node_ranks = tuple(r for r in range(world.size) if r % 2 == world.rank % 2)
    values = np.random.default_rng(world.rank).normal(size=30_000).astype(np.float32)
    expected = values.copy()
    world.all_reduce(expected)
    made = part.make_buffer(values.size, np.float32)
    made[:] = values
    part.all_reduce(made)
    part.all_reduce(values)
    for found in (made, values):
        assert np.allclose(found, expected, atol=1e-5)
        assert len(set(world.allgather_values(found.tobytes()))) == 1


def a_polling_world_does_the_same(world: World) -> None:
    part = world.split(0)
    part.poll_interval_s = 0.001
    all_reduce_sums_in_place(part)
    a_made_buffer_is_summed_in_place(part)
    barrier_lets_nobody_through_early(part)
    assert part.split(0).poll_interval_s == 0.001


def a_polling_rank_sleeps_while_it_waits(world: World) -> None:
    part = world.split(0)
    part.poll_interval_s = 0.001
    part.barrier()
    began = time.thread_time()  # of a core: how busy the machine is does not matter
    if world.rank == 0:
        time.sleep(0.5)
    part.barrier()
    assert time.thread_time() - began < 0.2


def neighbours_pass_messages_on_a_ring(world: World, length: int = 4) -> None:
    if world.size == 1:
        return
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    outgoing, incoming = np.arange(float(length)) + world.rank, np.empty(length)
    if world.rank % 2 == 0:
        send(world, outgoing, after, tag=3)
        source = receive(world, incoming, before, tag=3)
    else:
        source = receive(world, incoming, before, tag=3)
        send(world, outgoing, after, tag=3)
    assert source == before
    assert incoming.tolist() == (np.arange(length) + before).tolist()


def messages_are_told_apart_by_tag(world: World) -> None:
    if world.size == 1:
        return
    if world.rank == 1:
        for tag in (1, 2):
            send(world, np.array([float(tag)]), 0, tag)
    if world.rank == 0:
        got = np.empty(1)
        for tag in (2, 1):
            receive(world, got, 1, tag)
            assert got[0] == tag


def any_rank_may_be_received_from(world: World) -> None:
    if world.rank:
        send(world, np.array([float(world.rank)]), 0, tag=5)
        return
    got, seen = np.empty(1), set()
    for _ in range(world.size - 1):
        source = receive(world, got, ANY_RANK, tag=5)
        assert got[0] == source
        seen.add(source)
    assert seen == set(range(1, world.size))


def small_values_are_broadcast_and_gathered(world: World) -> None:
    assert world.bcast_value({"from": world.rank}, root=world.size - 1) == {"from": world.size - 1}
    assert world.allgather_values(world.rank**2) == [rank**2 for rank in range(world.size)]


def split_makes_worlds_of_one_colour(world: World) -> None:
    part = world.split(world.rank % 2)
    members = [rank for rank in range(world.size) if rank % 2 == world.rank % 2]
    assert (part.rank, part.size) == (members.index(world.rank), len(members))
    assert part.allgather_values(world.rank) == members
    total = np.array([float(world.rank)])
    part.all_reduce(total)
    assert total[0] == sum(members)


def ranks_of_a_node_know_each_other(world: World) -> None:
    assert world.rank in world.node_ranks
    assert world.node_ranks == tuple(range(world.size))  # all tests run on one machine
    assert len(set(world.allgather_values(world.node))) == 1


def barrier_lets_nobody_through_early(world: World) -> None:
    memory = world.node_memory(1)
    if world.rank == world.size - 1:  # the others must wait for this one
        time.sleep(0.1)  # time for them to come through, if they can
        memory.bytes[0] = 1
    world.barrier()
    assert memory.bytes[0] == 1
    world.barrier()


def a_buffer_must_be_one_piece(world: World) -> None:
    with pytest.raises(TypeError, match="contiguous"):
        world.all_reduce(np.zeros((4, 4))[:, 0])


def posted_messages_match_in_order(world: World) -> None:
    if isinstance(world, SoloWorld):
        return
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    buffers = [np.zeros(2) for _ in range(4)]
    sources = [before, ANY_RANK, before, ANY_RANK]
    coming = [world.irecv(b, source, tag=7) for b, source in zip(buffers, sources, strict=True)]
    other = np.zeros(1)
    aside = world.irecv(other, before, tag=8)
    leaving = [world.isend(np.array([world.rank, n], float), after, tag=7) for n in range(4)]
    for pending in [*reversed(coming), *leaving]:
        wait_until(pending.done)
    assert [b.tolist() for b in buffers] == [[before, n] for n in range(4)]
    assert [pending.source for pending in coming] == [before] * 4
    assert not aside.done()
    world.barrier()
    send(world, np.array([5.0]), after, tag=8)
    wait_until(aside.done)
    assert other.tolist() == [5.0]


def a_posted_receive_goes_before_a_later_one(world: World) -> None:
    if world.size == 1:
        return
    if world.rank == 1:
        world.barrier()
        send(world, np.array([1.0]), 0, tag=11)
        send(world, np.array([2.0]), 0, tag=11)
    elif world.rank == 0:
        posted, later = np.zeros(1), np.zeros(1)
        pending = world.irecv(posted, 1, tag=11)
        world.barrier()
        receive(world, later, 1, tag=11)
        assert pending.done()
        assert (posted[0], later[0]) == (1.0, 2.0)
    else:
        world.barrier()


def a_shorter_message_fills_the_beginning(world: World) -> None:
    if isinstance(world, SoloWorld):
        return
    buffer = np.full(5, -1.0, np.float32)
    pending = world.irecv(buffer, world.rank, tag=9)
    leaving = world.isend(np.array([3, 4], np.float32), world.rank, tag=9)
    wait_until(pending.done)
    wait_until(leaving.done)
    assert buffer.tolist() == [3, 4, -1, -1, -1]


def a_longer_message_is_an_error(world: World) -> None:
    if world.size == 1:  # Open MPI 5.0.11 does not notice it in a message to oneself
        return
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    pending = world.irecv(np.zeros(1, np.float32), before, tag=12)
    leaving = world.isend(np.ones(2, np.float32), after, tag=12)
    for _ in range(2):  # whoever asks again hears the same
        with pytest.raises(WorldError):
            wait_until(pending.done)
    wait_until(leaving.done)


def a_cancelled_receive_leaves_its_message_to_a_later_one(world: World) -> None:
    if isinstance(world, SoloWorld):
        return
    dropped, kept = np.zeros(1), np.zeros(1)
    first = world.irecv(dropped, ANY_RANK, tag=10)
    first.cancel()
    first.cancel()
    assert not first.done()
    world.barrier()
    after = (world.rank + 1) % world.size
    leaving = world.isend(np.array([6.0]), after, tag=10)
    second = world.irecv(kept, ANY_RANK, tag=10)
    wait_until(second.done)
    wait_until(leaving.done)
    second.cancel()  # too late: it has come
    assert second.done()
    assert (dropped[0], kept[0], first.done()) == (0.0, 6.0, False)
    with pytest.raises(WorldError, match="cannot be cancelled"):
        leaving.cancel()


def a_thread_serves_while_another_asks(world: World) -> None:
    """As a rank that holds the centre does: it also asks itself."""
    if isinstance(world, SoloWorld) or not world.thread_multiple:
        return
    asked, answered, rounds = 20, 21, 30

    def serve() -> None:
        question = np.zeros(100_000)
        for _ in range(rounds * world.size):
            pending = world.irecv(question, ANY_RANK, tag=asked)
            wait_until(pending.done)
            answer = world.isend(question + 1, pending.source, tag=answered)
            wait_until(answer.done)

    server = threading.Thread(target=serve) if world.rank == 0 else None
    if server:
        server.start()
    for n in range(rounds):
        answer = np.zeros(100_000)
        pending = world.irecv(answer, 0, tag=answered)
        wait_until(world.isend(np.full(100_000, float(n)), 0, tag=asked).done)
        wait_until(pending.done)
        assert (answer == n + 1).all()
    if server:
        server.join()


def node_memory_is_seen_by_the_node(world: World) -> None:
    memory = world.node_memory(4096 * 3 + 5)
    assert memory.bytes.size == 4096 * 3 + 5
    assert memory.bytes.dtype == np.uint8
    assert memory.bytes.ctypes.data % 4096 == 0
    assert not memory.bytes.any()
    world.barrier()
    memory.bytes[world.rank] = world.rank + 1
    world.barrier()
    assert memory.bytes[: world.size].tolist() == [rank + 1 for rank in range(world.size)]
    view = memory.bytes.view()
    memory.close()
    memory.close()
    assert view[world.rank] == world.rank + 1  # a view outlives it
    assert world.node_memory(0).bytes.size == 0


def a_lock_of_node_memory_keeps_others_out(world: World) -> None:
    memory = world.node_memory(16, locks=2)
    counters = memory.bytes.view(np.int64)
    for _ in range(200):
        for lock in range(2):
            with memory.hold(lock):
                seen = int(counters[lock])
                time.sleep(0)  # others would step in here
                counters[lock] = seen + 1
    world.barrier()
    assert counters.tolist() == [200 * world.size] * 2


def a_lock_is_free_again_after_an_error(world: World) -> None:
    memory = world.node_memory(1)
    for _ in range(2):
        with pytest.raises(KeyError), memory.hold(0):
            raise KeyError
    world.barrier()


def each_node_has_memory_of_its_own(world: World) -> None:
    real = world.node_ranks
    world.node_ranks = tuple(r for r in range(world.size) if r % 2 == world.rank % 2)
    try:
        memory = world.node_memory(8)
        with memory.hold(0):
            memory.bytes[0] += world.rank + 1
        world.barrier()
        assert memory.bytes[0] == sum(rank + 1 for rank in world.node_ranks)
    finally:
        world.node_ranks = real


def node_memory_leaves_no_file(world: World) -> None:
    memory = world.node_memory(1000)
    maps = Path("/proc/self/maps")
    if maps.exists():  # not on macOS
        named = [line for line in maps.read_text().splitlines() if PREFIX in line]
        assert all(line.endswith("(deleted)") for line in named)
        assert bool(named) == (type(world).__name__ == "MPIWorld")
    if "OMPI_MCA_btl_sm_backing_directory" in os.environ:  # a place that is this job's alone
        assert not list(find_place().glob(f"{PREFIX}*"))
    world.barrier()
    memory.close()


def too_much_node_memory_is_refused_to_all(world: World) -> None:
    real = world.node_ranks
    for node_ranks in (real, (world.rank,)):
        world.node_ranks = node_ranks
        too_much = node_ranks == real or world.rank == world.size - 1  # all nodes, or one of them
        with pytest.raises(WorldError, match=f"{2**50} bytes") as caught:
            world.node_memory(2**50 if too_much else 8)
        world.node_ranks = real
        assert len(set(world.allgather_values(str(caught.value)))) == 1
    assert world.node_memory(8).bytes.size == 8


def numbers_of(world: World, ahead: bool) -> list[int]:
    """Those that this rank takes of two ranges of a counter."""
    counter = make_counter(world, on_error=lambda error: world.abort(), ahead=ahead)
    taken = []
    for first, last in ((0, 40), (45, 70)):  # nobody takes 40 to 44
        while (number := counter.take(first, last)) is not None:
            taken.append(number)
    world.barrier()
    assert counter.value() == 70
    counter.close()
    return taken


def a_counter_gives_each_number_once(world: World) -> None:
    real, last = world.node_ranks, world.size - 1
    two = (last,) if world.rank == last else tuple(range(last))
    for node_ranks in (real, (world.rank,), two):
        world.node_ranks = node_ranks
        for ahead in (True, False):
            taken = world.allgather_values(numbers_of(world, ahead))
            assert sorted(n for own in taken for n in own) == [*range(40), *range(45, 70)]
            assert all(own == sorted(own) for own in taken)
    world.node_ranks = real


CHECKS = [
    broadcast_gives_the_roots_values,
    all_reduce_sums_in_place,
    all_reduce_repeats_bit_for_bit,
    a_made_buffer_is_summed_in_place,
    long_sums_are_the_same_on_simulated_nodes,
    a_polling_world_does_the_same,
    a_polling_rank_sleeps_while_it_waits,
    neighbours_pass_messages_on_a_ring,
    messages_are_told_apart_by_tag,
    any_rank_may_be_received_from,
    small_values_are_broadcast_and_gathered,
    split_makes_worlds_of_one_colour,
    ranks_of_a_node_know_each_other,
    barrier_lets_nobody_through_early,
    a_buffer_must_be_one_piece,
    posted_messages_match_in_order,
    a_posted_receive_goes_before_a_later_one,
    a_shorter_message_fills_the_beginning,
    a_longer_message_is_an_error,
    a_cancelled_receive_leaves_its_message_to_a_later_one,
    a_thread_serves_while_another_asks,
    node_memory_is_seen_by_the_node,
    a_lock_of_node_memory_keeps_others_out,
    a_lock_is_free_again_after_an_error,
    each_node_has_memory_of_its_own,
    node_memory_leaves_no_file,
    too_much_node_memory_is_refused_to_all,
    a_counter_gives_each_number_once,
]
