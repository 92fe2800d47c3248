"""The ways by which ranks come to two nodes: srun, plain mpirun, qrsh, ssh; and never nested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.clusters.cluster import AS_ROOT, Cluster
from support.clusters.slurm import PMIX

HELLO = """
import paceline
world = paceline.init()
print(f"rank {world.rank} of {world.size} on {world.node}", flush=True)
"""


def ranks(text: str) -> list[tuple[str, str, str]]:
    """What HELLO said, by rank."""
    return sorted(re.findall(r"rank (\d) of (\d) on (\w+)", text))


@pytest.fixture
def write():
    """Write the program into a place that all hosts of a cluster see."""

    def write(cluster: Cluster) -> Path:
        path = cluster.new_folder("hello") / "hello.py"
        path.write_text(HELLO)
        return path

    return write


TWO = [("0", "2", "node1"), ("1", "2", "node2")]


@pytest.mark.skipif(not PMIX, reason="Slurm's PMIx plugin needs libpmix.so (libpmix-dev)")
@pytest.mark.parametrize("way", ["ours", "theirs"])
def test_srun_starts_ranks_where_pmix_fits(slurm: Cluster, write, way):
    script = write(slurm)
    argv = ["paceline", "run", "--launcher", "srun", "--", script]
    if way == "theirs":
        argv = ["srun", "--mpi=pmix", "paceline", "run", "--", script]
    done = slurm.run(["salloc", "-N2", "-n2", "-Q", *argv])
    assert done.returncode == 0, done.stderr
    assert ranks(done.stdout) == TWO
    if way == "ours":
        assert done.stderr == ""


def test_srun_without_pmi_is_refused_with_the_remedy(slurm: Cluster, write):
    argv = ["srun", "--mpi=none", "paceline", "run", "--", write(slurm)]
    done = slurm.run(["salloc", "-N2", "-n2", "-Q", *argv])
    assert done.returncode != 0
    assert "srun started 2 tasks, but MPI formed a world of 1" in done.stderr
    assert "srun --mpi=pmix" in done.stderr


def test_plain_mpirun_in_a_shell_of_salloc(slurm: Cluster, write):
    argv = ["mpirun", "-n", "2", "--map-by", "node", "paceline", "run", "--", write(slurm)]
    done = slurm.run(["salloc", "-N2", "-n2", "-Q", *argv], env=AS_ROOT)
    assert done.returncode == 0, done.stderr
    assert ranks(done.stdout) == TWO


def test_plain_mpirun_in_a_shell_of_qrsh(grid_engine: Cluster, write):
    """Open MPI's wheel knows no Grid Engine: its mpirun stays on the node."""
    argv = ["mpirun", "-n", "2", "paceline", "run", "--", write(grid_engine)]
    shell = ["qrsh", "-now", "n", "-cwd", "-V", "-pe", "mpi", "4"]
    done = grid_engine.run([*shell, *argv], env=AS_ROOT, cwd=grid_engine.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    found = ranks(done.stdout)
    assert [(rank, size) for rank, size, _ in found] == [("0", "2"), ("1", "2")]


def test_a_shell_of_qrsh_has_the_nodes_of_its_job(grid_engine: Cluster, write):
    shell = ["qrsh", "-now", "n", "-cwd", "-V", "-pe", "mpi", "4"]
    argv = ["paceline", "run", "--", write(grid_engine)]
    done = grid_engine.run([*shell, *argv], cwd=grid_engine.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    found = ranks(done.stdout)
    assert [(rank, size) for rank, size, _ in found] == [(str(rank), "4") for rank in range(4)]
    assert {node for _, _, node in found} == {"node1", "node2"}


def test_more_ranks_than_slots_are_spread_all_the_same(slurm: Cluster, write):
    argv = ["paceline", "run", "-n", "4", "--", write(slurm)]
    done = slurm.run(["salloc", "-N2", "-n2", "-Q", *argv])
    assert done.returncode == 0, done.stderr
    assert [node for _, _, node in ranks(done.stdout)] == ["node1", "node1", "node2", "node2"]


def test_a_host_file_names_hosts(ssh_hosts: Cluster, write):
    file = ssh_hosts.new_folder("hostfile") / "hosts.txt"
    file.write_text("host2 slots=1  # near\nhost3:2\n")
    argv = ["paceline", "run", "--hostfile", file, "--", write(ssh_hosts)]
    done = ssh_hosts.run(argv)
    assert done.returncode == 0, done.stderr
    assert [node for _, _, node in ranks(done.stdout)] == ["host2", "host3", "host3"]


def test_hosts_that_cannot_be_used_are_all_named_at_once(ssh_hosts: Cluster, write):
    argv = ["paceline", "run", "--hosts", "host2:1,host8:1,host9:1", "--", write(ssh_hosts)]
    done = ssh_hosts.run(argv)
    assert done.returncode == 1
    assert "the name host8 is unknown" in done.stderr
    assert "the name host9 is unknown" in done.stderr


def test_ranks_see_the_variables_and_the_folder_of_who_started_them(ssh_hosts: Cluster):
    place = ssh_hosts.new_folder("a place with 'quotes'")
    (place / "show.py").write_text(
        "import os, sys\nprint(os.environ['MINE'], os.getcwd(), sys.argv[1:], flush=True)\n"
    )
    word = "it's $HOME"
    argv = ["paceline", "run", "--hosts", "host2:1,host3:1", "--", "show.py", word]
    done = ssh_hosts.run(argv, cwd=place, env={"MINE": "a; b"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == 2 * f"a; b {place} {[word]}\n"
