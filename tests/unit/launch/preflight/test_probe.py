"""What the probe reads of a node; roots of file systems and environments are made up."""

from pathlib import Path

import pytest

from paceline.cluster.network import (
    addresses_of,
    name_job,
    parse_mpi_list,
    read_interfaces,
    read_memory,
    read_memory_limit,
    read_shared_memory,
)
from paceline.errors import LaunchError
from paceline.launch.preflight.node_info import NodeInfo, from_json, to_json
from paceline.launch.preflight.probe import digest, explain


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_facts_travel_as_one_line():
    facts = NodeInfo(host="n1", affinity=[0, 2], interfaces={"lo": ["127.0.0.1"]}, ulfm=True)
    text = to_json(facts)
    assert "\n" not in text
    assert from_json(text) == facts


def test_what_a_shell_says_around_the_facts_is_left_out():
    assert from_json(f"{{welcome}}\n{to_json(NodeInfo(host='n1'))}\n[bye]\n").host == "n1"


def test_facts_of_another_version_are_read_as_far_as_they_are_known():
    assert from_json('{"host": "n1", "of a later version": 1}') == NodeInfo(host="n1")


def test_words_without_facts_are_refused():
    with pytest.raises(LaunchError, match="said nothing that can be read: 'hello'"):
        from_json("hello\n")


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("Open MPI v5.0.11, package: ...", "openmpi"),
        ("MPICH Version:      5.0.2\nMPICH Release date: ...", "mpich"),
        ("Intel(R) MPI Library 2021.9 for Linux* OS", "intel"),
        ("Something", "unknown"),
        (None, None),
    ],
)
def test_the_library_names_the_mpirun_that_fits(version, kind):
    assert NodeInfo(libmpi_version=version).libmpi_kind == kind


def test_the_digest_changes_with_contents_and_names(tmp_path):
    write(tmp_path, "a.py", "x = 1")
    first = digest(tmp_path)
    write(tmp_path, "note.txt", "not Python")
    assert digest(tmp_path) == first
    write(tmp_path, "a.py", "x = 2")
    second = digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, digest(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("path", "env", "why"),
    [
        ("/site/lib/libmpi.so", {"MPI4PY_LIBMPI": "/site/lib/libmpi.so"}, "MPI4PY_LIBMPI is /site"),
        ("/venv/lib/libmpi.so", {"MPI4PY_MPIABI": "mpich"}, "MPI4PY_MPIABI is mpich"),
        ("/venv/lib/libmpi.so.40", {"LD_LIBRARY_PATH": "/site"}, "environment of this Python"),
        ("/site/lib/libmpi.so.12", {"LD_LIBRARY_PATH": "/x:/site/lib"}, "on LD_LIBRARY_PATH"),
        ("/usr/lib/libmpi.so.12", {"LD_LIBRARY_PATH": ":"}, "the system's"),
        (None, {}, "linked into mpi4py"),
    ],
)
def test_why_a_library_was_taken(path, env, why):
    assert why in explain(path, env, "/venv")


def test_memory_is_read_in_bytes(tmp_path):
    write(tmp_path, "proc/meminfo", "MemTotal:  1000 kB\nMemAvailable: 600 kB\nHugePages: 0\n")
    assert read_memory(tmp_path) == (1_024_000, 614_400)
    assert read_memory(tmp_path / "nowhere") == (0, 0)


def test_the_least_limit_on_the_way_up_counts(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/job/step\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", "5000\n")
    write(tmp_path, "sys/fs/cgroup/job/step/memory.max", "max\n")
    assert read_memory_limit(tmp_path) == 5000


def test_the_older_cgroups_say_a_huge_number_for_no_limit(tmp_path):
    write(tmp_path, "proc/self/cgroup", "7:memory:/job\n3:cpu:/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096))
    assert read_memory_limit(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "7000")
    assert read_memory_limit(tmp_path) == 7000


def test_shared_memory_is_measured_where_there_is_some(tmp_path):
    total, free = read_shared_memory(str(tmp_path))
    assert total >= free > 0
    assert read_shared_memory(str(tmp_path / "nowhere")) == (0, 0)


def test_interfaces_that_are_up_have_their_addresses(tmp_path):
    loopback = f"{1:032x} 01 80 10 80 lo\n"
    write(tmp_path, "proc/net/if_inet6", loopback + loopback.replace("lo", "away0"))
    found = read_interfaces(tmp_path)
    assert found["lo"] == ["127.0.0.1", "::1"]
    assert "away0" not in found


def test_an_unknown_name_has_no_address():
    assert addresses_of("localhost")
    assert addresses_of("no such name") == []
    assert addresses_of("a" * 70) == []


def test_plugins_of_srun_are_read_from_old_and_new_forms():
    old = "srun: MPI types are...\nsrun: none\nsrun: pmi2\n"
    new = "MPI plugin types are...\n\tcray\n\tpmix\nspecific pmix plugin versions available: a,b\n"
    assert parse_mpi_list(old) == ["none", "pmi2"]
    assert parse_mpi_list(new) == ["cray", "pmix", "a", "b"]


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
