"""Filter a launcher's banners out of its output, so that the user reads one message: the rank's."""

import re
from dataclasses import dataclass

from paceline.launch.deaths import HostLoss, RankDeath, read_death, read_loss
from paceline.runtime.job_dir import NOTIFICATION

_MAX_BLOCK_LINES = 40
_ABORTED = b"MPI_ABORT was invoked"


@dataclass(frozen=True)
class OutputFormat:
    """How a launcher speaks: blocks between two lines that match `rule`, and lines of `noise`.

    A block that holds one of the `marks` is a banner, unless it holds one of `keep`; so is one that
    tells of a death by signal which we can read. `blank_first`: an empty line before a banner
    belongs to it. `ends_with_nul`: so does a NUL after it.
    """

    rule: re.Pattern[bytes]
    marks: tuple[bytes, ...]
    noise: re.Pattern[bytes]
    keep: tuple[bytes, ...] = ()
    blank_first: bool = False
    ends_with_nul: bool = False

    def is_banner(self, block: list[bytes]) -> bool:
        # Open MPI wraps its sentences, so phrases are sought in the block as one line.
        text = b" ".join(b"".join(block).split())
        if read_death(text) is not None or read_loss(text) is not None:
            return True
        return any(mark in text for mark in self.marks) and not any(k in text for k in self.keep)

    def may_be_banner(self, start: list[bytes]) -> bool:
        """Whether this is the start of a banner, or of what cannot be told from one yet."""
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
    # PMIx says this when a rank is gone before it was told to go; the rank speaks for itself. MPI's
    # own errors, in lines of their own, come from ranks whose peer is gone.
    # A remote start that is under way before PRRTE gives it a group of its own does no harm.
    noise=re.compile(
        rb"\[[^\]]+:\d+\] (PMIX ERROR: .*\bpmix_server\.c at line \d+|\*\*\* .*)\s*"
        rb"|.*setpgid\(\d+,\d+\) failed in parent with errno=.*\s*"
        rb"|\[warn\] Epoll \w+\(\d+\) on fd \d+ failed\..*\s*"  # libevent, while mpirun ends
    ),
    ends_with_nul=True,  # of PRRTE's C string
)

# MPICH 5.0.2 writes its banner to stdout, and the last words of MPI_Abort to stderr.
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
    """Take a stream in pieces and give back what the user should see of it.

    A banner is a block between two rules that holds one of the known phrases. Every rule may open
    a block, also the one that ended another: programs draw such lines too, and a filter that paired
    them strictly would lose count.
    """

    def __init__(self, dialect: OutputFormat = OPEN_MPI) -> None:
        self._dialect = dialect
        self._partial = b""
        self._block: list[bytes] = []
        self._dropped: list[bytes] = []
        self._shown = False
        self.words: list[bytes] = []
        """What ranks on other hosts have said to the launcher; who reads it takes it away."""

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of the stream; return what can be shown at once."""
        if self._dialect.ends_with_nul:
            data = data.replace(b"\0", b"")
        *lines, self._partial = (self._partial + data).split(b"\n")
        return self._show(b"".join(self._take(line + b"\n") for line in lines))

    def pause(self) -> bytes:
        """Return what was held back and is no banner: the stream has paused.

        A launcher may pause after any line of a banner. So a rule is held until more has come.
        """
        if self._block and self._dialect.may_be_banner([*self._block, self._partial]):
            return b""
        return self._show(self._release())

    def close(self, failed: bool) -> bytes:
        """Return the rest; with the dropped banners if the job failed and said nothing else."""
        if self._block and self._dialect.is_banner([*self._block, self._partial]):
            self._dropped += [*self._block, self._partial]
            self._block, self._partial = [], b""
        rest = self._show(self._release())
        explained = self._shown or self.death is not None or self.loss is not None
        return rest if explained or not failed else rest + b"".join(self._dropped)

    @property
    def death(self) -> RankDeath | None:
        """The death by a signal that the dropped banners give as the cause of the job's end."""
        # A rank that aborts is the cause; that others die of it is none.
        return read_death(self._said_before_abort())

    @property
    def loss(self) -> HostLoss | None:
        """The host whose loss the dropped banners tell of."""
        loss = read_loss(b"".join(self._dropped))
        # A rank that aborts is the cause; that others are cut off from it is none.
        return loss if loss is None or loss.whole else read_loss(self._said_before_abort())

    def _said_before_abort(self) -> bytes:
        return b"".join(self._dropped).partition(_ABORTED)[0]

    def _take(self, line: bytes) -> bytes:
        if line.startswith(NOTIFICATION):
            self.words.append(line)
            return b""
        if self._dialect.noise.fullmatch(line):
            self._dropped.append(line)
            return b""
        is_rule = self._dialect.rule.fullmatch(line) is not None
        if not self._block:
            if not is_rule and not (self._dialect.blank_first and line == b"\n"):
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
        if self._dialect.is_banner(self._block):
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
