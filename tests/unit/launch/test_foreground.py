import signal

import pytest

from paceline.launch.deaths import Death
from paceline.launch.foreground import choose_code

KILLED = Death(1, 7, "n07", signal.SIGKILL)


@pytest.mark.parametrize(
    ("returncode", "ending", "death", "code"),
    [
        (0, None, None, 0),
        (3, None, None, 3),
        (-9, None, None, 137),  # mpirun itself was killed
        (9, None, KILLED, 137),  # as Hydra tells it
        (137, None, KILLED, 137),  # as Open MPI does
        (1, signal.SIGTERM, None, 143),
        (-9, signal.SIGINT, None, 130),
        (0, signal.SIGINT, None, 0),  # it was done when the signal came
        (75, None, None, 75),
        (75, signal.SIGTERM, None, 75),
        (75, signal.SIGHUP, None, 75),
        (75, signal.SIGINT, None, 130),
    ],
)
def test_the_exit_code_says_what_happened(returncode, ending, death, code):
    assert choose_code(returncode, ending, death) == code
