"""The progress engine: one thread keeps many exchanges in progress at once.

An operation is a generator that starts requests and yields until they are done. The operations of
one queue run one after the other; those of different queues, or of none, run concurrently. So
groups that ranks use in different orders never wait for each other.

A thread that waits for an operation drives the engine: it polls all operations in progress. If no
thread waits, the engine's own thread drives. Switching threads costs more than a small all-reduce.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from paceline.comm.nonblocking.async_comm import Steps
from paceline.errors import WorldError

THREAD = "paceline-progress"
_SLEEPS_S = tuple(min(20e-6 * 1.2**idle, 500e-6) for idle in range(20))
"""Sleeps between two polls: the longer nothing has moved, the longer."""
_YIELDS = 50
"""Polls before the engine's own thread sleeps: it shares cores with the program."""
_YIELDS_OF_WAITING = 400
"""The same for a thread that waits and has nothing else to do."""
_CLOSE_TIMEOUT_S = 5.0
"""How long operations in progress may take when the program ends."""


class Queue:
    """Operations that run one after the other, in the same order on all ranks."""

    def __init__(self) -> None:
        self.waiting: deque[Operation] = deque()
        self.broken: Exception | None = None
        """Why no more operations run: after a failure, ranks disagree on which comes next."""


class Operation:
    """An exchange in progress, or one that waits for its turn."""

    def __init__(
        self,
        steps: Steps[object],
        timeout_s: float,
        explain: Callable[[str], Exception],
        queue: Queue | None = None,
        cancels: bool = False,
    ) -> None:
        """`explain` turns what went wrong into an error that names this operation. With `cancels`,
        closing the steps withdraws the requests that they have started."""
        self.steps, self.queue, self.cancels = steps, queue, cancels
        self.timeout_s, self.deadline_s = timeout_s, float("inf")
        self.explain = explain
        self.result: object = None
        self.error: Exception | None = None
        self.over = threading.Event()
        self._callbacks: list[Callable[[Operation], None]] = []
        self._all_called = False
        self._mutex = threading.Lock()

    def when_over(self, callback: Callable[[Operation], None]) -> None:
        """Call this when it is over, after callbacks added before; at once if all were called."""
        with self._mutex:
            if not self._all_called:
                self._callbacks.append(callback)
                return
        callback(self)

    def finish(self, result: object = None, error: Exception | None = None) -> None:
        """Set the result or the error, and call back."""
        with self._mutex:
            self.result, self.error = result, error
            self.over.set()
        while not self._all_called:
            with self._mutex:
                callbacks, self._callbacks = self._callbacks, []
                self._all_called = not callbacks
            for callback in callbacks:
                callback(self)


class ProgressEngine:
    """Drives the operations of a process, from a thread that waits or from its own."""

    def __init__(self) -> None:
        self._inbox: deque[Operation] = deque()
        self._ready: deque[Operation] = deque()
        """Next in their queues."""
        self._in_progress: list[Operation] = []
        self._lost: list[Operation] = []
        """Abandoned, but MPI may still write to their buffers."""
        self._driving = threading.Lock()
        self._driver = 0
        self._wake = threading.Event()
        """Ends the sleep of the driving thread."""
        self._work_arrived = threading.Condition()
        self._ending = False
        self._thread: threading.Thread | None = None

    def submit(self, operation: Operation) -> None:
        """Start it, if it is its turn, and leave the rest to the driving thread."""
        self._inbox.append(operation)
        if self._driving.acquire(blocking=False):
            self._driver = threading.get_ident()
            try:
                self._start_new()
            finally:
                self._leave()
        else:
            self._wake_driver()

    def run(self, operation: Operation) -> None:
        """Start it and return when it is over."""
        self._inbox.append(operation)
        self.wait(operation)

    def wait(self, operation: Operation, timeout_s: float | None = None) -> bool:
        """Wait until the operation is over, or for so long; return whether it is over."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        if operation.over.is_set():
            return True
        if self._driver == threading.get_ident():  # a callback waits for another operation
            self._drive(operation, end_s)
        elif self._driving.acquire(blocking=False):
            self._driver = threading.get_ident()
            try:
                self._drive(operation, end_s)
            finally:
                self._leave()
        else:
            self._wake_driver()
            operation.over.wait(timeout_s)
        return operation.over.is_set()

    @property
    def count(self) -> int:
        """How many operations are in progress or wait for their turn."""
        queued = {op.queue: len(op.queue.waiting) - 1 for op in self._in_progress if op.queue}
        new = len(self._inbox) + len(self._ready)
        return new + len(self._in_progress) + sum(queued.values())

    def close(self) -> None:
        """Give operations in progress a moment to end, then end the thread."""
        end_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while self.count and time.monotonic() < end_s:
            self._wake_driver()
            time.sleep(0.001)
        self._ending = True
        self._wake_driver()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _leave(self) -> None:
        """Stop driving; the engine's own thread takes over what is left."""
        self._driver = 0
        self._driving.release()
        if self._has_work():
            self._wake_driver()

    def _has_work(self) -> bool:
        return bool(self._inbox or self._ready or self._in_progress)

    def _wake_driver(self) -> None:
        """Make the driving thread poll at once; if there is none, start ours."""
        self._wake.set()
        if self._driving.locked() and not self._ending:
            return
        with self._work_arrived:
            if self._thread is None and not self._ending:
                self._thread = threading.Thread(target=self._serve, name=THREAD, daemon=True)
                self._thread.start()
            self._work_arrived.notify()

    def _serve(self) -> None:
        while True:
            with self._work_arrived:
                while not (self._ending or self._has_work()):
                    self._work_arrived.wait()
            if self._ending:
                return
            with self._driving:
                self._driver = threading.get_ident()
                try:
                    self._drive(None, None)
                finally:
                    self._driver = 0

    def _drive(self, wanted: Operation | None, end_s: float | None) -> None:
        """Poll until this operation is over; without one, until nothing is in progress."""
        idle = 0
        while not self._ending:
            moved = self._poll()
            if wanted.over.is_set() if wanted is not None else not self._has_work():
                return
            if moved:
                idle = 0
                continue
            now_s = time.monotonic()
            if end_s is not None and now_s > end_s:
                return
            self._end_late(now_s)
            idle = self._pause(idle, _YIELDS if wanted is None else _YIELDS_OF_WAITING)

    def _pause(self, idle: int, yields: int) -> int:
        """Yield or sleep before the next poll: the more idle polls, the longer."""
        if idle < yields:
            os.sched_yield()
        elif self._wake.wait(_SLEEPS_S[min(idle - yields, len(_SLEEPS_S) - 1)]):
            self._wake.clear()
            return 0
        return idle + 1

    def _poll(self) -> bool:
        moved = self._start_new()
        for operation in tuple(self._in_progress):
            moved = self._advance(operation) or moved
        return moved

    def _start_new(self) -> bool:
        started = False
        while self._ready or self._inbox:
            started = True
            if self._ready:
                self._start(self._ready.popleft())
                continue
            operation = self._inbox.popleft()
            if operation.queue is not None:
                operation.queue.waiting.append(operation)
                if len(operation.queue.waiting) > 1:
                    continue
            self._start(operation)
        return started

    def _start(self, operation: Operation) -> None:
        self._in_progress.append(operation)
        operation.deadline_s = time.monotonic() + operation.timeout_s
        broken = operation.queue and operation.queue.broken
        if broken:
            self._end(operation, error=operation.explain(f"not started, because {broken}"))
        else:
            self._advance(operation)

    def _advance(self, operation: Operation) -> bool:
        """Advance it as far as possible; return whether it made progress."""
        try:
            return next(operation.steps)
        except StopIteration as end:
            self._end(operation, result=end.value)
        except Exception as error:
            explained = operation.explain(f"{type(error).__name__}: {error}")
            explained.__cause__ = error
            if operation.queue is not None:  # some of its messages may still be in transit
                self._lost.append(operation)
            self._end(operation, error=explained)
        return True

    def _end(
        self, operation: Operation, result: object = None, error: Exception | None = None
    ) -> None:
        if operation not in self._in_progress:  # a callback has driven the engine meanwhile
            return
        self._in_progress.remove(operation)
        queue = operation.queue
        if queue is not None:
            queue.waiting.popleft()
            queue.broken = queue.broken or error
            if queue.waiting:
                self._ready.append(queue.waiting[0])
        operation.finish(result, error)

    def _end_late(self, now_s: float) -> None:
        for operation in tuple(self._in_progress):
            if now_s > operation.deadline_s and operation in self._in_progress:
                if operation.cancels:
                    with contextlib.suppress(Exception):  # it has failed in any case
                        operation.steps.close()
                else:
                    self._lost.append(operation)
                reason = f"the timeout of {operation.timeout_s:g} s expired"
                self._end(operation, error=operation.explain(reason))


_engine: ProgressEngine | None = None


def progress_of_process() -> ProgressEngine:
    """The one engine of this process. A fork gets none: it may not use its parent's MPI."""
    global _engine, _pid
    if _engine is None:
        _engine, _pid = ProgressEngine(), os.getpid()
    elif _pid != os.getpid():
        raise WorldError("this process is a fork of a rank, and a fork cannot communicate")
    return _engine


_pid = 0
