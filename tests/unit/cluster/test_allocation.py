from pathlib import Path

import pytest

from paceline.cluster.hosts import Host
from paceline.cluster.schedulers import name_job, read_allocation
from paceline.cluster.schedulers.interface import Allocation
from paceline.cluster.schedulers.slurm import expand_counts, expand_nodes
from paceline.errors import LaunchError


def test_outside_of_a_job_nothing_is_granted():
    assert read_allocation({}) is None


def test_slurm_tells_nodes_tasks_and_threads():
    env = {
        "SLURM_JOB_ID": "4",
        "SLURM_JOB_NODELIST": "node[1-2],big",
        "SLURM_TASKS_PER_NODE": "2(x2),4",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURMD_NODENAME": "node1",
    }
    hosts = (Host("node1", 2), Host("node2", 2), Host("big", 4))
    assert read_allocation(env) == Allocation("slurm", hosts, threads=8, here="node1")
    assert read_allocation(env).slots == 8


def test_variables_of_slurm_that_contradict_each_other_are_refused():
    env = {"SLURM_JOB_ID": "4", "SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "2"}
    with pytest.raises(LaunchError, match=r"names 2 hosts.*is for 1"):
        read_allocation(env)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1,3]-ib", ["n1-ib", "n3-ib"]),
        ("r[1-2]n[09-10]", ["r1n09", "r1n10", "r2n09", "r2n10"]),
        ("a,b[001-002],c", ["a", "b001", "b002", "c"]),
    ],
)
def test_short_forms_of_slurm_are_read(text, names):
    assert expand_nodes(text) == names


def test_counts_of_slurm_are_read():
    assert expand_counts("3(x2),1,2(x1)") == [3, 3, 1, 2]


@pytest.mark.parametrize("text", ["", "2(x", "two", "1,,2"])
def test_counts_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="is not of the form"):
        expand_counts(text)
    env = {"SLURM_JOB_ID": "4", "SLURM_JOB_NODELIST": "a", "SLURM_TASKS_PER_NODE": text}
    with pytest.raises(LaunchError, match="SLURM_TASKS_PER_NODE"):
        read_allocation(env)


def test_grid_engine_writes_a_host_file(tmp_path: Path):
    file = tmp_path / "pe"
    file.write_text(
        "node1 2 all.q@node1 UNDEFINED\nnode2 1 all.q@node2 <NULL>\nnode1 1 b.q@node1 x\n"
    )
    granted = read_allocation({"PE_HOSTFILE": str(file)})
    assert granted == Allocation("sge", (Host("node1", 3), Host("node2", 1)))


def test_a_host_file_that_is_gone_is_told(tmp_path: Path):
    with pytest.raises(LaunchError, match=r"PE_HOSTFILE names .*unset PE_HOSTFILE"):
        read_allocation({"PE_HOSTFILE": str(tmp_path / "gone")})


def test_pbs_writes_a_line_for_each_rank(tmp_path: Path):
    file = tmp_path / "nodes"
    file.write_text("a.cluster\na.cluster\nb.cluster\n")
    granted = read_allocation({"PBS_NODEFILE": str(file), "OMP_NUM_THREADS": "4"})
    assert granted == Allocation("pbs", (Host("a.cluster", 2), Host("b.cluster", 1)), threads=4)


def test_lsf_tells_hosts_and_slots_in_turn():
    granted = read_allocation({"LSB_MCPU_HOSTS": "a 4 b 2"})
    assert granted == Allocation("lsf", (Host("a", 4), Host("b", 2)))


@pytest.mark.parametrize(
    ("env", "job"),
    [
        ({}, ""),
        ({"SLURM_JOB_ID": "7"}, "Slurm job 7"),
        ({"PE_HOSTFILE": "/x", "JOB_ID": "8"}, "Grid Engine job 8"),
        ({"SGE_ROOT": "/x"}, ""),
        ({"JOB_ID": "8"}, ""),
        ({"SGE_ROOT": "/x", "JOB_ID": "8"}, "Grid Engine job 8"),
        ({"PBS_JOBID": "9.server"}, "PBS job 9.server"),
        ({"LSB_JOBID": "10"}, "LSF job 10"),
    ],
)
def test_the_job_has_a_name(env, job):
    assert name_job(env) == job
