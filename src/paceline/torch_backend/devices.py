"""Tensors that are not in the host's memory: how they get there for MPI, and back.

What the program has given a device by the time of the call comes first: a mark is set in the
caller's stream, and the operation begins when the device has passed it. Its copies go through
pinned host memory, in a stream of their own, and are waited for: so an operation that is over has
its results in place for every stream, and nothing is left for `wait` to order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from paceline.comm import Buffer
from paceline.comm.nonblocking.async_comm import Steps
from paceline.comm.nonblocking.progress import THREAD as PROGRESS_THREAD
from paceline.errors import WorldError
from paceline.torch_backend.cuda_aware import is_cuda_aware

T = TypeVar("T")


class Device(Protocol):
    """A device with memory of its own."""

    takes_messages: bool
    """Whether MPI sends and receives its memory by itself."""
    future_devices: list[torch.device]
    """What a torch Future must know to hold its tensors."""

    def mark(self) -> Callable[[], bool]:
        """Tells whether it has done what the calling thread has given it by now; never waits."""

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory of the host that it copies from and to quickly."""

    def fetch(self, tensor: Tensor) -> Tensor:
        """A copy of its tensor on the host, without gaps; returns when it is there."""

    def store(self, tensor: Tensor, values: Tensor) -> None:
        """Overwrite its tensor by values on the host; returns when they are there."""

    def expose(self, tensor: Tensor) -> Buffer:
        """The bytes of its tensor, which has no gaps, for a message of MPI."""


class CUDADevice:
    """A GPU, as torch.cuda knows it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)
        self.takes_messages = is_cuda_aware()
        self.future_devices = [device]

    def mark(self) -> Callable[[], bool]:
        if torch.cuda.is_current_stream_capturing():
            raise WorldError(
                "the stream records a CUDA graph, and MPI has no part in one; communicate outside "
                "of torch.cuda.graph, or use the nccl backend with init_method='mpi4py://'"
            )
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return cast(Callable[[], bool], event.query)

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        # torch keeps pinned memory that is given back, so this is a pool.
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def fetch(self, tensor: Tensor) -> Tensor:
        host = self.host_buffer(tensor.shape, tensor.dtype)
        with torch.cuda.stream(self._copies):  # makes its device the thread's, too
            host.copy_(tensor.detach(), non_blocking=True)
        self._copies.synchronize()
        return host

    def store(self, tensor: Tensor, values: Tensor) -> None:
        if values.dtype != tensor.dtype or not values.is_pinned():
            values = self.host_buffer(values.shape, tensor.dtype).copy_(values)
        with torch.cuda.stream(self._copies):
            tensor.copy_(values, non_blocking=True)
        self._copies.synchronize()

    def expose(self, tensor: Tensor) -> Buffer:
        # MPI works in the device of the thread; that of the program's threads is their own.
        if threading.current_thread().name == PROGRESS_THREAD:
            torch.cuda.set_device(self._device)
        return cast(Buffer, DeviceBytes(tensor.detach().reshape(-1).view(torch.uint8)))


class DeviceBytes:
    """Bytes in the memory of a device, with what messages need of an array."""

    def __init__(self, flat: Tensor) -> None:
        self._flat = flat
        self.size = self.nbytes = flat.numel()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface: dict[str, Any] = self._flat.__cuda_array_interface__
        return interface

    def __getitem__(self, part: slice) -> DeviceBytes:
        return DeviceBytes(self._flat[part])


KINDS: dict[str, Callable[[torch.device], Device]] = {"cuda": CUDADevice}
"""Devices whose tensors travel, besides the CPU's."""
_opened: dict[torch.device, Device] = {}


def device_of(tensor: Tensor) -> Device:
    """The device that a tensor is on, which is not the CPU."""
    device = _opened.get(tensor.device)
    if device is None:
        device = _opened[tensor.device] = KINDS[tensor.device.type](tensor.device)
    return device


def after(devices: Sequence[Device], steps: Steps[T]) -> Steps[T]:
    """The steps, begun when the devices have done what the caller has given them by now."""
    return _begin_after([device.mark() for device in devices], steps)


def in_turn(starting: deque[object], devices: Sequence[Device], steps: Steps[T]) -> Steps[T]:
    """The same for messages, which begin in the order of the calls: `starting` are those that
    have not begun. One that has been made must be started, or those behind it wait for ever."""
    token = object()
    starting.append(token)
    return _begin_in_turn(starting, token, [device.mark() for device in devices], steps)


def _begin_in_turn(
    starting: deque[object], token: object, marks: list[Callable[[], bool]], steps: Steps[T]
) -> Steps[T]:
    try:
        while starting[0] is not token or not all(is_passed() for is_passed in marks):
            yield False
        first = next(steps)  # it has begun when its first requests are there
    except StopIteration as end:
        return cast(T, end.value)
    finally:
        starting.remove(token)
    yield first
    return (yield from steps)


def _begin_after(marks: list[Callable[[], bool]], steps: Steps[T]) -> Steps[T]:
    for is_passed in marks:
        while not is_passed():
            yield False
    return (yield from steps)
