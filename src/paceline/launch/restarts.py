"""Start a job again after a failure."""

import sys
import time
from collections.abc import Callable

from paceline.errors import SAVED
from paceline.launch.supervise import JobResult

_LONGEST_PAUSE_S = 30.0
_FINAL_CODES = (0, 2, SAVED)
"""Done, wrong settings (again would be as wrong), saved and stopped as it was told to."""


def run_with_restarts(
    run: Callable[[int], JobResult], restarts: int, sleep: Callable[[float], None] = time.sleep
) -> JobResult:
    """Call `run` with 0, and after each failure with the number of the restart, up to `restarts`.

    The pause before a restart is 1 s and doubles up to 30 s: what made the job fail, a full disk or
    a lost file server, may need some time to pass.
    """
    ended = run(0)
    for number in range(1, restarts + 1):
        if ended.code in _FINAL_CODES or ended.signalled:
            break
        sys.stderr.write(
            f"paceline: the job failed with code {ended.code}; restart {number} of {restarts}\n"
        )
        sys.stderr.flush()
        sleep(min(2.0 ** (number - 1), _LONGEST_PAUSE_S))
        ended = run(number)
    return ended
