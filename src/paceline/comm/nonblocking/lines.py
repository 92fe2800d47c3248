"""The lines of a group of ranks: collectives, messages and sums do not meet each other."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.comm.nonblocking.async_comm import AsyncComm, SoloAsyncComm
from paceline.comm.nonblocking.node_allreduce import AsyncNodeAllreduce


@dataclass(frozen=True)
class AsyncComms:
    """What a group of ranks talks by."""

    together: AsyncComm
    """Its collectives."""
    messages: AsyncComm
    """Its messages from rank to rank."""
    sums: AsyncNodeAllreduce | None
    """How ranks that share nodes sum; None where they share none."""
    echo: AsyncComms | None = None
    """For collectives that callbacks start: their order among the others is not the same on all
    ranks, but among themselves it is."""

    def close(self) -> None:
        """Give all of it back; nothing of it may be under way."""
        if self.sums is not None:
            self.sums.close()
        if self.echo is not None:
            self.echo.close()
        if self.messages is not self.together:
            self.messages.close()
        self.together.close()


def solo_lines() -> AsyncComms:
    """The lines of a rank alone."""
    both = SoloAsyncComm()
    return AsyncComms(both, both, None)
