"""What torch gets for an operation that was started: a Work, and a Future."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from paceline.comm.progress import Operation, Progress
from paceline.errors import WorldError


class GroupError(WorldError, RuntimeError):
    """An exchange of a process group failed; torch's own are RuntimeErrors, too."""


class Callbacks:
    """Runs the Python callbacks of a group's operations, one after the other, in a thread.

    They may wait for other operations, so they must not run in the thread that drives these. And
    they may start some, so they must run in the same order on all ranks: that of the operations.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()

    def run_here(self) -> bool:
        """Whether the caller is a callback."""
        return self._thread is threading.current_thread()

    def add(self, call: Callable[[], None]) -> None:
        """Call this when all that were added before have returned."""
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
            call()


class OperationFuture(Future):
    """A future whose Python callbacks run as `Callbacks` says, even if it has long been done."""

    def __init__(self, work: MPIWork, operation: Operation, callbacks: Callbacks) -> None:
        super().__init__()
        self._work, self._operation, self._callbacks = work, operation, callbacks
        operation.when_over(partial(_settle, self))

    def wait(self) -> Any:
        """Its value, or what went wrong; as a Work waits, so that callbacks may wait, too."""
        self._work.settle()
        return super().wait()

    def then(self, callback: Any) -> Future:
        relay: Future = Future()
        result: Future = relay.then(callback)
        self._operation.when_over(lambda over: self._callbacks.add(partial(_settle, relay, over)))
        return result

    def add_done_callback(self, callback: Any) -> None:
        self.then(callback)


def _settle(future: Future, operation: Operation) -> None:
    if operation.error is not None:
        future.set_exception(operation.error)
    else:
        future.set_result(operation.result)


class MPIWork(dist.Work):
    """An operation of a group, as torch asks about it."""

    def __init__(
        self, operation: Operation, progress: Progress, callbacks: Callbacks, sources: list[int]
    ) -> None:
        super().__init__()
        self._operation, self._progress = operation, progress
        self._callbacks, self._sources = callbacks, sources
        self._future: OperationFuture | None = None
        self._mutex = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it is over, raise what went wrong."""
        seconds = timeout.total_seconds() if timeout else 0.0
        if not self._progress.wait(self._operation, seconds if seconds > 0 else None):
            raise self._operation.explain(f"is not over after {seconds:g} s")
        if self._operation.error is not None:
            raise self._operation.error
        return True

    def settle(self) -> None:
        """Return when it is over, well or not."""
        self._progress.wait(self._operation)

    def get_future(self) -> Future:
        with self._mutex:
            if self._future is None:
                self._future = OperationFuture(self, self._operation, self._callbacks)
            return self._future

    def is_completed(self) -> bool:
        return self._operation.over.is_set()

    def is_success(self) -> bool:
        return self.is_completed() and self._operation.error is None

    def exception(self) -> Exception | None:
        return self._operation.error

    def problem(self) -> str:
        """What a monitored barrier found wrong."""
        return str(self._operation.result)

    def result(self) -> list[Tensor]:
        self.wait()
        return list(self._operation.result)

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """Who sent what was received."""
        return self._sources[-1] if self._sources else -1

    _source_rank = source_rank


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
