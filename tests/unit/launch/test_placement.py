from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from paceline.cluster.hosts import Host
from paceline.cluster.schedulers.interface import Allocation, CommandReply
from paceline.errors import LaunchError
from paceline.launch import placement
from paceline.launch.job import Placement
from paceline.launch.placement import choose_remote_shell, describe_crowd, plan_ranks

TWO = (Host("a", 2), Host("b", 2))


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """This machine is `here`, has 4 cores, and reaches all hosts, which have 8."""
    monkeypatch.setattr(placement, "available_cores", lambda: 4)
    monkeypatch.setattr(placement, "is_here", lambda name, this=None: name == (this or "here"))
    answer = lambda names: {name: SimpleNamespace(cores=8) for name in names}  # noqa: E731
    monkeypatch.setattr(placement, "check_hosts", answer)
    monkeypatch.setattr(placement, "_is_on_path", lambda program: program == "qrsh")
    monkeypatch.setattr(placement, "_ask", lambda command: CommandReply(0, "control_slaves TRUE"))


def test_without_hosts_ranks_stay_here_one_for_each_core():
    plan = plan_ranks(None, None, (), None)
    assert (plan.ranks, plan.threads, plan.placement) == (4, 1, Placement())
    assert plan_ranks(2, None, (), None).threads == 2


def test_hosts_take_a_rank_for_each_core_unless_told():
    plan = plan_ranks(None, None, (Host("a"), Host("b", 2), Host("here")), None)
    assert plan.placement.hosts == (Host("a", 8), Host("b", 2), Host("here", 4))
    assert plan.ranks == 14
    assert plan.placement.remote_shell.startswith("ssh ")


def test_threads_are_those_of_the_host_with_the_fewest_for_a_rank():
    assert plan_ranks(None, None, (Host("a", 1), Host("here", 2)), None).threads == 2
    assert plan_ranks(None, 3, (Host("a", 1),), None).threads == 3


def test_more_ranks_than_the_hosts_take_are_refused():
    with pytest.raises(LaunchError, match=r"-n 9 .* take 4 \(a:2, b:2\).*--hosts a:5"):
        plan_ranks(9, None, TWO, None)


def test_hosts_that_are_named_win_over_those_granted():
    plan = plan_ranks(2, None, TWO, Allocation("slurm", (Host("c", 8),)))
    assert [host.name for host in plan.placement.hosts] == ["a", "b"]


def test_granted_hosts_are_used_with_their_threads():
    plan = plan_ranks(None, None, (), Allocation("slurm", TWO, threads=7, here="a"))
    assert (plan.ranks, plan.threads) == (4, 7)
    assert plan.placement == Placement(TWO, None, leads_here=True)
    assert plan_ranks(2, None, (), Allocation("slurm", TWO)).placement.hosts == (
        Host("a", 1),
        Host("b", 1),
    )


def test_a_shell_on_another_host_is_told_from_a_script_on_the_first():
    assert not plan_ranks(None, None, (), Allocation("slurm", TWO)).placement.leads_here


def test_ranks_that_fit_on_this_host_need_no_other():
    assert plan_ranks(None, 1, (), Allocation("sge", (Host("here", 4),))).placement == Placement()
    elsewhere = plan_ranks(None, 1, (), Allocation("sge", (Host("a", 4),))).placement
    assert elsewhere.hosts == (Host("a", 4),)


def test_each_scheduler_has_its_own_way_to_other_hosts(monkeypatch):
    monkeypatch.setattr(placement, "_is_on_path", lambda program: True)
    ways = {
        kind: choose_remote_shell(Allocation(kind, TWO)) for kind in ("slurm", "sge", "pbs", "lsf")
    }
    assert ways == {
        "slurm": None,
        "sge": "qrsh -inherit -nostdin -V",
        "pbs": "pbs_tmrsh",
        "lsf": "blaunch",
    }


@pytest.mark.parametrize("kind", ["pbs", "lsf"])
def test_where_it_has_none_ssh_is_taken(kind):
    assert choose_remote_shell(Allocation(kind, TWO)).startswith("ssh ")


def test_qrsh_is_used_unless_the_parallel_environment_forbids_it(monkeypatch):
    monkeypatch.setenv("PE", "mpi")
    replies = {
        "qrsh": CommandReply(None, "qconf is not on PATH"),
        "ssh": CommandReply(0, "pe_name mpi\ncontrol_slaves FALSE\n"),
    }
    for program, reply in replies.items():
        ask = Mock(return_value=reply)
        monkeypatch.setattr(placement, "_ask", ask)
        assert choose_remote_shell(Allocation("sge", TWO)).startswith(f"{program} ")
        ask.assert_called_once_with(("qconf", "-sp", "mpi"))


def test_a_crowd_is_told_how_many_would_fit():
    assert describe_crowd(4, 1, 2) is None
    assert describe_crowd(16, 4, 32) is None
    told = describe_crowd(64, 1, 2)
    assert told is not None
    assert told.startswith("64 ranks share 2 cores")
    assert told.endswith("; -n 2 fits")
    told = describe_crowd(8, 8, 16)
    assert told is not None
    assert told.startswith("8 ranks of 8 threads share 16 cores")
    assert told.endswith("; -n 2 fits")
