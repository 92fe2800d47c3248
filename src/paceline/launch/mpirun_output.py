"""The banners of mpirun: filtered out, and read for ranks that died and hosts that were lost.

A rank that was killed cannot explain itself. If it can, you read one message: the rank's.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.runtime.job_dir import NOTIFICATION

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

# A rank of Open MPI whose peer on another host has gone; the peer's end may never be reported.
_CUT_OFF = re.compile(r"peer process has unexpectedly disconnected.*? Peer host: +(?P<node>\S+)")

# The same, where the rank ends before mpirun has taken its banner: the peer's host is not named.
_SOCKET_CLOSED = re.compile(r"\[(?P<node>[^\]:]+):\d+\] \*\*\* An error occurred in Socket closed")

_WHY = {
    signal.SIGKILL: "by hand, or out of memory",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a crash in native code, or no space in a file system or shared memory",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGABRT: "native code gave up",
}
_MAX_BLOCK_LINES = 40
_ABORTED = b"MPI_ABORT was invoked"


@dataclass(frozen=True)
class RankDeath:
    """A process of the job that a signal has ended; `rank` is None if the launcher names none."""

    rank: int | None
    pid: int
    node: str
    signal: int


def read_death(banner: bytes) -> RankDeath | None:
    """Find the first death by a signal in a launcher's output.

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
    """Find the first host that was lost in the output of a launcher and its ranks."""
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


def describe_death(death: RankDeath, heartbeats: dict[str, object]) -> str:
    """The message for a rank that was killed; with its step, if `heartbeats` have it."""
    if death.rank is None:
        return describe_end(f"a rank ({death.node}, process {death.pid})", death.signal)
    known = heartbeats.get(str(death.rank))
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


@dataclass(frozen=True)
class OutputFormat:
    """What a launcher prints: blocks between two lines that match `rule`, and lines of `noise`.

    A block that holds one of the `marks` is a banner, unless it holds one of `keep`; so is one that
    reports a death by a signal that we can read. `blank_first`: an empty line before a banner
    belongs to it. `ends_with_nul`: so does a NUL after it.
    """

    rule: re.Pattern[bytes]
    marks: tuple[bytes, ...]
    noise: re.Pattern[bytes]
    keep: tuple[bytes, ...] = ()
    blank_first: bool = False
    ends_with_nul: bool = False
    stray: tuple[bytes, ...] = ()
    """Words that it prints in the middle of lines."""

    def is_banner(self, block: list[bytes]) -> bool:
        # Open MPI wraps its sentences, so phrases are sought in the block as one line.
        text = b" ".join(b"".join(block).split())
        if read_death(text) is not None or read_loss(text) is not None:
            return True
        return any(mark in text for mark in self.marks) and not any(k in text for k in self.keep)

    def may_be_banner(self, start: list[bytes]) -> bool:
        """Whether this is the start of a banner, or cannot be distinguished from one yet."""
        return self.rule.fullmatch(b"".join(start).lstrip()) is not None or self.is_banner(start)


OPEN_MPI = OutputFormat(
    rule=re.compile(rb"-{60,}\s*"),
    marks=(
        b"prterun",
        _ABORTED,
        b"Primary job terminated",
        b"mpirun detected",
        b"lost communication with a remote daemon",
        b"peer process has unexpectedly disconnected",
        # PMIx of a rank under srun does not know all that Slurm's own, older PMIx asks it for.
        b"You were supposed to get help about: find-available:not-valid",
    ),
    # These explain what no rank can explain itself (a bad executable).
    keep=(b"unable to", b"not enough slots", b"exited on signal"),
    # PMIx says this when a rank has gone before it was told to; the rank explains itself. MPI's
    # own errors, in lines of their own, come from ranks whose peer is gone.
    # A remote start that is under way before PRRTE gives it a group of its own does no harm.
    noise=re.compile(
        rb"\[[^\]]+:\d+\] (PMIX ERROR: .*\bpmix_server\.c at line \d+|\*\*\* .*)\s*"
        rb"|.*setpgid\(\d+,\d+\) failed in parent with errno=.*\s*"
        rb"|NBC_Progress: an error \d+ was found during schedule .*\s*"  # a rank was lost
        rb"|\[[^\]]+\]\[\[\d+,\d+\],\d+\]\[\S*btl_tcp_endpoint\.c:\d+:.*\s*"  # the same
        rb"|\[[^\]]+:\d+\] PRTE ERROR: .* odls_base_default_fns\.c at line \d+\s*"
        rb"|\[warn\] Epoll \w+\(\d+\) on fd \d+ failed\..*\s*"  # libevent, while mpirun ends
    ),
    ends_with_nul=True,  # of PRRTE's C string
    stray=(b"LAUNCHER JOB OBJECT NOT FOUND",),  # PRRTE, when a rank ends that had joined
)

# MPICH 5.0.2 writes its banner to stdout, and the message of MPI_Abort to stderr.
HYDRA = OutputFormat(
    rule=re.compile(rb"={60,}\s*"),
    marks=(b"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",),
    noise=re.compile(
        rb"(YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*"
        rb"|This typically refers to a problem with your application\."
        rb"|Please see the FAQ page for debugging suggestions"
        rb"|\[mpiexec@\S+\] (Sending Ctrl-C to processes as requested"
        rb"|Press Ctrl-C again to force abort)"
        rb"|Abort\(\d+\) on node \d+ .*application called MPI_Abort\(.*\) - process \d+)\s*"
    ),
    blank_first=True,
)


class OutputFilter:
    """Take a stream in pieces and return what the user should see of it.

    A banner is a block between two rules that holds one of the known phrases. Every rule may open
    a block, also the one that ended another: programs draw such lines too, and a filter that paired
    them strictly would lose count.
    """

    def __init__(self, output_format: OutputFormat = OPEN_MPI) -> None:
        self._format = output_format
        self._partial = b""
        self._block: list[bytes] = []
        self._dropped: list[bytes] = []
        self._shown = False
        self.notifications: list[bytes] = []
        """Lines from ranks on other hosts to the launcher; whoever reads one removes it."""

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of the stream; return what can be shown at once."""
        if self._format.ends_with_nul:
            data = data.replace(b"\0", b"")
        text = self._partial + data
        for words in self._format.stray:
            text = text.replace(words, b"")
        *lines, self._partial = text.split(b"\n")
        return self._show(b"".join(self._take(line + b"\n") for line in lines))

    def pause(self) -> bytes:
        """Return what was held back and is no banner: the stream has paused.

        A launcher may pause after any line of a banner. So a rule is held until more has come.
        """
        if self._block and self._format.may_be_banner([*self._block, self._partial]):
            return b""
        return self._show(self._release())

    def close(self, failed: bool) -> bytes:
        """Return the rest; with the dropped banners if the job failed and printed nothing else."""
        if self._block and self._format.is_banner([*self._block, self._partial]):
            self._dropped += [*self._block, self._partial]
            self._block, self._partial = [], b""
        rest = self._show(self._release())
        explained = self._shown or self.death is not None or self.loss is not None
        return rest if explained or not failed else rest + b"".join(self._dropped)

    @property
    def death(self) -> RankDeath | None:
        """The death by a signal that the dropped banners give as the cause of the job's end."""
        # A rank that aborts is the cause; others that die of it are not.
        return read_death(self._before_abort())

    @property
    def loss(self) -> HostLoss | None:
        """The host whose loss the dropped banners report."""
        loss = read_loss(b"".join(self._dropped))
        # A rank that aborts is the cause; others that are cut off from it are not.
        return loss if loss is None or loss.whole else read_loss(self._before_abort())

    def _before_abort(self) -> bytes:
        return b"".join(self._dropped).partition(_ABORTED)[0]

    def _take(self, line: bytes) -> bytes:
        if line.startswith(NOTIFICATION):
            self.notifications.append(line)
            return b""
        if self._format.noise.fullmatch(line):
            self._dropped.append(line)
            return b""
        is_rule = self._format.rule.fullmatch(line) is not None
        if not self._block:
            if not is_rule and not (self._format.blank_first and line == b"\n"):
                return line
            self._block = [line]
            return b""
        if self._block == [b"\n"]:
            if not is_rule:
                return self._release_block() + self._take(line)
            self._block.append(line)
            return b""
        if not is_rule:
            self._block.append(line)
            full = len(self._block) > _MAX_BLOCK_LINES
            return self._release_block() if full else b""
        if self._format.is_banner(self._block):
            self._dropped += [*self._block, line]
            self._block = []
            return b""
        text = self._release_block()
        self._block = [line]
        return text

    def _release(self) -> bytes:
        text, self._partial = self._release_block() + self._partial, b""
        return text

    def _release_block(self) -> bytes:
        text, self._block = b"".join(self._block), []
        return text

    def _show(self, text: bytes) -> bytes:
        self._shown = self._shown or bool(text.strip())
        return text
