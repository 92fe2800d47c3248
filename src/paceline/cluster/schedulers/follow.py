"""Wait for a job: show its log as it grows, and find out how it ended.

The script writes its exit code to a file at its end. A job that is killed leaves none: then the
scheduler is asked. A job that is requeued is followed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.cluster.schedulers.interface import Ask, Scheduler, State, advise
from paceline.cluster.schedulers.submit import Submitted, ask_scheduler
from paceline.errors import LaunchError

_PIECE_BYTES = 65536


@dataclass(frozen=True)
class PollTimes:
    """How often to poll, in seconds, and when to give up."""

    log_s: float = 0.5
    state_s: float = 5.0
    linger_s: float = 15.0
    """Network file systems may show another node's exit code this late."""
    silence_s: float = 1800.0
    """A scheduler that is restarted may be silent for this long."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def follow(
    job: Submitted,
    scheduler: Scheduler,
    write: Callable[[bytes], object],
    say: Callable[[str], object],
    ask: Ask = ask_scheduler,
    poll: PollTimes | None = None,
) -> int:
    """Wait until the job has ended and return its exit code; of an array, the first that is not 0.

    The job's output goes to `write`, news about it to `say`.
    """
    watched = _JobWatch(job, scheduler, say, ask, poll or PollTimes())
    log = _Tail(job.log(), write)
    while True:
        ended = watched.look()
        log.forward()
        if watched.successor is not None:
            return follow(watched.successor, scheduler, write, say, ask, poll)
        if ended is not None:
            return ended
        watched.poll.sleep(watched.poll.log_s)


@dataclass
class _JobWatch:
    """One job, and what is known of it."""

    job: Submitted
    scheduler: Scheduler
    say: Callable[[str], object]
    ask: Ask
    poll: PollTimes
    successor: Submitted | None = None
    _codes: dict[int | None, int] = field(default_factory=dict)
    _state: State = field(default_factory=lambda: State("unknown"))
    _asked_s: float | None = None
    _heard_s: float | None = None
    _ended_s: float | None = None

    def look(self) -> int | None:
        """Poll once; return the exit code if the job has ended."""
        now = self.poll.clock()
        complete = self._read_codes()
        pause_s = self.poll.log_s if complete else self.poll.state_s
        if self._asked_s is None or now - self._asked_s >= pause_s:
            self._asked_s = now
            self._take(self.scheduler.read_state(self.job.id, self.ask), now)
        next_job = _read_number(self.job.next_file())
        if next_job is not None:
            self.successor = replace(self.job, id=str(next_job))
        if self._state.is_live:
            self._ended_s = None
            return None
        if complete:
            return self._end_with(next((code for code in self._codes.values() if code), 0))
        return self._without_file(now) if self._state.kind == "ended" else None

    def _take(self, state: State, now: float) -> None:
        if state.kind == "stuck":
            why = explain_stuck(self.scheduler, state, self.ask)
            stop = stop_command(self.scheduler, self.job)
            raise LaunchError(f"job {self.job.id} cannot start: {why}. Stop it: {stop}")
        if self._heard_s is None or state.kind != "unknown":
            self._heard_s = now
        elif now - self._heard_s > self.poll.silence_s:
            raise LaunchError(
                f"{self.scheduler.TITLE} has not reported for {now - self._heard_s:.0f} s on job "
                f"{self.job.id}; its log is {self.job.log()}"
            )
        if state.detail and state.detail != self._state.detail:
            self.say(f"paceline: job {self.job.id} is {state.detail}\n")
        self._state = state

    def _read_codes(self) -> bool:
        """Read the exit codes that are there; True when all are."""
        if not self.job.tasks:
            code = _read_number(self.job.exit_file())
            self._codes = {} if code is None else {None: code}
            return code is not None
        for task in range(1, self.job.tasks + 1):
            code = _read_number(self.job.exit_file(task))
            if code is not None and self._codes.get(task) != code:
                self.say(
                    f"paceline: task {task} of {self.job.tasks} ended with code {code}; "
                    f"its log: {self.job.log(task)}\n"
                )
                self._codes[task] = code
        return len(self._codes) == self.job.tasks

    def _end_with(self, code: int) -> int:
        """Say how the job ended, where the scheduler has not."""
        if self._state.kind != "ended" or not self._state.detail:
            how = "completed" if code == 0 else f"over: exit code {code}"
            self.say(f"paceline: job {self.job.id} is {how}\n")
        return code

    def _without_file(self, now: float) -> int | None:
        """The job has ended and left no exit code, or none that is visible yet."""
        self._ended_s = now if self._ended_s is None else self._ended_s
        if now - self._ended_s < self.poll.linger_s:
            return None
        state = self._state.detail or "it has ended"
        self.say(
            f"paceline: job {self.job.id} left no exit code in {self.job.run_dir}: it was killed, "
            f"or its nodes do not share that directory; {self.scheduler.TITLE} says: {state}\n"
        )
        return 1 if self._state.code is None else self._state.code


class _Tail:
    """Forwards what is appended to a file."""

    def __init__(self, path: Path, write: Callable[[bytes], object]) -> None:
        self._path, self._write, self._at = path, write, 0

    def forward(self) -> None:
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._at)
            while piece := file.read(_PIECE_BYTES):
                self._at += len(piece)
                self._write(piece)


def stop_command(scheduler: Scheduler, job: Submitted) -> str:
    """What a person types to stop the job."""
    stops = (hint for hint in scheduler.HINTS if "stop" in hint.purpose)
    return next(stops).command.format(job=job.id)


def explain_stuck(scheduler: Scheduler, state: State, ask: Ask = ask_scheduler) -> str:
    """Why a job will not start, and what to request instead."""
    return f"it is {state.detail}. {advise(scheduler, state.detail, ask)}"


def _read_number(path: Path) -> int | None:
    """The number in a file; None until it is written."""
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
