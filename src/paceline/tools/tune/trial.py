"""One trial: start the real command, watch what its ranks record, end it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from paceline.errors import LaunchError
from paceline.launch.children import die_with_parent, ends_within, has_ended
from paceline.observe.trial import TRIAL
from paceline.tools.tune.command import TrialCommand
from paceline.tools.tune.figures import Estimate, estimate, read_marks
from paceline.tools.tune.plan import RankSetting

_PAUSE_S = 0.1
_END_S = 15.0
"""How long a launcher may take to end its ranks."""
_FAR_BELOW = 0.7
"""Of the best rate; a trial that is below it after a third of its time cannot win."""
_SURE = 0.01
"""Relative error at which measuring longer is pointless."""
_ENOUGH_STEPS, _ENOUGH_WINDOWS = 20, 12
_FEWEST_WINDOWS = 4
"""Fewer intervals say little about how much the rate varies."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ERROR = re.compile(r"\w*(Error|Exception|Exit|Interrupt)\b.*: \S")


@dataclass(frozen=True)
class Outcome:
    """The result of a setting: measured, stopped early, failed, skipped or interrupted."""

    setting: RankSetting
    status: str
    estimate: Estimate | None = None
    reason: str = ""
    code: int = 0
    errors: str = ""
    """The end of a failed trial's stderr."""


@dataclass(frozen=True)
class TrialLimits:
    """How long to measure after start-up, and how long to wait at most."""

    seconds: float = 10.0
    longest_s: float = 120.0
    """For a script without steps to end, and for enough steps after the first."""
    start_s: float = 600.0
    """For the first step of commands that report steps."""
    thorough: bool = False
    """Measure in full even what cannot win."""

    @classmethod
    def of(cls, seconds: float, thorough: bool = False) -> TrialLimits:
        return cls(seconds, max(120.0, 12 * seconds), thorough=thorough)

    @property
    def warm_up_s(self) -> float:
        return min(1.0, self.seconds / 5)


class Stopped(BaseException):
    """A signal asked tune to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, the first signal that asks tune to end raises Stopped; further ones do nothing."""

    def receive(number: int, frame: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(number)

    heard = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, receive) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def judge(found: Estimate, best: float | None, limits: TrialLimits) -> str | None:
    """Whether a trial may end: "measured" when enough is known, "early" if it cannot win."""
    if found.seconds >= limits.seconds:
        return "measured"
    if found.seconds < limits.seconds / 3 or limits.thorough:
        return None
    if found.windows < _FEWEST_WINDOWS:
        return None
    if best is not None and found.rate * (1 + 2 * min(found.error, 1)) < _FAR_BELOW * best:
        return "early"
    many = found.steps >= _ENOUGH_STEPS and found.windows >= _ENOUGH_WINDOWS
    return "measured" if many and found.error < _SURE else None


def run_trial(
    command: TrialCommand, setting: RankSetting, limits: TrialLimits, best: float | None = None
) -> Outcome:
    """Run the command with this setting until enough is known; it leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="paceline-tune-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        began = time.monotonic()
        argv, alone = command.of_trial(setting, folder), command.is_alone(setting)
        with _started(argv, alone, folder) as child:
            reports_steps = command.kind == "train"
            outcome = _watch(child, setting, folder, limits, best, reports_steps)
        if outcome is not None:
            return outcome
        return _ended(child.returncode, setting, folder, limits, time.monotonic() - began)


def _watch(
    child: subprocess.Popen[bytes],
    setting: RankSetting,
    folder: Path,
    limits: TrialLimits,
    best: float | None,
    reports_steps: bool,
) -> Outcome | None:
    """Watch until enough is known, or the limits are reached; None if the job has ended.

    A rank that reports steps creates its file before the first of them.
    """
    began = time.monotonic()
    first_s: float | None = None
    while not has_ended(child):
        time.sleep(_PAUSE_S)
        now, marks = time.monotonic(), read_marks(folder)
        if first_s is None and any(marks.values()):
            first_s = now
        found = estimate(marks, setting.ranks, limits.warm_up_s)
        status = judge(found, best, limits) if found is not None else None
        over = first_s is not None and now - first_s > limits.seconds + 2 * limits.warm_up_s
        if found is not None and (status is not None or over):
            reason = "stopped early: far below the best" if status == "early" else ""
            return Outcome(setting, status or "measured", found, reason)
        starts = first_s is None and (reports_steps or bool(marks))
        limit_s = limits.start_s if starts else limits.longest_s
        if now - (first_s or began) > limit_s:
            reason = _why_unmeasured(first_s is not None, starts, limit_s)
            return Outcome(setting, "failed", reason=reason)
    return None


def _why_unmeasured(stepped: bool, starts: bool, limit_s: float) -> str:
    if stepped:
        return f"too few steps within {limit_s:.0f} s: give more --seconds"
    if starts:
        return f"no step within {limit_s:.0f} s"
    return (
        f"no step and no end within {limit_s:.0f} s: train by keep_pace or Trainer, let the script "
        "end sooner, or give more --seconds"
    )


def _ended(
    code: int, setting: RankSetting, folder: Path, limits: TrialLimits, seconds: float
) -> Outcome:
    """The result of a job that has ended by itself: its figures, its duration, or its failure."""
    if code != 0:
        errors = (folder / "stderr").read_text(errors="replace")
        return Outcome(setting, "failed", None, explain(code, errors), code, errors[-4000:])
    marks = read_marks(folder)
    for warm_up_s in (limits.warm_up_s, 0.0):
        found = estimate(marks, setting.ranks, warm_up_s)
        if found is not None:
            return Outcome(setting, "measured", found)
    whole = Estimate("runs", 1 / seconds, seconds=seconds)
    known = next((lines[-1] for lines in marks.values() if lines), None)
    if known is not None:
        whole = replace(whole, rank_bytes=known["peak_bytes"])
    return Outcome(setting, "measured", whole)


def explain(code: int, errors: str) -> str:
    """Why a job failed, in a line: its last error, else its last line.

    >>> explain(1, "Traceback ...\\nValueError: no such file\\npaceline: all ranks were ended")
    'exit code 1: ValueError: no such file'
    """
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    candidates = [line for line in lines if _ERROR.match(line)] or lines or ["it printed no reason"]
    memory = " (out of memory?)" if code in (137, -signal.SIGKILL) else ""
    return f"exit code {code}{memory}: {candidates[-1]}"


@contextmanager
def _started(argv: Sequence[str], alone: bool, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The job, with its output in files; it is ended at the end of the block."""
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        try:
            child = subprocess.Popen(
                argv,
                env={**os.environ, TRIAL: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # a Ctrl-C in the terminal reaches us alone
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise LaunchError(f"{argv[0]} could not be started: {error}.") from error
        try:
            yield child
        finally:
            try:
                end(child, alone)
            except Stopped:
                end(child, alone)
                raise


def end(child: subprocess.Popen[bytes], alone: bool) -> None:
    """End a job at once. One signal would let it save; a launcher ends its ranks at a second."""
    if child.returncode is not None:  # it was reaped: its pid may be reused
        return
    if not alone and not has_ended(child):
        # Two of one kind could be merged into one.
        os.kill(child.pid, signal.SIGTERM)
        os.kill(child.pid, signal.SIGINT)
        ends_within(child, _END_S)
    if alone or not has_ended(child):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait(_END_S)
