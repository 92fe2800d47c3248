"""One thread that keeps many exchanges under way at once.

An operation is a generator that starts requests and yields until they are done. The operations of
a queue run one after the other, those of different queues, and those without one, side by side:
so groups that ranks use in different orders never wait for each other.

Whoever waits for an operation may drive: look at all that is under way, again and again. If nobody
does, the thread drives. Handing over to a thread costs more than a small all-reduce.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from paceline.errors import WorldError

THREAD = "paceline-progress"
_SLEEPS_S = tuple(min(20e-6 * 1.2**idle, 500e-6) for idle in range(20))
"""Sleeps between two looks at what is under way: longer, the longer nothing has moved."""
_YIELDS = 50
"""Looks before the first sleep of the thread, beside which the program computes."""
_YIELDS_OF_WAITING = 400
"""The same of a thread that has nothing else to do."""
_FAREWELL_S = 5.0
"""How long what is under way may take when the program ends."""


class Queue:
    """Operations that run one after the other, in the same order on all ranks."""

    def __init__(self) -> None:
        self.waiting: deque[Operation] = deque()
        self.broken: Exception | None = None
        """Why none runs any more: of one that failed the ranks are at different places."""


class Operation:
    """An exchange under way, or one that waits for its turn."""

    def __init__(
        self,
        steps: Generator[bool, None, Any],
        timeout_s: float,
        explain: Callable[[str], Exception],
        queue: Queue | None = None,
        cancels: bool = False,
    ) -> None:
        """`explain` makes the error that names this operation, from what went wrong; `cancels`:
        if the steps are closed, they take back what they have started."""
        self.steps, self.queue, self.cancels = steps, queue, cancels
        self.timeout_s, self.deadline_s = timeout_s, float("inf")
        self.explain = explain
        self.result: Any = None
        self.error: Exception | None = None
        self.over = threading.Event()
        self._watchers: list[Callable[[Operation], None]] = []
        self._told = False
        self._mutex = threading.Lock()

    def when_over(self, tell: Callable[[Operation], None]) -> None:
        """Call this when it is over, after those who asked before; at once if all were told."""
        with self._mutex:
            if not self._told:
                self._watchers.append(tell)
                return
        tell(self)

    def finish(self, result: Any = None, error: Exception | None = None) -> None:
        """It is over, well or not."""
        with self._mutex:
            self.result, self.error = result, error
            self.over.set()
        while not self._told:
            with self._mutex:
                watchers, self._watchers = self._watchers, []
                self._told = not watchers
            for tell in watchers:
                tell(self)


class ProgressEngine:
    """Drives the operations of a process, from the thread that waits or from its own."""

    def __init__(self) -> None:
        self._inbox: deque[Operation] = deque()
        self._ready: deque[Operation] = deque()
        """Those whose turn has come."""
        self._under_way: list[Operation] = []
        self._lost: list[Operation] = []
        """Given up, but MPI may still write to their buffers."""
        self._driving = threading.Lock()
        self._driver = 0
        self._nudge = threading.Event()
        """Ends the sleep of who drives."""
        self._call = threading.Condition()
        self._ending = False
        self._thread: threading.Thread | None = None

    def submit(self, operation: Operation) -> None:
        """Start it, if it is its turn, and leave the rest to who drives."""
        self._inbox.append(operation)
        if self._driving.acquire(blocking=False):
            self._driver = threading.get_ident()
            try:
                self._start_new()
            finally:
                self._leave()
        else:
            self._call_driver()

    def run(self, operation: Operation) -> None:
        """Start it and return when it is over."""
        self._inbox.append(operation)
        self.wait(operation)

    def wait(self, operation: Operation, timeout_s: float | None = None) -> bool:
        """Return when the operation is over, or after that time; whether it is over."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        if operation.over.is_set():
            return True
        if self._driver == threading.get_ident():  # a callback of an operation waits for another
            self._drive(operation, end_s)
        elif self._driving.acquire(blocking=False):
            self._driver = threading.get_ident()
            try:
                self._drive(operation, end_s)
            finally:
                self._leave()
        else:
            self._call_driver()
            operation.over.wait(timeout_s)
        return operation.over.is_set()

    @property
    def count(self) -> int:
        """How many operations are started or wait for their start."""
        queued = {op.queue: len(op.queue.waiting) - 1 for op in self._under_way if op.queue}
        new = len(self._inbox) + len(self._ready)
        return new + len(self._under_way) + sum(queued.values())

    def close(self) -> None:
        """Give what is under way a moment to end, and end the thread."""
        end_s = time.monotonic() + _FAREWELL_S
        while self.count and time.monotonic() < end_s:
            self._call_driver()
            time.sleep(0.001)
        self._ending = True
        self._call_driver()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_FAREWELL_S)

    def _leave(self) -> None:
        """Drive no longer; what is left is the thread's."""
        self._driver = 0
        self._driving.release()
        if self._has_work():
            self._call_driver()

    def _has_work(self) -> bool:
        return bool(self._inbox or self._ready or self._under_way)

    def _call_driver(self) -> None:
        """Who drives shall look at once; if nobody does, the thread begins."""
        self._nudge.set()
        if self._driving.locked() and not self._ending:
            return
        with self._call:
            if self._thread is None and not self._ending:
                self._thread = threading.Thread(target=self._serve, name=THREAD, daemon=True)
                self._thread.start()
            self._call.notify()

    def _serve(self) -> None:
        while True:
            with self._call:
                while not (self._ending or self._has_work()):
                    self._call.wait()
            if self._ending:
                return
            with self._driving:
                self._driver = threading.get_ident()
                try:
                    self._drive(None, None)
                finally:
                    self._driver = 0

    def _drive(self, wanted: Operation | None, end_s: float | None) -> None:
        """Look until this operation is over; without one, until nothing is under way."""
        idle = 0
        while not self._ending:
            moved = self._look()
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
        """Let some time pass before the next look: more, the more looks were idle."""
        if idle < yields:
            os.sched_yield()
        elif self._nudge.wait(_SLEEPS_S[min(idle - yields, len(_SLEEPS_S) - 1)]):
            self._nudge.clear()
            return 0
        return idle + 1

    def _look(self) -> bool:
        moved = self._start_new()
        for operation in tuple(self._under_way):
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
        self._under_way.append(operation)
        operation.deadline_s = time.monotonic() + operation.timeout_s
        broken = operation.queue and operation.queue.broken
        if broken:
            self._end(operation, error=operation.explain(f"nothing more runs, for {broken}"))
        else:
            self._advance(operation)

    def _advance(self, operation: Operation) -> bool:
        """Let it go on as far as it can now; whether it got on."""
        try:
            return next(operation.steps)
        except StopIteration as end:
            self._end(operation, result=end.value)
        except Exception as error:
            told = operation.explain(f"{type(error).__name__}: {error}")
            told.__cause__ = error
            if operation.queue is not None:  # of several messages some may still be on their way
                self._lost.append(operation)
            self._end(operation, error=told)
        return True

    def _end(
        self, operation: Operation, result: Any = None, error: Exception | None = None
    ) -> None:
        if operation not in self._under_way:  # a callback has driven meanwhile
            return
        self._under_way.remove(operation)
        queue = operation.queue
        if queue is not None:
            queue.waiting.popleft()
            queue.broken = queue.broken or error
            if queue.waiting:
                self._ready.append(queue.waiting[0])
        operation.finish(result, error)

    def _end_late(self, now_s: float) -> None:
        for operation in tuple(self._under_way):
            if now_s > operation.deadline_s and operation in self._under_way:
                if operation.cancels:
                    with contextlib.suppress(Exception):  # it is over in any case
                        operation.steps.close()
                else:
                    self._lost.append(operation)
                told = f"waited {operation.timeout_s:g} s in vain, and its timeout is over"
                self._end(operation, error=operation.explain(told))


_progress: ProgressEngine | None = None


def progress_of_process() -> ProgressEngine:
    """The one engine of this process; a fork gets its own, and may not use its parent's MPI."""
    global _progress, _pid
    if _progress is None:
        _progress, _pid = ProgressEngine(), os.getpid()
    elif _pid != os.getpid():
        raise WorldError("this process is a fork of a rank, and a fork is no rank: it cannot talk")
    return _progress


_pid = 0
