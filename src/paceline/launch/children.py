"""Child processes that end with us, and whether they have ended, without reaping them.

Once a child is reaped its pid may be reused, and a signal to its group would hit another process.
So whoever still has to clean up after a child asks here, and reaps it last.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

_PAUSE_S = 0.02
_PR_SET_PDEATHSIG = 1
_CAN_LOOK = hasattr(os, "waitid")
"""Not on macOS before Python 3.13: there asking reaps."""


def die_with_parent() -> Callable[[], None] | None:
    """What the child does first: ask Linux for a SIGTERM when we die, even by SIGKILL."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork: the child should only call
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def has_ended(child: "subprocess.Popen[bytes]") -> bool:
    """Whether it has ended; it keeps its pid."""
    return _look(child, os.WNOHANG) is not None


def wait_for_end(child: "subprocess.Popen[bytes]") -> int:
    """Wait until it has ended; return its code, as Popen does."""
    code = _look(child, 0)
    assert code is not None
    return code


def ends_within(child: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait at most this long; return whether it has ended."""
    end = time.monotonic() + seconds
    while not has_ended(child):
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_S)
    return True


def _look(child: "subprocess.Popen[bytes]", how: int) -> int | None:
    if child.returncode is not None:
        return child.returncode
    if not _CAN_LOOK:
        return child.poll() if how else child.wait()
    found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | how)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
