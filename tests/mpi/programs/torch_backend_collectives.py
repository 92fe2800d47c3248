"""Every collective of torch.distributed on the backend, against results computed here alone."""

import gc
import itertools
import sys
import time
import warnings
import weakref
from datetime import timedelta
from functools import reduce

import pytest
import torch
import torch.distributed as dist
from support.torch_backend_checks import run_checks

import paceline.torch_backend
from paceline.errors import WorldError
from paceline.torch_backend import MPIGroup
from paceline.torch_backend.joined import Joined, join, progress_engine

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
ALL = (*INTEGERS, *UNSIGNED, *FLOATS, torch.bool, *COMPLEX, torch.float8_e4m3fn)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
BITS = ("BAND", "BOR", "BXOR")

warnings.simplefilter("ignore", FutureWarning)  # names of before torch 2.13
dist.init_process_group("mpi4py", timeout=timedelta(seconds=60))
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def numbers(dtype, rank, count=5):
    """What a rank contributes: small, so that every type holds it and what is made of it."""
    values = torch.arange(count) % 3 + 1 + rank % 2
    if dtype == torch.bool:
        return (torch.arange(count) + rank) % 2 == 0
    if dtype.is_complex:
        return torch.complex(values.double(), torch.ones(count).double()).to(dtype)
    return values.to(dtype)


def everyone(dtype, count=5):
    return [numbers(dtype, rank, count) for rank in range(SIZE)]


def combined(op, tensors):
    """The tensors of all ranks made one, in a wide type."""
    dtype = tensors[0].dtype
    if dtype == torch.bool:
        if op == "BXOR":
            return reduce(torch.logical_xor, tensors)
        either = op in ("SUM", "MAX", "BOR")
        return reduce(torch.logical_or if either else torch.logical_and, tensors)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    wide = wide if op not in BITS else torch.int64
    ways = {"SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum}
    ways |= {"MAX": torch.maximum, "BAND": torch.bitwise_and, "BOR": torch.bitwise_or}
    ways |= {"BXOR": torch.bitwise_xor}
    made = reduce(ways[op], [tensor.to(wide) for tensor in tensors])
    if op == "AVG":
        made = made / SIZE
        made = made if dtype.is_floating_point or dtype.is_complex else made.trunc()
    return made.to(dtype)


def allowed(op, dtype):
    floats = dtype.is_floating_point or dtype.is_complex
    refused = (op in BITS and floats) or (op == "AVG" and dtype == torch.bool)
    return not refused and not (dtype.is_complex and op not in ("SUM", "AVG"))


def same(got, expected, what=""):
    assert got.dtype == expected.dtype, what
    assert got.shape == expected.shape, what
    if expected.dtype.is_complex:  # dividing one is not dividing its parts
        torch.testing.assert_close(got, expected)
    else:
        assert got.tolist() == expected.tolist(), (what, got, expected)


def check_all_reduce():
    for dtype, op in itertools.product(ALL, OPS):
        if allowed(op, dtype):
            tensor = numbers(dtype, RANK)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            same(tensor, combined(op, everyone(dtype)), (dtype, op))


def check_long_sums_take_the_memory_of_the_node():
    for dtype, count in itertools.product((torch.float32, torch.float64), (5_000, 700_001)):
        tensor = torch.arange(count, dtype=dtype) + RANK
        dist.all_reduce(tensor)
        expected = torch.arange(count, dtype=dtype) * SIZE + sum(range(SIZE))
        same(tensor, expected)
    half = torch.full((70_000,), 1.0 + RANK, dtype=torch.bfloat16)
    dist.all_reduce(half, dist.ReduceOp.AVG)
    same(half, torch.full((70_000,), (SIZE + 1) / 2, dtype=torch.bfloat16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody hears of numbers that overflow
        dist.all_reduce(large := torch.full((70_000,), 3e38))
    assert large.isinf().all() or SIZE == 1
    if SIZE > 1:
        sums = dist.group.WORLD._comms.node_allreduce
        assert sums._memory is not None
        assert sums._shown > 0


def check_sums_between_nodes():
    """As if the ranks were on several nodes, of equal and of different sizes."""
    for nodes in ((0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 0, 1)) if SIZE == 4 else ():
        comms = Joined(join().world, nodes).open_comms(range(SIZE), "nodes")
        group = MPIGroup(comms, progress_engine(), "nodes", 60.0)
        for count in (5_000, 700_001):
            tensor = torch.arange(count, dtype=torch.float64) + RANK
            group.allreduce([tensor]).wait()
            same(tensor, torch.arange(count, dtype=torch.float64) * SIZE + sum(range(SIZE)))
        assert comms.node_allreduce._shown > 0
        group.shutdown()


def check_half_precision_is_rounded_once():
    tensor = torch.tensor([1.0 if RANK == 0 else 2.0**-9], dtype=torch.bfloat16)
    dist.all_reduce(tensor)
    exact = 1.0 + (SIZE - 1) * 2.0**-9
    same(tensor, torch.tensor([exact]).to(torch.bfloat16))


def check_refusals():
    for op, dtype in (("BAND", torch.float32), ("AVG", torch.bool)):
        with pytest.raises(WorldError, match=op):
            dist.all_reduce(torch.ones(2).to(dtype), getattr(dist.ReduceOp, op))
    # Before anything is sent; numpy would spread one byte over all three.
    three, one = torch.zeros(3, dtype=torch.uint8), torch.ones(1, dtype=torch.uint8)
    small, large = [one] * SIZE, [three] * SIZE
    refused = [lambda: dist.all_to_all(large, small), lambda: dist.reduce_scatter(three, small)]
    if RANK == 0:
        refused += [lambda: dist.gather(one, large), lambda: dist.scatter(three, small)]
    for call in refused:
        with pytest.raises(WorldError, match="does not fit"):
            call()


def check_reduce():
    for dtype, root in itertools.product(ALL, range(SIZE)):
        tensor = numbers(dtype, RANK)
        dist.reduce(tensor, root)
        same(tensor, combined("SUM", everyone(dtype)) if root == RANK else numbers(dtype, RANK))


def check_broadcast():
    for dtype, root in itertools.product(ALL, range(SIZE)):
        tensor = numbers(dtype, RANK)
        dist.broadcast(tensor, root)
        same(tensor, numbers(dtype, root))


def check_gathers():
    for dtype in ALL:
        outputs = [torch.empty(5, dtype=dtype) for _ in range(SIZE)]
        dist.all_gather(outputs, numbers(dtype, RANK))
        for output, expected in zip(outputs, everyone(dtype), strict=True):
            same(output, expected)
        whole = torch.empty(5 * SIZE, dtype=dtype)
        dist.all_gather_into_tensor(whole, numbers(dtype, RANK))
        same(whole.view(torch.uint8), torch.cat([t.view(torch.uint8) for t in everyone(dtype)]))
        for root in range(SIZE):
            outputs = [torch.empty(5, dtype=dtype) for _ in range(SIZE)]
            dist.gather(numbers(dtype, RANK), outputs if root == RANK else None, root)
            if root == RANK:
                for output, expected in zip(outputs, everyone(dtype), strict=True):
                    same(output, expected)


def check_uneven_gathers():
    outputs = [torch.empty(rank, 2) for rank in range(SIZE)]
    dist.all_gather(outputs, torch.full((RANK, 2), float(RANK)))
    for rank, output in enumerate(outputs):
        same(output, torch.full((rank, 2), float(rank)))


def check_scatters():
    for dtype, root in itertools.product(ALL, range(SIZE)):
        output = torch.empty(5, dtype=dtype)
        dist.scatter(output, everyone(dtype) if root == RANK else None, root)
        same(output, numbers(dtype, RANK))


def check_reduce_scatters():
    for dtype in (*INTEGERS, *FLOATS, *COMPLEX, torch.bool):
        mine = [numbers(dtype, RANK + at, 4) for at in range(SIZE)]
        theirs = [numbers(dtype, rank + RANK, 4) for rank in range(SIZE)]
        output = torch.empty(4, dtype=dtype)
        dist.reduce_scatter(output, mine)
        same(output, combined("SUM", theirs))
        if dtype not in (torch.bool,):
            output = torch.empty(4, dtype=dtype)
            dist.reduce_scatter_tensor(output, torch.cat(mine), dist.ReduceOp.AVG)
            same(output, combined("AVG", theirs))
    uneven = [torch.full((at + 1,), float(RANK)) for at in range(SIZE)]
    output = torch.empty(RANK + 1)
    dist.reduce_scatter(output, uneven)
    same(output, torch.full((RANK + 1,), float(sum(range(SIZE)))))


def check_all_to_alls():
    for dtype in ALL:
        mine = [numbers(dtype, RANK + at) for at in range(SIZE)]
        outputs = [torch.empty(5, dtype=dtype) for _ in range(SIZE)]
        dist.all_to_all(outputs, mine)
        for rank, output in enumerate(outputs):
            same(output, numbers(dtype, rank + RANK))
    equal = torch.empty(SIZE * 2, dtype=torch.int64)
    dist.all_to_all_single(equal, torch.arange(SIZE * 2) + 100 * RANK)
    same(equal, torch.cat([torch.arange(2) + 2 * RANK + 100 * at for at in range(SIZE)]))
    goes, comes = [at + RANK for at in range(SIZE)], [RANK + at for at in range(SIZE)]
    output = torch.empty(sum(comes), 3)
    dist.all_to_all_single(output, torch.full((sum(goes), 3), float(RANK)), comes, goes)
    expected = torch.cat([torch.full((rank + RANK, 3), float(rank)) for rank in range(SIZE)])
    same(output, expected)


def check_gaps_and_nothing():
    grid = torch.zeros(4, 6)
    columns = grid[:, ::2]
    columns += RANK + 1
    dist.all_reduce(columns)
    same(grid[:, ::2], torch.full((4, 3), float(sum(range(1, SIZE + 1)))))
    same(grid[:, 1::2], torch.zeros(4, 3))
    turned = (torch.arange(6.0).reshape(2, 3) + RANK).t()
    dist.broadcast(turned, SIZE - 1)
    same(turned, (torch.arange(6.0).reshape(2, 3) + SIZE - 1).t())
    empty = torch.empty(0, 3)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    dist.all_gather([torch.empty(0, 3) for _ in range(SIZE)], empty)
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    dist.reduce_scatter_tensor(torch.empty(0, 3), torch.empty(0, 3))
    scalar = torch.tensor(float(RANK))
    dist.all_reduce(scalar)
    same(scalar, torch.tensor(float(sum(range(SIZE)))))
    parameter = torch.nn.Parameter(torch.full((2,), float(RANK)))
    with torch.no_grad():
        dist.all_reduce(parameter)
    assert parameter.tolist() == [sum(range(SIZE))] * 2
    with torch.inference_mode():
        lazy = torch.full((4, 2), float(RANK)).t()
        dist.all_reduce(lazy)
        assert lazy.tolist() == [[sum(range(SIZE))] * 4] * 2


def check_buffers_that_are_longer_than_a_call():
    comms = dist.group.WORLD._comms
    kept = comms.collective_comm.longest
    comms.collective_comm.longest = comms.message_comm.longest = 7
    try:
        for check in (check_all_reduce, check_reduce, check_broadcast, check_gathers):
            check()
        for check in (check_uneven_gathers, check_scatters, check_reduce_scatters):
            check()
        check_all_to_alls()
        check_messages(any_rank=False)
    finally:
        comms.collective_comm.longest = comms.message_comm.longest = kept


def check_messages(any_rank=True):
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for tag, dtype in enumerate(ALL):
        came = torch.empty(5, dtype=dtype)
        work = dist.irecv(came, left, tag=tag)
        dist.isend(numbers(dtype, RANK), right, tag=tag).wait()
        work.wait()
        same(came, numbers(dtype, left))
    # Two of one tag keep their order; tags are told apart.
    first, second, other = (torch.empty(2) for _ in range(3))
    works = [dist.irecv(other, left, tag=9), dist.irecv(first, left), dist.irecv(second, left)]
    works += [dist.isend(torch.full((2,), value), right) for value in (1.0, 2.0)]
    works.append(dist.isend(torch.full((2,), 3.0), right, tag=9))
    for work in works:
        work.wait()
    assert [first[0], second[0], other[0]] == [1.0, 2.0, 3.0]
    if any_rank and RANK == 0:
        seen = set()
        for _ in range(SIZE - 1):
            came = torch.empty(1)
            source = dist.recv(came)
            assert came.item() == source
            seen.add(source)
        assert seen == set(range(1, SIZE))
    elif any_rank:
        dist.send(torch.tensor([float(RANK)]), 0)
    dist.barrier()  # or rank 0 might take a message of what follows
    gaps = torch.zeros(4, 2)
    work = dist.irecv(gaps[:, 0], left)
    dist.isend(torch.arange(8.0).reshape(4, 2)[:, 1], right).wait()
    work.wait()
    same(gaps, torch.tensor([[1.0, 0], [3, 0], [5, 0], [7, 0]]))
    ops = [dist.P2POp(dist.irecv, came := torch.empty(3), left)]
    ops.append(dist.P2POp(dist.isend, torch.full((3,), float(RANK)), right))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert came.tolist() == [left] * 3
    own = dist.irecv(came := torch.empty(1), RANK, tag=77)
    dist.isend(torch.tensor([5.0]), RANK, tag=77).wait()
    own.wait()
    assert came.item() == 5.0


def check_objects():
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK, "text": "x" * RANK})
    assert objects == [{"rank": at, "text": "x" * at} for at in range(SIZE)]
    values = [("from", RANK)]
    dist.broadcast_object_list(values, SIZE - 1)
    assert values == [("from", SIZE - 1)]
    gathered = [None] * SIZE if RANK == SIZE - 1 else None
    dist.gather_object(RANK, gathered, SIZE - 1)
    assert gathered == (list(range(SIZE)) if RANK == SIZE - 1 else None)
    got = [None]
    dist.scatter_object_list(got, [f"for {at}" for at in range(SIZE)] if RANK == 0 else None, 0)
    assert got == [f"for {RANK}"]


def check_coalesced():
    tensors = [torch.full((at + 1,), float(RANK)) for at in range(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for at, tensor in enumerate(tensors):
        same(tensor, torch.full((at + 1,), float(sum(range(SIZE)))))
    outputs = [torch.empty(SIZE * 2) for _ in range(2)]
    with dist._coalescing_manager(async_ops=True) as joined:
        for at, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, torch.full((2,), float(RANK + at)))
    joined.wait()
    for at, output in enumerate(outputs):
        assert output.tolist() == [float(rank + at) for rank in range(SIZE) for _ in range(2)]
    per_rank = [[torch.empty(1), torch.empty(2)] for _ in range(SIZE)]
    mine = [torch.full((1,), float(RANK)), torch.full((2,), -float(RANK))]
    dist.group.WORLD.allgather_coalesced(per_rank, mine).wait()
    for rank, (first, second) in enumerate(per_rank):
        assert (first.tolist(), second.tolist()) == ([rank], [-rank] * 2)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as joined:
        dist.broadcast(tensors[0], 0)
        dist.broadcast(tensors[1], SIZE - 1)
    joined.wait()


def check_barriers():
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.is_completed()
    paceline.torch_backend.monitored_barrier(timeout=timedelta(seconds=30))


def check_monitored_barriers_that_nobody_comes_to():
    group = dist.new_group()
    if RANK == 0 and SIZE > 1:
        everyone_else = ", ".join(map(str, range(1, SIZE)))
        with pytest.raises(RuntimeError, match=f"no sign of rank {everyone_else} within 0 s"):
            group.monitored_barrier(timedelta(0))  # at once, not after the time of the group
        with pytest.raises(RuntimeError, match=f"Ranks {everyone_else} failed to pass"):
            paceline.torch_backend.monitored_barrier(group, 0.1, wait_all_ranks=True)
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
            paceline.torch_backend.monitored_barrier(group, 0.1)


def check_sparse_sums():
    places = torch.tensor([[0, RANK + 1], [0, 1]])  # one that all ranks have, and one of each
    for dtype, op in itertools.product(FLOATS, ("SUM", "AVG")):
        tensor = torch.sparse_coo_tensor(places, torch.ones(2, 3, dtype=dtype), (SIZE + 1, 2, 3))
        expected = torch.zeros(SIZE + 1, 2, 3, dtype=dtype)
        expected[0, 0], expected[1:, 1] = SIZE, 1
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        assert tensor.is_sparse
        same(tensor.to_dense(), expected / (SIZE if op == "AVG" else 1), (dtype, op))
    with pytest.raises(WorldError, match="SUM and AVG, not MAX"):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    half = torch.full((2,), 40_000.0, dtype=torch.float16).to_sparse()
    dist.all_reduce(half, dist.ReduceOp.AVG)  # the sum alone would be infinite
    assert half.to_dense().tolist() == [40_000.0] * 2
    with pytest.raises(WorldError, match=r"sparse_csr on cpu.*to_dense"):
        dist.all_reduce(torch.eye(2).to_sparse_csr())


def check_ddp_sums_sparse_gradients():
    torch.manual_seed(0)
    table = torch.nn.Embedding(SIZE + 1, 2, sparse=True)
    model = torch.nn.parallel.DistributedDataParallel(table)
    model(torch.tensor([0, RANK + 1])).sum().backward()
    expected = torch.full((SIZE + 1, 2), 1 / SIZE)
    expected[0] = 1.0
    assert table.weight.grad.is_sparse
    torch.testing.assert_close(table.weight.grad.to_dense(), expected)


def check_futures():
    work = dist.all_reduce(torch.ones(2) * RANK, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    assert doubled.wait().tolist() == [2.0 * sum(range(SIZE))] * 2

    def again(done):  # a callback that waits for another exchange
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    works = [dist.all_reduce(torch.ones(1), async_op=True).get_future() for _ in range(3)]
    for future in works:
        assert future.then(again).wait().item() == SIZE * SIZE
    # Some ranks add theirs when it is over, others before; the program goes on meanwhile.
    for _ in range(10):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        if RANK % 2:
            work.wait()
        late = work.get_future().then(again)
        dist.all_reduce(tensor := torch.ones(9))
        assert tensor.tolist() == [SIZE] * 9
        assert late.wait().item() == SIZE * SIZE


def check_callbacks_that_leave():
    """One that exits is an error of its future; those behind it run."""
    work = dist.all_reduce(torch.ones(1), async_op=True)
    bad, good = (work.get_future().then(call) for call in (sys.exit, lambda future: future.value()))
    with pytest.raises(RuntimeError, match="a callback failed with SystemExit"):
        bad.wait()
    assert good.wait()[0].item() == SIZE


def check_that_works_go_without_the_collector():
    gc.disable()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.get_future().wait()
    gone = weakref.ref(work._operation)
    del work
    for _ in range(1000):  # who ended it may hold it for a moment
        if gone() is None:
            break
        time.sleep(0.005)
    gc.enable()
    assert gone() is None


def check_groups():
    """Groups that overlap, used in different orders on different ranks."""
    whole = dist.new_group()
    pairs = [dist.new_group([at, (at + 1) % SIZE]) for at in range(SIZE)] if SIZE > 2 else []
    mine = [group for group in pairs if group is not dist.GroupMember.NON_GROUP_MEMBER]
    order = [*mine, whole, dist.group.WORLD]
    order = order if RANK % 2 else order[::-1]
    for turn in range(20):
        tensors = [torch.ones(1 + 9000 * (turn % 2)) for _ in order]
        works = [
            dist.all_reduce(tensor, group=group, async_op=True)
            for tensor, group in zip(tensors, order, strict=True)
        ]
        for tensor, group, work in zip(tensors, order, works, strict=True):
            work.wait()
            assert tensor.unique().tolist() == [dist.get_world_size(group)]
    last = dist.new_group([SIZE - 1])
    if RANK == SIZE - 1:
        dist.all_reduce(tensor := torch.ones(2), group=last)
        assert tensor.tolist() == [1, 1]
    reverse = dist.new_group(list(range(SIZE))[::-1], sort_ranks=False)
    values = torch.tensor([RANK])
    dist.broadcast(values, group_src=0, group=reverse)
    assert values.item() == SIZE - 1
    dist.barrier()
    dist.destroy_process_group(whole)
    with pytest.raises(paceline.torch_backend.GroupError, match="was destroyed"):
        whole.allreduce([torch.ones(1)])


def check_that_it_overlaps():
    tensor = torch.ones(2_000_000)
    work = dist.all_reduce(tensor, async_op=True)
    early = work.is_completed()
    torch.ones(300, 300) @ torch.ones(300, 300)
    work.wait()
    assert not early or SIZE == 1
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None


FOUND = run_checks(dict(globals()))
