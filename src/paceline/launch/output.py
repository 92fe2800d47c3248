"""What a launcher and its ranks write: filtered, copied to the user, read for what went wrong."""

import os
import select
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paceline.errors import SAVED
from paceline.launch.children import has_ended, wait_for_end
from paceline.launch.job import LauncherProcess
from paceline.launch.mpirun_output import HYDRA, OPEN_MPI, HostLoss, OutputFilter, RankDeath
from paceline.runtime.job_dir import FAILED, STARTED, apply_notification, read_exit_code
from paceline.runtime.reaper import kill_job, members

START_WARNING_S, START_TIMEOUT_S = 60.0, 300.0
"""How long the first rank on other hosts may take; Python on a slow file server is slow."""

QUIET_S = 2.0
_PAUSE_S = 0.1
_PIDS_PAUSE_S = 1.0
_ENDING_S = 3.0
"""How long the ranks of a run that has failed may take to end by themselves."""
STDOUT, STDERR = 1, 2


class JobOutput:
    """The child's output, filtered and copied to our own stdout and stderr."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        launcher: LauncherProcess,
        folder: Path | None,
        raw: bool,
    ) -> None:
        self._child = child
        self._raw, self._elastic = raw, launcher.elastic
        self._folder = folder
        output_format = HYDRA if launcher.is_hydra else OPEN_MPI
        pipes = ((child.stdout, STDOUT), (child.stderr, STDERR))
        self._filters = {
            pipe.fileno(): (OutputFilter(output_format), target)
            for pipe, target in pipes
            if pipe is not None
        }
        self._rank_pids = _RankPids(child.pid, folder) if launcher.is_hydra else None
        self._first_rank = _FirstRank(launcher.hosts, folder)
        self._silence = _Silence(launcher.ranks, watched=os.isatty(STDERR) and not raw)
        self._failure = _Failure(folder if launcher.elastic else None)

    def forward(self, asked_to_end: Callable[[], bool]) -> None:
        """Copy the output until the child has ended; `asked_to_end`: a failure then is no news."""
        sources = list(self._filters)
        while sources:
            readable, _, _ = select.select(sources, [], [], _PAUSE_S)
            self._silence.look(bool(readable))
            for source in readable:
                data = os.read(source, 65536)
                banners, target = self._filters[source]
                shown = banners.feed(data)
                write_all(target, data if self._raw else shown)
                while banners.notifications:
                    apply_notification(banners.notifications.pop(0), self._folder)
                if not data:
                    sources.remove(source)
            if self._rank_pids is not None:
                self._rank_pids.refresh()
            if self._first_rank.is_overdue() or self._failure.is_overdue():
                kill_job(self._child.pid, self._folder)
            if not readable:
                for source in sources:
                    banners, target = self._filters[source]
                    self._show(target, banners.pause())
                # A daemon that a rank left behind may hold the pipe open for ever.
                if has_ended(self._child):
                    break
        code = wait_for_end(self._child)
        if self._elastic and (own := read_exit_code(self._folder)) is not None:
            code = own
        failed = code not in (0, SAVED) and not asked_to_end()
        for banners, target in self._filters.values():
            self._show(target, banners.close(failed))

    def _show(self, target: int, text: bytes) -> None:
        if not self._raw:
            write_all(target, text)

    @property
    def death(self) -> RankDeath | None:
        """The rank that was killed by a signal, by the banners."""
        deaths = (banners.death for banners, _ in self._filters.values())
        death = next((d for d in deaths if d is not None), None)
        if death is None or death.rank is not None or self._rank_pids is None:
            return death
        return replace(death, rank=self._rank_pids.ranks.get(death.pid))

    @property
    def loss(self) -> HostLoss | None:
        """The host that was lost, by the banners."""
        losses = (banners.loss for banners, _ in self._filters.values())
        return next((loss for loss in losses if loss is not None), None)

    def close(self) -> None:
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()


class _FirstRank:
    """The wait for the first rank on other hosts; without a limit it could last for ever.

    So it does where a firewall lets ssh through and nothing else.
    """

    def __init__(self, hosts: tuple[str, ...], folder: Path | None) -> None:
        self._hosts = ",".join(hosts)
        self._mark = None if folder is None or not hosts else folder / STARTED
        self._began_s = time.monotonic()
        self._warned = False

    def is_overdue(self) -> bool:
        """Whether no rank has started in time; warns the user once before."""
        if self._mark is None:
            return False
        if self._mark.exists():
            self._mark = None
            return False
        waited_s = time.monotonic() - self._began_s
        if waited_s > START_WARNING_S and not self._warned:
            self._warned = True
            write_all(STDERR, self._describe(waited_s, "still waiting").encode())
        if waited_s <= START_TIMEOUT_S:
            return False
        self._mark = None
        write_all(STDERR, self._describe(waited_s, "giving up").encode())
        return True

    def _describe(self, waited_s: float, what: str) -> str:
        return (
            f"paceline: no rank has started on {self._hosts} for {waited_s:.0f} s; {what}. Can the "
            f"hosts reach this one? Run: paceline doctor --hosts {self._hosts}\n"
        )


class _Silence:
    """Who looks at a terminal hears within seconds that ranks are being started."""

    def __init__(self, ranks: int, watched: bool) -> None:
        self._ranks = ranks
        self._until_s = time.monotonic() + QUIET_S if watched and ranks > 1 else None

    def look(self, heard: bool) -> None:
        """Something was heard of the ranks, or nothing."""
        if self._until_s is None:
            return
        if heard:
            self._until_s = None
        elif time.monotonic() > self._until_s:
            self._until_s = None
            write_all(STDERR, f"paceline: starting {self._ranks} ranks ...\n".encode())


class _Failure:
    """The end of an elastic run that has failed: MPI does not end ranks that joined it later."""

    def __init__(self, folder: Path | None) -> None:
        self._mark = None if folder is None else folder / FAILED
        self._since_s: float | None = None

    def is_overdue(self) -> bool:
        """Whether it failed a while ago, and has not ended."""
        if self._mark is None:
            return False
        if self._since_s is None:
            self._since_s = time.monotonic() if self._mark.exists() else None
            return False
        return time.monotonic() - self._since_s > _ENDING_S


class _RankPids:
    """Which process is which rank: MPICH's Hydra gives only the pid of a killed process."""

    def __init__(self, session: int, folder: Path | None) -> None:
        self.ranks: dict[int, int] = {}
        self._session, self._folder = session, folder
        self._size: int | None = None
        self._next_s = 0.0

    def refresh(self) -> None:
        """Look at the job's processes at most once a second, until all ranks are known."""
        if time.monotonic() < self._next_s or len(set(self.ranks.values())) == self._size:
            return
        self._next_s = time.monotonic() + _PIDS_PAUSE_S
        for pid in members(self._session, self._folder):
            with suppress(OSError, KeyError, ValueError):
                text = Path(f"/proc/{pid}/environ").read_bytes()
                environ = dict(e.split(b"=", 1) for e in text.split(b"\0") if b"=" in e)
                self.ranks[pid] = int(environ[b"PMI_RANK"])
                self._size = int(environ[b"PMI_SIZE"])


def write_all(target: int, data: bytes) -> None:
    """Write to a file descriptor; if nobody reads our output any more, the job goes on."""
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(target, data) :]
