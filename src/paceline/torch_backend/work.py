"""What torch gets for an operation in progress: a Work, and a Future."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from paceline.comm.nonblocking.progress import Operation, ProgressEngine
from paceline.errors import WorldError
from paceline.torch_backend.devices import Device
from paceline.torch_backend.untraced import untraced

Callback = Callable[[Future], object]


class GroupError(WorldError, RuntimeError):
    """An operation of a process group failed. A RuntimeError, like those of torch."""


class Callbacks:
    """Runs the Python callbacks of a group's operations, one after the other, in a thread.

    They may wait for other operations, so they must not run in the thread that drives these. They
    may also start some, so they must run in the same order on all ranks: that of the operations.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()

    def run_here(self) -> bool:
        """Whether the caller is a callback."""
        return self._thread is threading.current_thread()

    def add(self, call: Callable[[], None]) -> None:
        """Call this after all callbacks added before have returned."""
        with self._mutex:
            self._calls.append(call)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="paceline-callbacks", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._calls:
                    self._thread = None
                    return
                call = self._calls.popleft()
            try:
                call()
            except BaseException:  # the callbacks after it must run all the same
                traceback.print_exc()


@untraced
class OperationFuture(Future):
    """A future whose Python callbacks run in `Callbacks`, even those added when it is done."""

    def __init__(
        self,
        operation: Operation,
        progress: ProgressEngine,
        callbacks: Callbacks,
        devices: list[torch.device],
    ) -> None:
        super().__init__(devices=devices)
        self._operation, self._progress = operation, progress
        self._callbacks, self._devices = callbacks, devices
        operation.when_over(partial(_complete, self))

    def wait(self) -> object:
        """Return its value or raise its error; waits as a Work does, so that callbacks may wait."""
        self._progress.wait(self._operation)
        return super().wait()

    def then(self, callback: Callback) -> Future:
        link = LinkFuture(self._callbacks, self._devices)
        self._operation.when_over(
            lambda over: self._callbacks.add(partial(self._call, link, callback, over))
        )
        return link

    def add_done_callback(self, callback: Callback) -> None:
        self.then(callback)

    def _call(self, link: LinkFuture, callback: Callback, over: Operation) -> None:
        # The thread that ended the operation may not have set our own value yet.
        done: Future = Future(devices=self._devices)
        _complete(done, over)
        link.run(callback, done)


@untraced
class LinkFuture(Future):
    """The future of what a callback returns; the next callback of the chain runs in `Callbacks`.

    A callback added before the value is set runs right after it. One added later waits for its
    turn and never runs in the thread that adds it. So all ranks start its operations on the same
    communicator, and a chain ends before that of an operation started after the chain was made.
    """

    def __init__(self, callbacks: Callbacks, devices: list[torch.device]) -> None:
        super().__init__(devices=devices)
        self._callbacks, self._devices = callbacks, devices
        self._next: list[Callable[[], None]] | None = []
        self._mutex = threading.Lock()

    def run(self, callback: Callback, source: Future) -> None:
        """Call back with the source, set the value, and run the next callbacks."""
        try:
            value = callback(source)
        except GroupError as error:
            _fail(self, error)
        except BaseException as error:  # nobody else would see it in this thread
            failure = GroupError(f"a callback failed with {type(error).__name__}: {error}")
            failure.__cause__ = error
            _fail(self, failure)
        else:
            self.set_result(value)
        with self._mutex:
            calls, self._next = self._next or [], None
        for call in calls:
            call()

    def then(self, callback: Callback) -> Future:
        link = LinkFuture(self._callbacks, self._devices)
        call = partial(link.run, callback, self)
        with self._mutex:
            if self._next is not None:
                self._next.append(call)
                return link
        self._callbacks.add(call)
        return link

    def add_done_callback(self, callback: Callback) -> None:
        self.then(callback)


class _Failure:
    """An error as the value of a future: C++ code (DDP) takes the value for a result and searches
    it for tensors, which raises the error there, too."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __repr__(self) -> str:  # C++ prints what it could not convert to a tensor
        return repr(self.error)

    def __reduce__(self) -> NoReturn:
        raise self.error


def _raise(failure: _Failure) -> NoReturn:
    raise failure.error


def _fail(future: Future, error: Exception) -> None:
    """Like `set_exception`, but also for waiters in C++."""
    future._set_unwrap_func(_raise)
    future.set_result(_Failure(error))


def _complete(future: Future, operation: Operation) -> None:
    if operation.error is not None:
        _fail(future, operation.error)
    else:
        future.set_result(operation.result)


@untraced
class MPIWork(dist.Work):
    """An operation of a group, as torch sees it."""

    def __init__(
        self,
        operation: Operation,
        progress: ProgressEngine,
        callbacks: Callbacks,
        sources: list[int],
        devices: Sequence[Device] = (),
    ) -> None:
        super().__init__()
        self._devices = devices
        self._operation, self._progress = operation, progress
        self._callbacks, self._sources = callbacks, sources
        self._future: OperationFuture | None = None
        self._mutex = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is over; raise its error, if any."""
        seconds = timeout.total_seconds() if timeout else 0.0
        if not self._progress.wait(self._operation, seconds if seconds > 0 else None):
            raise self._operation.explain(f"not done after {seconds:g} s")
        if self._operation.error is not None:
            raise self._operation.error
        return True

    def get_future(self) -> Future:
        with self._mutex:
            if self._future is None:
                devices = [one for device in self._devices for one in device.future_devices]
                self._future = OperationFuture(
                    self._operation, self._progress, self._callbacks, devices
                )
            return self._future

    def is_completed(self) -> bool:
        return self._operation.over.is_set()

    def is_success(self) -> bool:
        return self.is_completed() and self._operation.error is None

    def exception(self) -> Exception | None:
        return self._operation.error

    def problem(self) -> str:
        """What a monitored barrier found wrong, if anything."""
        return str(self._operation.result)

    def result(self) -> list[Tensor]:
        self.wait()
        return list(cast("list[Tensor]", self._operation.result))

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """The sender of what was received."""
        return self._sources[-1] if self._sources else -1

    _source_rank = source_rank


@untraced
class JoinedWork(dist.Work):
    """Several works as one."""

    def __init__(self, works: list[MPIWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def get_future(self) -> Future:
        futures = [work.get_future() for work in self._works]
        joined: Future = torch.futures.collect_all(futures).then(_results)
        return joined

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)


def _results(futures: Future) -> list[Tensor]:
    return [tensor for future in futures.value() for tensor in future.value()]
