"""Tensors on devices: how they are copied to the host for MPI, and back.

Work that the program gave a device before the call comes first: we record a mark in the caller's
stream, and the operation starts when the device has passed it. Copies go through pinned host
memory in a stream of their own, and we wait for them: when an operation is over, its results are
in place for every stream, and `wait` has nothing to order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor

from paceline.comm import Buffer
from paceline.comm.nonblocking.async_comm import Steps
from paceline.comm.nonblocking.progress import THREAD as PROGRESS_THREAD
from paceline.errors import WorldError
from paceline.torch_backend.cuda_aware import is_cuda_aware

T = TypeVar("T")


class Device(Protocol):
    """A device with its own memory."""

    takes_messages: bool
    """Whether MPI reads and writes its memory directly."""
    future_devices: list[torch.device]
    """The devices of a torch Future that holds its tensors."""

    def mark(self) -> Callable[[], bool]:
        """A test whether it has done what the calling thread gave it until now; never waits."""

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Host memory with fast copies to and from the device."""

    def fetch(self, tensor: Tensor) -> Tensor:
        """A contiguous copy of its tensor on the host; returns when the copy is complete."""

    def store(self, tensor: Tensor, values: Tensor) -> None:
        """Overwrite its tensor with values on the host; returns when the copy is complete."""

    def expose(self, tensor: Tensor) -> Buffer:
        """The bytes of its contiguous tensor, for an MPI message."""


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
                "the stream captures a CUDA graph, which cannot contain MPI; communicate outside "
                "of torch.cuda.graph, or use the nccl backend with init_method='mpi4py://'"
            )
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return cast(Callable[[], bool], event.query)

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        # torch caches pinned memory that is freed, so this is a pool.
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def fetch(self, tensor: Tensor) -> Tensor:
        host = self.host_buffer(tensor.shape, tensor.dtype)
        with torch.cuda.stream(self._copies):  # also makes its device the thread's current one
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
        # MPI uses the thread's current device; we must not change that of the program's threads.
        if threading.current_thread().name == PROGRESS_THREAD:
            torch.cuda.set_device(self._device)
        return cast(Buffer, DeviceBytes(tensor.detach().reshape(-1).view(torch.uint8)))


class DeviceBytes:
    """Bytes in device memory, with the part of the array interface that messages need."""

    def __init__(self, flat: Tensor) -> None:
        self._flat = flat
        self.size = self.nbytes = flat.numel()

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        interface: dict[str, object] = self._flat.__cuda_array_interface__
        return interface

    def __getitem__(self, part: slice) -> DeviceBytes:
        return DeviceBytes(self._flat[part])


KINDS: dict[str, Callable[[torch.device], Device]] = {"cuda": CUDADevice}
"""Supported devices besides the CPU."""
_opened: dict[torch.device, Device] = {}


def device_of(tensor: Tensor) -> Device:
    """The device, not the CPU, that holds a tensor."""
    device = _opened.get(tensor.device)
    if device is None:
        device = _opened[tensor.device] = KINDS[tensor.device.type](tensor.device)
    return device


def after(devices: Sequence[Device], steps: Steps[T]) -> Steps[T]:
    """Run the steps when the devices have done what the caller gave them until now."""
    return _begin_after([device.mark() for device in devices], steps)


def in_turn(starting: deque[object], devices: Sequence[Device], steps: Steps[T]) -> Steps[T]:
    """The same for messages, which start in the order of the calls.

    `starting` holds those that have not started. Steps returned here must be run, or those behind
    them wait forever.
    """
    token = object()
    starting.append(token)
    return _begin_in_turn(starting, token, [device.mark() for device in devices], steps)


def _begin_in_turn(
    starting: deque[object], token: object, marks: list[Callable[[], bool]], steps: Steps[T]
) -> Steps[T]:
    try:
        while starting[0] is not token or not all(is_passed() for is_passed in marks):
            yield False
        first = next(steps)  # it has started when its first requests exist
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
