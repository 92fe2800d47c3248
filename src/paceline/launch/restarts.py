"""Start ranks again: those that are left when others are lost, and all of them after a failure."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from paceline.errors import SAVED
from paceline.launch.placement import RankPlan, without_host, without_rank
from paceline.launch.supervise import JobResult

_LONGEST_PAUSE_S = 30.0
_MOST_IN_VAIN = 3
FINAL_CODES = (0, 2, SAVED)
"""Done, wrong settings (they would be wrong again), saved and stopped on request."""


class Replacements:
    """Whether all ranks start again when one was lost."""

    def __init__(self, memory: Path | None) -> None:
        self._memory, self._in_vain = memory, 0
        self._newest: list[str] = []

    def is_wanted(self) -> bool:
        """Not if they have saved nothing new in some starts: they would be lost again."""
        newest = _saved_in(self._memory)[-1:]
        self._in_vain = self._in_vain + 1 if newest == self._newest else 0
        self._newest = newest
        return self._in_vain < _MOST_IN_VAIN


def run_on_what_is_left(
    run: Callable[[int, RankPlan], JobResult],
    plan: RankPlan,
    least: int,
    memory: Path | None = None,
    replacements: Replacements | None = None,
) -> JobResult:
    """Call `run` with 0 and the plan; if a host or a rank was lost and the job with it, again on
    what is left, as long as there are so many ranks."""
    ended, left, number = run(0, plan), plan, 0
    while not ended.signalled:
        if ended.lost_host is not None:
            found = without_host(left, ended.lost_host)
        elif ended.died and replacements is not None and replacements.is_wanted():
            found = left
        elif ended.died:
            found = without_rank(left)
        else:
            break
        if found is None or found.ranks < least:
            return replace(ended, too_few=True)
        left, number = found, number + 1
        place = "node memory" if _saved_in(memory) else "the last checkpoint"
        sys.stderr.write(
            f"paceline: starting again from {place}, with {left.ranks} "
            f"rank{'s' * (left.ranks > 1)}\n"
        )
        sys.stderr.flush()
        ended = run(number, left)
    return ended


def _saved_in(memory: Path | None) -> list[str]:
    """The names of the checkpoints there, the newest last."""
    found = memory.glob("checkpoints/step-*") if memory is not None else ()
    return sorted(path.name for path in found)


def run_with_restarts(
    run: Callable[[int], JobResult], restarts: int, sleep: Callable[[float], None] = time.sleep
) -> JobResult:
    """Call `run` with 0, and after each failure with the number of the restart, up to `restarts`.

    The pause before a restart is 1 s and doubles up to 30 s: the cause of a failure, a full disk or
    a lost file server, may take some time to go away.
    """
    ended = run(0)
    for number in range(1, restarts + 1):
        if ended.code in FINAL_CODES or ended.signalled:
            break
        sys.stderr.write(
            f"paceline: the job failed with code {ended.code}; restart {number} of {restarts}\n"
        )
        sys.stderr.flush()
        sleep(min(2.0 ** (number - 1), _LONGEST_PAUSE_S))
        ended = run(number)
    return ended
