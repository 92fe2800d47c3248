"""The collectives and messages of torch.distributed, each as steps on the lines of a group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.comm import Buffer
from paceline.comm.nonblocking.async_comm import AsyncComm, Steps
from paceline.comm.nonblocking.lines import AsyncComms
from paceline.errors import WorldError
from paceline.torch_backend.reductions import Operand, Reduction
from paceline.torch_backend.tensors import Outgoing, ReceiveBuffer, plain, raw, room_for, write

_PIECES = 0
"""The tag of the pieces of collectives."""
_ROLL_CALL = 1
"""The first of the tags of monitored barriers."""
_ROLL_CALLS = 1000


def broadcast(lines: AsyncComms, tensors: list[Tensor], root: int) -> Steps[list[Tensor]]:
    """Every rank's tensors become the root's."""
    line = lines.together
    rooms = [ReceiveBuffer(tensor, keep=line.rank == root) for tensor in tensors]
    for room in rooms:
        yield from line.until(line.broadcast(room.bytes, root))
        if line.rank != root:
            room.settle()
    return tensors


def all_reduce(lines: AsyncComms, tensors: list[Tensor], how: Reduction) -> Steps[list[Tensor]]:
    """Every rank's tensors become what all of them make together."""
    for tensor in tensors:
        operand = how.operand(tensor)
        yield from _sum_or_reduce(lines, operand, how)
        how.finish(operand.numbers, lines.together.size)
        operand.settle()
    return tensors


def _sum_or_reduce(lines: AsyncComms, operand: Operand, how: Reduction) -> Steps[None]:
    line, sums = lines.together, lines.sums
    if sums is not None and how.how == "sum" and sums.takes(operand.array):
        done = yield from sums.all_reduce(operand.array)
        if done:
            return
    yield from line.until(line.all_reduce(operand.array, how.how))


def reduce(
    lines: AsyncComms, tensors: list[Tensor], how: Reduction, root: int
) -> Steps[list[Tensor]]:
    """The root's tensors become what all ranks' make together; the others stay as they are."""
    line = lines.together
    for tensor in tensors:
        operand = how.operand(tensor)
        yield from line.until(line.reduce(operand.array, how.how, root))
        if line.rank == root:
            how.finish(operand.numbers, line.size)
            operand.settle()
    return tensors


def all_gather(lines: AsyncComms, outputs: list[Tensor], tensor: Tensor) -> Steps[list[Tensor]]:
    """Every rank's tensor, in rank order; they may differ in length."""
    line, sizes = lines.together, {output.nbytes for output in outputs}
    if len(sizes) > 1 or tensor.nbytes * line.size > line.longest:
        copies: list[Tensor | None] = [plain(tensor)] * line.size
        yield from exchange(line, copies, list(outputs))
        return outputs
    whole = room_for(outputs[0], (line.size, tensor.numel()), tensor.dtype)
    yield from line.until(line.all_gather(Outgoing(tensor).bytes, raw(whole)))
    for output, piece in zip(outputs, whole, strict=True):
        write(output, piece)
    return outputs


def all_gather_single(lines: AsyncComms, output: Tensor, tensor: Tensor) -> Steps[list[Tensor]]:
    """Every rank's tensor, equally long, one after the other in one."""
    line, room = lines.together, ReceiveBuffer(output)
    if room.bytes.size > line.longest:
        pieces = torch.from_numpy(room.bytes).chunk(line.size)
        bare = torch.from_numpy(Outgoing(tensor).bytes)
        yield from exchange(line, [bare] * line.size, list(pieces))
    else:
        yield from line.until(line.all_gather(Outgoing(tensor).bytes, room.bytes))
    room.settle()
    return [output]


def gather(
    lines: AsyncComms, outputs: list[Tensor], tensor: Tensor, root: int
) -> Steps[list[Tensor]]:
    """The root gets every rank's tensor."""
    line = lines.together
    outgoing = [tensor if rank == root else None for rank in range(line.size)]
    incoming = list(outputs) if line.rank == root else [None] * line.size
    yield from exchange(line, outgoing, incoming)
    return outputs


def scatter(
    lines: AsyncComms, output: Tensor, tensors: list[Tensor], root: int
) -> Steps[list[Tensor]]:
    """Every rank gets its tensor from the root."""
    line = lines.together
    outgoing = list(tensors) if line.rank == root else [None] * line.size
    incoming = [output if rank == root else None for rank in range(line.size)]
    yield from exchange(line, outgoing, incoming)
    return [output]


def all_to_all(
    lines: AsyncComms, outputs: list[Tensor], tensors: list[Tensor]
) -> Steps[list[Tensor]]:
    """Tensor i goes to rank i; output j came from rank j."""
    yield from exchange(lines.together, list(tensors), list(outputs))
    return outputs


def all_to_all_single(
    lines: AsyncComms,
    output: Tensor,
    tensor: Tensor,
    output_sizes: Sequence[int],
    sizes: Sequence[int],
) -> Steps[list[Tensor]]:
    """The same with the rows of one tensor, so many for each rank; none named means equally."""
    line = lines.together
    room, source = ReceiveBuffer(output), plain(tensor)
    outgoing = _rows(torch.from_numpy(raw(source)), source, sizes, line.size)
    incoming = _rows(torch.from_numpy(room.bytes), output, output_sizes, line.size)
    yield from exchange(line, list(outgoing), list(incoming))
    room.settle()
    return [output]


def _rows(flat: Tensor, tensor: Tensor, sizes: Sequence[int], ranks: int) -> tuple[Tensor, ...]:
    if not sizes:
        return flat.split(flat.numel() // ranks) if flat.numel() else (flat,) * ranks
    row = tensor.nbytes // max(tensor.shape[0], 1)
    return tuple(flat.split([size * row for size in sizes]))


def reduce_scatter(
    lines: AsyncComms, output: Tensor, tensors: list[Tensor], how: Reduction
) -> Steps[list[Tensor]]:
    """What all ranks' tensors number i make together is rank i's."""
    line = lines.together
    sizes = [tensor.numel() for tensor in tensors]
    if sum(sizes) > line.longest:
        operands = [how.operand(tensor) for tensor in tensors]
        mine = _copy_of(operands[line.rank])
        for root, operand in enumerate(operands):
            array = mine.numpy() if root == line.rank else operand.array
            yield from line.until(line.reduce(array, how.how, root))
    else:
        flat = torch.cat([plain(tensor).detach().reshape(-1) for tensor in tensors])
        whole = how.operand(flat)
        mine = room_for(output, (sizes[line.rank],), whole.numbers.dtype)
        yield from line.until(line.reduce_scatter(whole.array, mine.numpy(), sizes, how.how))
    how.finish(mine, line.size)
    write(output, mine.view(torch.bool) if output.dtype == torch.bool else mine)
    return [output]


def _copy_of(operand: Operand) -> Tensor:
    return operand.numbers.clone()


def barrier(lines: AsyncComms) -> Steps[list[Tensor]]:
    """Wait until every rank is here."""
    yield from lines.together.until(lines.together.barrier())
    return []


def monitored_barrier(
    lines: AsyncComms, number: int, timeout_s: float, names_all: bool = False
) -> Steps[str]:
    """A barrier after which rank 0 names the ranks that did not come; what went wrong, if any.

    Each barrier has a tag of its own: who comes too late is not counted in the next. What is told
    holds the words of gloo in brackets, for programs that look for them.
    """
    line, tag = lines.together, _ROLL_CALL + number % _ROLL_CALLS
    end_s = time.monotonic() + timeout_s
    if line.rank == 0:
        return (yield from _call_roll(line, tag, end_s, timeout_s, names_all))
    here, verdict = np.ones(1, np.uint8), np.zeros(1, np.uint8)
    answer = line.receive(verdict, 0, tag)
    yield from line.until(line.send(here, 0, tag))
    while not answer.done():
        if time.monotonic() > end_s + 1:  # rank 0 names the missing at `end_s`
            answer.cancel()
            return f"rank 0 has not answered within {timeout_s:g} s"
        yield False
    return "" if verdict[0] else "ranks are missing, which rank 0 names"


def _call_roll(
    line: AsyncComm, tag: int, end_s: float, timeout_s: float, names_all: bool
) -> Steps[str]:
    rooms = np.zeros((line.size, 1), np.uint8)
    called = {rank: line.receive(rooms[rank], rank, tag) for rank in range(1, line.size)}
    missing = sorted(called)
    while missing and time.monotonic() <= end_s:
        yield False
        missing = [rank for rank in missing if not called[rank].done()]
    for rank in missing:
        called[rank].cancel()
    verdict = np.array([not missing], np.uint8)
    for rank in set(called) - set(missing):
        yield from line.until(line.send(verdict, rank, tag))
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


def send(lines: AsyncComms, tensors: list[Tensor], to: int, tag: int) -> Steps[list[Tensor]]:
    """Messages to one rank."""
    line = lines.messages
    outgoing = [Outgoing(tensor, by_message=line.size > 1).bytes for tensor in tensors]
    requests = [request for piece in outgoing for request in line.send(piece, to, tag)]
    yield from line.until(requests)
    return tensors


def receive(
    lines: AsyncComms, tensors: list[Tensor], source: int, tag: int, note: list[int]
) -> Steps[list[Tensor]]:
    """Messages from one rank, or from any; `note` is told from which."""
    line = lines.messages
    for tensor in tensors:
        room = ReceiveBuffer(tensor, by_message=line.size > 1)
        coming = line.receive(room.bytes, source, tag)
        try:
            while not coming.done():
                yield False
        except GeneratorExit:
            coming.cancel()
            raise
        _check_length(coming, room.bytes)
        room.settle()
        note.append(coming.source)
    return tensors


def exchange(
    line: AsyncComm, outgoing: Sequence[Tensor | None], incoming: Sequence[Tensor | None]
) -> Steps[None]:
    """Tensor i goes to rank i, and tensor j comes from rank j; None: nothing goes or comes."""
    rooms = [
        None if tensor is None else ReceiveBuffer(tensor, by_message=rank != line.rank)
        for rank, tensor in enumerate(incoming)
    ]
    others = [rank for rank in range(line.size) if rank != line.rank]
    coming: list[tuple[Any, ReceiveBuffer]] = []
    for rank in others:
        room = rooms[rank]
        if room is not None:
            coming.append((line.receive(room.bytes, rank, _PIECES), room))
    requests: list[Any] = []
    for rank in others:
        tensor = outgoing[rank]
        if tensor is not None:
            requests += line.send(Outgoing(tensor, by_message=True).bytes, rank, _PIECES)
    own, home = outgoing[line.rank], rooms[line.rank]
    if own is not None and home is not None:
        home.bytes[:] = Outgoing(own).bytes
    while not all(message.done() for message, _ in coming):
        yield False
    yield from line.until(requests)
    for message, filled in coming:
        _check_length(message, filled.bytes)
    for room in rooms:
        if room is not None:
            room.settle()


def _check_length(message: Any, room: Buffer) -> None:
    if message.nbytes != room.nbytes:
        raise WorldError(
            f"{message.nbytes} bytes came from rank {message.source} where {room.nbytes} were "
            "expected; the tensors of both ranks must have the same size and type"
        )
