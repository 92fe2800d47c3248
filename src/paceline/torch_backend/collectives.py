"""The collectives and messages of torch.distributed, each as steps on a group's communicators."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.comm import Buffer
from paceline.comm.nonblocking.async_comm import (
    AsyncComm,
    AsyncComms,
    PendingReceive,
    Request,
    Steps,
)
from paceline.errors import WorldError
from paceline.torch_backend.reductions import Operand, Reduction
from paceline.torch_backend.tensors import (
    Outgoing,
    ReceiveBuffer,
    host_buffer_for,
    plain,
    raw,
    write,
)

_PIECES = 0
"""The tag of messages inside collectives."""
_ROLL_CALL = 1
"""The first tag of monitored barriers."""
_ROLL_CALLS = 1000


def broadcast(comms: AsyncComms, tensors: list[Tensor], root: int) -> Steps[list[Tensor]]:
    """Overwrite every rank's tensors with the root's."""
    comm = comms.collective_comm
    buffers = [ReceiveBuffer(tensor, keep=comm.rank == root) for tensor in tensors]
    for buffer in buffers:
        yield from comm.wait_for_all(comm.broadcast(buffer.bytes, root))
        if comm.rank != root:
            buffer.copy_back()
    return tensors


def all_reduce(comms: AsyncComms, tensors: list[Tensor], how: Reduction) -> Steps[list[Tensor]]:
    """Overwrite every rank's tensors with the reduction over all ranks."""
    for tensor in tensors:
        operand = how.operand(tensor)
        yield from _sum_or_reduce(comms, operand, how)
        how.finish(operand.numbers, comms.collective_comm.size)
        operand.copy_back()
    return tensors


def _sum_or_reduce(comms: AsyncComms, operand: Operand, how: Reduction) -> Steps[None]:
    comm, node_allreduce = comms.collective_comm, comms.node_allreduce
    if node_allreduce is not None and how.how == "sum" and node_allreduce.takes(operand.array):
        done = yield from node_allreduce.all_reduce(operand.array)
        if done:
            return
    yield from comm.wait_for_all(comm.all_reduce(operand.array, how.how))


def reduce(
    comms: AsyncComms, tensors: list[Tensor], how: Reduction, root: int
) -> Steps[list[Tensor]]:
    """Overwrite the root's tensors with the reduction; the others keep theirs."""
    comm = comms.collective_comm
    for tensor in tensors:
        operand = how.operand(tensor)
        yield from comm.wait_for_all(comm.reduce(operand.array, how.how, root))
        if comm.rank == root:
            how.finish(operand.numbers, comm.size)
            operand.copy_back()
    return tensors


def all_gather(comms: AsyncComms, outputs: list[Tensor], tensor: Tensor) -> Steps[list[Tensor]]:
    """Gather every rank's tensor, in rank order; they may differ in length."""
    comm, sizes = comms.collective_comm, {output.nbytes for output in outputs}
    if len(sizes) > 1 or tensor.nbytes * comm.size > comm.longest:
        copies: list[Tensor | None] = [plain(tensor)] * comm.size
        yield from exchange(comm, copies, list(outputs))
        return outputs
    whole = host_buffer_for(outputs[0], (comm.size, tensor.numel()), tensor.dtype)
    yield from comm.wait_for_all(comm.all_gather(Outgoing(tensor).bytes, raw(whole)))
    for output, piece in zip(outputs, whole, strict=True):
        write(output, piece)
    return outputs


def all_gather_single(comms: AsyncComms, output: Tensor, tensor: Tensor) -> Steps[list[Tensor]]:
    """Concatenate every rank's tensor, all equally long."""
    comm, buffer = comms.collective_comm, ReceiveBuffer(output)
    if buffer.bytes.size > comm.longest:
        pieces = torch.from_numpy(buffer.bytes).chunk(comm.size)
        bare = torch.from_numpy(Outgoing(tensor).bytes)
        yield from exchange(comm, [bare] * comm.size, list(pieces))
    else:
        yield from comm.wait_for_all(comm.all_gather(Outgoing(tensor).bytes, buffer.bytes))
    buffer.copy_back()
    return [output]


def gather(
    comms: AsyncComms, outputs: list[Tensor], tensor: Tensor, root: int
) -> Steps[list[Tensor]]:
    """Gather every rank's tensor on the root."""
    comm = comms.collective_comm
    outgoing = [tensor if rank == root else None for rank in range(comm.size)]
    incoming = list(outputs) if comm.rank == root else [None] * comm.size
    yield from exchange(comm, outgoing, incoming)
    return outputs


def scatter(
    comms: AsyncComms, output: Tensor, tensors: list[Tensor], root: int
) -> Steps[list[Tensor]]:
    """Send each rank its tensor from the root."""
    comm = comms.collective_comm
    outgoing = list(tensors) if comm.rank == root else [None] * comm.size
    incoming = [output if rank == root else None for rank in range(comm.size)]
    yield from exchange(comm, outgoing, incoming)
    return [output]


def all_to_all(
    comms: AsyncComms, outputs: list[Tensor], tensors: list[Tensor]
) -> Steps[list[Tensor]]:
    """Send tensor i to rank i; receive output j from rank j."""
    yield from exchange(comms.collective_comm, list(tensors), list(outputs))
    return outputs


def all_to_all_single(
    comms: AsyncComms,
    output: Tensor,
    tensor: Tensor,
    output_sizes: Sequence[int],
    sizes: Sequence[int],
) -> Steps[list[Tensor]]:
    """The same with the rows of one tensor: so many per rank, by default equally many."""
    comm = comms.collective_comm
    buffer, source = ReceiveBuffer(output), plain(tensor)
    outgoing = _rows(torch.from_numpy(raw(source)), source, sizes, comm.size)
    incoming = _rows(torch.from_numpy(buffer.bytes), output, output_sizes, comm.size)
    yield from exchange(comm, list(outgoing), list(incoming))
    buffer.copy_back()
    return [output]


def _rows(flat: Tensor, tensor: Tensor, sizes: Sequence[int], ranks: int) -> tuple[Tensor, ...]:
    if not sizes:
        return flat.split(flat.numel() // ranks) if flat.numel() else (flat,) * ranks
    row = tensor.nbytes // max(tensor.shape[0], 1)
    return tuple(flat.split([size * row for size in sizes]))


def reduce_scatter(
    comms: AsyncComms, output: Tensor, tensors: list[Tensor], how: Reduction
) -> Steps[list[Tensor]]:
    """Give rank i the reduction of all ranks' tensors i."""
    comm = comms.collective_comm
    sizes = [tensor.numel() for tensor in tensors]
    if sum(sizes) > comm.longest:
        operands = [how.operand(tensor) for tensor in tensors]
        mine = _copy_of(operands[comm.rank])
        for root, operand in enumerate(operands):
            array = mine.numpy() if root == comm.rank else operand.array
            yield from comm.wait_for_all(comm.reduce(array, how.how, root))
    else:
        flat = torch.cat([plain(tensor).detach().reshape(-1) for tensor in tensors])
        whole = how.operand(flat)
        mine = host_buffer_for(output, (sizes[comm.rank],), whole.numbers.dtype)
        yield from comm.wait_for_all(comm.reduce_scatter(whole.array, mine.numpy(), sizes, how.how))
    how.finish(mine, comm.size)
    write(output, mine.view(torch.bool) if output.dtype == torch.bool else mine)
    return [output]


def _copy_of(operand: Operand) -> Tensor:
    return operand.numbers.clone()


def barrier(comms: AsyncComms) -> Steps[list[Tensor]]:
    """Wait until every rank has called it."""
    yield from comms.collective_comm.wait_for_all(comms.collective_comm.barrier())
    return []


def monitored_barrier(
    comms: AsyncComms, number: int, timeout_s: float, names_all: bool = False
) -> Steps[str]:
    """A barrier after which rank 0 knows which ranks are missing; returns what went wrong, if any.

    Each barrier has its own tag, so that a late rank does not count in the next one. The message
    quotes gloo's words in brackets, for programs that look for them.
    """
    comm, tag = comms.collective_comm, _ROLL_CALL + number % _ROLL_CALLS
    end_s = time.monotonic() + timeout_s
    if comm.rank == 0:
        return (yield from _call_roll(comm, tag, end_s, timeout_s, names_all))
    here, verdict = np.ones(1, np.uint8), np.zeros(1, np.uint8)
    answer = comm.receive(verdict, 0, tag)
    yield from comm.wait_for_all(comm.send(here, 0, tag))
    while not answer.done():
        if time.monotonic() > end_s + 1:  # rank 0 decides at `end_s`
            answer.cancel()
            return f"rank 0 has not answered within {timeout_s:g} s"
        yield False
    return "" if verdict[0] else "ranks are missing, which rank 0 names"


def _call_roll(
    comm: AsyncComm, tag: int, end_s: float, timeout_s: float, names_all: bool
) -> Steps[str]:
    buffers = np.zeros((comm.size, 1), np.uint8)
    called = {rank: comm.receive(buffers[rank], rank, tag) for rank in range(1, comm.size)}
    missing = sorted(called)
    while missing and time.monotonic() <= end_s:
        yield False
        missing = [rank for rank in missing if not called[rank].done()]
    for rank in missing:
        called[rank].cancel()
    verdict = np.array([not missing], np.uint8)
    for rank in set(called) - set(missing):
        yield from comm.wait_for_all(comm.send(verdict, rank, tag))
    return _absence(missing, timeout_s, names_all) if missing else ""


def _absence(missing: Sequence[int], timeout_s: float, names_all: bool) -> str:
    names = ", ".join(map(str, missing))
    if timeout_s <= 0:
        gloo = "Rank 0 timed out in monitoredBarrier"
    elif names_all:
        gloo = f"Ranks {names} failed to pass monitoredBarrier"
    else:
        gloo = f"Rank {missing[0]} failed to pass monitoredBarrier"
    return f"no sign of rank {names} within {timeout_s:g} s ({gloo})"


def send(comms: AsyncComms, tensors: list[Tensor], to: int, tag: int) -> Steps[list[Tensor]]:
    """Send tensors to one rank."""
    comm = comms.message_comm
    outgoing = [Outgoing(tensor, by_message=comm.size > 1).bytes for tensor in tensors]
    requests = [request for piece in outgoing for request in comm.send(piece, to, tag)]
    yield from comm.wait_for_all(requests)
    return tensors


def receive(
    comms: AsyncComms, tensors: list[Tensor], source: int, tag: int, sources: list[int]
) -> Steps[list[Tensor]]:
    """Receive tensors from one rank, or from any; append the senders to `sources`."""
    comm = comms.message_comm
    for tensor in tensors:
        buffer = ReceiveBuffer(tensor, by_message=comm.size > 1)
        coming = comm.receive(buffer.bytes, source, tag)
        try:
            while not coming.done():
                yield False
        except GeneratorExit:
            coming.cancel()
            raise
        _check_length(coming, buffer.bytes)
        buffer.copy_back()
        sources.append(coming.source)
    return tensors


def exchange(
    comm: AsyncComm, outgoing: Sequence[Tensor | None], incoming: Sequence[Tensor | None]
) -> Steps[None]:
    """Send tensor i to rank i, and receive tensor j from rank j; None: nothing to exchange."""
    buffers = [
        None if tensor is None else ReceiveBuffer(tensor, by_message=rank != comm.rank)
        for rank, tensor in enumerate(incoming)
    ]
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    receives: list[tuple[PendingReceive, ReceiveBuffer]] = []
    for rank in others:
        buffer = buffers[rank]
        if buffer is not None:
            receives.append((comm.receive(buffer.bytes, rank, _PIECES), buffer))
    requests: list[Request] = []
    for rank in others:
        tensor = outgoing[rank]
        if tensor is not None:
            requests += comm.send(Outgoing(tensor, by_message=True).bytes, rank, _PIECES)
    own, home = outgoing[comm.rank], buffers[comm.rank]
    if own is not None and home is not None:
        home.bytes[:] = Outgoing(own).bytes
    while not all(message.done() for message, _ in receives):
        yield False
    yield from comm.wait_for_all(requests)
    for message, filled in receives:
        _check_length(message, filled.bytes)
    for buffer in buffers:
        if buffer is not None:
            buffer.copy_back()


def _check_length(message: PendingReceive, buffer: Buffer) -> None:
    if message.nbytes != buffer.nbytes:
        raise WorldError(
            f"{message.nbytes} bytes came from rank {message.source} where {buffer.nbytes} were "
            "expected; the tensors of both ranks must have the same size and type"
        )
