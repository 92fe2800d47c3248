"""Run a launcher in the foreground: pass signals on, filter its output, leave no process behind."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from paceline.errors import HOST_LOST, SAVED, LaunchError
from paceline.launch.children import die_with_parent, has_ended, wait_for_end
from paceline.launch.deaths import HostLoss, RankDeath, describe_death, describe_end, describe_loss
from paceline.launch.mpirun_output import HYDRA, OPEN_MPI, OutputFilter
from paceline.runtime.job_dir import CAN_SAVE, STARTED, apply_notification, read_pulse
from paceline.runtime.reaper import Reaper, kill_job, members

START_WARNING_S, START_TIMEOUT_S = 60.0, 300.0
"""How long the first rank on other hosts may take; Python from a slow file server takes a while."""

_PAUSE_S = 0.1
_ROSTER_PAUSE_S = 1.0
_STDOUT, _STDERR = 1, 2
_SAVING = b"paceline: saving and stopping (again to stop at once)\n"
_DROPPED_USR2 = (
    b"paceline: SIGUSR2 was dropped: this mpirun (Hydra) would end by it, not pass it on\n"
)
# mpirun knows no hang-up: a closed terminal ends the job like a SIGTERM.
_ENDING = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}
_CAUGHT = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class LauncherProcess:
    """The process that leads a job: `kind` as of Mpirun, `name` as messages call it."""

    name: str = "mpirun"
    kind: str = "openmpi"
    hosts: tuple[str, ...] = ()
    """Other machines that it has to reach before any rank can start."""

    @property
    def is_hydra(self) -> bool:
        return self.kind in ("mpich", "intel")


@dataclass(frozen=True)
class JobResult:
    """How a job has ended: its exit code, and whether the launcher itself had got a signal."""

    code: int
    signalled: bool = False
    saved: bool = False
    port_taken: bool = False
    """Rank 0 could not have the port that we drew for it: another may be free."""


class _Signals:
    """Pass signals on to the job; kill the whole job at the second one that asks for its end.

    Ranks that can save are asked to, once, whatever the signal was.
    """

    def __init__(self, folder: Path | None, leader: LauncherProcess) -> None:
        self.received = False
        self.ending: int | None = None
        self.saving = False
        self._folder = folder
        self._leader = leader
        self._child: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._early: list[int] = []

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        self.received = True
        if self._child is None:
            self._early.append(number)
            return
        again = number in _ENDING and self.ending is not None
        if number in _ENDING:
            self.ending = self.ending or number
        if self._is_over:
            return
        if again:
            kill_job(self._child.pid, self._folder)
        else:
            self._pass_on(signal.Signals(number), self._child.pid)

    def watch(self, child: subprocess.Popen[bytes]) -> None:
        """Take on the child; signals that came while it was being started go to it now."""
        self._child = child
        for number in self._early:
            self.receive(number)

    def release(self) -> None:
        """The child is about to be reaped: its number may be somebody else's from then on."""
        self._is_over = True

    def _pass_on(self, number: signal.Signals, pid: int) -> None:
        can_save = self._folder is not None and (self._folder / CAN_SAVE).exists()
        if self.saving or can_save:
            if not self.saving:
                os.kill(pid, signal.SIGUSR1)
            # A scheduler that sends SIGUSR1 and later SIGTERM should not cut the saving short.
            if not self.saving or number in _ENDING:
                _write(_STDERR, _SAVING)
            self.saving = True
        elif number == signal.SIGUSR2 and self._leader.is_hydra:
            _write(_STDERR, _DROPPED_USR2)
        elif number in _ENDING and self._leader.kind == "srun":
            os.kill(pid, signal.SIGTERM)  # at a single SIGINT it only tells how its tasks are
        else:
            os.kill(pid, _ENDING.get(number, number))


def supervise_command(argv: Sequence[str], env: Mapping[str, str], raw: bool = False) -> int:
    """Run `argv` without stdin and with stderr filtered (unless `raw`); return its exit code."""
    return supervise_job(argv, env, raw, leader=LauncherProcess(Path(argv[0]).name)).code


def supervise_job(
    argv: Sequence[str],
    env: Mapping[str, str],
    raw: bool = False,
    folder: Path | None = None,
    leader: LauncherProcess | None = None,
    reaper: Reaper | None = None,
) -> JobResult:
    """Run `argv` without stdin and with its output filtered (`raw`: as it is); tell how it ended.

    The child leads its own session: a Ctrl-C in the terminal reaches us alone and is passed on
    once, and whatever stays behind when it ends is found by the session, or by the `folder` that
    it was told, and killed. There the ranks leave word for us: that they can save, and which step
    they are at.
    """
    leader = leader or LauncherProcess()
    with _forwarding(_Signals(folder, leader)) as signals:
        piped = subprocess.PIPE
        try:
            child = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=piped if leader.is_hydra else None,
                stderr=piped,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except (OSError, ValueError) as error:
            raise LaunchError(f"{argv[0]} could not be started: {error}.") from error
        (reaper or Reaper()).tell_session(child.pid)
        signals.watch(child)
        output = _Output(child, leader, folder, raw)
        try:
            output.pass_on(signals)
        finally:
            kill_job(child.pid, folder)
            signals.release()
            child.wait()
            output.close()
    asked = _was_asked_to_end(signals)
    death = None if asked or raw else output.death
    loss = None if asked else output.loss
    _tell_end(child.returncode, death, None if raw else loss, folder, leader, signals)
    return JobResult(
        choose_code(child.returncode, signals.ending, death, loss),
        signals.received,
        saved=child.returncode == SAVED,
    )


def choose_code(
    returncode: int, ending: int | None, death: RankDeath | None, loss: HostLoss | None = None
) -> int:
    """The exit code of a job whose leader gave `returncode`, after an `ending` signal, a `death`
    or a `loss`.

    >>> choose_code(75, signal.SIGTERM, None), choose_code(75, signal.SIGINT, None)
    (75, 130)
    """
    if returncode == SAVED and ending != signal.SIGINT:
        return SAVED
    # mpirun answers a signal with exit code 1; the shell's convention says what happened.
    if ending is not None and returncode != 0:
        return 128 + ending
    if death is not None:  # Hydra gives the bare number of the signal
        return 128 + death.signal
    # PRRTE 3.0.14 has mpirun end with 0 when it has lost a host.
    if loss is not None and loss.whole:
        return HOST_LOST
    return returncode if returncode >= 0 else 128 - returncode


def _was_asked_to_end(signals: _Signals) -> bool:
    """Whether ranks that die do so because we were told to end them; no rank dies of saving."""
    return signals.ending is not None and not signals.saving


def _tell_end(
    returncode: int,
    death: RankDeath | None,
    loss: HostLoss | None,
    folder: Path | None,
    leader: LauncherProcess,
    signals: _Signals,
) -> None:
    """Say what the launcher's banners said, in one line; raw, they speak for themselves."""
    if death is not None:
        _write(_STDERR, describe_death(death, read_pulse(folder)).encode())
    elif loss is not None and (loss.whole or returncode):
        _write(_STDERR, describe_loss(loss, leader.hosts).encode())
    elif returncode < 0 and signals.ending is None:
        _write(_STDERR, describe_end(leader.name, -returncode).encode())


@contextmanager
def _forwarding(signals: _Signals) -> Iterator[_Signals]:
    # A signal that is ignored (nohup, a shell's background job) stays ignored.
    caught = [n for n in _CAUGHT if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, signals.receive) for n in caught}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Output:
    """What the child writes, on its way through the filters to our own stdout and stderr."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        leader: LauncherProcess,
        folder: Path | None,
        raw: bool,
    ) -> None:
        self._child = child
        self._raw = raw
        self._folder = folder
        dialect = HYDRA if leader.is_hydra else OPEN_MPI
        pipes = ((child.stdout, _STDOUT), (child.stderr, _STDERR))
        self._filters = {
            pipe.fileno(): (OutputFilter(dialect), target)
            for pipe, target in pipes
            if pipe is not None
        }
        self._roster = _Roster(child.pid, folder) if leader.is_hydra else None
        self._start = _Start(leader.hosts, folder)

    def pass_on(self, signals: _Signals) -> None:
        """Pass on what comes until the child has ended."""
        sources = list(self._filters)
        while sources:
            readable, _, _ = select.select(sources, [], [], _PAUSE_S)
            for source in readable:
                data = os.read(source, 65536)
                banners, target = self._filters[source]
                shown = banners.feed(data)
                _write(target, data if self._raw else shown)
                while banners.words:
                    apply_notification(banners.words.pop(0), self._folder)
                if not data:
                    sources.remove(source)
            if self._roster is not None:
                self._roster.look()
            if self._start.is_in_vain():
                kill_job(self._child.pid, self._folder)
            if not readable:
                for source in sources:
                    banners, target = self._filters[source]
                    self._show(target, banners.pause())
                # A daemon that a rank left behind may hold the pipe open for ever.
                if has_ended(self._child):
                    break
        failed = wait_for_end(self._child) not in (0, SAVED) and not _was_asked_to_end(signals)
        for banners, target in self._filters.values():
            self._show(target, banners.close(failed))

    def _show(self, target: int, text: bytes) -> None:
        if not self._raw:
            _write(target, text)

    @property
    def death(self) -> RankDeath | None:
        """The rank that was killed by a signal, as the banners tell."""
        deaths = (banners.death for banners, _ in self._filters.values())
        death = next((d for d in deaths if d is not None), None)
        if death is None or death.rank is not None or self._roster is None:
            return death
        return replace(death, rank=self._roster.ranks.get(death.pid))

    @property
    def loss(self) -> HostLoss | None:
        """The host that was lost, as the banners tell."""
        losses = (banners.loss for banners, _ in self._filters.values())
        return next((loss for loss in losses if loss is not None), None)

    def close(self) -> None:
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()


class _Start:
    """Waiting for the first rank on other hosts: a launcher that is not called back waits for ever.

    That is so where a firewall lets ssh through and nothing else.
    """

    def __init__(self, hosts: tuple[str, ...], folder: Path | None) -> None:
        self._hosts = ",".join(hosts)
        self._mark = None if folder is None or not hosts else folder / STARTED
        self._began_s = time.monotonic()
        self._warned = False

    def is_in_vain(self) -> bool:
        """Whether no rank has come in time; at half the time the user is told."""
        if self._mark is None:
            return False
        if self._mark.exists():
            self._mark = None
            return False
        waited_s = time.monotonic() - self._began_s
        if waited_s > START_WARNING_S and not self._warned:
            self._warned = True
            _write(_STDERR, self._describe(waited_s, "still waiting").encode())
        if waited_s <= START_TIMEOUT_S:
            return False
        self._mark = None
        _write(_STDERR, self._describe(waited_s, "giving up").encode())
        return True

    def _describe(self, waited_s: float, what: str) -> str:
        return (
            f"paceline: no rank has started on {self._hosts} for {waited_s:.0f} s; {what}. Do the "
            f"hosts reach this one? Ask: paceline doctor --hosts {self._hosts}\n"
        )


class _Roster:
    """Which process is which rank: MPICH's Hydra tells only the number of a killed process."""

    def __init__(self, session: int, folder: Path | None) -> None:
        self.ranks: dict[int, int] = {}
        self._session, self._folder = session, folder
        self._size: int | None = None
        self._next_s = 0.0

    def look(self) -> None:
        """Look at the processes of the job now and then, until all ranks are known."""
        if time.monotonic() < self._next_s or len(set(self.ranks.values())) == self._size:
            return
        self._next_s = time.monotonic() + _ROSTER_PAUSE_S
        for pid in members(self._session, self._folder):
            with suppress(OSError, KeyError, ValueError):
                text = Path(f"/proc/{pid}/environ").read_bytes()
                environ = dict(e.split(b"=", 1) for e in text.split(b"\0") if b"=" in e)
                self.ranks[pid] = int(environ[b"PMI_RANK"])
                self._size = int(environ[b"PMI_SIZE"])


def _write(target: int, data: bytes) -> None:
    # Nobody reads our output any more: the job goes on without its words.
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(target, data) :]
