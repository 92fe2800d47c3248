"""Tensors of other devices: staged through the host, or left to an MPI that knows them."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support.far_tensors import FarTensor, plug_in

from paceline.comm.nonblocking.async_comm import solo_comms
from paceline.comm.nonblocking.progress import ProgressEngine
from paceline.errors import LaunchError, WorldError
from paceline.torch_backend import MPIGroup, devices
from paceline.torch_backend.cuda_aware import find_libraries, is_cuda_aware
from paceline.torch_backend.tensors import Outgoing, ReceiveBuffer

OPEN_MPI_MAPS = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 08:01 393266    /usr/bin/python3.11
7f2a11c00000-7f2a11c3f000 r--p 00000000 08:01 1312      /opt/my mpi/lib/libmpi.so.40.40.11
7f2a11c3f000-7f2a11d11000 r-xp 0003f000 08:01 1312      /opt/my mpi/lib/libmpi.so.40.40.11
7f2a11e00000-7f2a11e21000 rw-p 00000000 00:00 0         [heap]
7f2a12000000-7f2a12001000 r--p 00000000 08:01 77        /opt/my mpi/lib/libopen-pal.so.80
"""
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(devices, "_opened", {})
    return plug_in()


@pytest.fixture
def group():
    progress = ProgressEngine()
    group = MPIGroup(solo_comms(), progress, "0", 20.0)
    yield group
    group.shutdown()
    progress.close()


def test_a_far_tensor_is_fetched_once_and_stored_once(far, group):
    near = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    group.allreduce([FarTensor(near.t())], SimpleNamespace(reduceOp=dist.ReduceOp.AVG)).wait()
    assert near.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (far.fetched, far.stored) == (1, 1)


def test_messages_begin_in_the_order_of_the_calls(far, group):
    """A message of the host's memory waits for one of the device's that was sent before."""
    first, second = torch.zeros(1), torch.zeros(1)
    far.given.append(lambda: None)
    works = [group.send([FarTensor(torch.ones(1))], 0, 5), group.send([torch.ones(1) + 1], 0, 5)]
    works += [group.recv([first], 0, 5), group.recv([second], 0, 5)]
    far.work()
    for work in works:
        work.wait()
    assert (first.item(), second.item()) == (1, 2)
    assert not group._starting


def test_nothing_is_fetched_before_the_device_has_done_what_was_given_to_it(far, group):
    source, came, message = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    far.given.append(lambda: source.fill_(7))
    works = [
        group.all_gather_single(FarTensor(came), FarTensor(source)),
        group.send([FarTensor(source)], 0, 5),
        group.recv([FarTensor(message)], 0, 5),
    ]
    assert not any(work.is_completed() for work in works)
    assert far.fetched == 0
    far.work()
    for work in works:
        work.wait()
    assert came.tolist() == message.tolist() == [7, 7, 7]


def test_a_mark_is_set_for_tensors_that_only_go_out(far, group):
    source, came = torch.zeros(2), torch.zeros(2)
    far.given.append(lambda: source.fill_(3))
    work = group.reduce_scatter_single(came, FarTensor(source))
    assert not work.is_completed()
    far.work()
    work.wait()
    assert came.tolist() == [3, 3]


def test_tensors_of_the_host_wait_for_no_device(far, group):
    far.given.append(lambda: None)
    group.allreduce([torch.ones(2)]).wait()
    assert len(far.given) == 1


def test_a_rank_alone_has_no_mpi_to_leave_its_memory_to(far, group):
    far.takes_messages = True
    work = group.recv([FarTensor(came := torch.zeros(2))], 0)
    group.send([FarTensor(torch.ones(2))], 0).wait()
    work.wait()
    assert came.tolist() == [1, 1]
    assert far.exposed == 0


def test_messages_show_their_own_memory_to_an_mpi_that_takes_it_and_to_no_other(far):
    near = torch.arange(4, dtype=torch.int16)
    staged = Outgoing(FarTensor(near), by_message=True).bytes
    assert staged.tobytes() == near.numpy().tobytes()
    assert (far.fetched, far.exposed) == (1, 0)
    far.takes_messages, far.fetched = True, 0
    shown = Outgoing(FarTensor(near), by_message=True).bytes
    assert (shown.size, shown.nbytes) == (8, 8)
    assert shown.__cuda_array_interface__["data"][0] == near.data_ptr()
    assert shown[2:6].__cuda_array_interface__["data"][0] == near.data_ptr() + 2
    assert shown[2:6].size == 4
    buffer = ReceiveBuffer(FarTensor(near), by_message=True)
    assert buffer.bytes.__cuda_array_interface__["data"][0] == near.data_ptr()
    buffer.copy_back()
    with_gaps = ReceiveBuffer(FarTensor(near[::2]), by_message=True)
    assert isinstance(with_gaps.bytes.ctypes.data, int)
    assert (far.fetched, far.stored) == (0, 0)


def test_other_devices_are_refused_by_name(group):
    with pytest.raises(WorldError, match=r"all_reduce: a tensor is on meta, and .* cpu and cuda"):
        group.allreduce([torch.ones(2, device="meta")])


def test_the_variable_counts_for_more_than_what_mpi_says():
    yes = SimpleNamespace(MPIX_Query_cuda_support=lambda: 1)
    assert is_cuda_aware({}, [yes])
    assert not is_cuda_aware({"PACELINE_CUDA_AWARE_MPI": "0"}, [yes])
    assert is_cuda_aware({"PACELINE_CUDA_AWARE_MPI": "1"}, [])
    with pytest.raises(LaunchError, match=r"PACELINE_CUDA_AWARE_MPI is 'yes', expected 1 .* or 0"):
        is_cuda_aware({"PACELINE_CUDA_AWARE_MPI": "yes"}, [yes])


def test_an_mpi_is_asked_in_its_own_way():
    def query(kind, answer):
        ctypes.cast(answer, ctypes.POINTER(ctypes.c_int))[0] = int(kind == 0)
        return 0

    def fail(kind, answer):
        query(kind, answer)
        return 1

    assert not is_cuda_aware({}, [])
    assert not is_cuda_aware({}, [SimpleNamespace()])
    assert not is_cuda_aware({}, [SimpleNamespace(MPIX_Query_cuda_support=lambda: 0)])
    assert is_cuda_aware({}, [SimpleNamespace(MPIX_GPU_query_support=query)])
    assert not is_cuda_aware({}, [SimpleNamespace(MPIX_GPU_query_support=fail)])


def test_the_mpi_that_is_loaded_is_found():
    assert find_libraries(OPEN_MPI_MAPS) == ["/opt/my mpi/lib/libmpi.so.40.40.11"]
    assert find_libraries("") == []
    own = Path("/proc/self/maps")
    if own.exists() and "mpi4py.MPI" not in sys.modules:
        assert find_libraries(own.read_text()) == []


@GPU
def test_a_gpu_stages_through_pinned_memory_in_the_order_of_the_streams(group):
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = torch.zeros(1 << 20, device="cuda")
        for _ in range(200):
            tensor += 1
        work = group.allreduce([tensor], SimpleNamespace(reduceOp=dist.ReduceOp.AVG))
    work.wait()
    assert tensor.unique().tolist() == [200]
    assert work.get_future().wait()[0].data_ptr() == tensor.data_ptr()
    gaps = torch.arange(6.0, device="cuda").reshape(2, 3).t()
    device = devices.device_of(gaps)
    assert device.fetch(gaps).is_pinned()
    device.store(gaps, torch.ones(3, 2))
    assert gaps.unique().tolist() == [1]
