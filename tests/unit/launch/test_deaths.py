import json

import pytest

from paceline.launch.mpirun_output import (
    HostLoss,
    OutputFilter,
    RankDeath,
    describe_death,
    describe_end,
    describe_loss,
    read_death,
    read_loss,
)
from paceline.runtime.job_dir import read_heartbeats

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
        (OPEN_MPI, RankDeath(12, 6866, "n07", 9)),
        (MPICH, RankDeath(None, 6937, "n07", 11)),
        (INTEL, RankDeath(3, 25544, "n07", 9)),
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
    assert describe_death(RankDeath(1, 7, "n07", 9), pulse) == (
        "paceline: rank 1 (n07) was killed by signal 9 (SIGKILL: by hand, or out of memory)"
        f"{place}; all ranks were ended\n"
    )


def test_a_killed_rank_without_a_number_is_named_by_its_process():
    text = describe_death(RankDeath(None, 7, "n07", 15), {"0": {"step": 3}})
    assert text == (
        "paceline: a rank (n07, process 7) was killed by signal 15 (SIGTERM); all ranks were "
        "ended\n"
    )


def test_a_signal_without_a_name_is_told_by_its_number():
    assert "was killed by signal 63;" in describe_end("mpirun", 63)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", None])
def test_a_pulse_that_cannot_be_read_is_empty(tmp_path, text):
    if text is not None:
        (tmp_path / "heartbeats.json").write_text(text)
    assert read_heartbeats(tmp_path) == {}
    assert read_heartbeats(None) == {}


def test_the_pulse_is_read_from_the_folder(tmp_path):
    pulse = {"1": {"node": "n07", "step": 120}}
    (tmp_path / "heartbeats.json").write_text(json.dumps(pulse))
    assert read_heartbeats(tmp_path) == pulse


LOST = b"""--------------------------------------------------------------------------
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-host1-42@0,0] on node host1
  Remote daemon: [prterun-host1-42@0,1] on node host2

This is usually due to either a failure of the TCP network
--------------------------------------------------------------------------
"""
CUT_OFF = b"""--------------------------------------------------------------------------
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

Although this local MPI process will likely now behave unpredictably
(it may even hang or crash), the root cause of this problem is the
failure of the peer -- that is what you need to investigate.  For
example, there may be a core file that you can examine.  More
generally: such peer hangups are frequently caused by application bugs
or other external events.

  Local host: host1
  Local PID:  203
  Peer host:  host3
--------------------------------------------------------------------------
"""
SOCKET_CLOSED = b"""\0[host1:00000] *** An error occurred in Socket closed
[host1:00000] *** reported by process [3488153601,0]
[host1:00000] *** on a NULL communicator
[host1:00000] *** Unknown error
[host1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[host1:00000] ***    and MPI will try to terminate your MPI job as well)
"""
KILLED = b"""--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 101 on node host3 exited on
signal 9 (Killed).
--------------------------------------------------------------------------
\0"""
EXITED = b"""--------------------------------------------------------------------------
prterun has exited due to process rank 0 with PID 169 on node host1 calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
--------------------------------------------------------------------------
\0"""
ABORTED = b"""--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD
  Proc: [[23,1],2]
  Errorcode: 7
--------------------------------------------------------------------------
"""
UNNAMED = HostLoss(None, whole=False, noticed_on="host1")
# Open MPI 5.0.11, rank 1 on host3 killed: recorded. Rank 0's last words, its abort and the report
# of the death race each other to mpirun.
ORDERS = {
    "death_first": (SOCKET_CLOSED + KILLED, RankDeath(1, 101, "host3", 9), UNNAMED),
    "abort_first": (CUT_OFF + SOCKET_CLOSED + EXITED, None, HostLoss("host3", whole=False)),
    "abort_first_and_peer_not_named": (SOCKET_CLOSED + EXITED, None, UNNAMED),
}


def test_a_host_that_was_lost_is_named():
    assert read_loss(LOST) == HostLoss("host2", whole=True)
    assert "host host2 was lost" in describe_loss(HostLoss("host2", whole=True))
    assert read_loss(b"all is well") is None


def test_a_rank_that_was_cut_off_tells_whose_host_is_gone():
    assert read_loss(CUT_OFF) == HostLoss("host3", whole=False)
    assert "a rank on host host3" in describe_loss(HostLoss("host3", whole=False))


@pytest.mark.parametrize("pauses", [False, True], ids=["at_once", "pausing_after_each_line"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_rank_killed_elsewhere_is_told_in_whatever_order_its_end_is_reported(order, pauses):
    said, death, loss = ORDERS[order]
    assert hear(said, pauses) == (b"", death, loss)


@pytest.mark.parametrize("pauses", [False, True], ids=["at_once", "pausing_after_each_line"])
def test_banners_of_a_lost_host_are_not_shown(pauses):
    assert hear(LOST, pauses) == (b"", None, HostLoss("host2", whole=True))


def test_ranks_cut_off_by_an_abort_are_no_loss():
    shown, _, loss = hear(b"RuntimeError: no more\n" + ABORTED + CUT_OFF + SOCKET_CLOSED)
    assert (shown, loss) == (b"RuntimeError: no more\n", None)
    assert hear(ABORTED + LOST)[2] == HostLoss("host2", whole=True)


@pytest.mark.parametrize(
    ("hosts", "who"),
    [
        (("host1", "host3"), "a rank on host host3 was lost"),
        (("host1.site", "host3.site"), "a rank on host host3.site was lost"),
        (("host1", "host2", "host3"), "a rank on another host than host1 was lost"),
        (("10.0.0.1", "10.0.0.3"), "a rank on another host than host1 was lost"),
        ((), "a rank on another host than host1 was lost"),
    ],
)
def test_a_loss_whose_host_was_not_told_is_named_if_only_one_other_takes_part(hosts, who):
    assert describe_loss(UNNAMED, hosts) == (
        f"paceline: {who} (its connection was closed); all ranks were ended\n"
    )


def hear(said, pauses=False):
    """What a filter shows of a failed job's output, and the death and the loss that it reads."""
    banners = OutputFilter()
    shown = b""
    for piece in said.splitlines(keepends=True) if pauses else [said]:
        shown += banners.feed(piece) + (banners.pause() if pauses else b"")
    shown += banners.close(failed=True)
    return shown, banners.death, banners.loss
