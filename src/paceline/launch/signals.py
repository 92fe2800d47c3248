"""Signals to the job: forward them, ask ranks to save, or kill them all."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from paceline.launch.job import LauncherProcess
from paceline.launch.output import STDERR, write_all
from paceline.runtime.job_dir import ASKED_BY, CAN_SAVE, note_for_ranks
from paceline.runtime.reaper import kill_job

_SAVING = b"paceline: saving and stopping (again to stop at once)\n"
_DROPPED_USR2 = (
    b"paceline: SIGUSR2 was dropped: this mpirun (Hydra) would end at it, not forward it\n"
)
# mpirun ignores SIGHUP: a closed terminal ends the job by SIGTERM.
_ENDING = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}
_CAUGHT = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)


class SignalForwarder:
    """Forward signals to the job; the second one that asks for its end kills the whole job.

    Ranks that can save are asked to, once, whatever the signal was.
    """

    def __init__(self, folder: Path | None, launcher: LauncherProcess) -> None:
        self.received = False
        self.ending: int | None = None
        self.saving = False
        self._folder = folder
        self._launcher = launcher
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
        """Forward to this child from now on, starting with what came while it was being started."""
        self._child = child
        for number in self._early:
            self.receive(number)

    def release(self) -> None:
        """Forward nothing more: the child is about to be reaped, and its pid may be reused."""
        self._is_over = True

    def was_asked_to_end(self) -> bool:
        """Whether ranks that die do so because we were told to end them; no rank dies of saving."""
        return self.ending is not None and not self.saving

    def _pass_on(self, number: signal.Signals, pid: int) -> None:
        can_save = self._folder is not None and (self._folder / CAN_SAVE).exists()
        if self.saving or can_save:
            if not self.saving:
                if self._folder is not None:
                    note_for_ranks(self._folder, ASKED_BY, number.name)
                os.kill(pid, signal.SIGUSR1)
            # A scheduler that sends SIGUSR1 and later SIGTERM should not cut the saving short.
            if not self.saving or number in _ENDING:
                write_all(STDERR, _SAVING)
            self.saving = True
        elif number == signal.SIGUSR2 and self._launcher.is_hydra:
            write_all(STDERR, _DROPPED_USR2)
        elif number in _ENDING and self._launcher.kind == "srun":
            os.kill(pid, signal.SIGTERM)  # at a single SIGINT it only reports on its tasks
        else:
            os.kill(pid, _ENDING.get(number, number))


@contextmanager
def forwarding(signals: SignalForwarder) -> Iterator[SignalForwarder]:
    # A signal that is ignored (nohup, a shell's background job) stays ignored.
    caught = [n for n in _CAUGHT if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, signals.receive) for n in caught}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
