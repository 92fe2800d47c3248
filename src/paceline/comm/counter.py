"""A counter that all ranks share: each number is taken once, by whoever asks first.

On one node it is a word of the node's memory under a lock. Between nodes rank 0 answers requests in
a thread of its own: MPI's fetch-and-add on a window would need no such thread, but over TCP it is
carried out only while rank 0 is inside MPI (Open MPI 5.0), and rank 0 computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from paceline.comm.polling import Backoff, wait_until
from paceline.comm.world import ANY_RANK, Buffer, NodeMemory, Pending, World
from paceline.errors import WorldError

_REQUEST, _REPLY = 0, 1
_NONE = -1
_LOOK_EVERY_S = 0.001
_LEFT_FOR_EACH = 4
"""The next number is asked for in advance while so many are left for each rank."""


class Counter(Protocol):
    """Numbers for whoever asks first."""

    def take(self, first: int, last: int) -> int | None:
        """The next number of those from `first` up to, but not including, `last`; None: all have
        been taken. Ranges come in ascending order; what was left of earlier ones is skipped."""

    def value(self) -> int:
        """The first number that has not been taken, when no rank is about to take one."""

    def close(self) -> None:
        """No rank asks any more; all come here together."""

    def abandon(self) -> None:
        """This rank has failed: answer nobody, wait for nobody."""


def make_counter(
    world: World, on_error: Callable[[BaseException], object], ahead: bool = True
) -> Counter:
    """A counter at 0; all ranks together. `on_error` is called when answering fails. `ahead`: ranks
    of other nodes may ask for a number before they need it, as long as they take ranges to their
    end."""
    memory = world.node_memory(8, locks=1)
    nodes = len(set(world.allgather_values(min(world.node_ranks))))
    if nodes == 1:
        return NodeCounter(memory)
    if not all(world.allgather_values(world.thread_multiple)):
        memory.close()
        raise WorldError(
            "this MPI does not let several threads communicate (MPI_THREAD_MULTIPLE), which "
            "dealing samples between nodes needs; split them by cost instead (cost=...), or use "
            "another MPI"
        )
    is_near = 0 in world.node_ranks
    return RemoteCounter(world.split(0), NodeCounter(memory), is_near, ahead, on_error)


class NodeCounter:
    """In the memory of the node."""

    def __init__(self, memory: NodeMemory) -> None:
        self._memory = memory
        self._value = memory.bytes.view(np.int64)

    def take(self, first: int, last: int) -> int | None:
        with self._memory.hold(0):
            number = max(int(self._value[0]), first)
            if number >= last:
                return None
            self._value[0] = number + 1
            return number

    def value(self) -> int:
        return int(self._value[0])

    def close(self) -> None:
        self._value = np.empty(0, np.int64)
        self._memory.close()

    def abandon(self) -> None:
        return


class _Asked(NamedTuple):
    """A request under way."""

    range: Buffer
    sent: Pending
    reply: Buffer
    received: Pending


class RemoteCounter:
    """In the memory of rank 0's node; other nodes ask rank 0.

    They ask for the next number while they work on the last, so that nobody waits for the answer;
    towards the end of a range only when they need it, so that none lies idle with a slow rank.
    """

    def __init__(
        self,
        world: World,
        local: NodeCounter,
        is_near: bool,
        ahead: bool,
        on_error: Callable[[BaseException], object],
    ) -> None:
        """`is_near`: this rank is on rank 0's node."""
        self._world, self._local, self._on_error = world, local, on_error
        self._is_near, self._ahead = is_near, ahead
        self._asked: _Asked | None = None
        self._ended = self._abandoned = False
        self._thread: threading.Thread | None = None
        if world.rank == 0:
            name = "paceline-counter"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def take(self, first: int, last: int) -> int | None:
        if self._is_near:
            return self._local.take(first, last)
        if self._asked is not None:
            number = self._await_reply()
            if number is None or number < first:  # of a range that was not taken to its end
                number = self._ask(first, last)
        else:
            number = self._ask(first, last)
        enough = number is not None and last - number > _LEFT_FOR_EACH * self._world.size
        if self._ahead and enough:
            self._asked = self._send(first, last)
        return number

    def value(self) -> int:
        own = self._local.value() if self._world.rank == 0 else 0
        return self._world.bcast_value(own)

    def close(self) -> None:
        if self._asked is not None:
            self._await_reply()
        self._world.barrier()
        self._end_thread()
        self._local.close()
        self._world.free()

    def abandon(self) -> None:
        self._abandoned = True
        self._end_thread()

    def _ask(self, first: int, last: int) -> int | None:
        self._asked = self._send(first, last)
        return self._await_reply()

    def _send(self, first: int, last: int) -> _Asked:
        wanted, reply = np.array([first, last], np.int64), np.empty(1, np.int64)
        received = self._world.irecv(reply, 0, _REPLY)
        return _Asked(wanted, self._world.isend(wanted, 0, _REQUEST), reply, received)

    def _await_reply(self) -> int | None:
        asked, self._asked = self._asked, None
        assert asked is not None
        wait_until(asked.received.done, _LOOK_EVERY_S)
        wait_until(asked.sent.done, _LOOK_EVERY_S)
        number = int(asked.reply[0])
        return None if number == _NONE else number

    def _end_thread(self) -> None:
        self._ended = True
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            try:
                self._world.raise_if_failed()
            except WorldError:
                return  # another rank has failed, and says so itself
            self._on_error(error)

    def _serve(self) -> None:
        patience = Backoff(_LOOK_EVERY_S)
        wanted = np.empty(2, np.int64)
        request = self._world.irecv(wanted, ANY_RANK, _REQUEST)
        replies: list[tuple[Pending, Buffer]] = []
        while not self._abandoned and (replies or not self._ended):
            replies = [pair for pair in replies if not pair[0].done()]
            if not request.done():
                patience.pause()
                continue
            patience.reset()
            number = self._local.take(int(wanted[0]), int(wanted[1]))
            reply = np.array([_NONE if number is None else number], np.int64)
            replies.append((self._world.isend(reply, request.source, _REPLY), reply))
            request = self._world.irecv(wanted, ANY_RANK, _REQUEST)
        request.cancel()
