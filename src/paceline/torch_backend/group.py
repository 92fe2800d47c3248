"""The process group: what torch.distributed calls, on communicators of MPI."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm import ANY_RANK
from paceline.comm.nonblocking.async_comm import AsyncComms, Steps
from paceline.comm.nonblocking.progress import Operation, ProgressEngine, Queue
from paceline.torch_backend import collectives, sparse
from paceline.torch_backend.arguments import (
    Lists,
    Opts,
    Tensors,
    check_count,
    check_fits,
    check_multiple,
    check_split,
    kind_of,
    list_of,
    reduction_for,
    root_of,
)
from paceline.torch_backend.devices import KINDS, Device, after, in_turn
from paceline.torch_backend.tensors import check, describe
from paceline.torch_backend.untraced import untraced
from paceline.torch_backend.work import Callbacks, GroupError, JoinedWork, MPIWork

_CLOSE_TIMEOUT_S = 5.0
"""How long operations in progress may take when a group is destroyed."""


@untraced
class MPIGroup(dist.ProcessGroup):
    """Ranks that exchange tensors over MPI; torch makes it for the backend "mpi4py"."""

    def __init__(
        self, comms: AsyncComms, progress: ProgressEngine, name: str, timeout_s: float
    ) -> None:
        self._rank, self._size = comms.collective_comm.rank, comms.collective_comm.size
        super().__init__(self._rank, self._size)
        self._all_comms, self._progress = comms, progress
        self._name, self._description = name, "undefined"
        self._timeout_s = timeout_s
        self._queue, self._callback_queue = Queue(), Queue()
        self._callbacks, self._nested_callbacks = Callbacks(), Callbacks()
        self._collectives, self._messages = itertools.count(1), itertools.count(1)
        self._number = 0
        self._roll_calls = itertools.count()
        self._starting: deque[object] = deque()
        """Messages that have not started, because a device has not reached them."""
        self._joined: list[MPIWork] | None = None
        self._closed = False

    # Collectives, under the names that torch calls.

    def broadcast(self, tensors: Tensors, opts: Opts = None, **_: Opts) -> MPIWork:
        tensors = list_of(tensors)
        return self._collect(
            "broadcast", tensors, opts, collectives.broadcast(self._comms, tensors, root_of(opts))
        )

    def allreduce(self, tensors: Tensors, opts: Opts = None, **_: Opts) -> MPIWork:
        tensors = list_of(tensors)
        if any(tensor.layout != torch.strided for tensor in tensors):
            return self._sum_sparse(tensors, opts)
        how = reduction_for(opts, tensors, "all_reduce")
        steps = collectives.all_reduce(self._comms, tensors, how)
        return self._collect("all_reduce", tensors, opts, steps)

    def _sum_sparse(self, tensors: list[Tensor], opts: Opts) -> MPIWork:
        kind = kind_of(opts)
        sparse.check_sparse(tensors, kind)
        steps = sparse.sum_sparse(self._comms, tensors, kind)
        return self._collect("all_reduce of sparse tensors", [], opts, steps)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Opts = None) -> MPIWork:
        hows = [reduction_for(opts, [tensor], "all_reduce") for tensor in tensors]
        steps = [
            collectives.all_reduce(self._comms, [tensor], how)
            for tensor, how in zip(tensors, hows, strict=True)
        ]
        return self._collect("all_reduce_coalesced", tensors, opts, _in_turn(steps))

    def reduce(self, tensors: Tensors, opts: Opts = None, **_: Opts) -> MPIWork:
        tensors = list_of(tensors)
        how = reduction_for(opts, tensors, "reduce")
        steps = collectives.reduce(self._comms, tensors, how, root_of(opts))
        return self._collect("reduce", tensors, opts, steps)

    def allgather(self, outputs: Lists, tensors: Tensors, opts: Opts = None, **_: Opts) -> MPIWork:
        lists: list[list[Tensor]] = [outputs] if isinstance(outputs[0], Tensor) else outputs
        return self._gather_all(lists, list_of(tensors), opts)

    def _gather_all(self, lists: list[list[Tensor]], tensors: list[Tensor], opts: Opts) -> MPIWork:
        for some, tensor in zip(lists, tensors, strict=True):
            check_count(len(some), self._size, "all_gather", "output tensors")
            check_fits(some[self._rank], tensor, "all_gather")
        steps = [
            collectives.all_gather(self._comms, some, tensor)
            for some, tensor in zip(lists, tensors, strict=True)
        ]
        every = [*tensors, *(output for some in lists for output in some)]
        return self._collect("all_gather", every, opts, _in_turn(steps))

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Opts = None
    ) -> MPIWork:
        # Here torch passes a list per rank, of that rank's tensors.
        by_tensor = outputs
        if len(outputs) == self._size and all(len(some) == len(tensors) for some in outputs):
            by_tensor = [list(some) for some in zip(*outputs, strict=True)]
        return self._gather_all(by_tensor, tensors, opts)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Opts = None) -> MPIWork:
        check_multiple(output, tensor, self._size, "all_gather_single")
        steps = collectives.all_gather_single(self._comms, output, tensor)
        return self._collect("all_gather_single", [output, tensor], opts, steps)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Opts = None
    ) -> MPIWork:
        pairs = list(zip(outputs, tensors, strict=True))
        for output, tensor in pairs:
            check_multiple(output, tensor, self._size, "all_gather_single")
        steps = [collectives.all_gather_single(self._comms, *pair) for pair in pairs]
        every = [*outputs, *tensors]
        return self._collect("all_gather_single_coalesced", every, opts, _in_turn(steps))

    def gather(self, outputs: Lists, tensors: Tensors, opts: Opts = None, **_: Opts) -> MPIWork:
        (tensor,), root = list_of(tensors), root_of(opts)
        received = (
            list(outputs[0]) if outputs and not isinstance(outputs[0], Tensor) else list(outputs)
        )
        if self._rank == root:
            check_count(len(received), self._size, "gather", "output tensors on its root")
            check_fits(received[root], tensor, "gather")
        steps = collectives.gather(self._comms, received, tensor, root)
        return self._collect("gather", [tensor, *received], opts, steps)

    def scatter(self, outputs: Tensors, tensors: Lists, opts: Opts = None, **_: Opts) -> MPIWork:
        (output,), root = list_of(outputs), root_of(opts)
        pieces = list(tensors[0]) if tensors and not isinstance(tensors[0], Tensor) else tensors
        if self._rank == root:
            check_count(len(pieces), self._size, "scatter", "tensors on its root")
            check_fits(output, pieces[root], "scatter")
        steps = collectives.scatter(self._comms, output, list(pieces), root)
        return self._collect("scatter", [output, *pieces], opts, steps)

    def reduce_scatter(
        self, outputs: Tensors, tensors: Lists, opts: Opts = None, **_: Opts
    ) -> MPIWork:
        outputs = list_of(outputs)
        lists: list[list[Tensor]] = [tensors] if isinstance(tensors[0], Tensor) else tensors
        for output, some in zip(outputs, lists, strict=True):
            check_count(len(some), self._size, "reduce_scatter", "tensors")
            check_fits(output, some[self._rank], "reduce_scatter")
        how = reduction_for(opts, outputs, "reduce_scatter")
        steps = [
            collectives.reduce_scatter(self._comms, output, some, how)
            for output, some in zip(outputs, lists, strict=True)
        ]
        every = [*outputs, *(tensor for some in lists for tensor in some)]
        return self._collect("reduce_scatter", every, opts, _in_turn(steps))

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Opts = None) -> MPIWork:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Opts = None
    ) -> MPIWork:
        steps = []
        for output, tensor in zip(outputs, tensors, strict=True):
            check_multiple(tensor, output, self._size, "reduce_scatter_single")
            how = reduction_for(opts, [output], "reduce_scatter_single")
            pieces = tensor.reshape(self._size, output.numel()).unbind()
            steps.append(collectives.reduce_scatter(self._comms, output, list(pieces), how))
        every = [*outputs, *tensors]
        return self._collect("reduce_scatter_single", every, opts, _in_turn(steps))

    def alltoall(self, outputs: list[Tensor], tensors: list[Tensor], opts: Opts = None) -> MPIWork:
        check_count(len(outputs), self._size, "all_to_all", "output tensors")
        check_count(len(tensors), self._size, "all_to_all", "tensors")
        check_fits(outputs[self._rank], tensors[self._rank], "all_to_all")
        steps = collectives.all_to_all(self._comms, outputs, tensors)
        return self._collect("all_to_all", [*outputs, *tensors], opts, steps)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_sizes: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
        opts: Opts = None,
    ) -> MPIWork:
        output_sizes, sizes = list(output_sizes or ()), list(sizes or ())
        check_split(output, output_sizes, self._size)
        check_split(tensor, sizes, self._size)
        steps = collectives.all_to_all_single(self._comms, output, tensor, output_sizes, sizes)
        return self._collect("all_to_all_single", [output, tensor], opts, steps)

    def barrier(self, opts: Opts = None, **_: Opts) -> MPIWork:
        return self._collect("barrier", [], opts, collectives.barrier(self._comms))

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that fails after the timeout; rank 0's error names the missing ranks.

        It always names all of them; `wait_all_ranks` chooses how many of them the part in gloo's
        words names.
        """
        seconds = self._timeout_s if timeout is None else timeout.total_seconds()
        steps = collectives.monitored_barrier(
            self._comms, next(self._roll_calls), seconds, wait_all_ranks
        )
        work = self._collect("monitored_barrier", [], None, steps, seconds + 10)
        work.wait()
        problem = work.problem()
        if problem:
            raise self._explain("monitored_barrier", self._number, [], problem)

    # Names used before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Messages.

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> MPIWork:
        steps = collectives.send(self._all_comms, tensors, to, tag)
        return self._message(f"send to rank {to}, tag {tag}", tensors, steps, [])

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> MPIWork:
        sources: list[int] = []
        steps = collectives.receive(self._all_comms, tensors, source, tag, sources)
        name = f"recv from rank {source}, tag {tag}"
        return self._message(name, tensors, steps, sources, cancels=True)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> MPIWork:
        sources: list[int] = []
        steps = collectives.receive(self._all_comms, tensors, ANY_RANK, tag, sources)
        name = f"recv from any rank, tag {tag}"
        return self._message(name, tensors, steps, sources, cancels=True)

    # What torch asks about a group.

    def getBackendName(self) -> str:
        return "mpi4py"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    @property
    def _device_types(self) -> list[torch.device]:
        """Where its tensors may be; DCP's async_save requires the CPU among them."""
        kinds = KINDS if torch.cuda.is_available() else ()
        return [torch.device(kind) for kind in ("cpu", *kinds)]

    def _get_backend(self, device: torch.device) -> dist.ProcessGroup:
        """The backend for tensors of a device."""
        return self if device.type in ("cpu", *KINDS) else super()._get_backend(device)

    def _set_sequence_number_for_group(self) -> None:
        """Every rank counts from 1, so there is nothing to agree on."""

    def _get_sequence_number_for_group(self) -> int:
        return self._number

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        self._joined = []

    def _end_coalescing(self, device: torch.device | None = None) -> JoinedWork:
        works, self._joined = self._joined or [], None
        return JoinedWork(works)

    def shutdown(self) -> None:
        """Wait for operations in progress, and free the communicators."""
        if self._closed:
            return
        self._closed = True
        queues = (self._queue, self._callback_queue)
        end_s = time.monotonic() + _CLOSE_TIMEOUT_S
        for operation in [operation for queue in queues for operation in [*queue.waiting]]:
            self._progress.wait(operation, max(0.0, end_s - time.monotonic()))
        if not any(queue.broken or queue.waiting for queue in queues):
            self._all_comms.close()

    def abort(self) -> None:
        """Start no more operations."""
        for queue in (self._queue, self._callback_queue):
            queue.broken = queue.broken or GroupError("the group was aborted")

    # Starting operations.

    @property
    def _comms(self) -> AsyncComms:
        """The communicators for the caller: a callback, or the program."""
        callback_comms = self._all_comms.callback_comms if self._is_callback() else None
        return callback_comms or self._all_comms

    def _is_callback(self) -> bool:
        """Whether the caller is a callback: of an operation, or of one that a callback started."""
        return self._callbacks.run_here() or self._nested_callbacks.run_here()

    def _collect(
        self,
        name: str,
        tensors: Sequence[Tensor],
        opts: Opts,
        steps: Steps[object],
        timeout_s: float | None = None,
    ) -> MPIWork:
        devices = self._check(tensors, name)
        self._number = next(self._collectives)
        from_callback = self._is_callback()
        operation = Operation(
            after(devices, steps) if devices else steps,
            timeout_s or self._seconds(opts),
            partial(self._explain, name, self._number, tensors),
            self._callback_queue if from_callback else self._queue,
        )
        callbacks = self._nested_callbacks if from_callback else self._callbacks
        work = MPIWork(operation, self._progress, callbacks, [], devices)
        if getattr(opts, "asyncOp", True) or self._joined is not None:
            self._progress.submit(operation)
        else:
            self._progress.run(operation)
        if self._joined is not None:
            self._joined.append(work)
        return work

    def _message(
        self,
        name: str,
        tensors: list[Tensor],
        steps: Steps[object],
        sources: list[int],
        cancels: bool = False,
    ) -> MPIWork:
        devices = self._check(tensors, name)
        if devices or self._starting:
            steps = in_turn(self._starting, devices, steps)
        explain = partial(self._explain, name, next(self._messages), tensors)
        operation = Operation(steps, self._timeout_s, explain, cancels=cancels)
        self._progress.submit(operation)
        work = MPIWork(operation, self._progress, Callbacks(), sources, devices)
        if self._joined is not None:
            self._joined.append(work)
        return work

    def _check(self, tensors: Sequence[Tensor], name: str) -> list[Device]:
        if self._closed:
            raise GroupError(f"{name}: the group {self._name!r} was destroyed")
        return check(tensors, name)

    def _explain(
        self, name: str, number: int, tensors: Sequence[Tensor], reason: str
    ) -> GroupError:
        what = f" of {describe(list(tensors))}" if tensors else ""
        place = f"rank {self._rank} of {self._size} in group {self._name!r}"
        return GroupError(f"{place}, {name}{what}, number {number}: {reason}")

    def _seconds(self, opts: Opts) -> float:
        """The timeout of this call, or else of the group."""
        timeout: timedelta | None = getattr(opts, "timeout", None)
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        return seconds if seconds > 0 else self._timeout_s


def _in_turn(works: list[Steps[list[Tensor]]]) -> Steps[list[Tensor]]:
    results: list[Tensor] = []
    for steps in works:
        results += yield from steps
    return results
