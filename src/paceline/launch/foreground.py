"""Run a launcher in the foreground: pass signals on, filter its stderr, leave no process behind."""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from paceline.errors import LaunchError
from paceline.launch.banners import BannerFilter

_PAUSE_S = 0.1
_STDERR = 2
_PR_SET_PDEATHSIG = 1
# mpirun knows no hang-up: a closed terminal ends the job like a SIGTERM.
_FORWARD = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}


class _Signals:
    """Pass the first signal on to the job; kill the whole job at the second."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.child: subprocess.Popen[bytes] | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        again, self.first = self.first is not None, self.first or number
        if self.child is None:
            return
        if again:
            _kill_session(self.child.pid)
        elif self.child.returncode is None:
            os.kill(self.child.pid, _FORWARD[signal.Signals(number)])

    def watch(self, child: subprocess.Popen[bytes]) -> None:
        """Take on the child; a signal that came while it was being started goes to it now."""
        self.child = child
        if self.first is not None:
            os.kill(child.pid, _FORWARD[signal.Signals(self.first)])


def run_foreground(argv: Sequence[str], env: Mapping[str, str], raw: bool = False) -> int:
    """Run `argv` without stdin and with stderr filtered (unless `raw`); return its exit code.

    The child leads its own session: a Ctrl-C in the terminal reaches us alone and is passed on
    once, and whatever stays behind when it ends is found by the session and killed.
    """
    with _forwarding() as signals:
        try:
            child = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stderr=None if raw else subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        except OSError as error:
            raise LaunchError(f"{argv[0]} could not be started: {error}.") from error
        signals.watch(child)
        try:
            if child.stderr is not None:
                _pass_on(child, child.stderr.fileno())
            child.wait()
        finally:
            _kill_session(child.pid)
            child.wait()
            if child.stderr is not None:
                child.stderr.close()
    # mpirun answers a signal with exit code 1; the shell's convention says what happened.
    if signals.first is not None and child.returncode != 0:
        return 128 + signals.first
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


@contextmanager
def _forwarding() -> Iterator[_Signals]:
    signals = _Signals()
    # A signal that is ignored (nohup, a shell's background job) stays ignored.
    caught = [n for n in _FORWARD if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, signals.receive) for n in caught}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(child: subprocess.Popen[bytes], source: int) -> None:
    banners = BannerFilter()
    while True:
        readable, _, _ = select.select([source], [], [], _PAUSE_S)
        if readable:
            data = os.read(source, 65536)
            if not data:
                break
            _write(banners.feed(data))
        else:
            _write(banners.pause())
            # A daemon that a rank left behind may hold the pipe open for ever.
            if child.poll() is not None:
                break
    _write(banners.close(failed=child.wait() != 0))


def _write(data: bytes) -> None:
    # Nobody reads our stderr any more: the job goes on without its words.
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(_STDERR, data) :]


def _die_with_parent() -> Callable[[], None] | None:
    """Return the child's first act: ask Linux for a SIGTERM when we die, even by SIGKILL."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork: the child should only call
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _kill_session(session: int) -> None:
    """Kill every process of the session; ranks have process groups of their own, but share it."""
    # The group of the leader is all that can be found where there is no /proc.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    for pid in _members(session):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _members(session: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(OSError):
            if os.getsid(pid) == session:
                yield pid
