import json

import pytest

from paceline.launch.banners import BannerFilter
from paceline.launch.deaths import (
    Death,
    Loss,
    describe_death,
    describe_end,
    describe_loss,
    read_death,
    read_loss,
    read_pulse,
)

OPEN_MPI = b"""prterun noticed that process rank 12 with PID 6866 on node n07 exited on
signal 9 (Killed).
"""
MPICH = b"""=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 6937 RUNNING AT n07
=   EXIT CODE: 11
=   CLEANING UP REMAINING PROCESSES
====
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
"""
INTEL = b"""=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 3 PID 25544 RUNNING AT n07
=   KILLED BY SIGNAL: 9 (Killed)
"""


@pytest.mark.parametrize(
    ("banner", "death"),
    [
        (OPEN_MPI, Death(12, 6866, "n07", 9)),
        (MPICH, Death(None, 6937, "n07", 11)),
        (INTEL, Death(3, 25544, "n07", 9)),
        (MPICH.rpartition(b"YOUR")[0], None),  # an exit code of 11 is no signal
        (b"prterun detected that one or more processes exited with non-zero status", None),
    ],
)
def test_a_death_is_read_from_the_banner(banner, death):
    assert read_death(banner) == death


@pytest.mark.parametrize(
    ("pulse", "place"),
    [
        ({"1": {"node": "n07", "step": 120}}, " at step 120"),
        ({"0": {"step": 120}}, ""),
        ({"1": {"node": "n07"}}, ""),
        ({"1": {"step": None}}, ""),
        ({"1": "odd"}, ""),
        ({}, ""),
    ],
)
def test_a_killed_rank_is_named_with_its_step_if_it_is_known(pulse, place):
    assert describe_death(Death(1, 7, "n07", 9), pulse) == (
        "paceline: rank 1 (n07) was killed by signal 9 (SIGKILL: by hand, or out of memory)"
        f"{place}; all ranks were ended\n"
    )


def test_a_killed_rank_without_a_number_is_named_by_its_process():
    text = describe_death(Death(None, 7, "n07", 15), {"0": {"step": 3}})
    assert text == (
        "paceline: a rank (n07, process 7) was killed by signal 15 (SIGTERM); all ranks were "
        "ended\n"
    )


def test_a_signal_without_a_name_is_told_by_its_number():
    assert "was killed by signal 63;" in describe_end("mpirun", 63)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", None])
def test_a_pulse_that_cannot_be_read_is_empty(tmp_path, text):
    if text is not None:
        (tmp_path / "pulse.json").write_text(text)
    assert read_pulse(tmp_path) == {}
    assert read_pulse(None) == {}


def test_the_pulse_is_read_from_the_folder(tmp_path):
    pulse = {"1": {"node": "n07", "step": 120}}
    (tmp_path / "pulse.json").write_text(json.dumps(pulse))
    assert read_pulse(tmp_path) == pulse


LOST = b"""--------------------------------------------------------------------------
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-host1-42@0,0] on node host1
  Remote daemon: [prterun-host1-42@0,1] on node host2

This is usually due to either a failure of the TCP network
--------------------------------------------------------------------------
"""
CUT_OFF = b"""--------------------------------------------------------------------------
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process

  Local host: host1
  Local PID:  81
  Peer host:  host3
--------------------------------------------------------------------------
[host1:00000] *** An error occurred in Socket closed
[host1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
"""


def test_a_host_that_was_lost_is_named():
    assert read_loss(LOST) == Loss("host2", whole=True)
    assert "host host2 was lost" in describe_loss(Loss("host2", whole=True))
    assert read_loss(b"all is well") is None


def test_a_rank_that_was_cut_off_tells_whose_host_is_gone():
    assert read_loss(CUT_OFF) == Loss("host3", whole=False)
    assert "a rank on host host3" in describe_loss(Loss("host3", whole=False))


def test_banners_of_a_loss_are_not_shown():
    for text, node in ((LOST, "host2"), (CUT_OFF, "host3")):
        banners = BannerFilter()
        assert banners.feed(text) + banners.close(failed=True) == b""
        assert banners.loss.node == node
