"""Run a launcher in the foreground, and leave no process behind."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import HOST_LOST, SAVED, LaunchError
from paceline.launch.children import die_with_parent
from paceline.launch.job import LauncherProcess
from paceline.launch.mpirun_output import (
    HostLoss,
    RankDeath,
    describe_death,
    describe_end,
    describe_loss,
)
from paceline.launch.output import STDERR, JobOutput, write_all
from paceline.launch.signals import SignalForwarder, forwarding
from paceline.runtime.job_dir import read_exit_code, read_heartbeats
from paceline.runtime.reaper import Reaper, kill_job


@dataclass(frozen=True)
class JobResult:
    """How a job ended: its exit code, and whether the launcher itself received a signal."""

    code: int
    signalled: bool = False
    saved: bool = False
    lost_host: str | None = None
    """A host that was lost, and with it the job."""
    died: bool = False
    """A rank was killed, or crashed, and with it the job."""
    too_few: bool = False
    """What was left of it are too few ranks to start again."""
    port_taken: bool = False
    """Rank 0 could not bind the port that we chose for it: another may be free."""


def supervise_command(argv: Sequence[str], env: Mapping[str, str], raw: bool = False) -> int:
    """Run `argv` without stdin and with stderr filtered (unless `raw`); return its exit code."""
    return supervise_job(argv, env, raw, launcher=LauncherProcess(Path(argv[0]).name)).code


def supervise_job(
    argv: Sequence[str],
    env: Mapping[str, str],
    raw: bool = False,
    folder: Path | None = None,
    launcher: LauncherProcess | None = None,
    reaper: Reaper | None = None,
) -> JobResult:
    """Run `argv` without stdin and with its output filtered (`raw`: as it is); return how it ended.

    The child leads its own session: a Ctrl-C in the terminal reaches us alone and is passed on
    once, and whatever it leaves behind is found by the session, or by the job's `folder`, and
    killed. In that folder the ranks leave notes for us: that they can save, and their step.
    """
    launcher = launcher or LauncherProcess()
    with forwarding(SignalForwarder(folder, launcher)) as signals:
        piped = subprocess.PIPE
        try:
            child = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=piped if launcher.is_hydra else None,
                stderr=piped,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except (OSError, ValueError) as error:
            raise LaunchError(f"{argv[0]} could not be started: {error}.") from error
        (reaper or Reaper()).set_session(child.pid)
        signals.watch(child)
        output = JobOutput(child, launcher, folder, raw)
        try:
            output.forward(signals.was_asked_to_end)
        finally:
            kill_job(child.pid, folder)
            signals.release()
            child.wait()
            output.close()
    asked = signals.was_asked_to_end()
    if launcher.elastic and (code := read_exit_code(folder)) is not None:
        return JobResult(code, signals.received, saved=code == SAVED)
    death = None if asked or raw else output.death
    loss = None if asked else output.loss
    _report_end(child.returncode, death, None if raw else loss, folder, launcher, signals)
    code = choose_code(child.returncode, signals.ending, death, loss)
    if launcher.elastic and not code:
        write_all(STDERR, b"paceline: all ranks were lost before the run was done\n")
        code = 1
    return JobResult(
        code,
        signals.received,
        saved=child.returncode == SAVED,
        lost_host=loss.node if loss is not None and loss.whole else None,
        died=death is not None,
    )


def choose_code(
    returncode: int, ending: int | None, death: RankDeath | None, loss: HostLoss | None = None
) -> int:
    """The exit code of a job whose launcher ended with `returncode`, after a signal, death or loss.

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


def _report_end(
    returncode: int,
    death: RankDeath | None,
    loss: HostLoss | None,
    folder: Path | None,
    launcher: LauncherProcess,
    signals: SignalForwarder,
) -> None:
    """Say in one line what the launcher's banners said; raw output has the banners themselves."""
    if death is not None:
        write_all(STDERR, describe_death(death, read_heartbeats(folder)).encode())
    elif loss is not None and (loss.whole or returncode):
        write_all(STDERR, describe_loss(loss, launcher.hosts).encode())
    elif returncode < 0 and signals.ending is None:
        write_all(STDERR, describe_end(launcher.name, -returncode).encode())
