import signal

import pytest

from paceline.errors import HOST_LOST
from paceline.launch.mpirun_output import HostLoss, RankDeath
from paceline.launch.supervise import choose_code

KILLED = RankDeath(1, 7, "n07", signal.SIGKILL)


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


def test_a_lost_host_is_no_success_whatever_mpirun_says():
    whole, cut_off = HostLoss("n07", whole=True), HostLoss("n07", whole=False)
    assert choose_code(0, None, None, whole) == HOST_LOST
    assert choose_code(14, None, None, cut_off) == 14
    assert choose_code(0, None, None, cut_off) == 0
    assert choose_code(1, signal.SIGTERM, None, whole) == 128 + signal.SIGTERM
