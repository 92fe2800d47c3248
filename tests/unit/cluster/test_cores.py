import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cluster.cores import available_cores, numa_nodes, threads_per_rank


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


@pytest.fixture
def machine(tmp_path):
    """8 CPUs: 4 cores of two hyperthreads (0 and 4, 1 and 5, ...) on two NUMA nodes."""
    for cpu in range(8):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(tmp_path, f"{topology}/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-1,4-5")
    write(tmp_path, "sys/devices/system/node/node1/cpulist", "2-3,6-7")
    return tmp_path


@pytest.mark.parametrize(
    ("affinity", "cores"), [(range(8), 4), ([0, 4], 1), ([0, 1], 2), ([4, 5, 6], 3)]
)
def test_hyperthreads_of_one_core_count_once(machine, affinity, cores):
    assert available_cores(machine, affinity) == cores


def test_the_newer_name_of_the_sibling_list_is_read(tmp_path):
    for cpu in range(2):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", "0-1")
    assert available_cores(tmp_path, range(2)) == 1


def test_without_topology_each_cpu_is_a_core(tmp_path):
    assert available_cores(tmp_path, range(3)) == 3


@pytest.mark.parametrize(
    ("quota", "cores"), [("250000 100000", 3), ("10000 100000", 1), ("max 100000", 4)]
)
def test_cgroup_v2_quota_limits_and_rounds_up(machine, quota, cores):
    write(machine, "proc/self/cgroup", "0::/job")
    write(machine, "sys/fs/cgroup/job/cpu.max", quota)
    assert available_cores(machine, range(8)) == cores


@pytest.mark.parametrize("tightest", ["", "a/", "a/b/"])
def test_the_tightest_quota_on_the_way_up_counts(machine, tightest):
    write(machine, "proc/self/cgroup", "0::/a/b")
    for group in ("", "a/", "a/b/"):
        quota = 100000 if group == tightest else 300000
        write(machine, f"sys/fs/cgroup/{group}cpu.max", f"{quota} 100000")
    assert available_cores(machine, range(8)) == 1


def test_a_group_seen_from_inside_a_container_falls_back_to_the_top(machine):
    write(machine, "proc/self/cgroup", "0::/../../docker/abc")
    write(machine, "sys/fs/cgroup/cpu.max", "200000 100000")
    write(machine, "sys/docker/abc/cpu.max", "100000 100000")  # outside of the mount
    assert available_cores(machine, range(8)) == 2


@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu"])
def test_cgroup_v1_quota_limits(machine, folder):
    write(machine, "proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/job\n3:cpuset:/")
    write(machine, f"sys/fs/cgroup/{folder}/job/cpu.cfs_quota_us", "150000")
    write(machine, f"sys/fs/cgroup/{folder}/job/cpu.cfs_period_us", "100000")
    assert available_cores(machine, range(8)) == 2


def test_cgroup_v1_without_a_quota_does_not_limit(machine):
    write(machine, "proc/self/cgroup", "4:cpu:/")
    write(machine, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    write(machine, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert available_cores(machine, range(8)) == 4


def test_this_machine_has_between_one_core_and_its_cpus():
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


def test_only_numa_nodes_with_our_cpus_count(machine):
    assert numa_nodes(machine, range(8)) == 2
    assert numa_nodes(machine, [0, 5]) == 1


def test_a_machine_that_tells_nothing_has_one_numa_node(tmp_path):
    assert numa_nodes(tmp_path, [0]) == 1


@given(st.integers(1, 512), st.integers(1, 512))
def test_threads_never_exceed_the_cores_unless_ranks_do(ranks, cores):
    threads = threads_per_rank(ranks, cores)
    assert threads >= 1
    assert threads == 1 or ranks * threads <= cores
    assert ranks * (threads + 1) > cores
