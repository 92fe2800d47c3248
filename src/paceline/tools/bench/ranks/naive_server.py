"""The obvious parameter server, for `bench server` to compare with.

It talks as mpi_learn does: blocking messages, a pickled one for each control word, and one for each
array of the model. A server asks nobody else while one worker's arrays come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Arrays = Sequence[npt.NDArray[np.float32]]

_WORD, _TIME, _DECISION, _ARRAY = 1, 2, 3, 4
"""Tags of the messages."""


def serve(comm: Intracomm, centre: Arrays, force: float, workers: int) -> None:
    """Answer requests until that many workers have left."""
    received = [np.empty_like(array) for array in centre]
    updates = 0
    while workers:
        source, word = comm.recv(tag=_WORD)
        if word == "exit":
            workers -= 1
            continue
        staleness = updates - comm.recv(source=source, tag=_TIME)
        comm.send(staleness >= 0, dest=source, tag=_DECISION)
        for array in received:
            comm.Recv(array, source=source, tag=_ARRAY)
        comm.send(updates, dest=source, tag=_TIME)
        for array in centre:
            comm.Send(array, dest=source, tag=_ARRAY)
        for ours, theirs in zip(centre, received, strict=True):
            ours += force * (theirs - ours)
        updates += 1


class NaiveWorker:
    """A worker of that server: it sends its weights, takes the centre's, and is pulled to it."""

    def __init__(self, comm: Intracomm, server: int, weights: Arrays, force: float) -> None:
        self._comm, self._server, self._force = comm, server, force
        self._weights = weights
        self._centre = [np.empty_like(array) for array in weights]
        self._updates = 0

    def exchange(self) -> None:
        """One elastic exchange (EASGD), with the old values on both sides."""
        comm, server = self._comm, self._server
        self._say("begin_update")
        comm.send(self._updates, dest=server, tag=_TIME)
        comm.recv(source=server, tag=_DECISION)
        for array in self._weights:
            comm.Send(array, dest=server, tag=_ARRAY)
        self._updates = comm.recv(source=server, tag=_TIME)
        for array in self._centre:
            comm.Recv(array, source=server, tag=_ARRAY)
        for ours, theirs in zip(self._weights, self._centre, strict=True):
            ours -= self._force * (ours - theirs)

    def leave(self) -> None:
        """Tell the server not to wait for this worker."""
        self._say("exit")

    def _say(self, word: str) -> None:
        self._comm.send((self._comm.Get_rank(), word), dest=self._server, tag=_WORD)
