"""Submit a script to its scheduler, and explain a refusal."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.schedulers.interface import CommandReply, Scheduler, advise
from paceline.cluster.schedulers.request import SCRIPT, JobRequest
from paceline.errors import ConfigError, LaunchError

_ANSWER_S = 60.0


class RunDirTaken(LaunchError):
    """Another process has just made the run directory whose name was free."""


@dataclass(frozen=True)
class Submitted:
    """A job that a scheduler has accepted; `tasks` is 0 if it is no array."""

    id: str
    run_dir: Path
    tasks: int = 0

    @property
    def number(self) -> str:
        """As in the names of files.

        >>> Submitted("12[]", Path("runs/x"), 3).number
        '12'
        """
        return self.id.removesuffix("[]")

    def log(self, task: int | None = None) -> Path:
        return self._file(task, "log")

    def exit_file(self, task: int | None = None) -> Path:
        """Where the script writes its exit code, unless it is killed."""
        return self._file(task, "exit")

    def next_file(self) -> Path:
        """Where the script writes the id of its successor, if that is another job."""
        return self._file(None, "next")

    def _file(self, task: int | None, kind: str) -> Path:
        part = "" if task is None else f".{task}"
        return self.run_dir / f"job-{self.number}{part}.{kind}"


def ask_scheduler(
    command: Sequence[str], directory: Path | None = None, timeout_s: float = _ANSWER_S
) -> CommandReply:
    """Run a command of the scheduler, with a time limit."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except FileNotFoundError:
        return CommandReply(None, f"{command[0]} is not on PATH")
    except subprocess.TimeoutExpired:
        return CommandReply(None, f"{command[0]} did not answer in {timeout_s:.0f} s", late=True)
    except OSError as error:
        return CommandReply(None, str(error))
    return CommandReply(done.returncode, done.stdout)


def submit(request: JobRequest, scheduler: Scheduler, is_new: bool = False) -> Submitted:
    """Make the run directory, write the script there, and submit it from there.

    `is_new`: the directory's name was free a moment ago; RunDirTaken if it no longer is.
    """
    before = _write_script(request, scheduler.render(request), is_new)
    answer = ask_scheduler(scheduler.SUBMIT, request.run_dir)
    job = scheduler.read_id(answer.said) if answer.code == 0 else None
    if job is None and (answer.code == 0 or answer.late):
        raise LaunchError(
            f"{scheduler.TITLE} may have accepted the job, and has not printed its id: "
            f"{_said(answer)}. Look for it among your jobs before you submit again; its script is "
            f"{request.run_dir / SCRIPT}"
        )
    if job is None:
        _restore(request.run_dir, before)
        raise LaunchError(_explain(scheduler, answer))
    return Submitted(job, request.run_dir, len(request.tasks))


def _write_script(request: JobRequest, text: str, is_new: bool) -> bytes | None:
    """Write it; return what an earlier job had there."""
    try:
        _claim(request.run_dir, is_new)
        script = request.run_dir / SCRIPT
        before = script.read_bytes() if script.exists() else None
        script.touch(mode=0o600)
        script.chmod(0o600)  # --env may put a secret into it
        script.write_bytes(os.fsencode(text))
    except OSError as error:
        raise ConfigError(
            f"run directory {request.run_dir} cannot be written: {error.strerror}; choose another "
            "--run-dir"
        ) from None
    return before


def _restore(run_dir: Path, before: bytes | None) -> None:
    """Restore the directory: an earlier job that waits there starts from its own script."""
    if before is not None:
        (run_dir / SCRIPT).write_bytes(before)
        return
    (run_dir / SCRIPT).unlink(missing_ok=True)
    with suppress(OSError):  # others have put something there
        run_dir.rmdir()


def _claim(run_dir: Path, is_new: bool) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=not is_new)
    except FileExistsError:
        if not is_new:
            raise
        raise RunDirTaken(f"run directory {run_dir} is another job's; give --run-dir") from None


def free_run_dir(name: str, within: Path = Path("runs")) -> Path:
    """A directory that does not exist, as runs/20260131-154502-mnist-bsp."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    suffixes = ("", *(f"-{number}" for number in range(2, 1000)))
    for path in (within / f"{stem}{suffix}" for suffix in suffixes):
        if not path.exists():
            return path
    raise LaunchError(f"a thousand runs named {stem} exist already; give --run-dir")


def _said(answer: CommandReply) -> str:
    return " ".join(answer.said.split()) or "it printed nothing"


def _explain(scheduler: Scheduler, answer: CommandReply) -> str:
    said = _said(answer)
    if answer.code is None:
        return (
            f"{scheduler.TITLE} could not be asked: {said}. Submit from a login node of the "
            "cluster; --dry-run only shows the script"
        )
    return f"{scheduler.TITLE} refused the job: {said}. {advise(scheduler, said, ask_scheduler)}"
