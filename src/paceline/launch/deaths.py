"""A rank that was killed cannot speak: read its end from the launcher's banner, and say it."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Open MPI 4 and 5:  process rank 1 with PID 6866 on node n07 exited on signal 9 (Killed).
_OPEN_MPI = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<node>\S+) "
    r"exited on signal (?P<signal>\d+)"
)
# MPICH names no rank:  PID 6937 RUNNING AT n07 ... EXIT STRING: Killed (signal 9)
# Intel MPI:            RANK 1 PID 6937 RUNNING AT n07 ... KILLED BY SIGNAL: 9 (Killed)
_HYDRA = re.compile(
    r"(?:RANK (?P<rank>\d+) )?PID (?P<pid>\d+) RUNNING AT (?P<node>\S+) "
    r".*?(?:EXIT STRING: [^()]*\(signal |KILLED BY SIGNAL: )(?P<signal>\d+)"
)
# PRRTE 3, when a host falls silent, or its daemon is gone:
_LOST = re.compile(
    r"lost communication with a remote daemon.*? Remote daemon ?: \S+ on node (?P<node>\S+)"
)
# A rank of Open MPI whose peer on another host has gone; the peer's end may never be told.
_CUT_OFF = re.compile(r"peer process has unexpectedly disconnected.*? Peer host: +(?P<node>\S+)")
# The same, where the rank ends before mpirun has taken its banner: the peer's host is not told.
_SOCKET_CLOSED = re.compile(r"\[(?P<node>[^\]:]+):\d+\] \*\*\* An error occurred in Socket closed")
_WHY = {
    signal.SIGKILL: "by hand, or out of memory",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a crash in native code, or a file or shared memory without room",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGABRT: "native code gave up",
}


@dataclass(frozen=True)
class RankDeath:
    """A process of the job that a signal has ended; `rank` is `None` if it was not told."""

    rank: int | None
    pid: int
    node: str
    signal: int


def read_death(banner: bytes) -> RankDeath | None:
    """Find the first death by a signal in what a launcher has said.

    >>> read_death(b"process rank 1 with PID 7 on node n07 exited on\\nsignal 9 (Killed).")
    RankDeath(rank=1, pid=7, node='n07', signal=9)
    """
    text = " ".join(banner.decode(errors="replace").split())  # the launchers wrap their lines
    found = _OPEN_MPI.search(text) or _HYDRA.search(text)
    if found is None:
        return None
    rank = found["rank"]
    return RankDeath(
        None if rank is None else int(rank), int(found["pid"]), found["node"], int(found["signal"])
    )


@dataclass(frozen=True)
class HostLoss:
    """A host that fell silent; `whole`: with its daemon, not only a rank on it.

    `node` is `None` if only the host is known on which a rank noticed it.
    """

    node: str | None
    whole: bool
    noticed_on: str | None = None


def read_loss(banner: bytes) -> HostLoss | None:
    """Find the first host that was lost in what a launcher and its ranks have said."""
    text = " ".join(banner.decode(errors="replace").split())
    for pattern, whole in ((_LOST, True), (_CUT_OFF, False)):
        found = pattern.search(text)
        if found is not None:
            return HostLoss(found["node"], whole)
    found = _SOCKET_CLOSED.search(text)
    return None if found is None else HostLoss(None, whole=False, noticed_on=found["node"])


def describe_loss(loss: HostLoss, hosts: Sequence[str] = ()) -> str:
    """The message for a host that was lost; `hosts`: those that take part, as the user named them.

    >>> describe_loss(HostLoss("n07", True))
    'paceline: host n07 was lost (its power, its network or its daemon); all ranks were ended\\n'
    """
    if loss.whole:
        who = f"host {loss.node} was lost (its power, its network or its daemon)"
    else:
        who = f"a rank on {_place_of(loss, hosts)} was lost (its connection was closed)"
    return f"paceline: {who}; all ranks were ended\n"


def _place_of(loss: HostLoss, hosts: Sequence[str]) -> str:
    """Ranks talk through sockets only to other hosts: where two take part, it was the other."""
    if loss.node is not None:
        return f"host {loss.node}"
    noticed_on = (loss.noticed_on or "").partition(".")[0]
    others = [host for host in hosts if host.partition(".")[0] != noticed_on]
    return f"host {others[0]}" if len(others) == 1 else f"another host than {loss.noticed_on}"


def describe_death(death: RankDeath, pulse: dict[str, Any]) -> str:
    """The message for a rank that was killed; with its step, if `pulse` has it."""
    if death.rank is None:
        return describe_end(f"a rank ({death.node}, process {death.pid})", death.signal)
    known = pulse.get(str(death.rank))
    step = known.get("step") if isinstance(known, dict) else None
    place = f" at step {step}" if isinstance(step, int) else ""
    return describe_end(f"rank {death.rank} ({death.node})", death.signal, place)


def describe_end(who: str, number: int, place: str = "") -> str:
    """The message for a process that signal `number` has ended.

    >>> describe_end("mpirun", 15)
    'paceline: mpirun was killed by signal 15 (SIGTERM); all ranks were ended\\n'
    """
    return f"paceline: {who} was killed by {_name(number)}{place}; all ranks were ended\n"


def _name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # the real-time signals have no names
        return f"signal {number}"
    why = _WHY.get(signal.Signals(number))
    return f"signal {number} ({name}: {why})" if why else f"signal {number} ({name})"
